"""Bound on the sensitivity of continued patterns by their earliest rounds and least gaps.

Let x be the earliest continuation of a device, L_q the least difference between a future round of
any device and its q-th next, and H >= |G| falling (`Couplings`). The s-th and t-th future round of
any continuation come no earlier than x_s and x_t, and at least L_(t-s) apart, so their entry is at
most H(x_s, x_s + L_(t-s)); that of a past round p and the t-th future one is at most H(p, x_t). If
G falls and the least gap never shrinks, x attains all of these bounds at once. If all rounds are
allowed, |G| takes the place of H, since x then has every pair of rounds of any continuation.
"""

import numpy as np

from fedray.base.arrays import Float64Array, Int64Array
from .couplings import Couplings
from .future import Barred
from .past_groups import Group, Part


class EarliestRounds:
    """Bound by the earliest continuation, with the least gaps; exact if these go together."""

    def __init__(self, couplings: Couplings, rules: Barred) -> None:
        self._couplings = couplings
        self._rules = rules
        # If every round is allowed, the continuation in all of them has the terms of any other.
        is_own = couplings.falls or rules.allows_all
        self._of_past = couplings.entries if is_own else couplings.of_past
        self._of_future = couplings.entries if is_own else couplings.of_future
        self._futures: dict[tuple[int, int | None], Int64Array] = {}
        self._squares: dict[tuple[int, int | None], float] = {}
        self._rows: dict[tuple[int, int | None], Float64Array] = {}
        self._upper = -1.0
        self._reached = -1.0
        self._best: tuple[Group, list[int]] | None = None

    def add(self, part: Part) -> None:
        """Takes devices with equally many participations."""
        uppers = self.uppers(part.rounds, part.squares, part.entries)
        place = int(uppers.argmax())
        self._upper = max(self._upper, float(uppers[place]))
        past = tuple(part.rounds[place].tolist())
        later = self._rules.earliest(past, int(part.entries[place]))
        pattern = np.array([[*past, *later]], np.int64)
        reached = float(self._couplings.sensitivities.of(pattern).values[0])
        if reached > self._reached:
            square = float(part.squares[place])
            self._reached = reached
            self._best = Group((), square, int(part.places[place]), past), later

    def uppers(
        self, rounds: Int64Array, squares: Float64Array, entries: Int64Array
    ) -> Float64Array:
        """Returns bounds on the squares of devices with equally many participations, [Q].

        Args:
            rounds: their rounds so far, [Q, c].
            squares: squares of these patterns over all planned rounds, [Q].
            entries: first round in which each may take part again, [Q].
        """
        count = rounds.shape[1]
        left = self._rules.left(count)
        # Entries are at most R, so that counting is faster than a sort.
        is_present = np.bincount(entries, minlength=1) > 0
        distinct, group = np.flatnonzero(is_present), (np.cumsum(is_present) - 1)[entries]
        # Devices come by number of participations, so rows of another number are not needed again.
        self._rows = {key: row for key, row in self._rows.items() if key[1] == left}
        of_future = np.array([self._square(entry, left) for entry in distinct.tolist()])
        uppers = squares + of_future[group]
        if count:
            rows = np.stack([self._row(entry, left) for entry in distinct.tolist()])
            for column in rounds.T:
                uppers += 2.0 * rows[group, column]
        return uppers

    def best(self) -> tuple[float, tuple[Group, list[int]]]:
        """Returns the bound on the square, and the device with its earliest continuation that comes
        closest among the devices with the largest bound."""
        assert self._best is not None
        return self._upper, self._best

    def _later(self, entry: int, left: int | None) -> Int64Array:
        key = entry, left
        if key not in self._futures:
            found = self._rules.earliest((), entry) if left != 0 else []
            self._futures[key] = np.array(found[:left], np.int64)
        return self._futures[key]

    def _square(self, entry: int, left: int | None) -> float:
        """Bounds the square of the future from its first allowed round on."""
        key = entry, left
        if key not in self._squares:
            later = self._later(entry, left)
            lags = self._rules.least_lags
            square = 0.0
            for place, at in enumerate(later.tolist()):
                # Any continuation has its rounds no earlier and no closer than these.
                following = later[place:]
                if not self._rules.has_growing_gaps:
                    following = at + lags[: later.size - place]
                entries = self._of_future(np.full_like(following, at), following)
                square += 2.0 * float(entries.sum()) - float(entries[0])
            self._squares[key] = square
        return self._squares[key]

    def _row(self, entry: int, left: int | None) -> Float64Array:
        """Bounds the sum of the entries of each released round with the future, [r]."""
        key = entry, left
        if key not in self._rows:
            past = np.arange(self._rules.released)
            row = np.zeros(past.size)
            for at in self._later(entry, left).tolist():
                row += self._of_past(past, np.array(at))
            self._rows[key] = row
        return self._rows[key]
