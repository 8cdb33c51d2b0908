"""The round loop: shards list check-ins window by window, and the coordinator forms the rounds of
one federated task, or of several that share the devices (Bonawitz et al. 2019, sections 2 and 4).

`RoundLoop` is common to all modes of rounds; `Coordinator` selects the devices of a round together;
server/rounds/buffered.py starts them as they come.

Selection of the next round overlaps the reporting of the present one. A shard lists a window
without knowing the decisions in it: the coordinator remembers them, and sends them along with the
order for the next window. Check-ins are listed once for all tasks; server/rounds/selection.py
decides which device waits for which task.
"""

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedray.base.arrays import Float64Array, Int32Array, UInt32Array, UInt64Array
from fedray.base.errors import Starved
from fedray.base.rng import Stream, stream_key
from fedray.scenario import Scenario, SeveralTasks
from fedray.scenario.hold import HeldDevices
from fedray.scenario.several_tasks import TaskScenario, sharing_timer, tasks_of
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
from ..policies.most_per_period import MostPerPeriod
from ..policies.policy import Attempt, Policies
from .budget import filter_of
from .pace import Pace, Samplers
from .reservoir import drawn_cohort
from .rounds import (
    Reporting,
    RoundRules,
    Selected,
    draw_fates,
    exclusion,
    resolve_reporting,
    withheld,
)
from .selection import DOWN, EXHAUSTED, FULL, Selection
from .shards import Shards
from .task import Supply, TaskRounds


@dataclass(frozen=True, slots=True)
class ClosedRound:
    """An attempt at a round that has closed."""

    record: RoundRecord
    """Record of the attempt."""
    accepted_device_ids: UInt64Array
    """[A], sorted; empty if the attempt was abandoned."""
    settlements: tuple[Settlement, ...]
    """Settlement of its devices, then one for each task that shares the timer; empty if no devices
    were selected."""
    task: int = 0
    """Place of its task in the scenario."""


@dataclass(frozen=True, slots=True)
class Settled:
    """Settlement outside of a round: devices uploaded for later rounds, or were excluded at their
    limit."""

    settlements: tuple[Settlement, ...]


@dataclass(frozen=True, slots=True)
class WindowOver:
    """End of a window, at which every decision in it is made and `RoundLoop.state` can be taken."""

    end_time: float
    """The window's end, seconds since start."""
    settlements: tuple[Settlement, ...] = ()


