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
from .earliest_rounds import EarliestRounds
from .future import Barred, Future, Window
from .open_nodes import OpenNodes, trees_of
from .past_groups import Group, Part
from .recent_rounds import RecentRounds
from .sensitivity import ROUNDING, PatternSensitivities
from .strategy import Strategy

__all__ = ["Continued", "Future", "PastPatterns", "Window", "largest_continued", "least_growth"]

EARLIEST = "earliest rounds are the worst (Gram entries fall with rounds, and gaps do not shrink)"
MAJORANT = "earliest rounds and least gaps under a majorant of the Gram entries (upper bound)"
LEAST_STEP, COARSE_STEP = 1e-9, 1e-3
"""Relative steps in which the noise grows, if patterns attain the sensitivity and if not."""


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
    searches = [_Search(strategy, couplings, rules) for rules in future.rules]

    def prepared(past: PastPatterns) -> tuple[PastPatterns, Float64Array]:
        if past.rounds.size and past.rounds.max() >= future.released:
            raise InputError(
                f"pasts: a device took part in round {past.rounds.max()}, which is not among the "
                f"released={future.released} rounds; cut patterns after the last released round"
            )
        return past, couplings.sensitivities.of(past.rounds).values ** 2

    for search in searches:
        search.add(_Newcomer.places, _Newcomer.rounds, np.zeros(1), None)
    for past, squares in in_order(prepared, pasts):
        if past.places.size:
            first = None if future.first is None else future.first[past.places]
            for search in searches:
                search.add(past.places, past.rounds, squares, first)
    found = [search.result() for search in searches]
    return max(found, key=lambda each: (each.value, each.is_exact))


class _Newcomer:
    """A device without a past."""

    places = np.array([-1])
    rounds = np.empty((1, 0), np.int64)


class _Search:
    """The largest sensitivity under one set of rules: by earliest rounds where these are the worst,
    by a dynamic program if its states are few, else a bound."""

    def __init__(self, strategy: Strategy, couplings: Couplings, rules: Barred) -> None:
        self._rules = rules
        self._sensitivities = couplings.sensitivities
        self._earliest: EarliestRounds | None = None
        self._program: RecentRounds | OpenNodes | None = None
        trees = None if couplings.is_scaled else trees_of(strategy, rules.rounds)
        if trees is not None and OpenNodes.can(rules):
            self._program = OpenNodes(trees, rules)
            return
        self._earliest = EarliestRounds(couplings, rules)
        if not (couplings.falls and rules.has_growing_gaps):
            bands = strategy.diagonals(rules.rounds)
            self._program = RecentRounds(couplings.sensitivities, bands, rules)

    def add(
        self,
        places: Int64Array,
        rounds: Int64Array,
        squares: Float64Array,
        first: Int64Array | None,
    ) -> None:
        """Takes devices [Q] with equally many participations."""
        part = Part(places, rounds, squares, self._rules.entries(rounds, first))
        for each in (self._earliest, self._program):
            if each is not None:
                each.add(part)

    def result(self) -> Continued:
        """Returns the largest sensitivity of the devices taken."""
        found = None
        if self._earliest is not None:
            upper, reached = self._earliest.best()
            found = self._attained(upper, *reached, EARLIEST)
            found = found if found.is_exact else replace(found, theorem=MAJORANT)
        if self._program is not None and (found is None or not found.is_exact):
            best = self._program.best()
            if best is not None:
                return self._attained(*best)
        assert found is not None
        return found

    def _attained(self, upper: float, group: Group, later: list[int], theorem: str) -> Continued:
        """Returns a bound on the square as a result, exact if a pattern attains it."""
        later_rounds = tuple(later)
        found = self._sensitivities.of(np.array([group.past + later_rounds], np.int64))
        reached, value = float(found.values[0]), upper**0.5
        is_exact = bool(found.is_exact[0]) and value <= reached * (1 + ROUNDING)
        value = reached if is_exact else max(value, reached)
        return Continued(value, is_exact, theorem, group.place, group.past, later_rounds, reached)


def least_growth(
    strategy: Strategy, pasts: Iterable[PastPatterns], future: Future, limit: float
) -> tuple[float, Continued] | None:
    """Returns the least factor on the noise of all rows from round r on that keeps a sensitivity,
    relative to the noise so far, and the largest sensitivity with it.

    The factor is least up to LEAST_STEP if `is_exact`; else a smaller one may suffice. The returned
    sensitivity is at most the limit in any case.

    Args:
        strategy: the strategy C.
        pasts: patterns of the released rounds; iterated over several times.
        future: the rules from now on.
        limit: largest sensitivity, at clip norm 1.

    Returns:
        None if the released rows have spent the limit already.

    Raises:
        InputError, SensitivityUnknown: raised by `largest_continued`.
    """
    r = future.released
    found = largest_continued(strategy, pasts, future)
    if found.value <= limit:
        return 1.0, found
    spent = largest_continued(strategy, pasts, Future(r, r, np.arange(1, r + 1))) if r else None
    if spent is not None and spent.value >= limit:
        return None
    of_released = PatternSensitivities(strategy, r) if r else None
    too_little, enough = 1.0, None
    factor = 1.0
    while enough is None or enough[0] > too_little * (1 + COARSE_STEP):
        # The square of a pattern is A + B / factor^2, with A from the released rows, so a pattern
        # above the limit says by which factor at least the noise must grow.
        past = np.array([found.past], np.int64)
        sunk = float(of_released.of(past).values[0]) ** 2 if of_released is not None else 0.0
        fresh = (found.reached**2 - sunk) * factor**2
        wanted = (max(0.0, fresh) / (limit**2 - sunk)) ** 0.5 * (1 + LEAST_STEP)
        is_certain = wanted > too_little * (1 + LEAST_STEP)
        if not is_certain:
            # Only the bound is above the limit, and no pattern is known that is.
            wanted = too_little * 2.0 if enough is None else (too_little * enough[0]) ** 0.5
        factor = wanted
        scales = np.where(np.arange(future.rounds) < r, 1.0, factor)
        found = largest_continued(strategy, pasts, future, scales)
        if found.value > limit:
            too_little = factor
        elif is_certain:
            return factor, found
        else:
            enough = factor, found
    return enough


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
