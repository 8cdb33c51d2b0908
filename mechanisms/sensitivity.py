"""Sensitivity of a strategy: of one pattern, of many (a trace), and of all that a (b, k)
permits. At clip norm 1.

One device with pattern pi contributes unit vectors u_i, i in pi, and changes C X by a norm whose
square is sum over i, j in pi of G[i, j] <u_i, u_j>, G = C'C. Cases, and where they are:

1. a pattern with G >= 0 on it: all u_i alike are worst, sqrt(sum G[i, j]), exact in every
   dimension; with negative entries sqrt(sum |G[i, j]|) is an upper bound (Choquette-Choo et al.
   2023, Proposition E.1), and the largest value over unit vectors is exact for models of at least
   |pi| parameters                  `PatternSensitivities`
2. a trace: the largest over its devices                     `fedray.audit.sensitivity`
3. a non-increasing Toeplitz C under (b, k): Theorem 3.1     `toeplitz.py`
4. at most b bands under (b, k): dynamic program             `orthogonal_sensitivity`
5. any C under (b, k): upper and lower bound                 `any_strategy_sensitivity`
6. a binary tree under (b, k): dynamic program               `tree.py`
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.base.errors import InputError
from fedray.mechanisms.gram import GramTable
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.strategy import Sensitivity, SensitivityUnknown

if TYPE_CHECKING:
    from fedray.mechanisms.strategy import Strategy


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

MOST_CERTIFICATES = 200
"""Patterns of a trace with negative Gram entries whose bound is made exact; were more needed, the
bound stands."""

ROWS_TOGETHER = 32
"""Rows of G that the bound for any C goes through together; so few stay in the processor's
cache."""

MOST_IMPROVEMENTS = 20
"""Most improvements of the pattern from which the lower bound for any C starts; patterns may creep
by one round at a time for hundreds of steps."""

ROUNDING = 1e-12
"""Relative difference that float64 sums of these lengths may have; no decision rests on less."""

CERTIFIED, MOST_SWEEPS = 1e-8, 5000
"""Relative gap of the squared bounds at which unit contributions are called optimal, and sweeps
after which they are not."""


@dataclass(frozen=True, slots=True)
class PatternValues:
    """Sensitivities of P patterns at clip norm 1, in their order."""

    values: NDArray[np.float64]
    """L2 sensitivities, [P]."""
    is_exact: NDArray[np.bool_]
    """Whether the value is attained, [P]; False marks an upper bound (some G[i, j] of the pattern
    is negative)."""


class LargestPattern(NamedTuple):
    """The largest sensitivity of some patterns.

    value: L2 sensitivity at clip norm 1.
    is_exact: whether it is attained; False marks an upper bound of all these patterns.
    place: place of the pattern among them; the first of equal ones.
    """

    value: float
    is_exact: bool
    place: int


class PatternSensitivities:
    """Sensitivities of many patterns of one strategy over a number of rounds.

    G is tabulated as soon as that is quicker than computing its entries one by one, so callers with
    many patterns keep one of these.

    Args:
        strategy: the strategy with matrix C.
        rounds: n, over which patterns run.
        most_rounds: rounds to which they will `grow`; None if they will not.
    """

    def __init__(self, strategy: "Strategy", rounds: int, most_rounds: int | None = None) -> None:
        strategy.check_rounds(rounds)
        self._strategy = strategy
        self._rounds = rounds
        self._most_rounds = most_rounds
        self._table: GramTable | None = None
        self._looked_up = 0

    def grow(self, rounds: int) -> None:
        """Continues to more rounds, up to `most_rounds`; results for fewer rounds are reused if
        possible."""
        self._strategy.check_rounds(rounds)
        self._rounds = rounds
        self._looked_up = 0

    def of(
        self, patterns: NDArray[np.int64], weights: NDArray[np.float64] | None = None
    ) -> PatternValues:
        """Sensitivities of patterns [P, c], each row in order within [0, rounds).

        With weights [P, c], none negative, contribution i of a pattern has norm w_i at most: G[i,
        j] becomes w_i w_j G[i, j], and all else is the same.

        A round that stands twice is one in which the device contributed twice, each time clipped by
        itself: the sum over i, j runs over the rounds as they stand, so that both count with each
        other too.

        Raises:
            InputError: patterns are not in order or not within the rounds, or the strategy has no
                finite sensitivity over them.
        """
        patterns = np.asarray(patterns, dtype=np.int64)
        is_inside = bool((patterns >= 0).all() and (patterns < self._rounds).all())
        is_in_order = (np.diff(patterns, axis=1) >= 0).all()
        if not (is_inside and is_in_order):
            raise InputError(
                f"patterns must not decrease, and lie within 0 to rounds-1={self._rounds - 1}; "
                "sort them"
            )
        # Either loop runs over the shorter side: few long patterns, or many short ones.
        if len(patterns) < patterns.shape[1]:
            squared, is_exact = self._row_by_row(patterns, weights)
        elif self._rounds <= GRAM_TABLE_ROUNDS or weights is not None:
            squared, is_exact = self._pair_by_pair(patterns, weights)
        else:
            # Without a table, entries cost more than finding the patterns that are alike.
            distinct, place = np.unique(patterns, axis=0, return_inverse=True)
            squared, is_exact = self._pair_by_pair(distinct)
            squared = squared[place]
            is_exact = is_exact[place]
        if not np.isfinite(squared).all():
            raise InputError(
                f"strategy {self._strategy!r} has no finite sensitivity over {self._rounds} "
                "rounds; refused"
            )
        return PatternValues(np.sqrt(squared), is_exact)

    def _pair_by_pair(
        self, patterns: NDArray[np.int64], weights: NDArray[np.float64] | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """(squared sensitivities [P], whether each is exact [P]), all patterns together."""
        columns = np.ascontiguousarray(patterns.T)
        scales = None if weights is None else np.ascontiguousarray(weights.T)
        squared = np.zeros(len(patterns))
        is_exact = np.ones(len(patterns), np.bool_)
        for position, later in enumerate(columns):
            for before, earlier in enumerate(columns[:position]):
                entries = self.entries(earlier, later)
                # Negative entries are rare, so matrices without them skip the check.
                if entries.min(initial=0.0) < 0:
                    is_exact &= entries >= -self._rounding(earlier, later)
                    np.abs(entries, out=entries)
                # G is symmetric: the pair stands for (later, earlier) too.
                entries *= 2.0
                # A pair stands for two contributions, and each brings its own weight.
                if scales is not None:
                    entries *= scales[before] * scales[position]
                squared += entries
            own = self.entries(later, later)
            squared += own if scales is None else own * scales[position] ** 2
        return squared, is_exact

    def _row_by_row(
        self, patterns: NDArray[np.int64], weights: NDArray[np.float64] | None
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """(squared sensitivities [P], whether each is exact [P]), one pattern after another."""
        scales = [None] * len(patterns) if weights is None else list(weights)
        found = [self._one(pattern, scale) for pattern, scale in zip(patterns, scales, strict=True)]
        squared = np.array([square for square, _ in found])
        is_exact = np.array([exact for _, exact in found])
        return squared, is_exact

    def _one(
        self, pattern: NDArray[np.int64], weights: NDArray[np.float64] | None
    ) -> tuple[float, bool]:
        """(squared sensitivity, whether it is exact) of one pattern [c], with weights [c] or none,
        in memory of c."""
        if pattern.size > SUMMED_FROM and weights is None:
            summed = self._strategy.pattern_square(pattern, self._rounds)
            if summed is not None:
                return summed, True
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
            rows = pattern[start : start + BLOCK, None]
            later = slice(start, None)
            first = np.minimum(rows, pattern[later])
            second = np.maximum(rows, pattern[later])
            block = self.entries(first, second)
            row_norms = norms[start : start + BLOCK, None]
            # Entries that are zero but for rounding do not count as negative.
            is_aligned = (block >= -ROUNDING * row_norms * norms[later]).all()
            is_exact = is_exact and bool(is_aligned)
            np.abs(block, out=block)
            if weights is not None:
                block *= weights[start : start + BLOCK, None] * weights[later]
            # Pairs of this block stand twice in it, pairs with later rounds once.
            square += 2.0 * float(block.sum()) - float(block[:, :BLOCK].sum())
        return square, is_exact

    def _rounding(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.float64]:
        """Sizes of entries that may be rounded zeros: ROUNDING of the product of the two columns'
        norms."""
        squared_norms = self.entries(first, first) * self.entries(second, second)
        return ROUNDING * np.sqrt(squared_norms)

    def exact(
        self, pattern: NDArray[np.int64], weights: NDArray[np.float64] | None = None
    ) -> Sensitivity:
        """Returns the sensitivity of one pattern [c], with weights [c] or none, and its theorem.

        If G has negative entries on the pattern, the value is exact for models of c or more
        parameters, and a bound for fewer. Beyond MOST_CERTIFIED participations it is only a bound.

        Raises:
            InputError: as `of`.
        """
        found = self.of(pattern[None, :], None if weights is None else weights[None, :])
        rows = tuple(pattern.tolist())
        # A certificate needs eigenvalues of a c x c matrix again and again, so long patterns go
        # without.
        if not found.is_exact[0] and pattern.size > MOST_CERTIFIED:
            theorem = "Choquette-Choo et al. 2023, Proposition E.1 (upper bound)"
            return Sensitivity(float(found.values[0]), False, theorem, 0.0, rows)
        if found.is_exact[0]:
            value = float(found.values[0])
            theorem = "Choquette-Choo et al. 2023, Proposition E.1 (G >= 0: aligned)"
            return Sensitivity(value, True, theorem, value, rows)
        gram = self.gram_of(pattern)
        if weights is not None:
            gram *= weights[:, None] * weights
        upper, lower = unit_vector_sensitivity(gram)
        # Both the certificate and Proposition E.1 are upper bounds, so the smaller one holds.
        upper = max(lower, min(upper, float(found.values[0])))
        theorem = (
            "largest over unit contributions, by a dual certificate (exact for models of as "
            "many parameters as rounds here)"
        )
        return Sensitivity(upper, _agree(lower, upper, CERTIFIED), theorem, lower, rows)

    def largest(
        self,
        patterns: NDArray[np.int64],
        weights: NDArray[np.float64] | None,
        found: PatternValues,
        above: float,
        certificates: int,
    ) -> tuple[LargestPattern | None, int]:
        """Returns the largest sensitivity of patterns [P, c] that is above a value, or None.

        Some patterns only have upper bounds. Their exact values take a certificate each, which is
        slow, so they are computed from the largest bound down, until the rest is ruled out. When no
        certificates are left, the largest remaining bound stands for all.

        Args:
            patterns: as in `of`, with `weights` [P, c] or none.
            weights: see `of`.
            found: result of `of` for them.
            above: lower bound known so far.
            certificates: most certificates to compute.

        Returns:
            The sensitivity, and the number of certificates left.
        """
        largest = None
        exact_values = np.where(found.is_exact, found.values, -np.inf)
        place = int(exact_values.argmax()) if exact_values.size else 0
        if exact_values.size and exact_values[place] > above:
            above = float(exact_values[place])
            largest = LargestPattern(above, True, place)
        unclear = np.flatnonzero(~found.is_exact & (found.values > above))
        # Many devices share a pattern.
        tried: set[bytes] = set()
        for place in unclear[np.argsort(-found.values[unclear], kind="stable")].tolist():
            bound = float(found.values[place])
            if bound <= above:
                break
            scales = None if weights is None else weights[place]
            pattern = patterns[place].tobytes() + (b"" if scales is None else scales.tobytes())
            if pattern in tried:
                continue
            # The bounds fall, so that this one stands for all patterns that are left.
            if not certificates:
                return LargestPattern(bound, False, place), 0
            tried.add(pattern)
            certificates -= 1
            exact = self.exact(patterns[place], scales)
            if exact.value > above:
                above = exact.value
                largest = LargestPattern(above, exact.is_exact, place)
        return largest, certificates

    def gram_of(self, pattern: NDArray[np.int64]) -> NDArray[np.float64]:
        """The Gram matrix of one `pattern` [c], G[pattern, pattern], [c, c], in the order of the
        pattern."""
        rows = pattern[:, None]
        return self.entries(np.minimum(rows, pattern), np.maximum(rows, pattern))

    def entries(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns G[first, second] elementwise, for first <= second; from a table once as many
        entries as rounds were requested."""
        # As many entries as rounds, as for one pattern, are computed without a table.
        self._looked_up += first.size
        is_too_early = self._table is None and self._looked_up <= self._rounds
        if self._rounds > GRAM_TABLE_ROUNDS or is_too_early:
            return self._strategy.gram_entries(first, second, self._rounds)
        if self._most_rounds is None:
            self._table = self._table or self._strategy.gram_table(self._rounds)
        elif self._table is None or self._table.rounds != self._rounds:
            most = min(self._most_rounds, GRAM_TABLE_ROUNDS)
            self._table = self._strategy.grown_table(self._table, self._rounds, most)
        return self._table.entries(first, second)


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
    # Pataki's dimension, and one to spare. A fixed seed: the answer is a function of G.
    dimensions = min(c, int(np.sqrt(2 * c)) + 2)
    U = np.random.default_rng(0).normal(size=(c, dimensions))
    U /= np.linalg.norm(U, axis=1, keepdims=True)
    upper = np.inf
    lower = 0.0
    for sweep in range(MOST_SWEEPS):
        for i in range(c):
            direction = G[i] @ U - G[i, i] * U[i]
            norm = np.linalg.norm(direction)
            # A direction of length zero leaves the sum as it is, whatever the unit vector.
            if norm > 0:
                U[i] = direction / norm
        # The eigenvalues cost more than a sweep, so the bounds are taken every tenth time.
        if sweep % 10 == 9:
            total = G @ U
            y = np.linalg.norm(total, axis=1)
            least_eigenvalue = float(np.linalg.eigvalsh(np.diag(y) - G)[0])
            # Raising each y_i by the deficit makes diag(y) - G p.s.d., so that duality holds.
            short = max(0.0, -least_eigenvalue)
            upper = min(upper, float(y.sum() + c * short))
            lower = float((total * U).sum())
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
    theorem = "Choquette-Choo et al. 2023, Theorem 2 (at most b bands: orthogonal columns)"
    return Sensitivity(value, True, theorem, value, pattern)


