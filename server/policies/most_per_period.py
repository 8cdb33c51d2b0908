"""At most m participations of a device in any half-open window of T hours, or on a calendar day of
its own: it keeps away from the m-th of them until the first is T hours old, or the day is over."""

from dataclasses import dataclass

import numpy as np

from fedray.base.arrays import BoolArray, Float64Array, UInt64Array
from fedray.scenario import Scenario
from fedray.scenario.participation import MostPerPeriodPolicy
from fedray.wire.history import HistoryLosses
from fedray.wire.zones import zone_offsets_on
from .policy import Absence, Attempt, ParticipationPolicy
from .recent import RecentStarts

_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class MostPerPeriod(ParticipationPolicy):
    """Participations of a device are limited by the starts of their rounds, which the server
    sends."""

    participations: int
    """m, largest number of participations in a period."""
    seconds: float | None
    """T, length of the period; None for calendar days."""
    scenario: Scenario
    """Scenario with the time zones of devices."""

    @classmethod
    def of(cls, table: MostPerPeriodPolicy, scenario: Scenario) -> "MostPerPeriod":
        """Returns the policy of its table."""
        seconds = None if table.hours is None else 3600.0 * table.hours
        return cls(table.participations, seconds, scenario)

    def recent(self, losses: HistoryLosses) -> RecentStarts | None:
        """Returns an empty record of the starts that `absence` needs: of the m-1-th participation
        before an attempt. None for m = 1."""
        if self.participations == 1:
            return None
        # In any time zone a start is of another day after two days.
        seconds = 2.0 * _DAY if self.seconds is None else self.seconds
        return RecentStarts(self.participations - 1, seconds, losses)

    def absence(self, attempt: Attempt) -> Absence:
        """Returns whole seconds, rounded up, so that no device comes within the period."""
        started = np.broadcast_to(attempt.started, attempt.size).astype(np.float64)
        first = attempt.earlier_starts if self.participations > 1 else started
        assert first is not None
        # A device without so many participations need not wait.
        counts = attempt.has_arrived & (first > -np.inf)
        first = np.where(counts, first, 0.0)
        if self.seconds is None:
            until, is_full = self._midnights(attempt.device_ids, first, started)
            counts = counts & is_full
        else:
            until = np.ceil(first + self.seconds)
        since = np.where(counts, attempt.report_times, 0.0)
        return Absence(since, np.where(counts, until, 0.0))

    def _midnights(
        self, device_ids: UInt64Array, first: Float64Array, started: Float64Array
    ) -> tuple[Float64Array, BoolArray]:
        """Returns the end of each device's calendar day [S], and whether `first` is on that day."""
        offsets = 3600.0 * zone_offsets_on(self.scenario, device_ids)
        today = np.floor((started + offsets) / _DAY)
        is_full = np.floor((first + offsets) / _DAY) == today
        return np.ceil((today + 1.0) * _DAY - offsets), is_full
