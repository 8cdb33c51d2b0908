"""Devices that must wait: the first round in which each may take part again, so that a promise is
kept whatever devices do under the rules.

A device that waits longer has its later rounds later and fewer of them, so its bound falls. The
first round that is late enough is found by halving, for all devices together. The bound is that of
the earliest rounds and least gaps (`mechanisms/earliest_rounds.py`). If it is above the truth, a
device waits longer than it needs to.
"""

import numpy as np

from fedray.audit.live.promise import Promise
from fedray.audit.live.reached import ReachFrom
from fedray.audit.participation import Patterns
from fedray.base.arrays import BoolArray, Float64Array, Int64Array
from fedray.mechanisms.continuation import Future
from fedray.mechanisms.couplings import Couplings
from fedray.mechanisms.earliest_rounds import EarliestRounds
from fedray.mechanisms.future import Barred
from fedray.mechanisms.strategy import Strategy

SLACK = 1e-12
"""Relative margin below a limit, more than the rounding errors of sums."""


def who_waits(
    strategy: Strategy, patterns: Patterns, future: Future, promise: Promise
) -> Int64Array:
    """Returns the first round in which each device may take part again, [P]: 0 for a device that
    need not wait, and the number of planned rounds for one that may not come back.

    Devices must keep the promise if none takes part again.

    Args:
        strategy: the mechanism.
        patterns: rounds of every device so far.
        future: the rules from now on.
        promise: limits to keep.
    """
    couplings = Couplings(strategy, future.released, future.rounds)
    firsts = np.zeros(patterns.counts.size, np.int64)
    for rules in future.rules:
        search = _Search(couplings, rules, promise)
        for count in np.flatnonzero(np.bincount(patterns.counts)).tolist():
            for chosen in patterns.with_count(count):
                waits = None if future.first is None else future.first[chosen.places]
                found = search.first_rounds(chosen.rounds, waits)
                firsts[chosen.places] = np.maximum(firsts[chosen.places], found)
    return firsts


class _Search:
    """First rounds of devices under one set of rules.

    Args:
        couplings: bounds of the Gram entries.
        rules: the rules.
        promise: limits to keep.
    """

    def __init__(self, couplings: Couplings, rules: Barred, promise: Promise) -> None:
        self._couplings, self._rules, self._promise = couplings, rules, promise
        self._reach = ReachFrom(rules)
        self._earliest = EarliestRounds(couplings, rules)

    def first_rounds(self, rounds: Int64Array, waits: Int64Array | None) -> Int64Array:
        """Returns the first rounds of devices with patterns [P, c] that wait already [P], [P]."""
        own = self._rules.entries(rounds, waits)
        squares = self._couplings.sensitivities.of(rounds).values ** 2
        found = np.zeros(len(rounds), np.int64)
        beyond = np.flatnonzero(self._is_beyond(rounds, squares, own))
        low, high = own[beyond] + 1, np.full(beyond.size, self._rules.rounds)
        while (low < high).any():
            middle = (low + high) // 2
            is_beyond = self._is_beyond(rounds[beyond], squares[beyond], middle)
            # A device whose search has ended is asked at the last round, and stays.
            is_beyond &= low < high
            low, high = np.where(is_beyond, middle + 1, low), np.where(is_beyond, high, middle)
            high = np.maximum(low, high)
        found[beyond] = low
        return found

    def _is_beyond(
        self, rounds: Int64Array, squares: Float64Array, entries: Int64Array
    ) -> BoolArray:
        """Whether devices [P] that wait for a round [P] may exceed the promise."""
        gaps, counts = self._reach.of(rounds, entries)
        promise = self._promise
        is_beyond = np.zeros(len(rounds), np.bool_)
        if promise.min_sep is not None:
            is_beyond |= (gaps < promise.min_sep) & (counts > 1)
        if promise.max_participations is not None:
            is_beyond |= counts > promise.max_participations
        if promise.sensitivity is not None:
            most = promise.sensitivity**2 * (1.0 - SLACK)
            is_beyond |= self._earliest.uppers(rounds, squares, entries) > most
        return is_beyond & (entries < self._rules.rounds)
