"""Sampling without replacement: a device contributes at most once in a period, by its own
history."""

from dataclasses import dataclass

import numpy as np

from fedray.scenario.participation import Participation, WithoutReplacementPolicy
from .policy import Absence, Attempt, ParticipationPolicy


@dataclass(frozen=True, slots=True)
class WithoutReplacement(ParticipationPolicy):
    """A device is eligible once more than the period has passed since its last contribution.

    The shard checks the other half of the rule, that the history must be older than the period,
    because it holds for devices that never took part too.

    period_seconds: the period.
    knows_of_loss: whether a device that has lost its history knows the time of the loss.
    """

    period_seconds: float
    knows_of_loss: bool

    @classmethod
    def of(
        cls, table: WithoutReplacementPolicy, participation: Participation
    ) -> "WithoutReplacement":
        """Returns the policy of its table; `participation` describes losses of history."""
        is_known = participation.history_loss != "corrupted"
        return cls(3600.0 * table.period_hours, is_known)

    @property
    def survives_loss(self) -> bool:
        """True: the device waits a whole period from the loss, longer than the wait that it
        forgot."""
        return self.knows_of_loss

    def absence(self, attempt: Attempt) -> Absence:
        """Returns the next whole second after the period, since exactly the period is not
        enough."""
        since = np.where(attempt.has_uploaded, attempt.upload_times, 0.0)
        until = np.floor(since + self.period_seconds) + 1.0
        return Absence(since, np.where(attempt.has_uploaded, until, 0.0))
