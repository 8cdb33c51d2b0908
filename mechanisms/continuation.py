"""Largest sensitivity that any device can reach by the last planned round, given its rounds so far
and the rules from now on.

The square of a pattern is a sum of Gram entries over R rounds: of its past, of its future, and of
pairs of both. Definitions and proofs are in README.md.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.errors import InputError
from fedray.base.threads import in_order
from .couplings import Couplings
from .future import Barred, Future, Window
from .sensitivity import ROUNDING
from .strategy import Strategy

__all__ = ["Continued", "Future", "PastPatterns", "Window", "largest_continued"]

EARLIEST = "earliest rounds are the worst (Gram entries fall with rounds, gaps do not shrink)"
MAJORANT = "earliest rounds and least gaps under a majorant of the Gram entries (upper bound)"


class PastPatterns(Protocol):
    """Devices [Q] with the same number of participations c."""

    @property
    def places(self) -> Int64Array:
        """Places of the devices among all of them, [Q]."""
        ...

    @property
    def rounds(self) -> Int64Array:
        """Their rounds so far, [Q, c], each row sorted."""
        ...


@dataclass(frozen=True, slots=True)
class Continued:
    """The largest sensitivity, at clip norm 1, that a device can reach by the last round."""

    value: float
    """Largest sensitivity, or an upper bound on it."""
    is_exact: bool
    """Whether `past` and `future` together attain the value; False marks an upper bound."""
    theorem: str
    """Argument that proves the value."""
    place: int
    """Place of a device that attains it; -1 for a device without a past."""
    past: tuple[int, ...]
    """Its rounds so far."""
    future: tuple[int, ...]
    """Its rounds from now on; of a bound, an allowed continuation that reaches less."""
    reached: float
    """Sensitivity of `past` and `future`, which is at most `value`."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Past patterns with the squares of their sensitivities over R rounds."""

    places: Int64Array
    rounds: Int64Array
    squares: Float64Array


def largest_continued(
    strategy: Strategy,
    pasts: Iterable[PastPatterns],
    future: Future,
    scales: Float64Array | None = None,
) -> Continued:
    """Returns the largest sensitivity over all devices and all their allowed continuations.

    Devices without a past are always included. Patterns that broke the rules are continued under
    the rules all the same.

    Args:
        strategy: the strategy C.
        pasts: patterns of the released rounds; iterated over once.
        future: the rules from now on.
        scales: noise of each row relative to the first, [R], non-decreasing, and 1 for released
            rounds; None if constant.

    Raises:
        InputError: the strategy has fewer rounds than planned, a pattern has a round that is not
            released, or the noise may not grow in this way.
        SensitivityUnknown: no bound is computed for so many rounds.
    """
    _check(future, scales)
    couplings = Couplings(strategy, future.released, future.rounds, scales)
    searches = [_Earliest(couplings, rules, future.first) for rules in future.rules]

    def prepared(past: PastPatterns) -> _Part:
        if past.rounds.size and past.rounds.max() >= future.released:
            raise InputError(
                f"pasts: a device took part in round {past.rounds.max()}, which is not among the "
                f"released={future.released} rounds; cut patterns after the last released round"
            )
        found = couplings.sensitivities.of(past.rounds)
        return _Part(past.places, past.rounds, found.values**2)

    newcomer = _Part(np.array([-1]), np.empty((1, 0), np.int64), np.zeros(1))
    for search in searches:
        search.add(newcomer)
    for part in in_order(prepared, pasts):
        for search in searches:
            search.add(part)
    found = [search.result() for search in searches]
    return max(found, key=lambda each: each.value)


def _check(future: Future, scales: Float64Array | None) -> None:
    if scales is None:
        return
    if scales.shape != (future.rounds,):
        raise InputError(
            f"scales: has {scales.size} entries, and must have one for each of rounds="
            f"{future.rounds}; extend it to the last planned round"
        )
    if not (scales[: future.released] == 1.0).all():
        raise InputError("scales: released rounds have noise of scale 1; let it grow later")
    if not ((scales >= 1.0).all() and (np.diff(scales) >= 0).all()):
        raise InputError("scales: noise must not fall from round to round; sort the scales")


class _Earliest:
    """Bound by the earliest continuation, with the least gaps; exact if these go together."""

    def __init__(self, couplings: Couplings, rules: Barred, first: Int64Array | None) -> None:
        self._couplings = couplings
        self._rules = rules
        self._first = first
        self._futures: dict[tuple[int, int | None], Int64Array] = {}
        self._squares: dict[tuple[int, int | None], float] = {}
        self._rows: dict[tuple[int, int | None], Float64Array] = {}
        self._upper = -1.0
        self._best = Continued(-1.0, False, "", -1, (), (), -1.0)

    def add(self, part: _Part) -> None:
        """Takes devices with equally many participations."""
        rules = self._rules
        if not part.places.size:
            return
        first = self._first[part.places] if self._first is not None and part.rounds.size else None
        entries = rules.entries(part.rounds, first)
        distinct, group = np.unique(entries, return_inverse=True)
        left = rules.left(part.rounds.shape[1])
        self._rows = {key: row for key, row in self._rows.items() if key[1] == left}
        squares = np.array([self._square(entry, left) for entry in distinct.tolist()])
        uppers = part.squares + squares[group]
        if part.rounds.size:
            rows = np.stack([self._row(entry, left) for entry in distinct.tolist()])
            for column in part.rounds.T:
                uppers += 2.0 * rows[group, column]
        place = int(uppers.argmax())
        self._upper = max(self._upper, float(uppers[place]))
        past = tuple(part.rounds[place].tolist())
        later = tuple(rules.earliest(past, int(entries[place])))
        reached = self._couplings.sensitivities.of(np.array([past + later], np.int64))
        value = float(reached.values[0])
        if value > self._best.reached:
            is_exact = bool(reached.is_exact[0])
            at = int(part.places[place])
            self._best = Continued(value, is_exact, EARLIEST, at, past, later, value)

    def result(self) -> Continued:
        """Returns the largest value so far."""
        best, upper = self._best, self._upper**0.5
        # A bound that some pattern attains is exact, whatever led to it.
        if best.is_exact and upper <= best.value * (1 + ROUNDING):
            return best
        value = max(upper, best.value)
        return replace(best, value=value, is_exact=False, theorem=MAJORANT)

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
                following = at + lags[: later.size - place]
                entries = self._couplings.of_future(np.full_like(following, at), following)
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
                row += self._couplings.of_past(past, np.array(at))
            self._rows[key] = row
        return self._rows[key]
