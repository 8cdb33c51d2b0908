"""The round loop: shards list check-ins window by window, and the coordinator forms rounds from
them, one after the other. `RoundLoop` is what all modes of rounds have in common; `Coordinator`
selects the devices of a round together; server/rounds/buffered.py starts them as they come.

Selection of the next round overlaps the reporting of the present one. A shard lists a window
without knowing what the window will decide: the coordinator remembers that itself, and sends it
along when it asks for the next window.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedray.base.errors import Starved
from fedray.base.rng import Stream, stream_key
from fedray.scenario import Scenario
from fedray.server.rounds.budget import Budget, filter_of
from fedray.server.rounds.pace import Pace, Samplers
from fedray.server.rounds.records import records_array, records_of
from fedray.server.rounds.reservoir import drawn_cohort
from fedray.server.rounds.rounds import (
    Reporting,
    RoundRules,
    Selected,
    draw_fates,
    exclusion,
    resolve_reporting,
    withheld,
)
from fedray.server.rounds.selection import DOWN, EXHAUSTED, FULL, Selection
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

STARVING_SECONDS = 20 * 3600.0
"""Simulated time without a round after which a run counts as starving: shorter than a day, and
longer than the part of a day in which the devices of one time zone are in use."""
HELD_BACK_SECONDS = 12 * 3600.0
"""The same where separation or cap, which no waiting ends, hold back more than half of the eligible
devices."""


@dataclass(frozen=True, slots=True)
class ClosedRound:
    """An attempt at a round that has closed.

    record: what is written of it.
    accepted_device_ids: [A], sorted; none of an attempt that was abandoned.
    settlement: what its devices are told; None where none were selected.
    """

    record: RoundRecord
    accepted_device_ids: NDArray[np.uint64]
    settlement: Settlement | None


@dataclass(frozen=True, slots=True)
class Excluded:
    """Devices at their limit were sent away for good; `settlement` tells them."""

    settlement: Settlement


@dataclass(frozen=True, slots=True)
class WindowOver:
    """All that a window decides is decided: `Coordinator.state` can be taken now.

    end_time: the window's end, seconds since start.
    """

    end_time: float


class Supply(NamedTuple):
    """Devices that a run has at the start of its present window.

    eligible: estimate of the eligible devices.
    may_come: estimate of the eligible devices that no rule holds back.
    starving: the reason why no round was committed for most of a day; empty otherwise.
    """

    eligible: int
    may_come: int
    starving: str


class Forming(Protocol):
    """What a coordinator knows of single devices, window by window."""

    def start_window(self, check_ins: CheckIns, window: Window) -> None:
        """Goes on to a window, given its first check-ins."""
        ...

    def state(self) -> dict[str, NDArray]:
        """Everything, as named arrays, between two windows."""
        ...

    def load(self, state: dict[str, NDArray]) -> None:
        """Takes up a state."""
        ...


class RoundLoop:
    """Forms rounds until the scenario's count is committed, or its privacy budget is spent.

    How a round is formed is said by subclasses: `_next_attempt`.

    Args:
        scenario: says the rounds and their rules.
        shards: of the population, in order of their devices.
        forming: what is known of single devices.

    records: every attempt so far, in order of time.
    stopped: why the budget ended the run; empty as long as it did not.
    """

    def __init__(self, scenario: Scenario, shards: Sequence[Shard], forming: Forming) -> None:
        self._scenario = scenario
        self._shards = Shards(shards)
        self._forming = forming
        self._pace = Pace(scenario)
        self._samplers = Samplers()
        self._budget = Budget.of(scenario)
        self.stopped = ""
        self._window = NO_WINDOW
        self._round_index = 0
        self._opened = 0.0
        self._begins = 0.0
        """When the first round may start, seconds since start."""
        self._census = Census(0, 0, 0, 0)
        self._since_commit = Census(0, 0, 0, 0)
        self._coming: CheckInOrder | None = None
        """The order for the next window, without settlements; it follows from the census of the
        present one."""
        self.records: list[RoundRecord] = []

    def _next_attempt(self) -> ClosedRound | Excluded | None:
        """Goes on until an attempt at a round has closed, or devices were excluded; None if the
        window ends before."""
        raise NotImplementedError

    def events(self) -> Iterator[ClosedRound | Excluded | WindowOver]:
        """Yields every attempt as it closes, every exclusion, and the end of every window.

        Raises:
            Starved: the simulated days ran out before all rounds were committed.
        """
        if self._window.number < 0:
            # The pace of the first window follows from a census: this order asks for it alone.
            check_ins = self._shards.check_ins(self._pace.census_only())
            self._census = check_ins.census
            self._next_window()
        elif self._round_index < self._scenario.rounds.count:
            # A state was taken up, which is one between two windows.
            self._next_window()
        while self._round_index < self._scenario.rounds.count and not self.stopped:
            closed = self._next_attempt()
            if closed is None:
                # The caller may write a checkpoint here, before the next window is entered.
                yield WindowOver(self._window.end_time)
                self._next_window()
                continue
            if isinstance(closed, Excluded):
                yield closed
                continue
            self._note(closed)
            yield closed

    def _note(self, closed: ClosedRound) -> None:
        """Takes up an attempt that has closed."""
        self.records.append(closed.record)
        if closed.record.is_committed:
            self._round_index += 1
            # If rounds starve, what held devices back is told since the last committed one.
            self._since_commit = Census(0, 0, 0, 0)

    @property
    def supply(self) -> Supply:
        """Devices at the start of the present window."""
        starving = ""
        idle = self._window.end_time - self._idle_since
        _, by_round, by_cap = self._held_back
        most = HELD_BACK_SECONDS if by_round + by_cap > 0.5 else STARVING_SECONDS
        if idle >= most and not self.stopped:
            starving = f"no round for {_length(idle)}: {self._cause}"
        return Supply(self._census.eligible, self._census.free_eligible, starving)

    @property
    def document(self) -> dict[str, Any]:
        """What run.json says of how the trace was made: by which sampler windows were drawn."""
        return {"samplers": self._samplers.document}

    def remember(self, accepted_device_ids: NDArray[np.uint64]) -> None:
        """Takes up a round that was committed before, with its accepted devices [A]; in order."""
        if self._budget is not None:
            self._budget.add(accepted_device_ids)

    def finish(self) -> None:
        """Tells the shards what they have not heard yet; is called once, when no more rounds are
        wanted."""
        self._shards.tell_now()

    def state(self) -> dict[str, NDArray]:
        """Everything but the settlements, as named arrays; may be asked for between two windows."""
        censuses = [dataclasses.astuple(each) for each in (self._census, self._since_commit)]
        return {
            **prefixed("selection.", self._forming.state()),
            "window": np.array(self._window, np.float64),
            "round": np.array([self._round_index]),
            "opened": np.array([self._opened]),
            "census": np.array(censuses),
            "listed": np.array([self._pace.listed_from, self._pace.listed_until]),
            "samplers": self._samplers.state(),
            "records": records_array(self.records),
        }

    def load(self, state: dict[str, NDArray]) -> None:
        """Takes up a state. The shards must have been told of every settlement before it.

        Args:
            state: what `state` gave.

        Raises:
            CheckpointError: the samplers were chosen by other predicted costs, so that the rest of
                the run would not be the same.
        """
        # This comes first, because it refuses states of other predicted costs.
        self._samplers.load(state["samplers"])
        self._forming.load(under("selection.", state))
        number, *seconds = state["window"].tolist()
        self._window = Window(int(number), *seconds)
        self._round_index = int(state["round"][0])
        self._opened = float(state["opened"][0])
        self._census, self._since_commit = (Census(*row) for row in state["census"].tolist())
        self._pace.listed_from, self._pace.listed_until = state["listed"].tolist()
        self.records = records_of(state["records"])

    def _next_window(self) -> None:
        """Makes the next window the selection's present one."""
        number = self._window.number + 1
        start_time = number * self._pace.window_seconds
        if self._is_starved(start_time):
            raise Starved(self._why_starved())
        # The round that is being formed was not known when the order was made.
        expected = self._coming or self._pace.order(number, self._census, 0)
        order = dataclasses.replace(expected, round_index=self._round_index)
        check_ins = self._shards.check_ins(order)
        self._census = check_ins.census
        self._coming = self._pace.order(number + 1, self._census, 0)
        # The order follows from this window's census alone, so that shards can work on it while
        # this window is gone through.
        self._shards.prepare(self._coming)
        self._since_commit += check_ins.census
        self._samplers.count(order.is_enumerated)
        self._window = order.window
        self._forming.start_window(check_ins, self._window)

    @property
    def _last_commit(self) -> RoundRecord | None:
        return next((each for each in reversed(self.records) if each.is_committed), None)

    @property
    def _idle_since(self) -> float:
        """When the round that is being formed might have started, seconds since start."""
        since = self._begins
        if (last := self._last_commit) is not None:
            apart = 60.0 * (self._scenario.rounds.min_minutes_between or 0.0)
            since = max(last.closed, last.started + apart)
        # No device can be selected while the server is down.
        for outage in self._scenario.rounds.outages:
            if outage.start_hours * 3600.0 < self._window.end_time:
                since = max(since, 3600.0 * (outage.start_hours + outage.hours))
        return since

    def _is_starved(self, time: float) -> bool:
        """Whether the run ends at a time, seconds since start, because it lacks devices."""
        rounds = self._scenario.rounds
        # A device that waits for its timer, or a round for its timeout, does not starve yet.
        waits = self._scenario.participation.wait_seconds + 60.0 * rounds.selection_timeout_minutes
        most_idle = 86_400.0 * rounds.max_starved_days + waits
        return time >= 86_400.0 * rounds.max_days or time - self._idle_since >= most_idle

    def _why_starved(self) -> str:
        rounds, last = self._scenario.rounds, self._last_commit
        committed = sum(record.is_committed for record in self.records)
        limit = f"rounds.max_days={rounds.max_days:g} ran out"
        if self._window.end_time < 86_400.0 * rounds.max_days:
            limit = f"rounds.max_starved_days={rounds.max_starved_days:g} ran out"
        text = f"{limit} with {committed} of {rounds.count} rounds committed"
        if last is not None:
            text += f", the last of them {_length(self._window.end_time - last.closed)} before"
        return f"{text}; {self._cause}"

    @property
    def _cause(self) -> str:
        """The cause of a shortage, and a remedy."""
        rounds = self._scenario.rounds
        begun = 0.0 if self._last_commit is None else self._last_commit.closed
        # An attempt that selected as many devices as it wanted lacked reports, not check-ins.
        failed = sum(
            record.selected >= rounds.selection_target and not record.is_committed
            for record in self.records
            if record.started >= begun
        )
        if failed:
            return (
                f"{failed} were abandoned with too few reports, so raise "
                f"rounds.report_timeout_minutes={rounds.report_timeout_minutes:g} or "
                f"rounds.over_selection={rounds.over_selection:g}"
            )
        return self._what_held_back() or self._what_else_to_change()

    @property
    def _held_back(self) -> tuple[float, float, float]:
        """Shares of the eligible devices that timer, separation and cap have held back since the
        last committed round."""
        census = self._since_commit
        total = max(1, census.eligible)
        # A device at its cap has a timer that never opens, so it is counted among the closed ones.
        closed = census.eligible - census.open_eligible
        too_near = census.open_eligible - census.free_eligible
        by_cap = census.spent_eligible / total
        return closed / total - by_cap, too_near / total, by_cap

    def _what_held_back(self) -> str:
        """The rule that held back most of the eligible devices since the last committed round;
        empty if all rules together held back at most half of them."""
        participation = self._scenario.participation
        by_timer, by_round, by_cap = self._held_back
        # Rules that hold back less than half of the devices are not the reason.
        if by_cap + by_timer + by_round <= 0.5:
            return ""
        cap = participation.max_participations
        keys = participation.keys_by_rule
        limits = [f"participation.max_participations={cap}"] if cap is not None else []
        if self._scenario.privacy.at_limit == "exclude":
            # Excluded devices count as spent too: their timers never open either.
            limits += ["privacy.stop_at", "privacy.noise_multiplier"]
        remedies = (
            (by_timer, f"lower {keys['time']}"),
            (by_round, f"lower {keys['rounds']}"),
            (by_cap, f"raise {' or '.join(limits)}"),
        )
        _, remedy = max(remedies, key=lambda each: each[0])
        share_of_cap = ""
        if limits:
            share_of_cap = f", the cap on participations {100 * by_cap:.0f} %"
        return (
            f"of the eligible devices the timer held back {100 * by_timer:.0f} %, the round "
            f"separation {100 * by_round:.0f} %{share_of_cap}, so {remedy}, or raise "
            f"population.devices={self._scenario.population.devices}"
        )

    def _what_else_to_change(self) -> str:
        scenario = self._scenario
        keys = f"rounds.report_goal={scenario.rounds.report_goal}"
        if waits := scenario.participation.keys_by_rule["time"]:
            keys += f" or {waits}"
        return (
            f"too few devices checked in, so lower {keys}, or raise "
            f"population.devices={scenario.population.devices} or rounds.max_days"
        )


