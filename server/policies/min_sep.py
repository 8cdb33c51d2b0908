"""Minimum separation: a device remembers its last round, and keeps away from those near it."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from server.policies.policy import Attempt, ParticipationPolicy


@dataclass(frozen=True, slots=True)
class MinSep(ParticipationPolicy):
    """Rounds of a device differ by at least so many.

    gap: least difference between the numbers of two rounds of a device.
    remembers: the rounds that a device remembers: those that accepted its report, or those in which
        it started an upload that the server did not abort.
    """

    gap: int
    remembers: Literal["accepted", "upload"]

    @property
    def separation(self) -> int:
        """See `ParticipationPolicy.separation`."""
        return self.gap

    def remembers_round(self, attempt: Attempt) -> NDArray[np.bool_]:
        """See `ParticipationPolicy.remembers_round`."""
        return attempt.is_accepted if self.remembers == "accepted" else attempt.has_uploaded
