"""Worst case of rows of a log that were left out, of which device and round are unknown; the
rounds are among the n of the log.

Let a device have the sensitivity S, and let R more rows be its own, x_r of them in round r. Let n_r
be the norm of column r of C, and h_r the least of S n_r and the sum of |G[i, r]| over its rounds i,
with G = C'C. Then its sensitivity is at most the root of

    S^2 + 2 sum_r x_r h_r + (sum_r x_r n_r)^2.

Proof: its rounds change C X by some P with ||P|| <= S, and the other rows by Q. Let c_r v' be the
change by one of these, |v| = 1. Its inner product with P is at most S n_r (Cauchy and Schwarz), and
at most the sum of |G[i, r]|, since |<u_i, v>| <= 1. ||Q|| is at most the sum of the norms n_r.

* If each row is a contribution, the x_r are any numbers with the sum R. The bound is convex in x:
  its largest value has all R rows in one round. Equal contributions attain it if no entry of G on
  the device's rounds and that round is negative.
* If rows of a device in one round are one contribution, x_r is 0 or 1, and 0 in the device's own
  rounds. Each sum is then at most that of its R largest terms, and ||Q|| at most the sensitivity of
  R participations without a min-sep. One row attains that too.
"""

from dataclasses import dataclass

import numpy as np

from fedray.audit.participation import Patterns
from fedray.base.arrays import Float64Array, Int64Array
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.sensitivity import BLOCK, ROUNDING, PatternValues
from fedray.mechanisms.strategy import SensitivityUnknown, Strategy
from fedray.mechanisms.triangular import TriangularStrategy

MOST_ENTRIES = 1 << 25
"""Products that are computed, in about a second: one for an entry of G, n for an entry of a
matrix's. Devices that are left then have the bound of the triangle inequality."""


@dataclass(frozen=True, slots=True)
class WorstCase:
    """Largest sensitivity of a device that owns rows which were left out."""

    value: float
    """The sensitivity at clip norm 1, or an upper bound on it."""
    is_exact: bool
    """Whether some device and rounds of the rows attain it."""


@dataclass(frozen=True, slots=True)
class _Columns:
    """G over n rounds, as far as the bound needs it."""

    strategy: Strategy
    norms: Float64Array
    """Norms of the columns of C, [n]."""

    def beside(self, pattern: Int64Array, own: float) -> tuple[Float64Array, Float64Array]:
        """Returns h [n] of a pattern [c], and the least entry of G beside each round [n], by the
        norms of both columns."""
        n = self.norms.size
        total, least = np.zeros(n), np.zeros(n)
        # Blocks, because all rows of a long pattern would need as much memory as G.
        for start in range(0, pattern.size, BLOCK):
            part = pattern[start : start + BLOCK]
            rows = self.strategy.gram_rows(part, n)
            least = np.minimum(least, (rows / self.norms[part, None]).min(axis=0))
            total += np.abs(rows).sum(axis=0)
        return np.minimum(total, own * self.norms), least / self.norms


def worst_case(
    strategy: Strategy, patterns: Patterns, values: PatternValues, rows: int, is_once: bool
) -> WorstCase:
    """Returns the largest sensitivity of a device if it owned some rows more.

    Args:
        strategy: the mechanism.
        patterns: rounds of every device, each contribution with weight 1.
        values: sensitivity of every device, [P]; upper bounds if not exact.
        rows: number of rows that were left out, R, at least 1.
        is_once: whether rows of a device in one round are one contribution.
    """
    n = patterns.committed_rounds
    columns = _Columns(strategy, np.sqrt(strategy.gram_entries(np.arange(n), np.arange(n), n)))
    largest = rows * float(columns.norms.max())
    if is_once and rows > 1:
        largest = _together(strategy, columns.norms, min(rows, n))
    best, left = WorstCase(0.0, False), MOST_ENTRIES
    tried: set[bytes] = set()
    # By sensitivity, so that all devices from some place on are below the worst case so far.
    for place in np.argsort(-values.values, kind="stable").tolist():
        own = float(values.values[place])
        triangle = own + largest
        if triangle <= best.value:
            break
        start, count = int(patterns.starts[place]), int(patterns.counts[place])
        pattern = patterns.rounds[start : start + count].astype(np.int64)
        # Devices of one pattern have one worst case.
        if pattern.tobytes() in tried:
            continue
        tried.add(pattern.tobytes())
        left -= count * n * (n if isinstance(strategy, TriangularStrategy) else 1)
        if left < 0:
            return WorstCase(triangle, False)
        if is_once and rows > 1:
            found = _in_other_rounds(columns, pattern, own, rows, largest)
        else:
            found = _in_one_round(columns, pattern, own, rows, is_once)
        # Equal contributions attain it only if they attain the device's own sensitivity.
        is_exact = found.is_exact and bool(values.is_exact[place])
        best = max(best, WorstCase(found.value, is_exact), key=lambda each: each.value)
    return best


def _together(strategy: Strategy, norms: Float64Array, rows: int) -> float:
    """Returns a bound on the sensitivity of one contribution in each of some rounds."""
    least = float(np.sort(norms)[-rows:].sum())
    try:
        known = strategy.participation_sensitivity(MinSep(norms.size, 1, rows))
    except SensitivityUnknown:
        return least
    return min(least, known.value)


def _in_one_round(
    columns: _Columns, pattern: Int64Array, own: float, rows: int, is_once: bool
) -> WorstCase:
    beside, least = columns.beside(pattern, own)
    free = np.arange(columns.norms.size)
    if is_once:
        free = np.setdiff1d(free, pattern)
        # A row in one of the device's own rounds adds nothing.
        if not free.size:
            return WorstCase(own, True)
    squares = own**2 + 2 * rows * beside[free] + (rows * columns.norms[free]) ** 2
    worst = int(squares.argmax())
    return WorstCase(float(np.sqrt(squares[worst])), bool(least[free[worst]] >= -ROUNDING))


def _in_other_rounds(
    columns: _Columns, pattern: Int64Array, own: float, rows: int, together: float
) -> WorstCase:
    beside, _ = columns.beside(pattern, own)
    free = np.setdiff1d(np.arange(columns.norms.size), pattern)
    if not free.size:
        return WorstCase(own, True)
    products = float(np.sort(beside[free])[-rows:].sum())
    # By the inequality of Cauchy and Schwarz, P and Q together are no more than this either.
    products = min(products, own * together)
    return WorstCase(float(np.sqrt(own**2 + 2 * products + together**2)), False)
