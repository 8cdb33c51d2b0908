"""Sensitivity of a strategy: of one pattern, of many (a trace), and of all that a (b, k)
permits. At clip norm 1.

One device with pattern pi contributes unit vectors u_i, i in pi, and changes C X by a norm whose
square is sum over i, j in pi of G[i, j] <u_i, u_j>, G = C'C. Cases, and where they are:

1. a pattern with G >= 0 on it: all u_i alike are worst, sqrt(sum G[i, j]), exact in every
   dimension; with negative entries sqrt(sum |G[i, j]|) is an upper bound (Choquette-Choo et al.
   2023, Proposition E.1), and the largest value over unit vectors is exact for models of at least
   |pi| parameters                  `PatternSensitivities`, `pattern_sensitivity`
2. a trace: the largest over its devices                     `fedray.audit.sensitivity`
3. a non-increasing Toeplitz C under (b, k): Theorem 3.1     `toeplitz.py`
4. at most b bands under (b, k): dynamic program             `orthogonal_sensitivity`
5. any C under (b, k): upper and lower bound                 `any_strategy_sensitivity`
6. a binary tree under (b, k): dynamic program               `tree.py`
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedray.errors import InputError
from mechanisms.gram import GramTable
from mechanisms.participation import MinSep
from mechanisms.strategy import Sensitivity, SensitivityUnknown

if TYPE_CHECKING:
    from mechanisms.strategy import Strategy


GRAM_TABLE_ROUNDS = 10_000
"""Up to this many rounds, G is tabulated once (400 MB at most) and looked up; beyond, entries are
computed as needed."""

ANY_STRATEGY_ROUNDS = 20_000
ANY_STRATEGY_OPERATIONS = 2e9
"""Most rounds n, and operations n^2 (k - 1), of the bound for any C: 20 s. An audit asks for
several. Where b is 1 they are n^2."""

SUMMED_FROM = 256
"""Participations of a pattern from which its columns are summed instead of its Gram entries, where
C has no negative ones."""

MOST_WITH_SIGNS, MOST_CERTIFIED = 10_000, 1_000
"""Participations of a pattern up to which negative Gram entries are looked for, block by block; and
up to which a bound that has such entries is made exact."""
BLOCK = 256

ROWS_TOGETHER = 32
"""Rows of G that the bound for any C goes through together; so few stay in the processor's
cache."""

MOST_IMPROVEMENTS = 20
"""Of each pattern that the lower bound for any C starts from; patterns may creep by one round a
time for hundreds of times."""

ROUNDING = 1e-12
"""Relative size of what float64 sums of these lengths may differ by; no decision rests on less."""

CERTIFIED, MOST_SWEEPS = 1e-8, 5000
"""Relative gap of the squared bounds at which unit contributions are called optimal, and sweeps
after which they are not."""


@dataclass(frozen=True, slots=True)
class PatternValues:
    """Sensitivities of patterns. values [P]; is_exact [P]: False marks an upper bound (some G[i, j]
    of the pattern is negative)."""

    values: NDArray[np.float64]
    is_exact: NDArray[np.bool_]


class PatternSensitivities:
    """Sensitivities of many patterns of one strategy over a number of rounds.

    Args:
        most_rounds: to which they will `grow`; None where they will not.
    """

    def __init__(self, strategy: "Strategy", rounds: int, most_rounds: int | None = None) -> None:
        strategy.check_rounds(rounds)
        self._strategy, self._rounds = strategy, rounds
        self._most_rounds = most_rounds
        self._table: GramTable | None = None
        self._looked_up = 0

    def grow(self, rounds: int) -> None:
        """Goes on to more rounds, up to `most_rounds`; what was computed for fewer is used where it
        can be."""
        self._strategy.check_rounds(rounds)
        self._rounds, self._looked_up = rounds, 0

    def of(self, patterns: NDArray[np.int64]) -> PatternValues:
        """Of patterns [P, c], each row in order within [0, rounds). Raises InputError.

        A round that stands twice is one in which the device contributed twice, each time clipped by
        itself: the sum over i, j runs over the rounds as they stand, so that both count with each
        other too.
        """
        patterns = np.asarray(patterns, dtype=np.int64)
        is_inside = bool((patterns >= 0).all() and (patterns < self._rounds).all())
        if not (is_inside and (np.diff(patterns, axis=1) >= 0).all()):
            raise InputError(
                f"patterns must not decrease, and lie within 0 to rounds-1={self._rounds - 1}; "
                "sort them"
            )
        if len(patterns) < patterns.shape[1]:
            squared, is_exact = self._row_by_row(patterns)
        elif self._rounds <= GRAM_TABLE_ROUNDS:
            squared, is_exact = self._pair_by_pair(patterns)
        else:  # entries cost more than finding the patterns that are alike
            distinct, place = np.unique(patterns, axis=0, return_inverse=True)
            squared, is_exact = self._pair_by_pair(distinct)
            squared, is_exact = squared[place], is_exact[place]
        if not np.isfinite(squared).all():
            raise InputError(
                f"strategy {self._strategy!r} has no finite sensitivity over {self._rounds} "
                "rounds; refused"
            )
        return PatternValues(np.sqrt(squared), is_exact)

    def _pair_by_pair(
        self, patterns: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        columns = np.ascontiguousarray(patterns.T)
        squared, is_exact = np.zeros(len(patterns)), np.ones(len(patterns), np.bool_)
        for position, later in enumerate(columns):
            for earlier in columns[:position]:
                entries = self.entries(earlier, later)
                if entries.min(initial=0.0) < 0:
                    is_exact &= entries >= -self._rounding(earlier, later)
                    np.abs(entries, out=entries)
                entries *= 2.0
                squared += entries
            squared += self.entries(later, later)
        return squared, is_exact

    def _row_by_row(
        self, patterns: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        found = [self._one(pattern) for pattern in patterns]
        return np.array([square for square, _ in found]), np.array(
            [is_exact for _, is_exact in found]
        )

    def _one(self, pattern: NDArray[np.int64]) -> tuple[float, bool]:
        """(squared sensitivity, whether it is exact) of one pattern [c], in memory of c."""
        if (
            pattern.size > SUMMED_FROM
            and (square := self._strategy.pattern_square(pattern, self._rounds)) is not None
        ):
            return square, True
        if pattern.size > MOST_WITH_SIGNS:
            raise InputError(
                f"a device took part {pattern.size:,} times, and this {self._strategy.kind} "
                "strategy has negative entries: its "
                f"sensitivity needs {pattern.size:,}^2 products, and at most {MOST_WITH_SIGNS:,}^2 "
                "are computed; merge devices' "
                "rounds, or leave this mechanism out"
            )
        square, is_exact = 0.0, True
        norms = np.sqrt(self.entries(pattern, pattern))
        for start in range(0, pattern.size, BLOCK):
            rows, later = pattern[start : start + BLOCK, None], slice(start, None)
            block = self.entries(np.minimum(rows, pattern[later]), np.maximum(rows, pattern[later]))
            is_exact = is_exact and bool(
                (block >= -ROUNDING * norms[start : start + BLOCK, None] * norms[later]).all()
            )
            np.abs(block, out=block)
            # Pairs of this block stand twice in it, pairs with later rounds once.
            square += 2.0 * float(block.sum()) - float(block[:, :BLOCK].sum())
        return square, is_exact

    def _rounding(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.float64]:
        """Sizes of entries that may be rounded zeros: ROUNDING of the product of the two columns'
        norms."""
        return ROUNDING * np.sqrt(self.entries(first, first) * self.entries(second, second))

    def exact(self, pattern: NDArray[np.int64]) -> Sensitivity:
        """Of one pattern [c]; where G has negative entries, exact for models of c or more
        parameters, a bound for fewer."""
        found, rows = self.of(pattern[None, :]), tuple(pattern.tolist())
        if not found.is_exact[0] and pattern.size > MOST_CERTIFIED:
            theorem = "Choquette-Choo et al. 2023, Proposition E.1 (upper bound)"
            return Sensitivity(float(found.values[0]), False, theorem, 0.0, rows)
        if found.is_exact[0]:
            value = float(found.values[0])
            return Sensitivity(
                value,
                True,
                "Choquette-Choo et al. 2023, Proposition E.1 (G >= 0: aligned)",
                value,
                rows,
            )
        upper, lower = unit_vector_sensitivity(self.gram_of(pattern))
        upper = max(lower, min(upper, float(found.values[0])))  # both are bounds
        theorem = (
            "largest over unit contributions, by a dual certificate (exact for models of as "
            "many parameters as rounds here)"
        )
        return Sensitivity(upper, _agree(lower, upper, CERTIFIED), theorem, lower, rows)

    def gram_of(self, pattern: NDArray[np.int64]) -> NDArray[np.float64]:
        """G[pattern, pattern], [c, c]."""
        return self.entries(
            np.minimum(pattern[:, None], pattern), np.maximum(pattern[:, None], pattern)
        )

    def entries(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.float64]:
        """G[first, second] elementwise, for first <= second; from a table once as many as rounds
        were asked for."""
        self._looked_up += first.size
        if self._rounds > GRAM_TABLE_ROUNDS or (
            self._table is None and self._looked_up <= self._rounds
        ):
            return self._strategy.gram_entries(first, second, self._rounds)
        if self._most_rounds is None:
            self._table = self._table or self._strategy.gram_table(self._rounds)
        elif self._table is None or self._table.rounds != self._rounds:
            most = min(self._most_rounds, GRAM_TABLE_ROUNDS)
            self._table = self._strategy.grown_table(self._table, self._rounds, most)
        return self._table.entries(first, second)


def pattern_sensitivity(
    strategy: "Strategy", pattern: NDArray[np.int64], rounds: int
) -> Sensitivity:
    """Of one device's pattern of rounds [c] in order; see `PatternSensitivities`."""
    return PatternSensitivities(strategy, rounds).exact(np.asarray(pattern, dtype=np.int64))


