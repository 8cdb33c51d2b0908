"""The Ray shell around PopulationShard and LocalTrainer: placement and `remote`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from clients.population import part_count, shard_ranges
from clients.shard import PopulationShard
from fedray.answers import RayAnswer
from fedray.errors import ShardLost
from fedray.messages import CheckInOrder, CheckIns, Evaluation, Settlement, ShardPart, TrainOrder, TrainReport
from fedray.scenario import Scenario
from fedray.trace.schema import part_ranges


class _ShardBody:
    """What runs in the actor's process. The trainer, and torch with it, is loaded when first asked for."""

    def __init__(self, scenario: Scenario, first_device: int, end_device: int) -> None:
        self._scenario = scenario
        self._shard = PopulationShard(scenario, first_device, end_device)
        self._trainer: Any = None

    def check_ins(self, order: CheckInOrder) -> CheckIns:
        return self._shard.check_ins(order)

    def settle(self, settlements: Sequence[Settlement]) -> None:
        self._shard.settle(settlements)

    def encode_part(self, part: int) -> ShardPart:
        return self._shard.encode_part(part)

    def train(self, order: TrainOrder) -> TrainReport:
        return self._local_trainer().train(order)

    def evaluate(self, parameters: NDArray[np.float32]) -> Evaluation:
        return self._local_trainer().evaluate(parameters)

    def initial_parameters(self) -> NDArray[np.float32]:
        return self._local_trainer().initial_parameters()

    def _local_trainer(self) -> Any:
        if self._trainer is None:
            from clients.training import LocalTrainer

            self._trainer = LocalTrainer(self._scenario)
        return self._trainer


class RayShard:
    """A shard, and a trainer, in an actor of its own."""

    def __init__(self, scenario: Scenario, first_device: int, end_device: int, cpus: float, answer_timeout_seconds: float) -> None:
        self.first_device, self.end_device = first_device, end_device
        self._parts = part_ranges(scenario.population.devices, first_device, end_device)
        self._timeout = answer_timeout_seconds
        self._actor: Any = ray.remote(_ShardBody).options(num_cpus=cpus).remote(scenario, first_device, end_device)

    def check_ins(self, order: CheckInOrder) -> RayAnswer[CheckIns]:
        """See fedray.protocols.Shard."""
        return self._answer(self._actor.check_ins.remote(order))

    def settle(self, settlements: Sequence[Settlement]) -> RayAnswer[None]:
        """See fedray.protocols.Shard."""
        return self._answer(self._actor.settle.remote(settlements))

    def part_count(self) -> int:
        """See fedray.protocols.Shard."""
        return len(self._parts)

    def encode_part(self, part: int) -> RayAnswer[ShardPart]:
        """See fedray.protocols.Shard."""
        return self._answer(self._actor.encode_part.remote(part))

    def train(self, order: TrainOrder) -> RayAnswer[TrainReport]:
        """See fedray.protocols.Trainer."""
        return self._answer(self._actor.train.remote(order))

    def evaluate(self, parameters: NDArray[np.float32]) -> RayAnswer[Evaluation]:
        """See fedray.protocols.Trainer."""
        return self._answer(self._actor.evaluate.remote(parameters))

    def initial_parameters(self) -> RayAnswer[NDArray[np.float32]]:
        """See fedray.protocols.Trainer."""
        return self._answer(self._actor.initial_parameters.remote())

    def close(self) -> None:
        """Ends the actor."""
        ray.kill(self._actor)

    def _answer(self, reference: Any) -> RayAnswer[Any]:
        return RayAnswer(reference, f"the shard of devices {self.first_device} to {self.end_device}", self._timeout, ShardLost)


def start_shards(scenario: Scenario, shards: int, cpus: float, answer_timeout_seconds: float) -> list[RayShard]:
    """One actor per shard, never more than the trace has parts; each takes its share of the free CPUs, at most one."""
    devices = scenario.population.devices
    count = min(shards, part_count(devices))
    each = max(0.001, min(1.0, cpus / count))
    return [RayShard(scenario, first, end, each, answer_timeout_seconds) for first, end in shard_ranges(devices, count)]
