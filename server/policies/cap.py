"""The cap on participations: a device that has reached it never comes again."""

from dataclasses import dataclass

import numpy as np

from fedray.wire.messages import NEVER
from .policy import Absence, Attempt, ParticipationPolicy


@dataclass(frozen=True, slots=True)
class Cap(ParticipationPolicy):
    """A device takes part at most `max_participations` times."""

    max_participations: int
    """Number of reports that arrived in time, after which a device may not return."""

    @property
    def counts_contributions(self) -> bool:
        return True

    def absence(self, attempt: Attempt) -> Absence:
        """For ever, from the report that reaches the cap on."""
        is_spent = attempt.has_arrived & (attempt.contributions + 1 >= self.max_participations)
        since = np.where(is_spent, attempt.report_times, 0.0)
        return Absence(since, np.where(is_spent, float(NEVER), 0.0))
