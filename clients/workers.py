"""Population shards and trainers as workers: see fedray/runtime/workers.py."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedray.base.blocks import part_count, part_ranges, shard_ranges
from fedray.base.errors import InputError, ShardLost, TrainerLost
from fedray.base.threads import usable_cpus
from fedray.clients.data.factory import build_index
from fedray.clients.host import ShardHost
from fedray.runtime.placement import Placement
from fedray.runtime.workers import (
    ActorSpec,
    InProcessWorker,
    Node,
    Pending,
    RayWorker,
    ThreadWorker,
    Worker,
    cluster_nodes,
    shared,
)
from fedray.scenario import Scenario, SeveralTasks
from fedray.scenario.content import PythonFile
from fedray.scenario.several_tasks import tasks_of
from fedray.wire.messages import (
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
from fedray.wire.protocols import History, Kept

LEAST_FOR_THREADS = 1 << 20
"""Devices from which on a run in one process has a shard per CPU by default: smaller ones are over
before threads gain anything."""
MOST_TRAINERS_HERE = 4
"""Trainers of one process by default. Between torch's operations a trainer holds Python's lock, so
that many trainers would wait for each other."""


class ShardWorker:
    """A ShardHost behind fedray.wire.protocols.Shard.

    worker: where it runs.
    first_device, end_device: its devices, [first_device, end_device).
    shards: how many it has.
    """

    def __init__(
        self, worker: Worker, device_ids: int, ranges: Sequence[tuple[int, int]], threads: int
    ) -> None:
        self.worker = worker
        self.first_device, self.end_device = ranges[0][0], ranges[-1][1]
        self.shards = len(ranges)
        self._parts = part_ranges(device_ids, self.first_device, self.end_device)
        self._goes_on = worker.is_elsewhere or threads > 1

    def check_ins(self, order: CheckInOrder) -> Pending[CheckIns]:
        """See fedray.wire.protocols.Shard."""
        return self.worker.call("check_ins", order)

    def prepare(self, order: CheckInOrder) -> None:
        """See fedray.wire.protocols.Shard. In this thread it would gain nothing."""
        if self._goes_on:
            self.worker.call("prepare", order)

    def settle(self, settlements: Sequence[Settlement]) -> Pending[None]:
        """See fedray.wire.protocols.Shard."""
        return self.worker.call("settle", settlements)

    def part_count(self) -> int:
        """See fedray.wire.protocols.Shard."""
        return len(self._parts)

    def write_part(self, part: int, partial: str, token: str) -> Pending[ShardPart]:
        """See fedray.wire.protocols.Shard."""
        return self.worker.call("write_part", part, partial, token)

    def use(self) -> Pending[ShardUse]:
        """See fedray.wire.protocols.Shard."""
        return self.worker.call("use")


class TrainerWorker:
    """A LocalTrainer behind fedray.wire.protocols.Trainer.

    worker: where it runs.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def train(self, order: TrainOrder, parameters: Kept) -> Pending[tuple[TrainReport, Kept]]:
        """See fedray.wire.protocols.Trainer."""
        return self.worker.call_and_keep("train", order, parameters)

    def describe(self) -> Pending[TaskDescription]:
        """See fedray.wire.protocols.Trainer."""
        return self.worker.call("describe")

    def seconds_per_device(
        self, order: TrainOrder, parameters: Kept, devices_at_once: int
    ) -> Pending[float]:
        """See fedray.wire.protocols.Trainer."""
        return self.worker.call("seconds_per_device", order, parameters, devices_at_once)

    def evaluate(self, parameters: Kept) -> Pending[Evaluation]:
        """See fedray.wire.protocols.Trainer."""
        return self.worker.call("evaluate", parameters)

    def initial_parameters(self) -> Pending[NDArray[np.float32]]:
        """See fedray.wire.protocols.Trainer."""
        return self.worker.call("initial_parameters")

    def measure_devices(
        self, parameters: Kept, device_ids: NDArray[np.uint64], most_examples: int
    ) -> Pending[DeviceMeasures]:
        """See fedray.clients.trainer.LocalTrainer. No training asks for it."""
        return self.worker.call("measure_devices", parameters, device_ids, most_examples)


