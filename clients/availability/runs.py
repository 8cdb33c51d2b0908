"""Runs: the stretches in which a device is eligible, as every model gives them, and how sessions
are joined to runs.

A run is the union of sessions that overlap or lie no more than JOIN_SECONDS apart. Times are
seconds UTC since the start of the run of the simulation, midnight of a Monday; a run is eligible
from its start on until, but not at, its end.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

HOUR = 3600.0
DAY = 86_400.0
JOIN_SECONDS = 1.0


class Runs(NamedTuple):
    """Runs [R]: which device of those asked for, start, end; sorted by (device, start), disjoint.

    Ends are true ends, however far past the time asked for. A run that began before it may have a
    later start than its true one.
    """

    which: NDArray[np.uint32]
    start: NDArray[np.float64]
    end: NDArray[np.float64]

    def take(self, chosen: Any) -> "Runs":
        """Some of the runs: by places, a slice or a mask."""
        return Runs(self.which[chosen], self.start[chosen], self.end[chosen])


def joined(runs: Sequence[Runs]) -> Runs:
    """Runs after one another."""
    return Runs(
        np.concatenate([np.empty(0, np.uint32), *(each.which for each in runs)]),
        np.concatenate([np.empty(0), *(each.start for each in runs)]),
        np.concatenate([np.empty(0), *(each.end for each in runs)]),
    )


@njit(forceinline=True)
def merge(starts, ends, count):
    """Sorts sessions by start and joins those no more than JOIN_SECONDS apart, in place; how many
    runs remain."""
    if count == 0:
        return 0
    for position in range(1, count):
        start, end = starts[position], ends[position]
        slot = position - 1
        while slot >= 0 and starts[slot] > start:
            starts[slot + 1], ends[slot + 1] = starts[slot], ends[slot]
            slot -= 1
        starts[slot + 1], ends[slot + 1] = start, end
    kept = 0
    for position in range(1, count):
        if starts[position] <= ends[kept] + JOIN_SECONDS:
            ends[kept] = max(ends[kept], ends[position])
        else:
            kept += 1
            starts[kept], ends[kept] = starts[position], ends[position]
    return kept + 1


@njit(forceinline=True)
def keep_touching(starts, ends, count, low, high):
    """Keeps the runs that touch [low, high), in place; how many."""
    kept = 0
    for run in range(count):
        if ends[run] > low and starts[run] < high:
            starts[kept], ends[kept] = starts[run], ends[run]
            kept += 1
    return kept
