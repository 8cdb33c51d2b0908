"""Intervals in which a device is eligible, and how sessions are joined to them.

An interval is the union of sessions that overlap or lie no more than JOIN_SECONDS apart. Times are
seconds UTC since the start of the simulation, midnight of a Monday; a device is eligible from an
interval's start until its end, which does not belong to it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedray.base.arrays import Float64Array, UInt32Array
from fedray.base.compiled import njit

HOUR = 3600.0
DAY = 86_400.0
JOIN_SECONDS = 1.0


class Intervals(NamedTuple):
    """Intervals [I], sorted by (device, start), disjoint."""

    local: UInt32Array
    """Position of the device among the devices listed, or in the shard."""
    start_times: Float64Array
    """Seconds since start; later than the true start if the interval began before the time
    listed."""
    end_times: Float64Array
    """True ends, however far past the time listed; infinity for an interval without end."""

    @classmethod
    def room(cls, size: int) -> "Intervals":
        """Allocates `size` intervals, without values."""
        return cls(np.empty(size, np.uint32), np.empty(size), np.empty(size))

    def take(self, chosen: Any) -> "Intervals":
        """Returns the intervals at positions, in a slice or under a mask."""
        return Intervals._make(column[chosen] for column in self)

    def sorted_by_device(self) -> "Intervals":
        """Sorts by device and keeps the order of each device's intervals."""
        return self.take(np.argsort(self.local, kind="stable"))


def joined(parts: Sequence[Intervals]) -> Intervals:
    """Concatenates `parts`, of which there may be zero."""
    # The empty part gives the columns their types.
    columns = zip(Intervals.room(0), *parts, strict=True)
    return Intervals(*(np.concatenate(column) for column in columns))


# The functions below work on the sessions or intervals of one device, in place: on the first
# entries of arrays `starts` and `ends`. They return the number of entries that are left.


@njit(forceinline=True)
def merge(starts, ends, count):
    """Sorts `count` sessions by start and joins them to intervals."""
    if count == 0:
        return 0
    # Insertion sort: a device has few sessions in a day, and they are nearly in order.
    for session in range(1, count):
        start = starts[session]
        end = ends[session]
        slot = session - 1
        while slot >= 0 and starts[slot] > start:
            starts[slot + 1] = starts[slot]
            ends[slot + 1] = ends[slot]
            slot -= 1
        starts[slot + 1] = start
        ends[slot + 1] = end
    last = 0
    for session in range(1, count):
        if starts[session] <= ends[last] + JOIN_SECONDS:
            ends[last] = max(ends[last], ends[session])
        else:
            last += 1
            starts[last] = starts[session]
            ends[last] = ends[session]
    return last + 1


@njit(forceinline=True)
def merge_touching(starts, ends, count, from_time, until_time):
    """Joins `count` sessions to intervals and drops intervals outside [from_time, until_time)."""
    intervals = merge(starts, ends, count)
    kept = 0
    for interval in range(intervals):
        if ends[interval] > from_time and starts[interval] < until_time:
            starts[kept] = starts[interval]
            ends[kept] = ends[interval]
            kept += 1
    return kept


@njit(forceinline=True)
def prolong(starts, ends, kept, found):
    """Joins `found` sessions, which lie behind the `kept` intervals, to the last interval."""
    covered = ends[kept - 1]
    for session in range(kept, kept + found):
        if starts[session] <= covered + JOIN_SECONDS:
            ends[kept - 1] = max(ends[kept - 1], ends[session])
