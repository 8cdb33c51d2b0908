"""The coordinator of several federated tasks that share the devices (Bonawitz et al. 2019, sections
2 and 4): one walk through the check-ins, and the rounds of each task as it would form them alone.

Shards list the check-ins of a window once, for all tasks. Pace steering asks for as many as the
tasks that run want together, but no device more often than the largest
`rounds.max_checkins_per_hour` of them. server/rounds/joint_selection.py says who waits for which
task.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedray.base.errors import Starved
from fedray.scenario import SeveralTasks
from fedray.server.policies.policy import Policies
from fedray.server.rounds.coordinator import ClosedRound, CohortLoop, Supply, WindowOver
from fedray.server.rounds.joint_selection import JointSelection
from fedray.server.rounds.pace import Pace, Samplers
from fedray.server.rounds.rounds import Reporting, RoundRules, Selected
from fedray.server.rounds.selection import DOWN, EXHAUSTED
from fedray.server.rounds.shards import Shards
from fedray.trace.checkpoints import prefixed, under
from fedray.wire.messages import (
    NO_WINDOW,
    Census,
    CheckInOrder,
    CheckIns,
    RoundRecord,
    Settlement,
    Window,
)
from fedray.wire.protocols import Shard


@dataclass(frozen=True, slots=True)
class TaskRound:
    """An attempt at a round of one of the tasks that has closed.

    task: its place in the scenario.
    closed: the attempt.
    others: what starts the timers of the tasks that share this one's, a settlement for each.
    """

    task: int
    closed: ClosedRound
    others: tuple[Settlement, ...]


class _GatheringOf:
    """Who waits for one task; see `server.coordinator.Gathering`."""

    def __init__(self, joint: JointSelection, task: int) -> None:
        self._joint, self._task = joint, task

    @property
    def waiting(self) -> int:
        return self._joint.waiting(self._task)

    @property
    def down_until(self) -> float:
        return self._joint.down_until

    def open(self, opened: float, ready_time: float) -> None:
        self._joint.open(self._task, opened, ready_time)

    def take(self) -> Selected:
        return self._joint.take(self._task)

    def let_go(
        self,
        selected: Selected,
        busy_until: NDArray[np.float64],
        reopen_times: NDArray[np.uint32],
        remembered_rounds: NDArray[np.int32],
        contributions: NDArray[np.uint32],
    ) -> None:
        self._joint.remember(
            self._task, selected.device_ids, reopen_times, remembered_rounds, contributions
        )
        self._joint.let_go(selected, busy_until)

    def start_window(self, check_ins: CheckIns, window: Window) -> None:
        """All tasks go on together: `JointSelection.start_window`."""
        raise NotImplementedError

    def state(self) -> dict[str, NDArray]:
        """None of its own: `JointSelection.state` is that of all tasks."""
        return {}

    def load(self, state: dict[str, NDArray]) -> None:
        """None of its own."""


class TaskLoop(CohortLoop):
    """The rounds of one task, which is told when it may close an attempt.

    Args:
        several: the tasks.
        task: its place among them.
        rules: of its rounds.
        joint: who waits for which task.
        attempt_number: gives the number of the next attempt, which counts those of all tasks.
        tell: takes what the shards are to hear.
    """

    def __init__(
        self,
        several: SeveralTasks,
        task: int,
        rules: RoundRules,
        joint: JointSelection,
        attempt_number: Callable[[], int],
        tell: Callable[[Settlement], None],
    ) -> None:
        own = several.tasks[task]
        # It has no shards, because the coordinator of all tasks talks to them.
        super().__init__(own.scenario, (), rules, _GatheringOf(joint, task))
        self.name = own.name
        self.starved = ""
        """Why the simulated days did not suffice; empty as long as they do."""
        self._task = task
        self._joint = joint
        self._next_number = attempt_number
        self._tell = tell
        self._sharing = several.sharing_timer(task)
        self._shared = _time_rules(rules.policies)
        self._others: tuple[Settlement, ...] = ()
        self._opened = self._begins = own.starts_seconds
        joint.select_from(task, own.starts_seconds)
        joint.open(task, own.starts_seconds, ready_time=own.starts_seconds)

    @property
    def round_index(self) -> int:
        """The round that is being formed."""
        return self._round_index

    @property
    def is_over(self) -> bool:
        """Whether no more rounds are formed."""
        is_done = self._round_index >= self._scenario.rounds.count
        return is_done or bool(self.stopped or self.starved)

    @property
    def ended(self) -> str:
        """How it ended, as run.json says it."""
        if self.stopped:
            return f"stopped: {self.stopped}"
        return f"starved: {self.starved}" if self.starved else "completed"

    @property
    def census(self) -> Census:
        """Of the present window, by the task's own rules."""
        return self._census

    def enter(self, window: Window, census: Census) -> None:
        """Goes on to a window.

        Args:
            window: the next one.
            census: of its start, by the task's own rules.
        """
        self._window = window
        self._census = census
        # The first census sets the pace alone, and is that of no window.
        if window.number >= 0:
            self._since_commit += census

    def close(self, status: int, time: float) -> TaskRound:
        """Closes the attempt that selection is open for.

        Args:
            status: FULL or TIMED_OUT.
            time: when that was so, seconds since start.
        """
        # An attempt that is given up settles nobody, and must not tell the last one's again.
        self._others = ()
        closed = self._close(status, time)
        self._note(closed)
        return TaskRound(self._task, closed, self._others)

    def send_away(self) -> None:
        """Lets everybody go who waits for the task, until the outage is over."""
        self._send_away(self._joint.down_until)

    def starve_at(self, time: float) -> None:
        """Ends the task if it lacks devices at a time, seconds since start."""
        if not self.is_over and self._is_starved(time):
            self.starved = self._why_starved()
            self._send_away(time)
            self._joint.select_from(self._task, np.inf)

    def state(self) -> dict[str, NDArray]:
        """Everything of its own, as named arrays."""
        return {**super().state(), "ended": np.array([self.stopped, self.starved])}

    def load(self, state: dict[str, NDArray]) -> None:
        """Takes up a state."""
        super().load(state)
        self.stopped, self.starved = (str(each) for each in state["ended"])

    @property
    def _attempt(self) -> int:
        return self._next_number()

    def _settle(self, selected: Selected, reporting: Reporting) -> Settlement:
        """Tells the tasks that share its timer too: before its own devices are let go, because when
        they come again depends on all of their timers."""
        settlement = replace(reporting.settlement, task=self._task)
        if self._sharing:
            reopen_times = self._shared.reopen_times(reporting.attempted)
            # Only the timer is shared: the other tasks learn nothing of rounds and counts.
            unknown = np.full(reopen_times.size, -1, np.int32)
            none = np.zeros(reopen_times.size, np.uint32)
            for task in self._sharing:
                self._joint.remember(task, settlement.device_ids, reopen_times, unknown, none)
            self._others = tuple(
                _timers_alone(settlement, task, reopen_times) for task in self._sharing
            )
        settlement = super()._settle(selected, replace(reporting, settlement=settlement))
        for each in (settlement, *self._others):
            self._tell(each)
        return settlement