def unit_vector_sensitivity(G: NDArray[np.float64]) -> tuple[float, float]:
    """(upper, lower) bounds, equal but for rounding, on max over unit vectors of sqrt(sum G[i, j]
    <u_i, u_j>), G [c, c] p.s.d.

    Lower: a stationary point of block coordinate ascent, u_i = the direction of sum_{j != i} G[i,
    j] u_j (Wang, Chang, Kolter 2018, "The mixing method"), in enough dimensions for an optimum
    (Pataki 1998: rank (rank + 1) / 2 <= c). Upper: weak duality;
    for any y with diag(y) - G p.s.d. the square is at most sum y. y_i = ||sum_j G[i, j] u_j|| is
    optimal at the optimum; the least eigenvalue makes up for the rest.
    """
    c = len(G)
    U = np.random.default_rng(0).normal(size=(c, min(c, int(np.sqrt(2 * c)) + 2)))
    U /= np.linalg.norm(U, axis=1, keepdims=True)
    upper, lower = np.inf, 0.0
    for sweep in range(MOST_SWEEPS):
        for i in range(c):
            direction = G[i] @ U - G[i, i] * U[i]
            norm = np.linalg.norm(direction)
            if norm > 0:
                U[i] = direction / norm
        if sweep % 10 == 9:
            total = G @ U
            y = np.linalg.norm(total, axis=1)
            short = max(0.0, -float(np.linalg.eigvalsh(np.diag(y) - G)[0]))
            upper, lower = min(upper, float(y.sum() + c * short)), float((total * U).sum())
            if upper <= lower * (1 + CERTIFIED):
                break
    return float(np.sqrt(max(lower, upper))), float(np.sqrt(lower))