# One audit asks for the same sensitivity several times.
@lru_cache(maxsize=1)
def any_strategy_sensitivity(strategy: "Strategy", participation: MinSep) -> Sensitivity:
    """Returns an upper bound for any C, and a lower bound; exact for one participation, and if the
    two agree.

    With r_i the largest sum of |G[i, j]| over any pattern's rounds j, the squared sensitivity is at
    most the largest sum of r_i over a pattern's rounds i (Choquette-Choo et al. 2023, Theorem 3 and
    Algorithm 4; up to 5 % loose on dense C).

    Args:
        strategy: any strategy of at least as many rounds.
        participation: (n, b, k) of the patterns.

    Raises:
        InputError: the strategy has fewer rounds.
        SensitivityUnknown: the bound would take more than ANY_STRATEGY_OPERATIONS.
    """
    n = participation.rounds
    strategy.check_rounds(n)
    # Without a min-sep no program is needed: the largest of each row are taken in one step.
    steps = 1 if participation.min_sep == 1 else participation.max_participations - 1
    if n > ANY_STRATEGY_ROUNDS or n * n * steps > ANY_STRATEGY_OPERATIONS:
        raise SensitivityUnknown(
            f"rounds={n}: no theorem gives this {strategy.kind} strategy's sensitivity under "
            f"(min_sep={participation.min_sep}, "
            f"max_participations={participation.max_participations}); the bound for any C "
            f"takes at most {ANY_STRATEGY_ROUNDS} rounds and, for a min_sep above 1, "
            f"{ANY_STRATEGY_OPERATIONS:g} products of rounds, rounds and participations"
        )
    table = strategy.gram_table(n) if n <= GRAM_TABLE_ROUNDS else None
    if table is not None:
        diagonal = table.diagonal()
    else:
        diagonal = strategy.gram_entries(np.arange(n), np.arange(n), n)
    if participation.max_participations == 1:
        worst = int(diagonal.argmax())
        value = float(diagonal[worst]) ** 0.5
        theorem = "one participation: the largest column norm"
        return Sensitivity(value, True, theorem, value, (worst,))

    def rows(index: NDArray[np.int64]) -> NDArray[np.float64]:
        return table.rows(index) if table is not None else strategy.gram_rows(index, n)

    row_sums = np.empty(n)
    for start in range(0, n, ROWS_TOGETHER):
        index = np.arange(start, min(start + ROWS_TOGETHER, n))
        row_sums[index] = _best_pattern_sums(np.abs(rows(index)), participation)
    # Theorem 3: row sums over the worst pattern of each row, summed over the worst pattern.
    square, candidate = _best_pattern(row_sums, participation)
    upper = square**0.5

    def summed_rows(pattern: NDArray[np.int64]) -> NDArray[np.float64]:
        total = strategy.summed_gram_rows(pattern, n)
        if total is not None:
            return total
        # By blocks, as all rows of a long pattern need as much memory as G.
        parts = np.split(pattern, range(BLOCK, pattern.size, BLOCK))
        return np.sum([rows(part).sum(axis=0) for part in parts], axis=0)

    lower, pattern = _lower_bound(summed_rows, candidate, participation)
    if _agree(lower, upper, ROUNDING):
        theorem = "Choquette-Choo et al. 2023, Theorem 3, attained by a pattern"
        return Sensitivity(upper, True, theorem, upper, pattern)
    theorem = "Choquette-Choo et al. 2023, Theorem 3 (upper bound for any C)"
    return Sensitivity(upper, False, theorem, lower, pattern)