def _time_rules(policies: Policies) -> Policies:
    """Those of the policies that tasks share which share a timer: caps count the contributions to
    one task alone."""
    return replace(
        policies, each=tuple(each for each in policies.each if not each.counts_contributions)
    )


def _timers_alone(
    settlement: Settlement, task: int, reopen_times: NDArray[np.uint32]
) -> Settlement:
    """What another task hears of an attempt: timers start, and nothing else."""
    return replace(
        settlement,
        task=task,
        round_index=Settlement.NO_ROUND,
        reopen_times=reopen_times,
        remembers_round=np.zeros(reopen_times.size, np.bool_),
    )


class TasksPace(Pace):
    """The orders that shards get where several tasks share the devices.

    Args:
        several: the tasks.
    """

    def __init__(self, several: SeveralTasks) -> None:
        super().__init__(several.common)
        self._each = [Pace(task.scenario) for task in several.tasks]
        rounds = [task.scenario.rounds for task in several.tasks]
        self._most = max(each.max_checkins_per_hour for each in rounds)
        # Devices come together if any task needs that, since they come for all.
        self.is_small = any(each.is_small for each in self._each)
        self._wanted_rate = 0.0

    def joint_order(
        self, window: int, census: Census, task_censuses: Sequence[Census], running: Sequence[bool]
    ) -> CheckInOrder:
        """The order for a window, without settlements and rounds.

        Args:
            window: its number.
            census: of the window before, whatever the tasks' rules.
            task_censuses: the same by the rules of each task, [T].
            running: whether each task wants devices, [T].
        """
        # Tasks that are over, or not begun, want nobody and must not raise the rate.
        rates = [
            pace.rate(each.free_eligible)
            for pace, each, is_running in zip(self._each, task_censuses, running, strict=True)
            if is_running
        ]
        self._wanted_rate = min(self._most, sum(rates, 0.0))
        return self.order(window, census, 0)

    def rate(self, free_eligible: int) -> float:
        """The check-ins per hour that the running tasks want together."""
        del free_eligible
        return self._wanted_rate


