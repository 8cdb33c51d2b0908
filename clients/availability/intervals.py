"""Intervals: the times in which a device is eligible, as every model gives them, and how sessions
are joined to intervals.

An interval is the union of sessions that overlap or lie no more than JOIN_SECONDS apart. Times are
seconds UTC since the start of the simulation, midnight of a Monday; a device is eligible from an
interval's start on until, but not at, its end.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

HOUR = 3600.0
DAY = 86_400.0
JOIN_SECONDS = 1.0


class Intervals(NamedTuple):
    """Intervals [I], sorted by (device, start), disjoint.

    local: which device: its position among those that were asked for, or in the shard.
    start_times: seconds since start. The start of an interval that began before the time that was
        asked for may be later than its true one.
    end_times: true ends, however far past the time that was asked for; infinity for none.
    """

    local: NDArray[np.uint32]
    start_times: NDArray[np.float64]
    end_times: NDArray[np.float64]

    def take(self, chosen: Any) -> "Intervals":
        """Some of the intervals.

        Args:
            chosen: their positions, a slice or a mask.
        """
        return Intervals(
            self.local[chosen],
            self.start_times[chosen],
            self.end_times[chosen],
        )


def joined(parts: Sequence[Intervals]) -> Intervals:
    """The intervals of all `parts` after one another; none of no parts."""
    # The empty one gives the types of the columns where there are no parts.
    none = Intervals(np.empty(0, np.uint32), np.empty(0), np.empty(0))
    columns = zip(none, *parts, strict=True)
    return Intervals(*(np.concatenate(column) for column in columns))


def filled(fill: Callable[[Intervals], int], capacity: int) -> Intervals:
    """The intervals that a kernel finds, which cannot know beforehand how many they are.

    Kernels write the columns out themselves, where there is room: a function for it would cost a
    third of a listing's time.

    Args:
        fill: writes intervals as far as there is room, and returns how many there are. It is called
            again, with room for all of them, where there was too little.
        capacity: room at the first call; a good guess spares the second one.

    Returns:
        What `fill` wrote.
    """
    while True:
        room = Intervals(
            local=np.empty(capacity, np.uint32),
            start_times=np.empty(capacity),
            end_times=np.empty(capacity),
        )
        total = fill(room)
        if total <= capacity:
            return room.take(slice(total))
        # The next turn finds the same intervals, and has room for all of them.
        capacity = total


@njit(forceinline=True)
def merge(starts, ends, count):
    """Makes intervals of sessions, in place.

    Args:
        starts: when sessions start; the first `count` are sorted.
        ends: when they end.
        count: how many sessions there are, in any order.

    Returns:
        How many intervals there are: sessions that overlap, or lie no more than JOIN_SECONDS apart,
        are one.
    """
    if count == 0:
        return 0
    # Insertion sort: a device has few sessions in a day, and they are nearly in order.
    for session in range(1, count):
        start, end = starts[session], ends[session]
        slot = session - 1
        while slot >= 0 and starts[slot] > start:
            starts[slot + 1], ends[slot + 1] = starts[slot], ends[slot]
            slot -= 1
        starts[slot + 1], ends[slot + 1] = start, end
    kept = 0
    for session in range(1, count):
        if starts[session] <= ends[kept] + JOIN_SECONDS:
            ends[kept] = max(ends[kept], ends[session])
        else:
            kept += 1
            starts[kept], ends[kept] = starts[session], ends[session]
    return kept + 1


@njit(forceinline=True)
def keep_touching(starts, ends, count, from_time, until_time):
    """Keeps the intervals that touch a time, in place and in their order.

    Args:
        starts: when intervals start.
        ends: when they end.
        count: how many there are.
        from_time: of the time.
        until_time: its end, which does not belong to it.

    Returns:
        How many are kept.
    """
    kept = 0
    for interval in range(count):
        if ends[interval] > from_time and starts[interval] < until_time:
            starts[kept], ends[kept] = starts[interval], ends[interval]
            kept += 1
    return kept
