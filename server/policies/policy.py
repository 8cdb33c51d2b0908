"""The interface of participation policies: the memory that an attempt leaves on its devices.

A policy never sees a single check-in. Once per attempt, for all of its devices, it says how long
each keeps away and which of them remember the round as their last. Compiled code compares these
numbers at every check-in. Policies are joined here: a device may take part if all of them admit it,
so the latest time and the widest separation count. A device forgets at the first loss of its
history after it stored the memory.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedray.base.arrays import BoolArray, Float64Array, UInt32Array, UInt64Array
from fedray.scenario import Scenario
from fedray.scenario.participation import PolicyTable
from fedray.wire.history import HistoryLosses, first_loss_after
from fedray.wire.messages import NEVER


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempt at a round and its devices [S]; times are seconds since start."""

    started: float | Float64Array
    """Start of the round; in buffered rounds and with stored uploads, start of each device [S]."""
    device_ids: UInt64Array
    """[S]; the devices."""
    report_times: Float64Array
    """[S]; time of each report, or infinity."""
    upload_times: Float64Array
    """[S]; time at which the upload starts, or would have started."""
    has_reported: BoolArray
    """[S]; whether the device reported, late or not."""
    has_arrived: BoolArray
    """[S]; whether its report arrived before the round closed. The device cannot know whether the
    round was committed."""
    has_uploaded: BoolArray
    """[S]; whether its upload started and the server did not abort it: it arrived, or was lost on
    the way before the round closed."""
    timer_seconds: Float64Array
    """[S]; time that each keeps away after its timer starts."""
    contributions: UInt32Array
    """[S]; number of reports that arrived in time before this attempt; 0 if not counted."""
    earlier_starts: Float64Array | None = None
    """[S]; start of the round of an earlier participation, as far as the device remembers it, or
    -infinity; see `MostPerPeriod.recent`. None if no policy needs it."""

    @property
    def size(self) -> int:
        """S."""
        return self.device_ids.size


class Absence(NamedTuple):
    """Absences of devices after an attempt."""

    since: Float64Array
    """[S]; time at which the device stores this, seconds since start; any finite time if it does
    not."""
    until: Float64Array
    """[S]; whole second from which it may come again; 0 if it need not keep away."""


class ParticipationPolicy:
    """Decides whether a device may take part again, as far as that follows from its memory.

    The base class remembers nothing and admits every device; policies override it.
    """

    @property
    def separation(self) -> int:
        """Least difference between the numbers of two rounds of a device; 0 for none."""
        return 0

    @property
    def counts_contributions(self) -> bool:
        """Whether `Attempt.contributions` is read; otherwise shards do not count them."""
        return False

    @property
    def survives_loss(self) -> bool:
        """Whether a device that has lost its history still keeps away as long."""
        return False

    def absence(self, attempt: Attempt) -> Absence | None:
        """Returns the absences of an attempt's devices, or None for a policy without times."""

    def remembers_round(self, attempt: Attempt) -> BoolArray:
        """Whether each device [S] of an attempt keeps the round as its last one."""
        return np.zeros(attempt.size, np.bool_)


def remembers_nothing(table: PolicyTable, scenario: Scenario) -> ParticipationPolicy:
    """Returns a policy without memory, for a table that only the shard checks."""
    del table, scenario
    return ParticipationPolicy()


@dataclass(frozen=True, slots=True)
class Policies:
    """Several policies as one, which admits a device if all of them do."""

    each: tuple[ParticipationPolicy, ...]
    """The policies; an empty tuple admits every device."""
    losses: HistoryLosses
    """Losses of the devices' histories."""
    end_seconds: float = math.inf
    """Time after which no device checks in, seconds since start."""

    @property
    def separation(self) -> int:
        """The largest separation; 0 for none."""
        return max((policy.separation for policy in self.each), default=0)

    def open_times(self, attempt: Attempt) -> UInt32Array:
        """The latest times [S] over all policies, as in `fedray.wire.messages.Settlement`."""
        times = np.zeros(attempt.size)
        for policy in self.each:
            absence = policy.absence(attempt)
            if absence is None:
                continue
            until = absence.until
            # A device that has lost its memory of the attempt may come again.
            if self.losses.happen and not policy.survives_loss:
                until = np.minimum(until, self._forget_times(attempt, absence.since))
            np.maximum(times, until, out=times)
        # Settlements hold whole seconds in 32 bits, of which NEVER is the largest.
        return np.minimum(times, float(NEVER)).astype(np.uint32)

    def remembers_round(self, attempt: Attempt) -> BoolArray:
        """Whether each device [S] remembers the round for some policy."""
        remembers = np.zeros(attempt.size, np.bool_)
        for policy in self.each:
            remembers |= policy.remembers_round(attempt)
        return remembers

    def forget_times(self, attempt: Attempt) -> UInt32Array:
        """Whole seconds [S] at which a device forgets an upload of the attempt; empty if histories
        are never lost."""
        if not self.losses.happen:
            return np.empty(0, np.uint32)
        return self._forget_times(attempt, attempt.upload_times).astype(np.uint32)

    def _forget_times(self, attempt: Attempt, since: Float64Array) -> Float64Array:
        # Losses are walked through from the start; losses after the end change nothing.
        times = np.minimum(since, self.end_seconds)
        lost = first_loss_after(self.losses, attempt.device_ids, times)
        return np.minimum(np.ceil(lost), float(NEVER))