def _lower_bound(
    summed_rows: Callable[[NDArray[np.int64]], NDArray[np.float64]],
    candidate: tuple[int, ...],
    participation: MinSep,
) -> tuple[float, tuple[int, ...]]:
    """Returns the best pattern found: regular ones (McMahan, Xu, Zhang 2024, Remark 3.2) and the
    bound's own, each improved.

    x'Gx is convex in a pattern's indicator x, so the pattern that is best for the linear weights Gx
    is no worse than x.
    """
    n = participation.rounds
    b = participation.min_sep
    longest = participation.max_participations
    last_start = n - 1 - (longest - 1) * b
    # Sixteen shifts of the regular pattern: which of them is worst depends on C.
    if last_start >= 0:
        starts = np.unique(np.linspace(0, last_start, 16).astype(int))
    else:
        starts = np.array([0])
    candidates = [tuple(range(start, min(n, start + longest * b), b)) for start in starts.tolist()]
    candidates.append(candidate)
    best = 0.0
    best_pattern = (0,)
    for pattern in candidates:
        square = -1.0
        for _ in range(MOST_IMPROVEMENTS):
            chosen = np.array(pattern)
            weights = summed_rows(chosen)
            reached = float(weights[chosen].sum())
            # The pattern no longer improves, but for rounding.
            if reached <= square * (1 + ROUNDING):
                break
            square = reached
            if square > best:
                best = square
                best_pattern = tuple(pattern)
            pattern = _best_pattern(weights, participation)[1]
    return best**0.5, best_pattern