class Gathering(Forming, Protocol):
    """Who waits for rounds whose devices are selected together: see `server.selection.Selection`,
    which says what the methods do."""

    @property
    def waiting(self) -> int:
        """Devices that wait now."""
        ...

    @property
    def down_until(self) -> float:
        """When the last outage that has begun is over."""
        ...

    def open(self, opened: float, ready_time: float) -> None:
        """Opens selection for a round that can start from ready_time on."""
        ...

    def take(self) -> Selected:
        """All waiting devices, sorted by id; nobody waits afterwards."""
        ...

    def let_go(
        self,
        selected: Selected,
        busy_until: NDArray[np.float64],
        reopen_times: NDArray[np.uint32],
        remembered_rounds: NDArray[np.int32],
        contributions: NDArray[np.uint32],
    ) -> None:
        """Lets devices go that waited."""
        ...


class CohortLoop(RoundLoop):
    """Forms rounds whose devices are selected together: what becomes of an attempt, once its
    devices wait.

    Args:
        scenario: says the rounds and their rules.
        shards: of the population, in order of their devices.
        rules: of the scenario's rounds.
        gathering: who waits.
    """

    def __init__(
        self,
        scenario: Scenario,
        shards: Sequence[Shard],
        rules: RoundRules,
        gathering: Gathering,
    ) -> None:
        self._rules = rules
        self._gathering = gathering
        self._reservoir_key = stream_key(scenario.seed, Stream.RESERVOIR)
        super().__init__(scenario, shards, gathering)

    def _close(self, status: int, time: float) -> ClosedRound:
        """Closes the attempt that selection is open for, and opens selection for the next.

        Args:
            status: FULL or TIMED_OUT.
            time: when that was so, seconds since start.
        """
        # At the selection timeout fewer than the target are enough, if they can meet the goal.
        if status == FULL or self._gathering.waiting >= self._rules.least_to_start:
            closed = self._report(time)
        else:
            closed = self._give_up(time)
        # The next round opens when this one starts, not when it closes: its devices gather
        # meanwhile.
        self._opened = time
        self._gathering.open(time, ready_time=self._ready_time(closed.record))
        return closed

    @property
    def _attempt(self) -> int:
        """The number of the attempt that is made: shards apply each number once. Abandoned attempts
        count: a round that is tried again draws other fates."""
        return len(self.records)

    def _ready_time(self, record: RoundRecord) -> float:
        """When the round after this attempt may start, seconds since start: an abandoned one may be
        tried again at once."""
        minutes = self._scenario.rounds.min_minutes_between
        if minutes is None or not record.is_committed:
            return record.closed
        return max(record.closed, record.started + 60.0 * minutes)

    def _report(self, time: float) -> ClosedRound:
        """Closes an attempt that has started: who reports, and who is told what."""
        attempt = self._attempt
        selected = self._select(attempt, time)
        fates = draw_fates(selected, attempt, self._rules.fates)
        reporting = resolve_reporting(
            selected, fates, time, attempt, self._round_index, self._rules
        )
        # The budget decides before anybody is told, because a refused round ends as an abandoned
        # one.
        if reporting.is_committed and self._budget is not None:
            self.stopped = self._budget.refusal(reporting.accepted_device_ids)
            reporting = withheld(reporting) if self.stopped else reporting
        settlement = self._settle(selected, reporting)
        record = RoundRecord(
            round_index=self._round_index,
            opened=self._opened,
            started=time,
            closed=reporting.closed,
            selected=int(selected.device_ids.size),
            reported=reporting.reported,
            accepted=int(reporting.accepted_device_ids.size),
            is_committed=reporting.is_committed,
            eligible_estimate=self._census.eligible,
        )
        return ClosedRound(record, reporting.accepted_device_ids, settlement)

    def _settle(self, selected: Selected, reporting: Reporting) -> Settlement:
        """Tells everybody what became of the devices of an attempt; what the shards were told."""
        settlement = reporting.settlement
        # The selection hears of it at once, the shards with the next order.
        round_or_none = np.where(settlement.remembers_round, self._round_index, -1)
        remembered = round_or_none.astype(np.int32)
        contributions = selected.contributions + settlement.has_arrived.astype(np.uint32)
        self._gathering.let_go(
            selected, reporting.busy_until, settlement.reopen_times, remembered, contributions
        )
        self._shards.tell(settlement)
        return settlement

    def _give_up(self, time: float) -> ClosedRound:
        """Closes an attempt for which too few waited at the selection timeout."""
        self._send_away(time)
        record = RoundRecord(
            round_index=self._round_index,
            opened=self._opened,
            started=time,
            closed=time,
            selected=0,
            reported=0,
            accepted=0,
            is_committed=False,
            eligible_estimate=self._census.eligible,
        )
        return ClosedRound(record, np.empty(0, np.uint64), None)

    def _send_away(self, until: float) -> None:
        """Lets everybody go who waits: they may check in again from a time on."""
        self._release(self._gathering.take(), until)

    def _select(self, attempt: int, time: float) -> Selected:
        """The devices of an attempt. Where more wait than it selects, it draws them, and sends the
        others away."""
        waiting, target = self._gathering.take(), self._rules.selection_target
        # A round that starts at the selection timeout takes all who wait, who are fewer.
        if waiting.device_ids.size <= target:
            return waiting
        is_drawn = drawn_cohort(self._reservoir_key, waiting.device_ids, attempt, target)
        self._release(waiting.take(~is_drawn), time)
        return waiting.take(is_drawn)

    def _release(self, released: Selected, until: float) -> None:
        """Lets devices go that did nothing in a round, so that no timer starts."""
        self._let_go(released, until, np.zeros(released.device_ids.size, np.uint32))

    def _let_go(self, released: Selected, until: float, reopen_times: NDArray[np.uint32]) -> None:
        """Lets devices go that were in no round, which they therefore do not remember."""
        size = released.device_ids.size
        busy_until = np.full(size, until)
        no_round = np.full(size, -1, np.int32)
        self._gathering.let_go(released, busy_until, reopen_times, no_round, released.contributions)


