"""The aggregator as a worker: see fedray/runtime/workers.py."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedray.base.errors import AggregatorLost, InputError
from fedray.runtime.placement import Placement
from fedray.runtime.workers import (
    ActorSpec,
    InProcessWorker,
    Pending,
    RayWorker,
    Worker,
    cluster_gpus,
    shared,
)
from fedray.scenario import Scenario
from fedray.scenario.clipping import Clip
from fedray.wire.messages import TrainReport
from fedray.wire.protocols import Kept


class AggregatorWorker:
    """A ModelAggregator behind fedray.wire.protocols.Aggregator; `worker` says where it runs."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def start(self, parameters: NDArray[np.float32]) -> Pending[tuple[Clip, Kept]]:
        """See fedray.wire.protocols.Aggregator."""
        return self.worker.call_and_keep("start", parameters)

    def add(self, total: Kept) -> Pending[None]:
        """See fedray.wire.protocols.Aggregator."""
        return self.worker.call("add", total)

    def draw_noise(self) -> Pending[None]:
        """See fedray.wire.protocols.Aggregator."""
        return self.worker.call("draw_noise")

    def commit(self, report: TrainReport) -> Pending[tuple[Clip, Kept]]:
        """See fedray.wire.protocols.Aggregator."""
        return self.worker.call_and_keep("commit", report)

    def older_version(self, version: int) -> Pending[tuple[int, Kept]]:
        """See fedray.wire.protocols.Aggregator."""
        return self.worker.call_and_keep("older_version", version)

    def load(self, state: dict[str, NDArray]) -> Pending[tuple[Clip, Kept]]:
        """See fedray.wire.protocols.Aggregator."""
        return self.worker.call_and_keep("load", state)

    def state(self) -> Pending[dict[str, NDArray]]:
        """See fedray.wire.protocols.Aggregator."""
        return self.worker.call("state")

    def restart(self) -> None:
        """See fedray.wire.protocols.Aggregator."""
        self.worker.restart()


def start_aggregator(scenario: Scenario, placement: Placement) -> AggregatorWorker:
    """Starts the aggregator of a scenario. Raises InputError if the cluster has no GPU for it."""
    wanted = placement.aggregator_gpus
    device = "cuda" if wanted else "cpu"
    if placement.backend == "in-process":
        return AggregatorWorker(InProcessWorker(_make_aggregator, scenario, device))
    gpus = cluster_gpus()
    if wanted > gpus:  # Ray would wait for one to join
        raise InputError.of(
            "aggregator_gpus", wanted, f"but the cluster has {gpus:g}", "leave it out for the CPU"
        )
    spec = ActorSpec(
        name="Aggregator",
        who="the aggregator",
        make=_make_aggregator,
        arguments=(shared(scenario), device),
        lost=AggregatorLost,
        gpus=wanted,
    )
    # Only the training loop knows the state that a new aggregator needs.
    return AggregatorWorker(RayWorker(spec, placement, catch_up=None))


def _make_aggregator(scenario: Scenario, device: str) -> Any:
    from fedray.server.learning.aggregator import (
        ModelAggregator,  # loads torch, in the worker's process alone
    )

    return ModelAggregator(scenario, device)
