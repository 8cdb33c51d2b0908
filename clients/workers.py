"""Population shards and trainers as workers: see fedray/runtime/workers.py."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from fedray.base.blocks import part_count, part_ranges, shard_ranges
from fedray.base.errors import InputError, ShardLost, TrainerLost
from fedray.base.threads import usable_cpus
from fedray.runtime.placement import Placement
from fedray.runtime.workers import (
    ActorSpec,
    InProcessWorker,
    Node,
    RayWorker,
    ThreadWorker,
    Worker,
    WorkerProxy,
    called,
    called_and_kept,
    cluster_gpus,
    cluster_nodes,
    shared,
)
from fedray.scenario import Scenario, SeveralTasks
from fedray.scenario.content import PythonFile
from fedray.scenario.several_tasks import tasks_of
from fedray.wire.messages import CheckInOrder
from fedray.wire.protocols import History
from .data.factory import build_index
from .host import ShardHost

SHARD_DEVICES = 2**31
"""Most devices of a shard by default, within a part of the trace; the limit is twice as many."""
LEAST_FOR_THREADS = 1 << 20
"""Smallest population for which a run in one process has a shard per CPU by default; smaller runs
are over before threads gain anything."""
MOST_TRAINERS_HERE = 4
"""Most trainers of one process by default: between torch's operations, a trainer holds Python's
lock and others wait."""


class ShardWorker(WorkerProxy):
    """ShardHost behind fedray.wire.protocols.Shard.

    first_device, end_device: devices of the host, [first_device, end_device).
    shards: number of its shards.
    """

    check_ins, settle = called("check_ins"), called("settle")
    write_part, use = called("write_part"), called("use")

    def __init__(
        self, worker: Worker, device_ids: int, ranges: Sequence[tuple[int, int]], threads: int
    ) -> None:
        super().__init__(worker)
        self.first_device = ranges[0][0]
        self.end_device = ranges[-1][1]
        self.shards = len(ranges)
        self._parts = part_ranges(device_ids, self.first_device, self.end_device)
        self._runs_aside = worker.is_elsewhere or threads > 1

    def prepare(self, order: CheckInOrder) -> None:
        # In this thread, preparing would gain nothing.
        if self._runs_aside:
            self.worker.call("prepare", order)

    def part_count(self) -> int:
        return len(self._parts)


class TrainerWorker(WorkerProxy):
    """LocalTrainer behind fedray.wire.protocols.Trainer."""

    train = called_and_kept("train")
    describe, initial_parameters = called("describe"), called("initial_parameters")
    seconds_per_device, evaluate = called("seconds_per_device"), called("evaluate")
    measure_devices = called("measure_devices")


def start_shards(
    scenario: Scenario | SeveralTasks, placement: Placement, cpus: float, history: History
) -> list[ShardWorker]:
    """Starts the shards of a scenario: a host on every node, with its share of the shards.

    Args:
        scenario: scenario of the devices.
        placement: backend, and number of shards: one per CPU by default, at most one per part of
            the trace.
        cpus: free CPUs of the cluster; not read in-process.
        history: lists the settlements so far, for a host that is restarted.
    """
    device_ids = scenario.device_ids
    is_here = placement.backend == "in-process"
    per_cpu = _shards_here(scenario) if is_here else max(1, int(cpus))
    least = -(-device_ids // SHARD_DEVICES)
    count = min(placement.shards or max(per_cpu, least), part_count(device_ids))
    ranges = shard_ranges(device_ids, count)
    if is_here:
        threads = min(count, usable_cpus()) if _can_use_threads(scenario) else 1
        worker = InProcessWorker(ShardHost, scenario, ranges, threads)
        return [ShardWorker(worker, device_ids, ranges, threads)]
    # The index is built before any worker starts, because a worker has a deadline to start.
    for task in tasks_of(scenario):
        build_index(task.scenario)
    scenario_once = shared(scenario)
    nodes = cluster_nodes()
    # If other programs hold CPUs, it is unknown on which nodes, so none are reserved.
    are_free = cpus >= sum(node.cpus for node in nodes)
    shards: list[ShardWorker] = []
    for node, (begin, end) in zip(nodes, _shares(nodes, count), strict=True):
        # A node with few CPUs may have no shard if there are few shards.
        if begin == end:
            continue
        own = ranges[begin:end]
        at_once = max(1, min(end - begin, int(node.cpus)))
        threads = at_once if _can_use_threads(scenario) else 1
        first = own[0][0]
        last = own[-1][1]
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
        # The function reads `shards` when a host is lost; by then the list is complete.
        catch_up = _catch_up(shards, len(shards), history)
        worker = RayWorker(spec, placement, catch_up)
        shards.append(ShardWorker(worker, device_ids, own, threads))
    return shards


def _shards_here(scenario: Scenario | SeveralTasks) -> int:
    return usable_cpus() if scenario.device_ids >= LEAST_FOR_THREADS else 1


def _can_use_threads(scenario: Scenario | SeveralTasks) -> bool:
    # User code, and readers of recorded data, may not be made for threads.
    return all(
        task.scenario.data.draws_counts and task.scenario.availability.model != "custom"
        for task in tasks_of(scenario)
    )


def _shares(nodes: Sequence[Node], count: int) -> list[tuple[int, int]]:
    """Divides the shards among nodes in proportion to their CPUs: [begin, end) of each node."""
    total = sum(node.cpus for node in nodes)
    # Running sums are rounded, so that the shares add up.
    running = itertools.accumulate((node.cpus for node in nodes), initial=0.0)
    edges = [round(count * cpus / total) for cpus in running]
    return list(itertools.pairwise(edges))


def _catch_up(shards: list[ShardWorker], place: int, history: History) -> Callable[[], None]:
    def settle_again() -> None:
        shard = shards[place]
        for settlements in history(shard.first_device, shard.end_device):
            # One at a time, because a shard ignores attempts older than its last one.
            shard.settle(settlements).result()

    return settle_again


def start_trainers(scenario: Scenario, placement: Placement, cpus: float) -> list[TrainerWorker]:
    """Starts a pool of trainers. Any of them trains any device, so no result depends on their
    number.

    Args:
        scenario: scenario of the training.
        placement: backend, and number of trainers, one per CPU by default.
        cpus: CPUs of the cluster; not read in-process.

    Raises:
        InputError: several trainers would run user code on threads of this process, or the GPUs
            have no room for the trainers.
    """
    share = placement.trainer_gpus
    if placement.backend == "in-process":
        count = placement.trainers or (1 if share else _trainers_here(scenario))
        if count > 1 and _trains_own_code(scenario):
            raise InputError.of(
                "trainers",
                count,
                "must be 1 in one process, because your own data or task may not be made for "
                "threads",
                "leave trainers out, or train on Ray",
            )
        names = _gpus_here(placement, count) if share else ["cpu"] * count
        return [TrainerWorker(ThreadWorker(_make_trainer, scenario, name)) for name in names]
    build_index(scenario)
    scenario_once = shared(scenario)
    trainers = []
    gpus = cluster_gpus() if share else 0.0
    count = placement.trainers or (placement.trainers_on(gpus) if share else int(cpus))
    if share:
        # Ray would wait for more GPUs to join.
        _demand_room(placement, max(1, count), gpus)
    for number in range(max(1, count)):
        # A trainer reserves no CPU: a run's shards hold them, and wait while a model is trained.
        spec = ActorSpec(
            name="Trainer",
            who=f"trainer {number}",
            make=_make_trainer,
            arguments=(scenario_once, "cuda" if share else "cpu"),
            lost=TrainerLost,
            gpus=share,
        )
        trainers.append(TrainerWorker(RayWorker(spec, placement, catch_up=_has_no_state)))
    return trainers


def _gpus_here(placement: Placement, count: int) -> list[str]:
    """Returns the GPU of this machine for each of `count` trainers."""
    import torch

    gpus = torch.cuda.device_count()
    _demand_room(placement, count, gpus)
    per_gpu = int(1.0 / placement.trainer_gpus + 1e-6)
    # The aggregator is on the first GPU, which is filled last.
    return [f"cuda:{gpus - 1 - number // per_gpu}" for number in range(count)]


def _demand_room(placement: Placement, count: int, gpus: float) -> None:
    room = placement.trainers_on(gpus)
    if count > room:
        raise InputError.of(
            "trainer_gpus",
            placement.trainer_gpus,
            f"leaves room for {room} of {count} trainers on {gpus:g} GPUs",
            "leave it out for the CPU, or give fewer trainers or a smaller share",
        )


def trains_as_fast_here(scenario: Scenario) -> bool:
    """Whether Ray would have no more trainers on this machine than one process has."""
    return usable_cpus() <= _trainers_here(scenario)


def _trainers_here(scenario: Scenario) -> int:
    return 1 if _trains_own_code(scenario) else min(usable_cpus(), MOST_TRAINERS_HERE)


def _trains_own_code(scenario: Scenario) -> bool:
    return any(isinstance(table, PythonFile) for table in scenario.training_files)


def _has_no_state() -> None:
    pass


def _make_trainer(scenario: Scenario, device: str) -> Any:
    # Loads torch, which only the worker's process needs.
    from .trainer import LocalTrainer

    return LocalTrainer(scenario, device)
