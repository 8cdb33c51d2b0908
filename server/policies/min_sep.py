"""Minimum separation: a device remembers its last round, and keeps away from those near it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from server.policies.policy import Attempt, ParticipationPolicy


@dataclass(frozen=True, slots=True)
class MinSep(ParticipationPolicy):
    """Rounds of a device differ by at least so many.

    separation: least difference between the numbers of two rounds of a device.
    """

    separation: int

    def remembers_round(self, attempt: Attempt) -> NDArray[np.bool_]:
        """A device remembers rounds in which its report was accepted."""
        return attempt.is_accepted
