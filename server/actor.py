"""The Ray shell around ModelAggregator: a GPU if the cluster has one, and `remote`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from fedray.answers import RayAnswer
from fedray.errors import AggregatorLost
from fedray.messages import TrainReport
from fedray.scenario import Scenario


class _AggregatorBody:
    """What runs in the actor's process."""

    def __init__(self, scenario: Scenario) -> None:
        from server.aggregator import ModelAggregator

        self._aggregator = ModelAggregator(scenario)

    def start(self, parameters: NDArray[np.float32]) -> None:
        self._aggregator.start(parameters)

    def commit(self, round_index: int, reports: Sequence[TrainReport]) -> NDArray[np.float32]:
        return self._aggregator.commit(round_index, reports)

    def checkpoint(self) -> dict[str, NDArray]:
        return self._aggregator.checkpoint()


class RayAggregator:
    """The aggregator in an actor of its own."""

    def __init__(self, scenario: Scenario, answer_timeout_seconds: float) -> None:
        gpus = 1 if ray.available_resources().get("GPU", 0) >= 1 else 0
        self._timeout = answer_timeout_seconds
        self._actor: Any = ray.remote(_AggregatorBody).options(num_cpus=0, num_gpus=gpus).remote(scenario)

    def start(self, parameters: NDArray[np.float32]) -> RayAnswer[None]:
        """See fedray.protocols.Aggregator."""
        return self._answer(self._actor.start.remote(parameters))

    def commit(self, round_index: int, reports: Sequence[TrainReport]) -> RayAnswer[NDArray[np.float32]]:
        """See fedray.protocols.Aggregator."""
        return self._answer(self._actor.commit.remote(round_index, reports))

    def checkpoint(self) -> RayAnswer[dict[str, NDArray]]:
        """See fedray.protocols.Aggregator."""
        return self._answer(self._actor.checkpoint.remote())

    def close(self) -> None:
        """Ends the actor."""
        ray.kill(self._actor)

    def _answer(self, reference: Any) -> RayAnswer[Any]:
        return RayAnswer(reference, "the aggregator", self._timeout, AggregatorLost)
