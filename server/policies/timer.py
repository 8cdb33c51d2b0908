"""The timer: a device keeps away for some hours after it took part."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from server.policies.policy import Attempt, ParticipationPolicy


@dataclass(frozen=True, slots=True)
class Timer(ParticipationPolicy):
    """Every device waits its own `timer_seconds` from what starts its timer.

    resets_on: what starts it; see `fedray.scenario.participation.Participation.timer_resets_on`.
    """

    resets_on: str

    def reopen_times(self, attempt: Attempt) -> NDArray[np.float64]:
        """Seconds are rounded up, so that no device comes before its timer has run out."""
        resets, since = self._starts(attempt)
        is_started = resets & (attempt.timer_seconds > 0.0)
        # Times of devices that do not report may be infinite, which no whole second can hold.
        opens = np.ceil(np.where(resets, since, 0.0) + attempt.timer_seconds)
        return np.where(is_started, opens, 0.0)

    def _starts(self, attempt: Attempt) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """Whose timers start [S], and when."""
        match self.resets_on:
            case "accepted":
                # The server accepts a report when it comes, even if the round is abandoned later.
                return attempt.is_accepted, attempt.report_times
            case "reported":
                return attempt.has_reported, attempt.report_times
            case _:
                times = np.full_like(attempt.report_times, attempt.started)
                return np.ones_like(attempt.has_reported), times
