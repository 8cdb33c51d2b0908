"""The step of a column of times: times that are rounded to it may hide as much of a broken timer.

A type that rounds (float32), a spreadsheet's digits, and queries that cut times to hours leave all
times multiples of a step. Waits between them are then known only to that step.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedray.base.arrays import Int64Array

SECOND = 1_000_000_000
_DAY = 86_400 * SECOND
_QUARTER = 900 * SECOND
_MANY = 20
"""Distinct times from which on a common step is that of a rounding."""
_CHANCE = 1e6
"""Odds against chance from which on a step counts as a rounding."""


class Steps:
    """Finds the step of which all times are multiples, batch by batch."""

    def __init__(self) -> None:
        self.is_open = True
        """Whether further times may matter: False once some are finer than a second."""
        self._apart = self._from_zero = 0
        """Common divisors of the times since the first, and since 0, nanoseconds."""
        self._distinct: set[int] = set()
        """The first _MANY distinct times."""
        self._first = 0

    def add(self, ticks: Int64Array, per_second: float) -> None:
        """Adds times [N], counted in ticks, of which a second has the given number."""
        if not self.is_open or not ticks.size:
            return
        scale = round(SECOND / per_second)
        # Numbers that count from another moment may be beyond every date.
        if max(-int(ticks.min()), int(ticks.max())) > 2**62 // scale:
            self.is_open = False
            return
        moments = ticks * scale
        if not self._distinct:
            self._first = int(moments[0])
        apart = int(np.gcd.reduce(moments - self._first))
        self._apart = math.gcd(self._apart, apart)
        self._from_zero = math.gcd(self._from_zero, self._first, self._apart)
        if len(self._distinct) < _MANY:
            new = set(np.unique(moments)[: 2 * _MANY].tolist()) - self._distinct
            # No more than _MANY, whatever the batches.
            self._distinct.update(sorted(new)[: _MANY - len(self._distinct)])
        self.is_open = not 0 < self._apart <= SECOND

    def state(self) -> list[Any]:
        """Returns what is known of the times so far, the same in whatever order they came."""
        if not self.is_open or not self._distinct:
            return [self.is_open]
        # From _MANY times on, only their number matters.
        some = list(range(_MANY)) if self.is_sure else sorted(self._distinct)
        first = self._first % self._apart if self._apart else self._first
        return [True, self._apart, self._from_zero, first, some]

    def restore(self, state: Sequence[Any]) -> None:
        """Takes over what `state` returned."""
        self.is_open = state[0]
        if len(state) > 1:
            self._apart, self._from_zero, self._first = state[1:4]
            self._distinct = set(state[4])

    @property
    def is_sure(self) -> bool:
        """Whether the times are too many to have been chosen by hand."""
        return len(self._distinct) >= _MANY

    @property
    def seconds(self) -> float:
        """The step in seconds, if it is above a second and hardly a chance; else 0.

        N times that are whole seconds are multiples of q seconds by chance once in q^N.
        """
        if not self.is_open or not self._apart:
            return 0.0
        divisor = self._from_zero
        # Clocks of other zones are quarters of an hour away.
        if self.is_sure and self._first % math.gcd(self._apart, _QUARTER) == 0:
            divisor = self._apart
        # Times are rounded to parts of a day, or by binary or decimal digits.
        seconds = max(math.gcd(divisor, _DAY), _of_digits(divisor)) / SECOND
        return seconds if seconds > 1 and seconds ** len(self._distinct) >= _CHANCE else 0.0


def _of_digits(number: int) -> int:
    """Returns the largest divisor of a number whose only prime factors are 2 and 5."""
    rest = number
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return number // rest
