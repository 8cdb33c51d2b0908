"""The Ray shell around ModelAggregator: its GPU, if one is reserved, `remote`, and a new actor for one that was lost."""

import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from fedray.answers import RayAnswer, Start
from fedray.errors import AggregatorLost, InputError
from fedray.messages import TrainReport
from fedray.placement import Placement
from fedray.scenario import Scenario


class _AggregatorBody:
    """What runs in the actor's process. The aggregator, and torch with it, is loaded by the first call."""

    def __init__(self, scenario: Scenario, has_gpu: bool) -> None:
        self._scenario, self._device = scenario, "cuda" if has_gpu else "cpu"
        if not has_gpu:  # before torch looks for them: Ray leaves them in sight
            os.environ["CUDA_VISIBLE_DEVICES"] = ""

    @cached_property
    def _aggregator(self) -> Any:
        from server.aggregator import ModelAggregator

        return ModelAggregator(self._scenario, self._device)

    def load(self) -> None:
        _ = self._aggregator

    def start(self, parameters: NDArray[np.float32]) -> None:
        self._aggregator.start(parameters)

    def commit(self, round_index: int, reports: Sequence[TrainReport]) -> NDArray[np.float32]:
        return self._aggregator.commit(round_index, reports)

    def restore(self, state: dict[str, NDArray]) -> None:
        self._aggregator.restore(state)

    def checkpoint(self) -> dict[str, NDArray]:
        return self._aggregator.checkpoint()


class RayAggregator:
    """The aggregator in an actor of its own. Whoever calls brings it back when it is lost: only they know what to tell it.

    Raises InputError when the cluster has no GPU for it.
    """

    def __init__(self, scenario: Scenario, placement: Placement) -> None:
        gpus, wanted = ray.cluster_resources().get("GPU", 0.0), placement.aggregator_gpus
        if wanted > gpus:  # Ray would wait for one to join
            raise InputError(f"aggregator_gpus={wanted:g} but the cluster has {gpus:g}; leave it out for the CPU")
        self._placement = placement
        self._scenario: Any = ray.put(scenario)  # once, however often the actor is started
        self._last_loss = ""
        self.restarts = 0
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
            raise AggregatorLost(
                f"the aggregator {self._last_loss}, after {self.restarts} restarts; run again, with more memory or a longer "
                "worker timeout, if that was it"
            )
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
        gpus = self._placement.aggregator_gpus
        self._actor: Any = ray.remote(_AggregatorBody).options(num_cpus=0, num_gpus=gpus).remote(self._scenario, gpus > 0)
        self._started = Start(self._actor.load.remote())  # what is wrong with it, the first call says too

    def _answer(self, reference: Any) -> RayAnswer[Any]:
        return RayAnswer(reference, self._started, self._placement.worker_timeout_seconds, self._lost)

    def _lost(self, what: str) -> RayAnswer[Any]:
        self._last_loss = what
        raise AggregatorLost(f"the aggregator {what}")