def orthogonal_sensitivity(
    squared_norms: NDArray[np.float64], participation: MinSep
) -> Sensitivity:
    """Exact where columns at least b apart are orthogonal, as with at most b bands; squared_norms
    [n] are G's diagonal.

    f(i, j) = max(f(i+1, j), G[i, i] + f(i+b, j-1)) (Choquette-Choo et al. 2023, Theorem 2,
    Algorithms 3 and 5).
    """
    square, pattern = _best_pattern(squared_norms, participation)
    value = square**0.5
    return Sensitivity(
        value,
        True,
        "Choquette-Choo et al. 2023, Theorem 2 (at most b bands: orthogonal columns)",
        value,
        pattern,
    )


@lru_cache(maxsize=1)  # an audit asks for the same one several times
def any_strategy_sensitivity(strategy: "Strategy", participation: MinSep) -> Sensitivity:
    """Upper bound for any C, and a lower bound; exact for one participation, and where the two
    agree.

    With r_i the largest sum of |G[i, j]| over any pattern's rounds j, the squared sensitivity is at
    most the largest sum of r_i over a pattern's rounds i (Choquette-Choo et al. 2023, Theorem 3 and
    Algorithm 4; up to 5 % loose on dense C).
    """
    n = participation.rounds
    strategy.check_rounds(n)
    steps = (
        1 if participation.min_sep == 1 else participation.max_participations - 1
    )  # without a min-sep, the largest of a row are taken
    if n > ANY_STRATEGY_ROUNDS or n * n * steps > ANY_STRATEGY_OPERATIONS:
        raise SensitivityUnknown(
            f"rounds={n}: no theorem gives this {strategy.kind} strategy's sensitivity under "
            f"(min_sep={participation.min_sep}, "
            f"max_participations={participation.max_participations}); the bound for any C "
            f"takes at most {ANY_STRATEGY_ROUNDS} rounds and, for a min_sep above 1, "
            f"{ANY_STRATEGY_OPERATIONS:g} products of rounds, rounds and participations"
        )
    table = strategy.gram_table(n) if n <= GRAM_TABLE_ROUNDS else None
    diagonal = (
        table.diagonal()
        if table is not None
        else strategy.gram_entries(np.arange(n), np.arange(n), n)
    )
    if participation.max_participations == 1:
        worst = int(diagonal.argmax())
        value = float(diagonal[worst]) ** 0.5
        return Sensitivity(
            value, True, "one participation: the largest column norm", value, (worst,)
        )

    def rows(index: NDArray[np.int64]) -> NDArray[np.float64]:
        return table.rows(index) if table is not None else strategy.gram_rows(index, n)

    row_sums = np.empty(n)
    for start in range(0, n, ROWS_TOGETHER):
        index = np.arange(start, min(start + ROWS_TOGETHER, n))
        row_sums[index] = _best_pattern_sums(np.abs(rows(index)), participation)
    square, candidate = _best_pattern(row_sums, participation)
    upper = square**0.5

    def summed_rows(pattern: NDArray[np.int64]) -> NDArray[np.float64]:
        total = strategy.summed_gram_rows(pattern, n)
        if total is not None:
            return total
        return np.sum(
            [
                rows(part).sum(axis=0)
                for part in np.split(pattern, range(BLOCK, pattern.size, BLOCK))
            ],
            axis=0,
        )

    lower, pattern = _lower_bound(summed_rows, candidate, participation)
    if _agree(lower, upper, ROUNDING):
        return Sensitivity(
            upper,
            True,
            "Choquette-Choo et al. 2023, Theorem 3, attained by a pattern",
            upper,
            pattern,
        )
    return Sensitivity(
        upper,
        False,
        "Choquette-Choo et al. 2023, Theorem 3 (upper bound for any C)",
        lower,
        pattern,
    )


