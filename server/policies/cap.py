"""The cap: a device that has taken part often enough never comes again."""

from dataclasses import dataclass

import numpy as np

from fedray.server.policies.policy import Absence, Attempt, ParticipationPolicy
from fedray.wire.messages import NEVER


@dataclass(frozen=True, slots=True)
class Cap(ParticipationPolicy):
    """A device takes part at most so often.

    max_participations: reports that arrived in time, after which it may not take part again.
    """

    max_participations: int

    @property
    def counts_contributions(self) -> bool:
        """See `ParticipationPolicy.counts_contributions`."""
        return True

    def absence(self, attempt: Attempt) -> Absence:
        """For ever, from the report that reaches the cap."""
        is_spent = attempt.has_arrived & (attempt.contributions + 1 >= self.max_participations)
        since = np.where(is_spent, attempt.report_times, 0.0)
        return Absence(since, np.where(is_spent, float(NEVER), 0.0))
