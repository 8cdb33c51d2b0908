"""The Ray shell around ModelAggregator: a GPU if the cluster has one, `remote`, and a new actor for one that died."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from fedray.answers import RayAnswer
from fedray.errors import AggregatorLost
from fedray.messages import TrainReport
from fedray.placement import Placement
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

    def restore(self, state: dict[str, NDArray]) -> None:
        self._aggregator.restore(state)

    def checkpoint(self) -> dict[str, NDArray]:
        return self._aggregator.checkpoint()


class RayAggregator:
    """The aggregator in an actor of its own. Whoever calls brings it back when it dies: only they know what to tell it."""

    def __init__(self, scenario: Scenario, placement: Placement) -> None:
        self._scenario, self._placement = scenario, placement
        self.restarts = 0
        # Chosen once: one that is started anew draws the same noise only on the same kind of device.
        self._gpus = 1 if ray.available_resources().get("GPU", 0) >= 1 else 0
        self._start()

    def start(self, parameters: NDArray[np.float32]) -> RayAnswer[None]:
        """See fedray.protocols.Aggregator."""
        return self._answer(self._actor.start.remote(parameters))

    def commit(self, round_index: int, reports: Sequence[TrainReport]) -> RayAnswer[NDArray[np.float32]]:
        """See fedray.protocols.Aggregator."""
        return self._answer(self._actor.commit.remote(round_index, reports))

    def restore(self, state: dict[str, NDArray]) -> RayAnswer[None]:
        """See fedray.protocols.Aggregator."""
        return self._answer(self._actor.restore.remote(state))

    def restart(self) -> None:
        """See fedray.protocols.Aggregator. Raises AggregatorLost after too many restarts."""
        if self.restarts >= self._placement.most_restarts:
            raise AggregatorLost(f"the aggregator died, after {self.restarts} restarts; run again, with more memory if that was it")
        self.restarts += 1
        ray.kill(self._actor)
        self._start()

    def checkpoint(self) -> RayAnswer[dict[str, NDArray]]:
        """See fedray.protocols.Aggregator."""
        return self._answer(self._actor.checkpoint.remote())

    def close(self) -> None:
        """Ends the actor."""
        ray.kill(self._actor)

    def _start(self) -> None:
        self._actor: Any = ray.remote(_AggregatorBody).options(num_cpus=0, num_gpus=self._gpus).remote(self._scenario)

    def _answer(self, reference: Any) -> RayAnswer[Any]:
        return RayAnswer(reference, "the aggregator", self._placement.answer_timeout_seconds, AggregatorLost, self._lost)

    def _lost(self, reason: str) -> RayAnswer[Any]:
        raise AggregatorLost(f"the aggregator died ({reason})")
