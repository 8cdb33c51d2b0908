"""Population shards and trainers as workers: see fedray/runtime/workers.py."""

from collections.abc import Callable, Sequence
from typing import Any

from fedray.base.blocks import part_count, part_ranges, shard_ranges
from fedray.base.errors import InputError, ShardLost, TrainerLost
from fedray.base.threads import usable_cpus
from fedray.runtime.nodes import shares_of
from fedray.runtime.placement import Placement
from fedray.runtime.reservation import FEW_CPUS, Reservation
from fedray.runtime.workers import (
    ActorSpec,
    InProcessWorker,
    RayWorker,
    ThreadWorker,
    Worker,
    WorkerProxy,
    called,
    called_and_kept,
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
    measure_devices, fetch = called("measure_devices"), called("fetch")
    group_sums = called("group_sums")


def shard_count(scenario: Scenario | SeveralTasks, placement: Placement, cpus: float) -> int:
    """Returns the number of shards on a number of CPUs: by default one per CPU, at most one per
    part of the trace."""
    device_ids = scenario.device_ids
    least = -(-device_ids // SHARD_DEVICES)
    return min(placement.shards or max(1, int(cpus), least), part_count(device_ids))


def start_shards(
    scenario: Scenario | SeveralTasks,
    placement: Placement,
    reservation: Reservation | None,
    history: History,
) -> list[ShardWorker]:
    """Starts the shards of a scenario: a host on every node, with its share of the shards.

    Args:
        scenario: scenario of the devices.
        placement: backend, and number of shards; see `shard_count`.
        reservation: nodes of the run; None in-process.
        history: lists the settlements so far, for a host that is restarted.
    """
    device_ids = scenario.device_ids
    cpus = _shards_here(scenario) if reservation is None else reservation.cpus
    count = shard_count(scenario, placement, cpus)
    ranges = shard_ranges(device_ids, count)
    if reservation is None:
        threads = min(count, usable_cpus()) if _can_use_threads(scenario) else 1
        worker = InProcessWorker(ShardHost, scenario, ranges, threads)
        return [ShardWorker(worker, device_ids, ranges, threads)]
    # The index is built before any worker starts, because a worker has a deadline to start.
    for task in tasks_of(scenario):
        build_index(task.scenario)
    scenario_once = shared(scenario)
    shards: list[ShardWorker] = []
    nodes = reservation.nodes
    for place, (begin, end) in enumerate(shares_of(nodes, count)):
        # A node with few CPUs may have no shard if there are few shards.
        if begin == end:
            continue
        own = ranges[begin:end]
        at_once = max(1, min(end - begin, int(nodes[place].cpus)))
        threads = at_once if _can_use_threads(scenario) else 1
        first = own[0][0]
        last = own[-1][1]
        spec = ActorSpec(
            name="Shard",
            label=f"shards-{place}",
            who=f"the host of the shards of devices {first} to {last}",
            make=ShardHost,
            arguments=(scenario_once, own, threads),
            lost=ShardLost,
            reservation=reservation,
            bundle=place,
            tags={"shard": str(first)},
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


def _catch_up(shards: list[ShardWorker], place: int, history: History) -> Callable[[], None]:
    def settle_again() -> None:
        shard = shards[place]
        for settlements in history(shard.first_device, shard.end_device):
            # One at a time, because a shard ignores attempts older than its last one.
            shard.settle(settlements).result()

    return settle_again


def start_trainers(
    scenario: Scenario, placement: Placement, reservation: Reservation | None
) -> list[TrainerWorker]:
    """Starts a pool of trainers. Any of them trains any device, so no result depends on their
    number.

    Args:
        scenario: scenario of the training.
        placement: backend, and in-process the number of trainers, one per CPU by default.
        reservation: bundles of the trainers; None in-process.

    Raises:
        InputError: several trainers would run user code on threads of this process, or the GPUs
            have no room for the trainers.
    """
    share = placement.trainer_gpus
    if reservation is None:
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
    bundles = reservation.trainer_bundles(placement)
    for number, bundle in enumerate(bundles, reservation.first_trainer):
        spec = ActorSpec(
            name="Trainer",
            label=f"trainer-{number}",
            who=f"trainer {number}",
            make=_make_trainer,
            arguments=(scenario_once, "cuda" if share else "cpu"),
            lost=TrainerLost,
            reservation=reservation,
            bundle=bundle,
            gpus=share,
            is_alone=_trains_own_code(scenario),
        )
        trainers.append(TrainerWorker(RayWorker(spec, placement, catch_up=lambda: None)))
    return trainers


def _gpus_here(placement: Placement, count: int) -> list[str]:
    """Returns the GPU of this machine for each of `count` trainers."""
    import torch

    gpus = torch.cuda.device_count()
    placement.demand_room(count, gpus)
    per_gpu = int(1.0 / placement.trainer_gpus + 1e-6)
    # The aggregator is on the first GPU, which is filled last.
    return [f"cuda:{gpus - 1 - number // per_gpu}" for number in range(count)]


def _trainers_here(scenario: Scenario) -> int:
    return 1 if _trains_own_code(scenario) else min(usable_cpus(), FEW_CPUS)


def _trains_own_code(scenario: Scenario) -> bool:
    return any(isinstance(table, PythonFile) for table in scenario.training_files)


def _make_trainer(scenario: Scenario, device: str) -> Any:
    # Loads torch, which only the worker's process needs.
    from .trainer import LocalTrainer

    return LocalTrainer(scenario, device)
