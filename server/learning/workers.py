"""The aggregator and the store as workers: see fedray/runtime/workers.py."""

from typing import Any

from fedray.base.errors import AggregatorLost, StoreLost
from fedray.runtime.placement import Placement
from fedray.runtime.reservation import Reservation
from fedray.runtime.workers import (
    ActorSpec,
    InProcessWorker,
    RayWorker,
    WorkerProxy,
    called,
    called_and_kept,
    shared,
)
from fedray.scenario import Scenario


class AggregatorWorker(WorkerProxy):
    """A ModelAggregator, wherever it runs; parameters stay with it, and their handles travel."""

    start, load = called_and_kept("start"), called_and_kept("load")
    commit, older_version = called_and_kept("commit"), called_and_kept("older_version")
    add, draw_noise, state = called("add"), called("draw_noise"), called("state")
    rehearse = called("rehearse")

    def restart(self) -> None:
        """Restarts a lost aggregator, without state. Raises AggregatorLost after too many."""
        self.worker.restart()


class StoreWorker(WorkerProxy):
    """A SumStore, wherever it runs; opened sums stay with it, and their handles travel."""

    start, load, state = called("start"), called("load"), called("state")
    close, add, open = called("close"), called("add"), called_and_kept("open")

    def restart(self) -> None:
        """Restarts a lost store, without state. Raises StoreLost after too many."""
        self.worker.restart()


def start_aggregator(
    scenario: Scenario, placement: Placement, reservation: Reservation | None = None
) -> AggregatorWorker:
    """Starts the aggregator of a scenario, in its bundle of a reservation or in this process."""
    wanted = placement.aggregator_gpus
    device = "cuda" if wanted else "cpu"
    if reservation is None:
        return AggregatorWorker(InProcessWorker(_make_aggregator, scenario, device))
    spec = ActorSpec(
        name="Aggregator",
        label="aggregator",
        who="the aggregator",
        make=_make_aggregator,
        arguments=(shared(scenario), device),
        lost=AggregatorLost,
        reservation=reservation,
        bundle=reservation.aggregator_bundle(placement),
        gpus=wanted,
    )
    # Only the training loop knows the state that a new aggregator needs.
    return AggregatorWorker(RayWorker(spec, placement, catch_up=None))


def start_store(
    scenario: Scenario, placement: Placement, reservation: Reservation | None = None
) -> StoreWorker | None:
    """Starts the store of a scenario in which devices add noise, where an aggregator without a GPU
    would be, or in this process. Returns None if the server adds the noise."""
    if not scenario.privacy.sent.adds_noise:
        return None
    if reservation is None:
        return StoreWorker(InProcessWorker(_make_store, scenario))
    spec = ActorSpec(
        name="Store",
        label="store",
        who="the store",
        make=_make_store,
        arguments=(shared(scenario),),
        lost=StoreLost,
        reservation=reservation,
        bundle=0,
    )
    return StoreWorker(RayWorker(spec, placement, catch_up=None))


def _make_store(scenario: Scenario) -> Any:
    # Loads compiled code, which only the worker's process needs.
    from .store import SumStore

    return SumStore(scenario)


def _make_aggregator(scenario: Scenario, device: str) -> Any:
    from .aggregator import (
        ModelAggregator,  # loads torch, in the worker's process alone
    )

    return ModelAggregator(scenario, device)
