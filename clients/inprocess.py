"""The in-process shell around PopulationShard and LocalTrainer: the same classes, called directly. For tests and debugging."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients.population import part_count, shard_ranges
from clients.shard import PopulationShard
from fedray.answers import Ready
from fedray.messages import CheckInOrder, CheckIns, Evaluation, Settlement, ShardPart, ShardUse, TrainOrder, TrainReport
from fedray.scenario import Scenario


class InProcessShard:
    """A shard, and a trainer, in this process."""

    restarts = 0

    def __init__(self, scenario: Scenario, first_device: int, end_device: int) -> None:
        self.first_device, self.end_device = first_device, end_device
        self._scenario = scenario
        self._shard = PopulationShard(scenario, first_device, end_device)

    def check_ins(self, order: CheckInOrder) -> Ready[CheckIns]:
        """See fedray.protocols.Shard."""
        return Ready(self._shard.check_ins(order))

    def prepare(self, order: CheckInOrder) -> None:
        """See fedray.protocols.Shard. Nothing is gained by it here."""

    def settle(self, settlements: Sequence[Settlement]) -> Ready[None]:
        """See fedray.protocols.Shard."""
        return Ready(self._shard.settle(settlements))

    def part_count(self) -> int:
        """See fedray.protocols.Shard."""
        return self._shard.part_count()

    def write_part(self, part: int, partial: str, token: str) -> Ready[ShardPart]:
        """See fedray.protocols.Shard."""
        return Ready(self._shard.write_part(part, partial, token))

    def use(self) -> Ready[ShardUse]:
        """See fedray.protocols.Shard."""
        return Ready(self._shard.use())

    def train(self, order: TrainOrder) -> Ready[TrainReport]:
        """See fedray.protocols.Trainer."""
        return Ready(self._trainer.train(order))

    def evaluate(self, parameters: NDArray[np.float32]) -> Ready[Evaluation]:
        """See fedray.protocols.Trainer."""
        return Ready(self._trainer.evaluate(parameters))

    def initial_parameters(self) -> Ready[NDArray[np.float32]]:
        """See fedray.protocols.Trainer."""
        return Ready(self._trainer.initial_parameters())

    def close(self) -> None:
        """Nothing to end."""

    @cached_property
    def _trainer(self) -> Any:
        from clients.training import LocalTrainer  # loads torch

        return LocalTrainer(self._scenario)


def start_shards(scenario: Scenario, shards: int) -> list[InProcessShard]:
    """The shards of a scenario, in this process; never more than the trace has parts."""
    devices = scenario.device_ids
    return [InProcessShard(scenario, first, end) for first, end in shard_ranges(devices, min(shards, part_count(devices)))]