def _lower_bound(
    summed_rows: Callable[[NDArray[np.int64]], NDArray[np.float64]],
    candidate: tuple[int, ...],
    participation: MinSep,
) -> tuple[float, tuple[int, ...]]:
    """The best pattern found: regular ones (McMahan, Xu, Zhang 2024, Remark 3.2) and the bound's
    own, each improved.

    x'Gx is convex in a pattern's indicator x, so the pattern that is best for the linear weights Gx
    is no worse than x.
    """
    n, b, longest = participation.rounds, participation.min_sep, participation.max_participations
    last_start = n - 1 - (longest - 1) * b
    starts = (
        np.unique(np.linspace(0, last_start, 16).astype(int)) if last_start >= 0 else np.array([0])
    )
    candidates = [tuple(range(start, min(n, start + longest * b), b)) for start in starts.tolist()]
    candidates.append(candidate)
    best, best_pattern = 0.0, (0,)
    for pattern in candidates:
        square = -1.0
        for _ in range(MOST_IMPROVEMENTS):
            chosen = np.array(pattern)
            weights = summed_rows(chosen)
            if float(weights[chosen].sum()) <= square * (1 + ROUNDING):
                break
            square = float(weights[chosen].sum())
            if square > best:
                best, best_pattern = square, tuple(pattern)
            pattern = _best_pattern(weights, participation)[1]
    return best**0.5, best_pattern


