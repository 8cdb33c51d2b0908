"""Sampling without replacement: a device contributes at most once in a period, by its own
history."""

from dataclasses import dataclass

import numpy as np

from fedray.scenario import Scenario
from fedray.scenario.participation import WithoutReplacementPolicy
from .policy import Absence, Attempt, ParticipationPolicy


@dataclass(frozen=True, slots=True)
class WithoutReplacement(ParticipationPolicy):
    """A device is eligible once more than the period has passed since its last contribution.

    The shard checks the other half of the rule, that the history must be older than the period,
    because it holds for devices that never took part too.
    """

    period_seconds: float
    """The period."""
    knows_of_loss: bool
    """Whether a device that has lost its history knows the time of the loss."""

    @classmethod
    def of(cls, table: WithoutReplacementPolicy, scenario: Scenario) -> "WithoutReplacement":
        """Returns the policy of its table; the scenario describes losses of history."""
        is_known = scenario.participation.history_loss != "corrupted"
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
