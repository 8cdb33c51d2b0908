"""Sampling without replacement: no device contributes twice within a period, by its own history."""

from dataclasses import dataclass

import numpy as np

from fedray.scenario.participation import Participation, WithoutReplacementPolicy
from fedray.server.policies.policy import Absence, Attempt, ParticipationPolicy


@dataclass(frozen=True, slots=True)
class WithoutReplacement(ParticipationPolicy):
    """A device is eligible once more than the period has passed since its last contribution.

    The other half of the rule, that its history must be older than the period, is the shard's,
    because it holds for devices that never took part too.

    period_seconds: the period.
    knows_of_loss: whether a device that has lost its history knows since when it has another.
    """

    period_seconds: float
    knows_of_loss: bool

    @classmethod
    def of(
        cls, table: WithoutReplacementPolicy, participation: Participation
    ) -> "WithoutReplacement":
        """The policy of its own `table`; `participation` says what losses of history are like."""
        is_known = participation.history_loss != "corrupted"
        return cls(3600.0 * table.period_hours, is_known)

    @property
    def survives_loss(self) -> bool:
        """It waits a whole period from the loss, which is longer than the rest that it forgot."""
        return self.knows_of_loss

    @property
    def reads_clock(self) -> bool:
        """See `ParticipationPolicy.reads_clock`."""
        return True

    def absence(self, attempt: Attempt) -> Absence:
        """The next whole second after the period: exactly the period is not enough."""
        since = np.where(attempt.has_uploaded, attempt.upload_times, 0.0)
        until = np.floor(since + self.period_seconds) + 1.0
        return Absence(since, np.where(attempt.has_uploaded, until, 0.0))
