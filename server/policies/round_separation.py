"""Minimum separation: a device remembers its last round, and keeps away from nearby rounds."""

from dataclasses import dataclass
from typing import Literal

from fedray.base.arrays import BoolArray
from fedray.scenario import Scenario
from fedray.scenario.participation import MinSepPolicy
from .policy import Attempt, ParticipationPolicy


@dataclass(frozen=True, slots=True)
class RoundSeparation(ParticipationPolicy):
    """Rounds of a device differ by at least `gap`."""

    gap: int
    """Least difference between the numbers of two rounds of a device."""
    remembers: Literal["arrived", "upload"]
    """Rounds that a device remembers: rounds in which its report arrived in time, or rounds in
    which it started an upload that the server did not abort."""

    @classmethod
    def of(cls, table: MinSepPolicy, scenario: Scenario) -> "RoundSeparation":
        """Returns the policy of its table."""
        del scenario
        return cls(table.gap, "upload")

    @property
    def separation(self) -> int:
        return self.gap

    def remembers_round(self, attempt: Attempt) -> BoolArray:
        return attempt.has_arrived if self.remembers == "arrived" else attempt.has_uploaded
