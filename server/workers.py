"""The aggregator as a worker: see fedray/workers.py."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedray.errors import AggregatorLost, InputError
from fedray.messages import Clip, TrainReport
from fedray.placement import Placement
from fedray.protocols import Kept
from fedray.scenario import Scenario
from fedray.workers import (
    ActorSpec,
    InProcessWorker,
    Pending,
    RayWorker,
    Worker,
    cluster_gpus,
    shared,
)


class AggregatorWorker:
    """A ModelAggregator behind fedray.protocols.Aggregator; `worker` says where it runs."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def start(self, parameters: NDArray[np.float32]) -> Pending[tuple[Clip, Kept]]:
        """See fedray.protocols.Aggregator."""
        return self.worker.call_and_keep("start", parameters)

    def add(self, total: Kept) -> Pending[None]:
        """See fedray.protocols.Aggregator."""
        return self.worker.call("add", total)

    def draw_noise(self) -> Pending[None]:
        """See fedray.protocols.Aggregator."""
        return self.worker.call("draw_noise")

    def commit(self, report: TrainReport) -> Pending[tuple[Clip, Kept]]:
        """See fedray.protocols.Aggregator."""
        return self.worker.call_and_keep("commit", report)

    def older_version(self, version: int) -> Pending[tuple[int, Kept]]:
        """See fedray.protocols.Aggregator."""
        return self.worker.call_and_keep("older_version", version)

    def load(self, state: dict[str, NDArray]) -> Pending[tuple[Clip, Kept]]:
        """See fedray.protocols.Aggregator."""
        return self.worker.call_and_keep("load", state)

    def state(self) -> Pending[dict[str, NDArray]]:
        """See fedray.protocols.Aggregator."""
        return self.worker.call("state")

    def restart(self) -> None:
        """See fedray.protocols.Aggregator."""
        self.worker.restart()


def start_aggregator(scenario: Scenario, placement: Placement) -> AggregatorWorker:
    """The aggregator of a scenario. Raises InputError when the cluster has no GPU for it."""
    wanted = placement.aggregator_gpus
    device = "cuda" if wanted else "cpu"
    if placement.backend == "in-process":
        return AggregatorWorker(InProcessWorker(_make_aggregator, scenario, device))
    gpus = cluster_gpus()
    if wanted > gpus:  # Ray would wait for one to join
        raise InputError(
            f"aggregator_gpus={wanted:g} but the cluster has {gpus:g}; leave it out for the CPU"
        )
    spec = ActorSpec(
        name="Aggregator",
        who="the aggregator",
        make=_make_aggregator,
        arguments=(shared(scenario), device),
        lost=AggregatorLost,
        gpus=wanted,
    )
    # Only the training loop knows what a new aggregator must be told, so it does the catching up.
    return AggregatorWorker(RayWorker(spec, placement, catch_up=None))


def _make_aggregator(scenario: Scenario, device: str) -> Any:
    from fedray.server.aggregator import (
        ModelAggregator,  # loads torch, in the worker's process alone
    )

    return ModelAggregator(scenario, device)
