"""Closing rules and their interface: when a round closes, and which reports it keeps."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fedray.base.arrays import BoolArray, Float64Array
from fedray.scenario import Scenario
from fedray.scenario.rounds import AtLeastClosing, GoalClosing


@dataclass(frozen=True, slots=True)
class Closing:
    """End of a round."""

    is_committed: bool
    """Whether enough reports came before the deadline."""
    time: float
    """Time at which it closed, seconds since start."""
    has_arrived: BoolArray
    """[S]; whether each report arrived in time; these are kept if it was committed."""


class ClosingRule(Protocol):
    """Decides when a round closes."""

    @property
    def report_goal(self) -> int:
        """Number of reports without which a round is abandoned."""
        ...

    def close(self, report_times: Float64Array, started: Any, deadline: Any) -> Closing:
        """Closes a round.

        A round is committed if report_goal reports arrive by the deadline, and then keeps at least
        report_goal reports.

        Args:
            report_times: [S]; time of each report, in order of device id; infinity for none.
                Seconds since start, like the other times.
            started: start of the round; of each device's attempt [S] if these differ.
            deadline: time after which no report is in time, likewise.
        """
        ...


@dataclass(frozen=True, slots=True)
class AtGoal:
    """A round closes with its report_goal-th report and keeps exactly report_goal reports; with
    fewer it is abandoned at the deadline. Equal report times count in order of device id."""

    report_goal: int
    """Number of reports."""

    def close(self, report_times: Float64Array, started: float, deadline: float) -> Closing:
        # A round is committed if enough devices report in time, and abandoned otherwise (Bonawitz
        # et al. 2019, section 2.2). Fast devices are therefore accepted more often than slow ones;
        # the late ones stay in the trace, so that the bias can be measured.
        in_time = report_times <= deadline
        if int(np.count_nonzero(in_time)) < self.report_goal:
            return Closing(False, deadline, in_time)
        # A partition finds the goal-th time without a full sort.
        closed = float(np.partition(report_times, self.report_goal - 1)[self.report_goal - 1])
        first = report_times < closed
        # Of the reports at the exact time of closing, only the number that the goal still lacks
        # counts.
        ties = np.flatnonzero(report_times == closed)
        first[ties[: self.report_goal - int(np.count_nonzero(first))]] = True
        return Closing(True, closed, first)


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A round stays open for some time, and keeps all reports that come before it closes. If the
    goal is not met by then, it closes with the report that meets it, or is abandoned at the
    deadline."""

    report_goal: int
    """Number of reports without which it is abandoned."""
    open_seconds: float
    """Time that it stays open, from its start."""

    def close(self, report_times: Float64Array, started: float, deadline: float) -> Closing:
        at_goal = AtGoal(self.report_goal).close(report_times, started, deadline)
        open_until = started + self.open_seconds
        # The goal is met late or never, so the round ends like one that closes at its goal.
        if not at_goal.is_committed or at_goal.time >= open_until:
            return at_goal
        return Closing(True, open_until, report_times <= open_until)


def closing_rule_of(scenario: Scenario) -> ClosingRule:
    """Returns the rule of a scenario's table `rounds`."""
    goal = scenario.rounds.report_goal
    match scenario.rounds.closing:
        case AtLeastClosing(open_minutes=minutes):
            return AtLeast(goal, 60.0 * minutes)
        case GoalClosing() | None:
            return AtGoal(goal)