class Coordinator(CohortLoop):
    """Forms rounds whose devices are selected together, one after the other.

    Args:
        scenario: says the rounds and their rules.
        shards: of the population, in order of their devices.
    """

    def __init__(self, scenario: Scenario, shards: Sequence[Shard]) -> None:
        rules = RoundRules.of(scenario)
        self._selection = Selection(rules, stream_key(scenario.seed, Stream.RETURN))
        # The first round may start as soon as enough devices wait.
        self._selection.open(0.0, ready_time=0.0)
        self._filter = filter_of(scenario)
        self._exclusions = 0
        """Settlements of excluded devices so far; their attempts are in no record."""
        super().__init__(scenario, shards, rules, self._selection)

    def remember(self, accepted_device_ids: NDArray[np.uint64]) -> None:
        """See `RoundLoop.remember`."""
        super().remember(accepted_device_ids)
        if self._filter is not None:
            self._filter.add(accepted_device_ids)

    def state(self) -> dict[str, NDArray]:
        """See `RoundLoop.state`."""
        state = super().state()
        if self._filter is not None:
            state["excluded"] = np.array([self._exclusions])
        return state

    def load(self, state: dict[str, NDArray]) -> None:
        """See `RoundLoop.load`."""
        super().load(state)
        if self._filter is not None:
            self._exclusions = int(state["excluded"][0])

    def _next_attempt(self) -> ClosedRound | Excluded | None:
        while True:
            status, time = self._selection.advance(self._round_index)
            if status == EXHAUSTED:
                return None
            # An outage sends everybody away who waits; the attempt stays open.
            if status == DOWN:
                self._send_away(self._selection.down_until)
                continue
            # Before devices are counted, so that no round is formed of those that may not be in it.
            excluded = self._exclude(time)
            if excluded is not None:
                return excluded
            return self._close(status, time)

    def _report(self, time: float) -> ClosedRound:
        closed = super()._report(time)
        if closed.record.is_committed and self._filter is not None:
            self._filter.add(closed.accepted_device_ids)
        return closed

    @property
    def _attempt(self) -> int:
        return super()._attempt + self._exclusions

    def _exclude(self, time: float) -> Excluded | None:
        """Lets those waiting devices go for good that would go beyond the budget; None if there are
        none."""
        if self._filter is None:
            return None
        is_beyond = ~self._filter.admits(self._selection.waiting_device_ids())
        if not is_beyond.any():
            return None
        excluded = self._selection.take(is_beyond)
        settlement = exclusion(
            excluded,
            self._attempt,
            self._round_index,
            keeps_losses=self._scenario.participation.history_loss_per_day is not None,
        )
        self._exclusions += 1
        # The selection hears of it at once, the shards with the next order.
        self._let_go(excluded, time, settlement.reopen_times)
        self._shards.tell(settlement)
        return Excluded(settlement)


def _length(seconds: float) -> str:
    return f"{seconds / 86_400:.1f} days" if seconds >= 86_400 else f"{seconds / 3600:.1f} hours"
