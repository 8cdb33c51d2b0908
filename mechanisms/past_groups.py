"""Devices grouped by all that their future depends on: the device with the largest past square of
each group."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedray.base.arrays import Float64Array, Int64Array


@dataclass(frozen=True, slots=True)
class Part:
    """Devices [Q] with the same number of participations c, and the squares of their sensitivities
    over R rounds."""

    places: Int64Array
    """Places of the devices among all of them, [Q]; -1 for a device without a past."""
    rounds: Int64Array
    """Rounds so far, [Q, c], each row sorted."""
    squares: Float64Array
    """Squared sensitivities of the past, [Q]."""
    entries: Int64Array
    """First round in which each may take part again, [Q]; R if never."""


@dataclass(frozen=True, slots=True)
class Group:
    """The device of a group that has the largest square."""

    key: tuple[int, ...]
    """All that its future depends on."""
    square: float
    """Squared sensitivity of its past over R rounds."""
    place: int
    """Place of the device; -1 without a past."""
    past: tuple[int, ...]
    """Rounds of the device."""


class PastGroups:
    """Groups of equal futures.

    Args:
        most: largest number of groups.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: dict[tuple[int, ...], Group] = {}
        self.is_full = False
        """Whether there were more groups than allowed; some devices are then missing."""

    def __iter__(self) -> Iterator[Group]:
        return iter(self._found.values())

    def __len__(self) -> int:
        return len(self._found)

    def add(self, part: Part, keys: Int64Array) -> None:
        """Takes devices with the keys [Q, K] of their futures."""
        if self.is_full:
            return
        best = best_of_each(keys, part.squares)
        for place in best.tolist():
            key = tuple(keys[place].tolist())
            square = float(part.squares[place])
            known = self._found.get(key)
            if known is None or square > known.square:
                past = tuple(part.rounds[place].tolist())
                self._found[key] = Group(key, square, int(part.places[place]), past)
        self.is_full = len(self._found) > self._most


def ranks(rows: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Returns the places of the first of each distinct row of `rows` [N, K], and the rank of every
    row among the distinct ones, [N]. Entries must be at least -1."""
    rank = np.zeros(len(rows), np.int64)
    first = np.zeros(min(1, len(rows)), np.int64)
    room = 1
    for column in rows.T:
        size = int(column.max(initial=0)) + 2
        # Columns are packed into one number until it would overflow.
        if room > (1 << 62) // size:
            first, rank = np.unique(rank, return_index=True, return_inverse=True)[1:]
            room = first.size
        rank = rank * size + (column + 1)
        room *= size
    if len(rows):
        first, rank = np.unique(rank, return_index=True, return_inverse=True)[1:]
    return first, rank


def best_of_each(keys: Int64Array, squares: Float64Array) -> Int64Array:
    """Returns the place of the largest square among each set of equal rows of keys [N, K]."""
    rank = ranks(keys)[1]
    order = np.lexsort((np.arange(len(keys))[::-1], squares, rank))
    is_last = np.append(np.diff(rank[order]) > 0, True)[: len(order)]
    return order[is_last]