class TasksCoordinator:
    """Forms the rounds of all tasks until each has committed its own, or cannot.

    Args:
        several: the tasks.
        shards: of the population, in order of their devices.

    tasks: the rounds of each task.
    """

    def __init__(self, several: SeveralTasks, shards: Sequence[Shard]) -> None:
        self._several = several
        self._shards = Shards(shards)
        rules = [RoundRules.of(task.scenario) for task in several.tasks]
        self._selection = JointSelection(several, rules)
        self.tasks = [
            TaskLoop(
                several, place, each, self._selection, self._next_attempt_number, self._shards.tell
            )
            for place, each in enumerate(rules)
        ]
        self._pace = TasksPace(several)
        self._samplers = Samplers()
        self._window = NO_WINDOW
        self._census = Census(0, 0, 0, 0)
        self._running = [False] * len(self.tasks)
        """Which tasks wanted devices when the order for the next window was made."""
        self._coming: CheckInOrder | None = None

    def events(self) -> Iterator[TaskRound | WindowOver]:
        """Yields every attempt as it closes, and the end of every window.

        Raises:
            Starved: the simulated days ran out before any task had committed a round.
        """
        if self._window.number < 0:
            # The pace of the first window follows from a census: this order asks for it alone.
            check_ins = self._shards.check_ins(self._with_rounds(self._pace.census_only()))
            self._census = check_ins.census
            for task, census in zip(self.tasks, check_ins.task_censuses, strict=True):
                task.enter(self._window, census)
            self._running = self._running_in(0)
            self._next_window()
        elif self._is_running:
            # A state was taken up, which is one between two windows.
            self._next_window()
        while self._is_running:
            status, task, time = self._selection.advance([each.round_index for each in self.tasks])
            if status == EXHAUSTED:
                yield WindowOver(self._window.end_time)
                self._next_window()
            elif status == DOWN:
                for each in self.tasks:
                    each.send_away()
            else:
                closed = self.tasks[task].close(status, time)
                if self.tasks[task].is_over:
                    # Nobody waits for it at this moment: all who did were taken.
                    self._selection.select_from(task, np.inf)
                yield closed

    @property
    def supply(self) -> Supply:
        """Devices at the start of the present window."""
        running = {task.name: task.supply for task in self.tasks if not task.is_over}
        may_come = max((each.may_come for each in running.values()), default=0)
        starving = "; ".join(
            f"task {name}: {each.starving}" for name, each in running.items() if each.starving
        )
        return Supply(self._census.eligible, may_come, starving)

    @property
    def document(self) -> dict[str, Any]:
        """See `server.coordinator.RoundLoop.document`."""
        return {"samplers": self._samplers.document}

    def remember(self, task: int, accepted_device_ids: NDArray[np.uint64]) -> None:
        """Takes up a round of a `task` that was committed before, with its accepted devices [A]; in
        order."""
        self.tasks[task].remember(accepted_device_ids)

    def finish(self) -> None:
        """Tells the shards what they have not heard yet; is called once, when no more rounds are
        wanted."""
        self._shards.tell_now()

    def state(self) -> dict[str, NDArray]:
        """Everything but the settlements, as named arrays; may be asked for between two windows."""
        state = {
            **prefixed("selection.", self._selection.state()),
            "window": np.array(self._window, np.float64),
            "census": np.array(astuple(self._census)),
            "listed": np.array([self._pace.listed_from, self._pace.listed_until]),
            "samplers": self._samplers.state(),
            "running": np.array(self._running),
        }
        for place, task in enumerate(self.tasks):
            state |= prefixed(f"task{place}.", task.state())
        return state

    def load(self, state: dict[str, NDArray]) -> None:
        """Takes up a state. The shards must have been told of every settlement before it.

        Args:
            state: what `state` gave.

        Raises:
            CheckpointError: see `server.coordinator.RoundLoop.load`.
        """
        self._samplers.load(state["samplers"])
        self._selection.load(under("selection.", state))
        number, *seconds = state["window"].tolist()
        self._window = Window(int(number), *seconds)
        self._census = Census(*state["census"].tolist())
        self._pace.listed_from, self._pace.listed_until = state["listed"].tolist()
        self._running = state["running"].tolist()
        for place, task in enumerate(self.tasks):
            task.load(under(f"task{place}.", state))

    @property
    def _is_running(self) -> bool:
        return not all(task.is_over for task in self.tasks)

    def _next_attempt_number(self) -> int:
        # Over all tasks, so that no two attempts of a device have the same draws.
        return sum(len(task.records) for task in self.tasks)

    def _running_in(self, window: int) -> list[bool]:
        """Whether each task wants devices in a window."""
        end_time = (window + 1) * self._pace.window_seconds
        starts = [task.starts_seconds for task in self._several.tasks]
        return [
            not task.is_over and start < end_time
            for task, start in zip(self.tasks, starts, strict=True)
        ]

    def _order(self, number: int) -> CheckInOrder:
        censuses = [task.census for task in self.tasks]
        return self._pace.joint_order(number, self._census, censuses, self._running)

    def _with_rounds(self, order: CheckInOrder) -> CheckInOrder:
        return replace(order, task_rounds=tuple(task.round_index for task in self.tasks))

    def _next_window(self) -> None:
        """Makes the next window the selection's present one; ends all tasks if there is none."""
        number = self._window.number + 1
        for task in self.tasks:
            task.starve_at(number * self._pace.window_seconds)
        if not self._is_running:
            self._check_that_some_round_was_committed()
            return
        order = self._with_rounds(self._coming or self._order(number))
        check_ins = self._shards.check_ins(order)
        self._census = check_ins.census
        for task, census in zip(self.tasks, check_ins.task_censuses, strict=True):
            task.enter(order.window, census)
        # Part of the state: whether a task ends within this window must not change the order that
        # the shards prepare meanwhile.
        self._running = self._running_in(number + 1)
        self._coming = self._order(number + 1)
        self._shards.prepare(self._coming)
        self._samplers.count(order.is_enumerated)
        self._window = order.window
        self._selection.start_window(check_ins, self._window)

    def _check_that_some_round_was_committed(self) -> None:
        # If some task has committed rounds, its trace is of use, and the run ends without an error.
        if not any(record.is_committed for record in self._records):
            told = "; ".join(f"task {task.name}: {task.starved}" for task in self.tasks)
            raise Starved(told)

    @property
    def _records(self) -> Iterator[RoundRecord]:
        return (record for task in self.tasks for record in task.records)
