"""The timer: a device keeps away for some hours after it took part."""

from dataclasses import dataclass

import numpy as np

from fedray.base.arrays import BoolArray, Float64Array
from fedray.scenario import Scenario
from fedray.scenario.participation import TimerPolicy
from .policy import Absence, Attempt, ParticipationPolicy


@dataclass(frozen=True, slots=True)
class Timer(ParticipationPolicy):
    """Every device waits its own `timer_seconds` after the event that starts its timer."""

    resets_on: str
    """The event; see `fedray.scenario.participation.Participation.timer_resets_on`."""
    extra_seconds: float = 0.0
    """Time that is added to every device's own timer, by a rule of later rounds."""
    is_new: bool = False
    """Whether there was no timer before that rule, so that no device ignored one."""

    @classmethod
    def of(cls, table: TimerPolicy, scenario: Scenario) -> "Timer":
        """Returns the timer of the table `participation`; its own table has no keys."""
        del table
        return cls(scenario.participation.timer_resets_on)

    def absence(self, attempt: Attempt) -> Absence:
        """Returns times rounded up to seconds, so that no device comes before its timer has run
        out."""
        resets, times = self._starts(attempt)
        is_started = resets & (self.is_new | (attempt.timer_seconds > 0.0))
        # A device that does not report may have an infinite time, which no whole second can hold.
        since = np.where(resets, times, 0.0)
        seconds = attempt.timer_seconds + self.extra_seconds
        return Absence(since, np.where(is_started, np.ceil(since + seconds), 0.0))

    def _starts(self, attempt: Attempt) -> tuple[BoolArray, Float64Array]:
        """Returns whether the timer of each device [S] starts, and when."""
        match self.resets_on:
            case "accepted":
                # The device cannot know whether the round was abandoned later.
                return attempt.has_arrived, attempt.report_times
            case "reported":
                return attempt.has_reported, attempt.report_times
            case "upload":
                return attempt.has_uploaded, attempt.upload_times
            case _:
                # Selection starts the timer, so all timers start with the round.
                return np.ones(attempt.size, np.bool_), np.full(attempt.size, attempt.started)
