"""Min-sep and participations that devices may reach by the last planned round."""

from typing import NamedTuple

import numpy as np

from fedray.audit.participation import Patterns
from fedray.base.arrays import Int64Array
from fedray.mechanisms.continuation import Future
from fedray.mechanisms.future import Barred


class Reached(NamedTuple):
    """Limits (b, k) that every device keeps, whatever it does under the rules."""

    min_sep: int
    """b: least difference between two rounds of a device; the number of rounds if no device can
    take part twice."""
    max_participations: int
    """k: most participations of a device; an upper bound if windows limit them."""

    def joined(self, other: "Reached") -> "Reached":
        """Returns the limits that devices of both keep."""
        return Reached(min(self.min_sep, other.min_sep), max(self[1], other[1]))


class ReachFrom:
    """Participations that follow a first allowed round e, under one set of rules.

    Args:
        rules: the rules.
    """

    def __init__(self, rules: Barred) -> None:
        n, following = rules.rounds, rules.barred[0]
        self._rules = rules
        if len(rules.barred) == 1:
            counts = np.zeros(n + 1, np.int64)
            for at in range(n - 1, rules.released - 1, -1):
                counts[at] = 1 + counts[following[at]]
        else:
            # Windows also count participations before e, which can only lower the number.
            found = [len(rules.earliest((), e)) for e in range(rules.released, n)]
            counts = np.array([0] * rules.released + found + [0])
        self._counts = counts
        gaps = np.where(following < n, following - np.arange(n + 1), n)
        self._gaps = np.minimum.accumulate(gaps[::-1])[::-1]

    def of(self, rounds: Int64Array, entries: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Returns (least gap [P], participations [P]) of devices with equally many participations.

        Args:
            rounds: their rounds so far, [P, c], sorted.
            entries: first round in which each may take part again, [P].
        """
        n, count = self._rules.rounds, rounds.shape[1]
        left = self._rules.left(count)
        later = self._counts[entries]
        if left is not None:
            later = np.minimum(later, left)
        gaps = np.where(later > 1, self._gaps[entries], n)
        if count:
            gaps = np.where(later > 0, np.minimum(gaps, entries - rounds[:, -1]), gaps)
        if count > 1:
            gaps = np.minimum(gaps, np.diff(rounds, axis=1).min(axis=1))
        return gaps, count + later


def reached(patterns: Patterns | None, future: Future) -> Reached:
    """Returns the limits that all devices keep until the last round, new ones included.

    Args:
        patterns: devices with a past; None for new devices only.
        future: the rules from now on.
    """
    found = Reached(future.rounds, 0)
    for rules in future.rules:
        reach = ReachFrom(rules)
        new = np.empty((1, 0), np.int64)
        gaps, counts = reach.of(new, rules.entries(new))
        found = found.joined(Reached(int(gaps[0]), int(counts[0])))
        if patterns is None:
            continue
        for count in np.flatnonzero(np.bincount(patterns.counts)).tolist():
            for chosen in patterns.with_count(count):
                first = None if future.first is None else future.first[chosen.places]
                entries = rules.entries(chosen.rounds, first)
                gaps, counts = reach.of(chosen.rounds, entries)
                found = found.joined(Reached(int(gaps.min()), int(counts.max())))
    return found
