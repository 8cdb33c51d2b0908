"""TasksShard: a range of devices that several federated tasks share. Plain Python, as
clients/shard.py; clients/host.py puts several of them on a node.

A device checks in by one process, whatever the tasks are: it may come as soon as one of them would
admit it. Each task has a `PopulationShard` of its own, which keeps what the devices remember of
it, the rows of its trace, and its census. One more, without rules of participation, draws the
check-ins; its timers open when the first of a device's timers does.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedray.base.blocks import part_ranges
from fedray.scenario import Scenario, SeveralTasks
from fedray.scenario.participation import Participation
from fedray.scenario.several_tasks import tasks_of
from fedray.wire.messages import CheckInOrder, CheckIns, Settlement, ShardPart
from .check_in import FirstCheckIns
from .shard import PopulationShard


class TasksShard:
    """Devices [first_device, end_device) of a scenario with several tasks.

    It answers as a `PopulationShard` does. Parts of the traces are counted task by task: with P
    parts of a trace, part p of task t is part t P + p here.
    """

    def __init__(self, scenario: SeveralTasks, first_device: int, end_device: int) -> None:
        self.first_device, self.end_device = first_device, end_device
        self._scenarios = [task.scenario for task in scenario.tasks]
        self._parts = len(part_ranges(scenario.device_ids, first_device, end_device))
        self._process = PopulationShard(_without_rules(scenario.common), first_device, end_device)
        self._tasks = [
            PopulationShard(each, first_device, end_device, like=self._process)
            for each in self._scenarios
        ]

    def prepare(self, order: CheckInOrder) -> None:
        self._process.prepare(_of_process(order))

    def check_ins(self, order: CheckInOrder) -> CheckIns:
        """Applies the order's settlements, then lists its window's first check-ins, with the
        devices' reports to each task."""
        self.settle(order.settlements)
        found = self._process.check_ins(_of_process(order))
        local = (found.device_ids - np.uint64(self.first_device)).astype(np.uint32)
        first = FirstCheckIns(local, found.times, found.times, found.interval_ends)
        said = [
            task.check_ins_at(first, replace(order, rounds=(number,), settlements=()))
            for task, number in zip(self._tasks, order.rounds, strict=True)
        ]
        size = local.size

        def columns(name: str, absent: Sequence[float], kind: type) -> NDArray:
            """[A, T]; `absent` stands for columns that a task leaves out."""
            found = np.empty((size, len(said)), kind)
            for place, each in enumerate(said):
                column = getattr(each, name)
                found[:, place] = column if column.size else absent[place]
            return found

        none = [0.0] * len(said)
        # A task leaves the column out where all devices keep its timer.
        timers = [each.participation.timer_seconds for each in self._scenarios]
        return replace(
            found,
            fixed_seconds=columns("fixed_seconds", none, np.float32),
            training_seconds=columns("training_seconds", none, np.float32),
            upload_seconds=columns("upload_seconds", none, np.float32),
            last_rounds=columns("last_rounds", [-1] * len(said), np.int32),
            timer_seconds=columns("timer_seconds", timers, np.float64),
            contributions=columns("contributions", none, np.uint32),
            open_times=columns("open_times", none, np.float64),
            task_censuses=tuple(each.census for each in said),
        )

    def settle(self, settlements: Iterable[Settlement]) -> None:
        """Starts timers and keeps the rows for the traces.

        Args:
            settlements: settlements in order of attempt. Those of one attempt, which may start
                timers of several tasks, come together.
        """
        settlements = tuple(settlements)
        for settlement in settlements:
            self._tasks[settlement.task].settle([settlement])
        # Once all of an attempt have started their timers, the first of a device's timers is known.
        for _, group in itertools.groupby(settlements, lambda each: each.attempt):
            settlement = next(group)
            ids = settlement.device_ids
            open_times = np.stack([task.open_times_of(ids) for task in self._tasks])
            self._process.settle(
                [
                    replace(
                        settlement,
                        round_index=Settlement.NO_ROUND,
                        # The first timer counts: a device may come as soon as one task admits it.
                        open_times=open_times.min(axis=0),
                    )
                ]
            )

    def write_part(self, part: int, partial: str, token: str) -> ShardPart:
        """See `PopulationShard.write_part`; `partial` is the directory of the task's trace."""
        task, own = divmod(part, self._parts)
        return self._tasks[task].write_part(own, partial, token)

    @property
    def part_count(self) -> int:
        """Number of its parts of the traces."""
        return len(self._tasks) * self._parts

    @property
    def rows(self) -> int:
        """Rows of the traces that it holds."""
        return sum(task.rows for task in self._tasks)


def shard_of(
    scenario: Scenario | SeveralTasks, first_device: int, end_device: int
) -> PopulationShard | TasksShard:
    """The shard of a range of devices, by whether several tasks share them."""
    tasks = tasks_of(scenario)
    if len(tasks) == 1:
        return PopulationShard(tasks[0].scenario, first_device, end_device)
    assert isinstance(scenario, SeveralTasks)
    return TasksShard(scenario, first_device, end_device)


def _of_process(order: CheckInOrder) -> CheckInOrder:
    """Returns the order without fields of single tasks, so that preparations stay valid."""
    return replace(order, rounds=(0,), settlements=())


def _without_rules(scenario: Scenario) -> Scenario:
    """A scenario whose devices may come at any time, as far as its rules go."""
    free = Participation(policies=())
    return scenario.model_copy(update={"participation": free})
