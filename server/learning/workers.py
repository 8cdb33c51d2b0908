"""The aggregator as a worker: see fedray/runtime/workers.py."""

from typing import Any

from fedray.base.errors import AggregatorLost
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

    def restart(self) -> None:
        """Restarts a lost aggregator, without state. Raises AggregatorLost after too many."""
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


def _make_aggregator(scenario: Scenario, device: str) -> Any:
    from .aggregator import (
        ModelAggregator,  # loads torch, in the worker's process alone
    )

    return ModelAggregator(scenario, device)