def _best_pattern_sums(weights: NDArray[np.float64], participation: MinSep) -> NDArray[np.float64]:
    """Largest sum over a pattern, for each row of weights [R, n], none negative: f(i, j) =
    max(f(i+1, j), w_i + f(i+b, j-1))."""
    rows, n = weights.shape
    # Any rounds make a pattern, so the largest weights do.
    if participation.min_sep == 1:
        first_chosen = n - participation.max_participations
        partitioned = np.partition(weights, first_chosen, axis=1)
        return partitioned[:, first_chosen:].sum(axis=1)
    # values[:, i] is f(i, j) of the recursion; b columns of zeros follow the last round, so that
    # f(i + b, j - 1) needs no check at the end.
    values = np.zeros((rows, n + participation.min_sep))
    taken = np.empty((rows, n))
    for _ in range(participation.max_participations):
        np.add(weights, values[:, participation.min_sep :], out=taken)
        np.maximum.accumulate(taken[:, ::-1], axis=1, out=values[:, n - 1 :: -1])
    return values[:, 0]


def _best_pattern(
    weights: NDArray[np.float64], participation: MinSep
) -> tuple[float, tuple[int, ...]]:
    """The same dynamic program over weights [n], with the pattern that attains it."""
    n = weights.size
    b = participation.min_sep
    if b == 1:
        best = np.sort(np.argsort(-weights, kind="stable")[: participation.max_participations])
        best = best[weights[best] > 0]
        return float(weights[best].sum()), tuple(best.tolist())
    values = np.zeros(n + b)
    gains = []
    taken = []
    for _ in range(participation.max_participations):
        with_this = weights + values[b:]
        layer = np.zeros(n + b)
        layer[:n] = np.maximum.accumulate(with_this[::-1])[::-1]
        layer = np.maximum(layer, values)
        # One bit per round: from here, one more participation is of use ...
        gains.append(np.packbits(layer[:n] > values[:n]))
        # ... and here it can be placed.
        taken.append(np.packbits(with_this >= layer[:n]))
        values = layer
    # The decisions, read from the first round on, give the pattern. As bits they take a 32nd of
    # the memory of all values, which matters for thousands of participations.
    pattern: list[int] = []
    position = 0
    left = participation.max_participations
    while left and position < n:
        if not _bit(gains[left - 1], position):
            left -= 1
            continue
        while not _bit(taken[left - 1], position):
            position += 1
        pattern.append(position)
        position += b
        left -= 1
    return float(values[0]), tuple(pattern)


def _bit(bits: NDArray[np.uint8], place: int) -> bool:
    return bool(bits[place >> 3] >> (7 - (place & 7)) & 1)


def _agree(lower: float, upper: float, tolerance: float) -> bool:
    """Whether the bounds are equal but for a relative tolerance."""
    return upper <= lower * (1 + tolerance)
