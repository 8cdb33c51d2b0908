"""Closing rules and their interface: when a round closes, and which reports it keeps."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedray.scenario import Scenario
from fedray.scenario.rounds import AtLeastClosing


@dataclass(frozen=True, slots=True)
class Closing:
    """How a round closed.

    is_committed: whether enough reports came before the deadline.
    time: when it closed, seconds since start.
    has_arrived: [S]; whether each report arrived in time; those are kept if it was committed.
    """

    is_committed: bool
    time: float
    has_arrived: NDArray[np.bool_]


class ClosingRule(Protocol):
    """When a round closes."""

    def close(self, report_times: NDArray[np.float64], started: float, deadline: float) -> Closing:
        """Closes a round.

        Args:
            report_times: [S]; when each device reports, in order of device id; infinity for those
                that do not. Seconds since start, like the other times.
            started: when the round started.
            deadline: no report arrives in time after it.
        """
        ...


@dataclass(frozen=True, slots=True)
class AtGoal:
    """A round closes with its report_goal-th report and keeps exactly so many; without as many it
    is abandoned at the deadline. Equal report times count in order of device id.

    report_goal: the reports.
    """

    report_goal: int

    def close(self, report_times: NDArray[np.float64], started: float, deadline: float) -> Closing:
        """See `ClosingRule.close`."""
        in_time = report_times <= deadline
        if int(np.count_nonzero(in_time)) < self.report_goal:
            return Closing(False, deadline, in_time)
        closed = float(np.partition(report_times, self.report_goal - 1)[self.report_goal - 1])
        first = report_times < closed
        ties = np.flatnonzero(report_times == closed)
        first[ties[: self.report_goal - int(np.count_nonzero(first))]] = True
        return Closing(True, closed, first)


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A round stays open for some time, and keeps all reports that come before it closes. Where its
    goal is not met by then it closes with the report that meets it, or is abandoned at the
    deadline.

    report_goal: reports without which it is abandoned.
    open_seconds: how long it stays open, from its start.
    """

    report_goal: int
    open_seconds: float

    def close(self, report_times: NDArray[np.float64], started: float, deadline: float) -> Closing:
        """See `ClosingRule.close`."""
        at_goal = AtGoal(self.report_goal).close(report_times, started, deadline)
        open_until = started + self.open_seconds
        if not at_goal.is_committed or at_goal.time >= open_until:
            return at_goal
        return Closing(True, open_until, report_times <= open_until)


def closing_rule_of(scenario: Scenario) -> ClosingRule:
    """The rule of a scenario's table `rounds`."""
    rounds = scenario.rounds
    if isinstance(rounds.closing, AtLeastClosing):
        return AtLeast(rounds.report_goal, 60.0 * rounds.closing.open_minutes)
    return AtGoal(rounds.report_goal)
