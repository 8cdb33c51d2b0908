"""The door for participation policies: what an attempt leaves in the memory of its devices.

A policy never meets a single check-in. It says once per attempt, for all of its devices, from when
on each may come again and which of them keep the round as their last one. Compiled code compares
these numbers wherever a device checks in. Policies are joined here: a device may take part if all
of them admit it, so the latest time counts, and the widest separation.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """How an attempt at a round went for its devices [S]; times are seconds since start.

    started: when the round started.
    report_times: [S]; when each reported; where it did not, any time or infinity.
    has_reported: [S]; whether it reported at all, late or not.
    is_accepted: [S]; whether its report arrived before the round closed. The device cannot know
        whether the round was committed.
    timer_seconds: [S]; how long each keeps away after its timer starts.
    contributions: [S]; accepted reports before this attempt; 0 where they are not counted.
    """

    started: float
    report_times: NDArray[np.float64]
    has_reported: NDArray[np.bool_]
    is_accepted: NDArray[np.bool_]
    timer_seconds: NDArray[np.float64]
    contributions: NDArray[np.uint32]


class ParticipationPolicy:
    """Whether a device may take part again, as far as it follows from what it remembers.

    This one remembers nothing, and admits everybody; policies say what differs.

    separation: least difference between the numbers of two rounds of a device; 0 for none.
    """

    separation: int = 0

    def reopen_times(self, attempt: Attempt) -> NDArray[np.float64]:
        """Whole seconds [S] since start from which each device of an attempt may come again; 0
        where the policy remembers nothing of the attempt."""
        return np.zeros(attempt.report_times.size)

    def remembers_round(self, attempt: Attempt) -> NDArray[np.bool_]:
        """Whether each device [S] of an attempt keeps the round as its last one."""
        return np.zeros(attempt.report_times.size, np.bool_)


@dataclass(frozen=True, slots=True)
class Policies:
    """Several policies as one, which admits a device if all of them do.

    each: the policies; none of them admits everybody.
    """

    each: tuple[ParticipationPolicy, ...]

    @property
    def separation(self) -> int:
        """The widest separation of all; 0 for none."""
        return max((policy.separation for policy in self.each), default=0)

    def reopen_times(self, attempt: Attempt) -> NDArray[np.uint32]:
        """The latest times [S] of all policies, as `fedray.messages.Settlement` has them."""
        times = np.zeros(attempt.report_times.size)
        for policy in self.each:
            np.maximum(times, policy.reopen_times(attempt), out=times)
        return times.astype(np.uint32)

    def remembers_round(self, attempt: Attempt) -> NDArray[np.bool_]:
        """Whether each device [S] keeps the round for some policy."""
        remembers = np.zeros(attempt.report_times.size, np.bool_)
        for policy in self.each:
            remembers |= policy.remembers_round(attempt)
        return remembers
