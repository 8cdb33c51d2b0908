"""Rounds of one federated task: the attempts so far, its privacy budget, and the cause of a
shortage of devices."""

from collections.abc import Sequence
from dataclasses import astuple
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.base.rounding import simulated_time
from fedray.scenario.several_tasks import TaskScenario
from fedray.wire.messages import Census, RoundRecord, Settlement, Window
from fedray.wire.protocols import ReleaseGuard
from .budget import Budget
from .records import records_array, records_of

STARVING_SECONDS = 20 * 3600.0
"""Simulated time without a round after which a run counts as starving: shorter than a day, and
longer than the part of a day in which the devices of one time zone are in use."""
HELD_BACK_SECONDS = 12 * 3600.0
"""Such a time if separation or cap, which no waiting ends, hold back more than half of the eligible
devices."""


class Supply(NamedTuple):
    """Supply of devices at the start of a run's present window."""

    eligible: int
    """Estimated number of eligible devices."""
    may_come: int
    """Estimated number of eligible devices that no rule holds back; with several tasks, the largest
    of any task."""
    starving: str
    """Reason why no round was committed for most of a day; empty otherwise."""


class TaskRounds:
    """Rounds of a task, until the scenario's count is committed or its privacy budget is spent.

    Args:
        task: name, start and scenario of the task.

    name: name of the task; empty if it is the only one.
    prefix: start of a text about the task if it is not the only one.
    scenario: scenario of the task.
    records: every attempt so far, in order of time.
    round_index: the round that is being formed.
    opened: time at which selection for it began, seconds since start.
    census: census of the present window, by the task's own rules.
    stopped: why the budget or the guard ended the rounds, as run.json records it; empty otherwise.
    starved: reason why the simulated days did not suffice; empty otherwise.
    guard: guard of the releases, or None.
    """

    def __init__(self, task: TaskScenario) -> None:
        self.name, self.prefix, self.scenario = task.name, task.prefix, task.scenario
        self.records: list[RoundRecord] = []
        self.round_index = 0
        self.opened = self.begins = task.starts_seconds
        self.census = Census(0, 0, 0, 0)
        self.stopped = self.starved = ""
        self._since_commit = Census(0, 0, 0, 0)
        self._window_end = 0.0
        self._budget = Budget.of(task.scenario)
        self.guard: ReleaseGuard | None = None
        self._starts: Sequence[float] = ()
        """Starts of the rounds that were committed before a resumption."""

    @property
    def is_over(self) -> bool:
        """Whether no more rounds are formed."""
        is_done = self.round_index >= self.scenario.rounds.count
        return is_done or bool(self.stopped or self.starved)

    @property
    def ended(self) -> str:
        """End of the rounds, as run.json records it."""
        if self.stopped:
            return self.stopped
        return f"starved: {self.starved}" if self.starved else "completed"

    @property
    def starving(self) -> str:
        """Reason why no round was committed for most of a day; empty otherwise."""
        idle = self._window_end - self._idle_since
        _, by_round, by_cap = self._held_back
        most = HELD_BACK_SECONDS if by_round + by_cap > 0.5 else STARVING_SECONDS
        if self.is_over or idle < most:
            return ""
        return f"no round for {simulated_time(idle)}: {self._cause}"

    def enter(self, window: Window, census: Census) -> None:
        """Enters a window.

        Args:
            window: the next window.
            census: census of its start, by the task's own rules.
        """
        self._window_end, self.census = window.end_time, census
        # The first census only sets the pace, and belongs to no window.
        if window.number >= 0:
            self._since_commit += census

    def note(self, record: RoundRecord) -> None:
        """Takes a closed attempt."""
        self.records.append(record)
        if record.is_committed:
            self.round_index += 1
            # If rounds starve, the cause is sought from the last committed one on.
            self._since_commit = Census(0, 0, 0, 0)

    def may_commit(self, settlement: Settlement, started: float) -> bool:
        """Whether budget and guard permit the next round. If not, the task has `stopped`.

        Args:
            settlement: settlement of the round if it is committed.
            started: start of the round, seconds since start.
        """
        if self._budget is not None:
            reason = self._budget.refusal(settlement.accepted_device_ids)
            self.stopped = f"stopped: {reason}" if reason else ""
        if not self.stopped and self.guard is not None:
            reason = self.guard.refusal(settlement, started)
            self.stopped = f"refused: {reason}" if reason else ""
        return not self.stopped

    def remember(self, settlement: Settlement) -> None:
        """Takes up the settlement of a round that was committed before a resumption; in order."""
        if self._budget is not None:
            self._budget.add(settlement.accepted_device_ids)
        if self.guard is not None:
            self.guard.add(settlement, self._starts[settlement.round_index])

    def is_late(self, time: float) -> bool:
        """Whether a time, seconds since start, is after the simulated days."""
        return time > 86_400.0 * self.scenario.rounds.max_days

    def is_starved(self, time: float) -> bool:
        """Whether the task must end at a time, seconds since start, for lack of devices."""
        rounds = self.scenario.rounds
        # A device that waits for its timer, or a round for its timeout, does not starve yet.
        waits = self.scenario.participation.longest_wait_seconds
        waits += 60.0 * rounds.selection_timeout_minutes
        most_idle = 86_400.0 * rounds.max_starved_days + waits
        return time >= 86_400.0 * rounds.max_days or time - self._idle_since >= most_idle

    def starve(self, time: float) -> None:
        """Ends the task at a time, seconds since start: `starved` gets the limit that ended it, the
        cause, and a remedy."""
        rounds, last = self.scenario.rounds, self._last_commit
        committed = sum(record.is_committed for record in self.records)
        limit = f"rounds.max_days={rounds.max_days:g} ran out"
        if time < 86_400.0 * rounds.max_days:
            limit = f"rounds.max_starved_days={rounds.max_starved_days:g} ran out"
        text = f"{limit} with {committed} of {rounds.count} rounds committed"
        if last is not None:
            text += f", the last of them {simulated_time(time - last.closed)} before"
        fewer = f", or lower rounds.count to {committed}" if committed else ""
        self.starved = f"{text}; {self._cause}{fewer}"

    def state(self) -> dict[str, NDArray]:
        """Returns everything but the budget, as named arrays; for a checkpoint between two
        windows."""
        censuses = [astuple(each) for each in (self.census, self._since_commit)]
        return {
            "round": np.array([self.round_index]),
            "times": np.array([self.opened, self._window_end]),
            "census": np.array(censuses),
            "ended": np.array([self.stopped, self.starved]),
            "records": records_array(self.records),
        }

    def load(self, state: dict[str, NDArray]) -> None:
        """Restores a state."""
        self.round_index = int(state["round"][0])
        self.opened, self._window_end = state["times"].tolist()
        self.census, self._since_commit = (Census(*row) for row in state["census"].tolist())
        self.stopped, self.starved = (str(each) for each in state["ended"])
        self.records = records_of(state["records"])
        self._starts = [each.started for each in self.records if each.is_committed]

    @property
    def _last_commit(self) -> RoundRecord | None:
        return next((each for each in reversed(self.records) if each.is_committed), None)

    @property
    def _idle_since(self) -> float:
        """Time at which the round that is being formed might have started, seconds since start."""
        since = self.begins
        if (last := self._last_commit) is not None:
            apart = 60.0 * (self.scenario.rounds.min_minutes_between or 0.0)
            since = max(last.closed, last.started + apart)
        # No device can be selected while the server is down.
        for outage in self.scenario.rounds.outages:
            if outage.start_hours * 3600.0 < self._window_end:
                since = max(since, 3600.0 * (outage.start_hours + outage.hours))
        return since

    @property
    def _cause(self) -> str:
        """Returns the cause of a shortage, and a remedy."""
        rounds = self.scenario.rounds
        begun = 0.0 if self._last_commit is None else self._last_commit.closed
        # An attempt that selected enough devices lacked reports, not check-ins.
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
        """Returns the rule that held back most of the eligible devices since the last committed
        round; empty if all rules together held back at most half of them."""
        participation = self.scenario.participation
        by_timer, by_round, by_cap = self._held_back
        # A rule that holds back less than half of the devices is not the reason.
        if by_cap + by_timer + by_round <= 0.5:
            return ""
        cap = participation.max_participations
        keys = participation.keys_by_rule
        goal = f"rounds.report_goal={self.scenario.rounds.report_goal}"
        limits = [f"participation.max_participations={cap} (costs privacy)"] if cap else []
        if self.scenario.privacy.at_limit == "exclude":
            # Excluded devices count as spent too, since their timers never open either.
            limits += ["privacy.stop_at", "privacy.noise_multiplier"]
        remedies = (
            (by_timer, f"lower {keys['time']}"),
            (by_round, f"lower {keys['rounds']} or {goal}"),
            (by_cap, f"raise {' or '.join(limits)} or lower {goal}"),
        )
        _, remedy = max(remedies, key=lambda each: each[0])
        share_of_cap = ""
        if limits:
            share_of_cap = f", the cap on participations {100 * by_cap:.0f} %"
        return (
            f"of the eligible devices the timer held back {100 * by_timer:.0f} %, the round "
            f"separation {100 * by_round:.0f} %{share_of_cap}, so {remedy}, or raise "
            f"population.devices={self.scenario.population.devices}"
        )

    def _what_else_to_change(self) -> str:
        scenario = self.scenario
        keys = f"rounds.report_goal={scenario.rounds.report_goal}"
        if waits := scenario.participation.keys_by_rule["time"]:
            keys += f" or {waits}"
        return (
            f"too few devices checked in, so lower {keys}, or raise "
            f"population.devices={scenario.population.devices} or rounds.max_days"
        )