def start_shards(
    scenario: Scenario | SeveralTasks, placement: Placement, cpus: float, history: History
) -> list[ShardWorker]:
    """The shards of a scenario: one host on every node, which has its share of them.

    There are never more shards than the trace has parts.

    Args:
        scenario: whose devices they are.
        placement: where they run, and how many shards they are: one per CPU by default.
        cpus: free ones of the cluster; not read in-process.
        history: gives all settlements so far of a range of devices, for a host that is started
            anew.
    """
    device_ids = scenario.device_ids
    is_here = placement.backend == "in-process"
    wanted = placement.shards or (_shards_here(scenario) if is_here else max(1, int(cpus)))
    count = min(wanted, part_count(device_ids))
    ranges = shard_ranges(device_ids, count)
    if is_here:
        threads = min(count, usable_cpus()) if _can_use_threads(scenario) else 1
        worker = InProcessWorker(ShardHost, scenario, ranges, threads)
        return [ShardWorker(worker, device_ids, ranges, threads)]
    # This is done before any worker starts, because a worker has a deadline to start.
    for task in tasks_of(scenario):
        build_index(task.scenario)
    scenario_once = shared(scenario)
    nodes = cluster_nodes()
    # Where somebody holds CPUs already, nobody knows on which nodes, and none are reserved.
    are_free = cpus >= sum(node.cpus for node in nodes)
    shards: list[ShardWorker] = []
    for node, (begin, end) in zip(nodes, _shares(nodes, count), strict=True):
        # A node with few CPUs may be left without a shard where there are few shards.
        if begin == end:
            continue
        own = ranges[begin:end]
        at_once = max(1, min(end - begin, int(node.cpus)))
        threads = at_once if _can_use_threads(scenario) else 1
        first, last = own[0][0], own[-1][1]
        spec = ActorSpec(
            name="Shard",
            who=f"the host of the shards of devices {first} to {last}",
            make=ShardHost,
            arguments=(scenario_once, own, threads),
            lost=ShardLost,
            cpus=min(float(threads), node.cpus) if are_free else 0.001,
            tags={"shard": str(first), "scenario": scenario.name},
            node=node.name,
        )
        # The call reads `shards` when a host is lost; by then all of them are in it.
        catch_up = _retelling(shards, len(shards), history)
        worker = RayWorker(spec, placement, catch_up)
        shards.append(ShardWorker(worker, device_ids, own, threads))
    return shards


def _shards_here(scenario: Scenario | SeveralTasks) -> int:
    """Shards in this process where the placement does not say how many."""
    return usable_cpus() if scenario.device_ids >= LEAST_FOR_THREADS else 1


def _can_use_threads(scenario: Scenario | SeveralTasks) -> bool:
    """Whether shards may work side by side in one process: a user's own code, and readers of
    recorded data, may not be made for threads."""
    return all(
        task.scenario.data.draws_counts and task.scenario.availability.model != "custom"
        for task in tasks_of(scenario)
    )


def _shares(nodes: Sequence[Node], count: int) -> list[tuple[int, int]]:
    """Which shards every node has, [begin, end): in proportion to its CPUs."""
    total = sum(node.cpus for node in nodes)
    edges, cpus = [0], 0.0
    for node in nodes:
        cpus += node.cpus
        # Running sums are rounded, so that the shares add up to all shards.
        edges.append(round(count * cpus / total))
    return list(itertools.pairwise(edges))


def _retelling(shards: list[ShardWorker], place: int, history: History) -> Callable[[], None]:
    def tell() -> None:
        shard = shards[place]
        for settlements in history(shard.first_device, shard.end_device):
            # Each is waited for, because a shard passes over attempts older than the last one it
            # heard.
            shard.settle(settlements).result()

    return tell


def start_trainers(scenario: Scenario, placement: Placement, cpus: float) -> list[TrainerWorker]:
    """The pool of trainers, one per CPU unless the placement says how many.

    They train any device, so no result depends on how many there are.

    Args:
        scenario: what is trained.
        placement: where they run, and how many they are.
        cpus: of the cluster; not read in-process.

    Raises:
        InputError: several trainers are asked for in this process, and the user's own code, which
            may not be made for threads, is to run in them.
    """
    if placement.backend == "in-process":
        count = placement.trainers or _trainers_here(scenario)
        if count > 1 and _trains_own_code(scenario):
            raise InputError(
                f"trainers={count} in one process: they would run your data or task on threads, "
                "for which it may not be made; leave trainers out, or train on Ray"
            )
        return [TrainerWorker(ThreadWorker(_make_trainer, scenario)) for _ in range(count)]
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


def trains_as_fast_here(scenario: Scenario) -> bool:
    """Whether Ray would have no more trainers on this machine than one process has."""
    return usable_cpus() <= _trainers_here(scenario)


def _trainers_here(scenario: Scenario) -> int:
    """Trainers in this process where the placement does not say how many."""
    return 1 if _trains_own_code(scenario) else min(usable_cpus(), MOST_TRAINERS_HERE)


def _trains_own_code(scenario: Scenario) -> bool:
    return any(isinstance(table, PythonFile) for table in scenario.training_files)


def _nothing() -> None:
    """A trainer has no state."""


def _make_trainer(scenario: Scenario) -> Any:
    from fedray.clients.trainer import LocalTrainer  # loads torch, in the worker's process alone

    return LocalTrainer(scenario)
