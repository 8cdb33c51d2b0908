"""Sensitivity of a strategy: of one pattern, of many patterns (a trace), and a bound for any schema.

All at clip norm 1. G = C'C is entrywise non-negative for every strategy here, so the worst contributions of a device are
all equal, and sqrt(sum of G[i, j] over the pattern's pairs) is exact for every model dimension
(Choquette-Choo et al. 2023, Proposition E.1 and its converse for G >= 0).
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mechanisms.participation import MinSep
from mechanisms.strategy import Sensitivity

if TYPE_CHECKING:
    from mechanisms.strategy import Strategy


GRAM_TABLE_ROUNDS = 4096
"""Up to this many rounds, G is tabulated once (128 MiB at most) and looked up; beyond, entries are computed as needed."""


class PatternSensitivities:
    """Exact sensitivities of many patterns of one strategy over a number of rounds."""

    def __init__(self, strategy: "Strategy", rounds: int) -> None:
        self._strategy, self._rounds = strategy, rounds
        self._table: NDArray[np.float64] | None = None

    def of(self, patterns: NDArray[np.int64]) -> NDArray[np.float64]:
        """Sensitivities [P] of patterns [P, c], each row strictly increasing within [0, rounds). Raises ValueError."""
        patterns = np.asarray(patterns, dtype=np.int64)
        is_inside = bool((patterns >= 0).all() and (patterns < self._rounds).all())
        if not (is_inside and (np.diff(patterns, axis=1) > 0).all()):
            raise ValueError(f"patterns must increase strictly within 0 to rounds-1={self._rounds - 1}; sort them, drop repeats")
        columns = np.ascontiguousarray(patterns.T)
        squared = np.zeros(len(patterns))
        for position, later in enumerate(columns):
            for earlier in columns[:position]:
                squared += 2.0 * self._gram(earlier, later, len(patterns))
            squared += self._gram(later, later, len(patterns))
        if not np.isfinite(squared).all():
            raise ValueError(f"strategy {self._strategy!r} has no finite sensitivity over {self._rounds} rounds; refused")
        return np.sqrt(squared)

    def _gram(self, first: NDArray[np.int64], second: NDArray[np.int64], patterns: int) -> NDArray[np.float64]:
        if self._table is None and patterns > self._rounds <= GRAM_TABLE_ROUNDS:
            index = np.arange(self._rounds)
            low, high = np.minimum(index[:, None], index), np.maximum(index[:, None], index)
            self._table = self._strategy.gram_entries(low, high, self._rounds)
        if self._table is None:
            return self._strategy.gram_entries(first, second, self._rounds)
        return self._table.ravel()[first * self._rounds + second]


def pattern_sensitivity(strategy: "Strategy", pattern: NDArray[np.int64], rounds: int) -> float:
    """Exact sensitivity of one device's strictly increasing pattern of rounds [c]."""
    return float(PatternSensitivities(strategy, rounds).of(np.asarray(pattern)[None, :])[0])


def any_strategy_bound(strategy: "Strategy", schema: MinSep) -> Sensitivity:
    """Upper bound for any C (Choquette-Choo et al. 2023, Theorem 3 and Algorithm 4).

    With r_i the largest sum of |G[i, j]| over a pattern's rounds j, the squared sensitivity is at most the largest sum of
    r_i over a pattern's rounds i.
    """
    n = schema.rounds
    index = np.arange(n)
    row_sums = np.empty(n)
    for start in range(0, n, 256):
        rows = index[start : start + 256, None]
        low, high = np.minimum(rows, index), np.maximum(rows, index)
        row_sums[start : start + 256] = _best_pattern_sums(np.abs(strategy.gram_entries(low, high, n)), schema)
    squared = float(_best_pattern_sums(row_sums[None, :], schema)[0])
    return Sensitivity(squared**0.5, False, "Choquette-Choo et al. 2023, Theorem 3 (upper bound for any C)")


def _best_pattern_sums(weights: NDArray[np.float64], schema: MinSep) -> NDArray[np.float64]:
    """Largest sum of weights over a pattern, for each row of weights [R, n]: f(i, j) = max(f(i+1, j), w_i + f(i+b, j-1))."""
    rows, n = weights.shape
    previous = np.zeros((rows, n + schema.min_sep))
    for _ in range(schema.effective_participations):
        current = np.zeros_like(previous)
        taken = weights + previous[:, schema.min_sep :]
        current[:, :n] = np.maximum.accumulate(taken[:, ::-1], axis=1)[:, ::-1]
        previous = current
    return previous[:, 0]