class RoundLoop:
    """Forms rounds of tasks until each has committed its rounds, or cannot.

    Subclasses form the rounds, in `_start_window` and `_next_event`.

    Args:
        tasks: rounds of each task.
        shards: shards of the population, in order of their devices.
        pace: orders for the shards.

    tasks: rounds of each task.
    """

    def __init__(self, tasks: Sequence[TaskRounds], shards: Sequence[Shard], pace: Pace) -> None:
        self.tasks = tasks
        self._shards = Shards(shards)
        self._pace = pace
        self._samplers = Samplers()
        self._window = NO_WINDOW
        self._census = Census(0, 0, 0, 0)
        """Census of the present window, whatever the tasks' rules."""
        self._running = [False] * len(tasks)
        """Whether each task wanted devices when the order for the next window was made."""
        self._coming: CheckInOrder | None = None
        """The order for the next window, without settlements; it follows from the census of the
        present one."""

    def _start_window(self, check_ins: CheckIns) -> None:
        """Enters a window with its first check-ins."""
        raise NotImplementedError

    def _next_event(self) -> ClosedRound | Settled | None:
        """Continues until an attempt at a round has closed, or devices were excluded; None if the
        window ends first."""
        raise NotImplementedError

    def _dismiss(self, place: int, time: float) -> None:
        """Releases all devices that wait for a starved task, given its place and the time."""

    def events(self) -> Iterator[ClosedRound | Settled | WindowOver]:
        """Yields every attempt as it closes, every exclusion, and the end of every window.

        Raises:
            Starved: the simulated days ran out before any round was committed.
        """
        if self._window.number < 0:
            # The pace of the first window needs a census, and this order asks for nothing else.
            self._enter(
                NO_WINDOW, self._shards.check_ins(self._with_rounds(self._pace.census_only()))
            )
            self._running = self._running_in(0)
            self._next_window()
        elif self._is_running:
            # A loaded state lies between two windows.
            self._next_window()
        while self._is_running:
            event = self._next_event()
            if event is not None:
                yield event
                continue
            # The caller may write a checkpoint here, before the next window is entered.
            yield WindowOver(self._window.end_time)
            self._next_window()
        # If a task has committed rounds, its trace is useful, so no error is raised.
        is_any_committed = any(each.is_committed for task in self.tasks for each in task.records)
        if any(task.starved for task in self.tasks) and not is_any_committed:
            raise Starved("; ".join(f"{task.prefix}{task.starved}" for task in self.tasks))

    @property
    def supply(self) -> Supply:
        """Devices at the start of the present window."""
        running = [task for task in self.tasks if not task.is_over] or self.tasks
        may_come = max(task.census.free_eligible for task in running)
        starving = [f"{task.prefix}{task.starving}" for task in running if task.starving]
        return Supply(self._census.eligible, may_come, "; ".join(starving))

    @property
    def document(self) -> dict[str, Any]:
        """Keys of run.json on the making of the trace: the number of windows of each sampler."""
        return {"samplers": self._samplers.document}

    def remember(self, settlement: Settlement) -> None:
        """Takes up the settlement of a round that was committed before a resumption; in order."""
        self.tasks[settlement.task].remember(settlement)

    def finish(self) -> None:
        """Sends the remaining settlements to the shards; called once, after the last round."""
        self._shards.tell_now()

    def state(self) -> dict[str, NDArray]:
        """Returns everything but the settlements, as named arrays; for use between two windows."""
        state = {
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
        """Restores a state. The shards must have every earlier settlement.

        Args:
            state: result of `state`.

        Raises:
            CheckpointError: the samplers were chosen by other predicted costs, so that the rest of
                the run would not be the same.
        """
        # This comes first, because it refuses states of other predicted costs.
        self._samplers.load(state["samplers"])
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

    def _running_in(self, window: int) -> list[bool]:
        """Returns whether each task wants devices in a window."""
        end_time = (window + 1) * self._pace.window_seconds
        return [not task.is_over and task.begins < end_time for task in self.tasks]

    def _order(self, number: int) -> CheckInOrder:
        # Tasks that are over or have not begun want no devices, and must not raise the rate.
        wanted = [
            task.census.free_eligible if is_running else None
            for task, is_running in zip(self.tasks, self._running, strict=True)
        ]
        return self._pace.order(number, self._census, wanted)

    def _with_rounds(self, order: CheckInOrder) -> CheckInOrder:
        return replace(order, rounds=tuple(task.round_index for task in self.tasks))

    def _enter(self, window: Window, check_ins: CheckIns) -> None:
        self._census = check_ins.census
        of_tasks = check_ins.task_censuses or (check_ins.census,)
        for task, census in zip(self.tasks, of_tasks, strict=True):
            task.enter(window, census)

    def _next_window(self) -> None:
        """Makes the next window the present one; ends all tasks after the last."""
        number = self._window.number + 1
        time = number * self._pace.window_seconds
        for place, task in enumerate(self.tasks):
            if not task.is_over and task.is_starved(time):
                task.starve(time)
                self._dismiss(place, time)
        if not self._is_running:
            return
        # The rounds being formed were unknown when the order was made.
        order = self._with_rounds(self._coming or self._order(number))
        check_ins = self._shards.check_ins(order)
        self._enter(order.window, check_ins)
        # Part of the state: the end of a task within this window must not change the order that the
        # shards prepare meanwhile.
        self._running = self._running_in(number + 1)
        # The order follows only from this window's census, so shards can work on it while this
        # window is processed.
        self._coming = self._order(number + 1)
        self._shards.prepare(self._coming)
        self._samplers.count(order.is_enumerated)
        self._window = order.window
        self._start_window(check_ins)


class CohortTask(TaskRounds):
    """Rounds of a task whose devices are selected together.

    Args:
        tasks: all tasks of the scenario.
        place: place of this one among them.

    rules: rules of its rounds.
    sharing: places of the other tasks that share its timer.
    shared: policies that share a timer.
    filter: filter that excludes devices at their limit; None without one.
    recent: starts of the last rounds of devices; None if no policy needs them.
    """

    def __init__(self, tasks: Sequence[TaskScenario], place: int) -> None:
        super().__init__(tasks[place])
        self.place = place
        self.rules = RoundRules.of(self.scenario)
        self.sharing = sharing_timer(tasks, place)
        policies = self.rules.policies
        # Only the timer is shared: caps and periods count the contributions to one task.
        of_time = tuple(
            each
            for each in policies.each
            if not (each.counts_contributions or isinstance(each, MostPerPeriod))
        )
        self.shared: Policies = replace(policies, each=of_time)
        self.filter = filter_of(self.scenario)
        periods = [each for each in policies.each if isinstance(each, MostPerPeriod)]
        # Policies of one kind are given at most once.
        self.recent = periods[0].recent(policies.losses) if periods else None
        self._waits: list[tuple[UInt64Array, Float64Array]] = []
        """Devices of attempts before `rules.from_round`, and the times at which the later policies
        admit them."""

    @property
    def held(self) -> HeldDevices | None:
        """Devices that wait by the list of the scenario; None without one."""
        hold = self.scenario.participation.hold
        return None if hold is None else hold.devices

    def note_waits(self, attempted: Attempt) -> None:
        """Notes how long devices of an attempt would wait by the later policies."""
        later = self.rules.later_policies
        if later is None or self.round_index >= self.rules.from_round:
            return
        times = later.open_times(attempted).astype(np.float64)
        chosen = times > 0.0
        self._waits.append((attempted.device_ids[chosen], times[chosen]))

    def waits_at(self, time: float) -> HeldDevices | None:
        """Returns the devices that the later policies keep away at a time because of earlier
        rounds; None if none."""
        if not self._waits:
            return None
        device_ids, times = map(np.concatenate, zip(*self._waits, strict=True))
        # The latest time of a device is its last row.
        order = np.lexsort((times, device_ids))
        device_ids, times = device_ids[order], times[order]
        is_last = np.append(device_ids[1:] != device_ids[:-1], True)
        chosen = is_last & (times > time)
        return HeldDevices.of(device_ids[chosen], times[chosen], "first_time")

    def state(self) -> dict[str, NDArray]:
        state = super().state()
        waits = self.waits_at(0.0)
        if waits is not None:
            state |= {"waits.devices": waits.device_ids, "waits.times": waits.first_times}
        if self.recent is not None:
            state |= prefixed("recent.", self.recent.state())
        return state

    def load(self, state: dict[str, NDArray]) -> None:
        super().load(state)
        if "waits.devices" in state:
            self._waits = [(state["waits.devices"], state["waits.times"])]
        if self.recent is not None:
            self.recent.load(under("recent.", state))

    def remember(self, settlement: Settlement) -> None:
        super().remember(settlement)
        if self.filter is not None:
            self.filter.add(settlement.accepted_device_ids)

    def ready_time(self, record: RoundRecord) -> float:
        """Returns the time at which the round after an attempt may start, seconds since start. An
        abandoned round may be tried again at once."""
        minutes = self.scenario.rounds.min_minutes_between
        if minutes is None or not record.is_committed:
            return record.closed
        return max(record.closed, record.started + 60.0 * minutes)


class Coordinator(RoundLoop):
    """Forms rounds whose devices are selected together.

    Args:
        scenario: rounds and their rules, of one task or several.
        shards: shards of the population, in order of their devices.
    """

    def __init__(self, scenario: Scenario | SeveralTasks, shards: Sequence[Shard]) -> None:
        given = tasks_of(scenario)
        self.tasks: Sequence[CohortTask] = [CohortTask(given, place) for place in range(len(given))]
        super().__init__(self.tasks, shards, Pace([task.scenario for task in given]))
        weights = [task.weight for task in given]
        self._selection = Selection([task.rules for task in self.tasks], scenario.seed, weights)
        self._reservoir_key = stream_key(scenario.seed, Stream.RESERVOIR)
        self._exclusions = 0
        """Settlements of excluded devices so far; their attempts are in no record."""
        for task in self.tasks:
            # The first round may start once enough devices wait.
            self._selection.select_from(task.place, task.begins)
            self._selection.open(task.place, task.begins, ready_time=task.begins)
            # The list may be known from the start, since selection asks it only from its round on.
            self._hold(task, task.held)

    def _hold(self, task: CohortTask, held: HeldDevices | None) -> None:
        if held is not None:
            self._selection.hold(task.place, held)

    def state(self) -> dict[str, NDArray]:
        selection = prefixed("selection.", self._selection.state())
        return {**super().state(), **selection, "excluded": np.array([self._exclusions])}

    def load(self, state: dict[str, NDArray]) -> None:
        super().load(state)
        self._selection.load(under("selection.", state))
        for task in self.tasks:
            if task.round_index >= task.rules.from_round:
                self._hold(task, task.waits_at(self._window.end_time))
        self._exclusions = int(state["excluded"][0])

    def _start_window(self, check_ins: CheckIns) -> None:
        self._selection.start_window(check_ins, self._window)

    def _next_event(self) -> ClosedRound | Settled | None:
        while True:
            rounds = [task.round_index for task in self.tasks]
            status, place, time = self._selection.advance(rounds)
            if status == EXHAUSTED:
                return None
            # An outage sends all waiting devices away; the attempts stay open.
            if status == DOWN:
                for task in self.tasks:
                    self._send_away(task, self._selection.down_until)
                continue
            task = self.tasks[place]
            # Excluded devices go before the count, so that no round is formed of them.
            excluded = self._exclude(task, time)
            return excluded or self._close(task, status, time)

    @property
    def _attempt(self) -> int:
        """Number of the present attempt, since shards apply each number once. Attempts of all tasks
        count, so that no two attempts of a device have the same draws; so do abandoned ones, since
        a repeated round draws other fates."""
        return sum(len(task.records) for task in self.tasks) + self._exclusions

    def _dismiss(self, place: int, time: float) -> None:
        self._send_away(self.tasks[place], time)
        self._selection.select_from(place, np.inf)

    def _close(self, task: CohortTask, status: int, time: float) -> ClosedRound:
        """Closes the attempt that selection is open for, and opens selection for the next.

        Args:
            task: task of the attempt.
            status: FULL or TIMED_OUT.
            time: time of that event, seconds since start.
        """
        # At the selection timeout, fewer devices than the target suffice if they can meet the goal.
        is_enough = self._selection.waiting(task.place) >= task.rules.least_to_start
        if status == FULL or is_enough:
            closed = self._report(task, time)
        else:
            closed = self._give_up(task, time)
        if task.is_late(closed.record.closed):
            task.starve(closed.record.closed)
        task.note(closed.record)
        if closed.record.is_committed and task.round_index == task.rules.from_round:
            self._hold(task, task.waits_at(time))
        # The next round opens when this one starts, not when it closes: its devices gather
        # meanwhile.
        task.opened = time
        self._selection.open(task.place, time, ready_time=task.ready_time(closed.record))
        if task.is_over:
            # No device waits for it at this moment, since all were taken.
            self._selection.select_from(task.place, np.inf)
        return closed

    def _report(self, task: CohortTask, time: float) -> ClosedRound:
        """Closes a started attempt: settles which devices report, and what its devices remember."""
        attempt = self._attempt
        selected = self._select(task, attempt, time)
        fates = draw_fates(selected, attempt, task.rules.fates)
        earlier = None if task.recent is None else task.recent.before(selected.device_ids, time)
        reporting = resolve_reporting(
            selected, fates, time, attempt, task.round_index, task.rules, task.place, earlier
        )
        if task.recent is not None:
            task.recent.add(reporting.attempted)
        # The end of the run and the budget decide before any shard is informed, because a refused
        # round ends as an abandoned one.
        is_late = task.is_late(reporting.closed)
        if reporting.is_committed and (is_late or not task.may_commit(reporting.settlement, time)):
            reporting = withheld(reporting)
        settlements = self._settle(task, selected, reporting)
        accepted = reporting.settlement.accepted_device_ids
        record = RoundRecord(
            round_index=task.round_index,
            opened=task.opened,
            started=time,
            closed=reporting.closed,
            selected=int(selected.device_ids.size),
            reported=reporting.reported,
            accepted=int(accepted.size),
            is_committed=reporting.is_committed,
            eligible_estimate=task.census.eligible,
        )
        if record.is_committed and task.filter is not None:
            task.filter.add(accepted)
        return ClosedRound(record, accepted, settlements, task.place)

    def _settle(
        self, task: CohortTask, selected: Selected, reporting: Reporting
    ) -> tuple[Settlement, ...]:
        """Settles the devices of an attempt. Selection learns of it at once, the shards with the
        next order."""
        settlement = reporting.settlement
        task.note_waits(reporting.attempted)
        # Tasks that share the timer come first, because the return of a device depends on all
        # timers.
        others = self._timers_of_others(task, reporting)
        round_or_none = np.where(settlement.remembers_round, task.round_index, -1)
        self._let_go(
            task,
            selected,
            reporting.busy_until,
            settlement.open_times,
            round_or_none.astype(np.int32),
            selected.contributions + settlement.has_arrived.astype(np.uint32),
        )
        settlements = (settlement, *others)
        for each in settlements:
            self._shards.tell(each)
        return settlements

    def _timers_of_others(self, task: CohortTask, reporting: Reporting) -> tuple[Settlement, ...]:
        """Starts the timers of the tasks that share a task's timer; a settlement for each."""
        if not task.sharing:
            return ()
        ids = reporting.settlement.device_ids
        open_times = task.shared.open_times(reporting.attempted)
        # Only the timer is shared: the other tasks learn nothing about rounds and counts.
        no_round, none = np.full(ids.size, -1, np.int32), np.zeros(ids.size, np.uint32)
        for other in task.sharing:
            self._selection.remember(other, ids, open_times, no_round, none)
        of_timers = replace(
            reporting.settlement,
            round_index=Settlement.NO_ROUND,
            open_times=open_times,
            remembers_round=np.zeros(ids.size, np.bool_),
        )
        return tuple(replace(of_timers, task=other) for other in task.sharing)

    def _give_up(self, task: CohortTask, time: float) -> ClosedRound:
        """Closes an attempt for which too few devices waited at the selection timeout."""
        self._send_away(task, time)
        record = RoundRecord(
            round_index=task.round_index,
            opened=task.opened,
            started=time,
            closed=time,
            selected=0,
            reported=0,
            accepted=0,
            is_committed=False,
            eligible_estimate=task.census.eligible,
        )
        return ClosedRound(record, np.empty(0, np.uint64), (), task.place)

    def _send_away(self, task: CohortTask, until: float) -> None:
        """Releases all devices that wait for a task; they may check in again from `until` on."""
        self._release(task, self._selection.take(task.place), until)

    def _select(self, task: CohortTask, attempt: int, time: float) -> Selected:
        """Returns the devices of an attempt. If more wait than it selects, they are drawn and the
        others sent away."""
        waiting, target = self._selection.take(task.place), task.rules.selection_target
        # A round that starts at the selection timeout takes all waiting devices, who are fewer.
        if waiting.device_ids.size <= target:
            return waiting
        is_drawn = drawn_cohort(self._reservoir_key, waiting.device_ids, attempt, target)
        self._release(task, waiting.take(~is_drawn), time)
        return waiting.take(is_drawn)

    def _release(self, task: CohortTask, released: Selected, until: float) -> None:
        """Releases devices that did nothing in a round, so that no timer starts."""
        size = released.device_ids.size
        self._let_go(task, released, np.full(size, until), np.zeros(size, np.uint32))

    def _let_go(
        self,
        task: CohortTask,
        selected: Selected,
        busy_until: Float64Array,
        open_times: UInt32Array,
        remembered: Int32Array | None = None,
        contributions: UInt32Array | None = None,
    ) -> None:
        """Releases waiting devices; without the last two arguments, they were in no round."""
        if remembered is None:
            remembered = np.full(selected.device_ids.size, -1, np.int32)
        if contributions is None:
            contributions = selected.contributions
        self._selection.remember(
            task.place, selected.device_ids, open_times, remembered, contributions
        )
        self._selection.let_go(selected, busy_until)

    def _exclude(self, task: CohortTask, time: float) -> Settled | None:
        """Releases for good the waiting devices that would exceed the budget; None if there are
        none."""
        if task.filter is None:
            return None
        is_beyond = ~task.filter.admits(self._selection.waiting_device_ids(task.place))
        if not is_beyond.any():
            return None
        excluded = self._selection.take(task.place, is_beyond)
        settlement = exclusion(
            excluded,
            self._attempt,
            task.round_index,
            keeps_losses=task.scenario.participation.history_loss_per_day is not None,
        )
        self._exclusions += 1
        # Selection learns of it at once, the shards with the next order.
        busy_until = np.full(excluded.device_ids.size, time)
        self._let_go(task, excluded, busy_until, settlement.open_times)
        self._shards.tell(settlement)
        return Settled((settlement,))