def _best_pattern_sums(weights: NDArray[np.float64], participation: MinSep) -> NDArray[np.float64]:
    """Largest sum over a pattern, for each row of weights [R, n], none negative: f(i, j) =
    max(f(i+1, j), w_i + f(i+b, j-1))."""
    rows, n = weights.shape
    if participation.min_sep == 1:  # any rounds make a pattern
        return np.partition(weights, n - participation.max_participations, axis=1)[
            :, n - participation.max_participations :
        ].sum(axis=1)
    values, taken = np.zeros((rows, n + participation.min_sep)), np.empty((rows, n))
    for _ in range(participation.max_participations):
        np.add(weights, values[:, participation.min_sep :], out=taken)
        np.maximum.accumulate(taken[:, ::-1], axis=1, out=values[:, n - 1 :: -1])
    return values[:, 0]


def _best_pattern(
    weights: NDArray[np.float64], participation: MinSep
) -> tuple[float, tuple[int, ...]]:
    """The same dynamic program over weights [n], with the pattern that attains it."""
    n, b = weights.size, participation.min_sep
    if b == 1:
        best = np.sort(np.argsort(-weights, kind="stable")[: participation.max_participations])
        best = best[weights[best] > 0]
        return float(weights[best].sum()), tuple(best.tolist())
    values, gains, taken = np.zeros(n + b), [], []
    for _ in range(participation.max_participations):
        with_this = weights + values[b:]
        layer = np.zeros(n + b)
        layer[:n] = np.maximum.accumulate(with_this[::-1])[::-1]
        layer = np.maximum(layer, values)
        gains.append(
            np.packbits(layer[:n] > values[:n])
        )  # one more participation is of use from here
        taken.append(np.packbits(with_this >= layer[:n]))  # and its place can be here
        values = layer
    pattern: list[int] = []
    position, left = 0, participation.max_participations
    while left and position < n:
        if not _bit(gains[left - 1], position):
            left -= 1
            continue
        while not _bit(taken[left - 1], position):
            position += 1
        pattern.append(position)
        position, left = position + b, left - 1
    return float(values[0]), tuple(pattern)


def _bit(bits: NDArray[np.uint8], place: int) -> bool:
    return bool(bits[place >> 3] >> (7 - (place & 7)) & 1)


def _agree(lower: float, upper: float, tolerance: float) -> bool:
    return upper <= lower * (1 + tolerance)
