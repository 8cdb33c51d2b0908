"""Population shards and trainers as workers: see fedray/workers.py."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedray.blocks import part_count, part_ranges, shard_ranges
from fedray.clients.data.registry import build_index
from fedray.clients.several_tasks import shard_maker
from fedray.errors import ShardLost, TrainerLost
from fedray.messages import (
    CheckInOrder,
    CheckIns,
    DeviceMeasures,
    Evaluation,
    Settlement,
    ShardPart,
    ShardUse,
    TaskDescription,
    TrainOrder,
    TrainReport,
)
from fedray.placement import Placement
from fedray.protocols import History, Kept
from fedray.scenario import Scenario, SeveralTasks
from fedray.scenario.several_tasks import scenarios_of
from fedray.workers import ActorSpec, InProcessWorker, Pending, RayWorker, Worker, shared


class ShardWorker:
    """A PopulationShard behind fedray.protocols.Shard.

    worker: where it runs.
    first_device, end_device: its devices, [first_device, end_device).
    """

    def __init__(self, worker: Worker, device_ids: int, first_device: int, end_device: int) -> None:
        self.worker = worker
        self.first_device, self.end_device = first_device, end_device
        self._parts = part_ranges(device_ids, first_device, end_device)

    def check_ins(self, order: CheckInOrder) -> Pending[CheckIns]:
        """See fedray.protocols.Shard."""
        return self.worker.call("check_ins", order)

    def prepare(self, order: CheckInOrder) -> None:
        """See fedray.protocols.Shard. In this process it would gain nothing."""
        if self.worker.is_elsewhere:
            self.worker.call("prepare", order)

    def settle(self, settlements: Sequence[Settlement]) -> Pending[None]:
        """See fedray.protocols.Shard."""
        return self.worker.call("settle", settlements)

    def part_count(self) -> int:
        """See fedray.protocols.Shard."""
        return len(self._parts)

    def write_part(self, part: int, partial: str, token: str) -> Pending[ShardPart]:
        """See fedray.protocols.Shard."""
        return self.worker.call("write_part", part, partial, token)

    def use(self) -> Pending[ShardUse]:
        """See fedray.protocols.Shard."""
        return self.worker.call("use")


class TrainerWorker:
    """A LocalTrainer behind fedray.protocols.Trainer.

    worker: where it runs.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def train(self, order: TrainOrder, parameters: Kept) -> Pending[tuple[TrainReport, Kept]]:
        """See fedray.protocols.Trainer."""
        return self.worker.call_and_keep("train", order, parameters)

    def describe(self) -> Pending[TaskDescription]:
        """See fedray.protocols.Trainer."""
        return self.worker.call("describe")

    def seconds_per_device(
        self, order: TrainOrder, parameters: Kept, devices_at_once: int
    ) -> Pending[float]:
        """See fedray.protocols.Trainer."""
        return self.worker.call("seconds_per_device", order, parameters, devices_at_once)

    def evaluate(self, parameters: Kept) -> Pending[Evaluation]:
        """See fedray.protocols.Trainer."""
        return self.worker.call("evaluate", parameters)

    def initial_parameters(self) -> Pending[NDArray[np.float32]]:
        """See fedray.protocols.Trainer."""
        return self.worker.call("initial_parameters")

    def measure_devices(
        self, parameters: Kept, device_ids: NDArray[np.uint64], most_examples: int
    ) -> Pending[DeviceMeasures]:
        """See fedray.clients.trainer.LocalTrainer. No training asks for it."""
        return self.worker.call("measure_devices", parameters, device_ids, most_examples)


def start_shards(
    scenario: Scenario | SeveralTasks, placement: Placement, cpus: float, history: History
) -> list[ShardWorker]:
    """The shards of a scenario, one per CPU unless the placement says how many.

    There are never more than the trace has parts. On Ray each reserves its share of the CPUs, one
    at most.

    Args:
        scenario: whose devices they are.
        placement: where they run, and how many they are.
        cpus: free ones of the cluster; not read in-process, where one shard is the default.
        history: gives all settlements so far of a range of devices, for a shard that is started
            anew.
    """
    device_ids = scenario.device_ids
    is_here = placement.backend == "in-process"
    wanted = placement.shards or (1 if is_here else max(1, int(cpus)))
    count = min(wanted, part_count(device_ids))
    ranges = shard_ranges(device_ids, count)
    make = shard_maker(scenario)
    if is_here:
        return [
            ShardWorker(InProcessWorker(make, scenario, *edges), device_ids, *edges)
            for edges in ranges
        ]
    for each in scenarios_of(scenario):
        build_index(each)
    scenario_once = shared(scenario)
    share = max(0.001, min(1.0, cpus / count))
    shards = []
    for first, end in ranges:
        spec = ActorSpec(
            name="Shard",
            who=f"the shard of devices {first} to {end}",
            make=make,
            arguments=(scenario_once, first, end),
            lost=ShardLost,
            cpus=share,
            tags={"shard": str(first), "scenario": scenario.name},
        )
        # The call reads `shards` when a shard is lost; by then all of them are in it.
        catch_up = _retelling(shards, len(shards), history)
        shards.append(ShardWorker(RayWorker(spec, placement, catch_up), device_ids, first, end))
    return shards


def _retelling(shards: list[ShardWorker], place: int, history: History) -> Callable[[], None]:
    def tell() -> None:
        shard = shards[place]
        for settlements in history(shard.first_device, shard.end_device):
            shard.settle(settlements).result()

    return tell


def start_trainers(scenario: Scenario, placement: Placement, cpus: float) -> list[TrainerWorker]:
    """The pool of trainers, one per CPU unless the placement says how many.

    They train any device, so no result depends on how many there are.

    Args:
        scenario: what is trained.
        placement: where they run, and how many they are.
        cpus: of the cluster; not read in-process, where there is one trainer.
    """
    if placement.backend == "in-process":
        return [TrainerWorker(InProcessWorker(_make_trainer, scenario))]
    build_index(scenario)
    scenario_once = shared(scenario)
    trainers = []
    for number in range(placement.trainers or max(1, int(cpus))):
        # It reserves no CPU: a run's shards have them, and wait while a model is trained.
        spec = ActorSpec(
            name="Trainer",
            who=f"trainer {number}",
            make=_make_trainer,
            arguments=(scenario_once,),
            lost=TrainerLost,
        )
        trainers.append(TrainerWorker(RayWorker(spec, placement, catch_up=_nothing)))
    return trainers


def _nothing() -> None:
    """A trainer has no state."""


def _make_trainer(scenario: Scenario) -> Any:
    from fedray.clients.trainer import LocalTrainer  # loads torch, in the worker's process alone

    return LocalTrainer(scenario)
