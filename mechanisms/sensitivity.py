"""Sensitivity of a strategy at clip norm 1: for one pattern, for many patterns (a trace), and for
all patterns that a (b, k) permits.

A device with pattern pi contributes unit vectors u_i, i in pi. The squared norm of the change in
C X is the sum over i, j in pi of G[i, j] <u_i, u_j>, G = C'C. The cases, and their code:

1. a pattern with G >= 0 on it: equal u_i are the worst, sqrt(sum G[i, j]), exact in every
   dimension; with negative entries sqrt(sum |G[i, j]|) is an upper bound (Choquette-Choo et al.
   2023, Proposition E.1), and the largest value over unit vectors is exact for models of at least
   |pi| parameters                                           `PatternSensitivities`
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

from fedray.base.arrays import BoolArray, Float64Array, Int64Array, UInt8Array
from fedray.base.errors import InputError
from .gram import GramTable
from .participation import MinSep
from .strategy import Sensitivity, SensitivityUnknown

if TYPE_CHECKING:
    from .strategy import Strategy


GRAM_TABLE_ROUNDS = 10_000
"""Up to this many rounds, G is tabulated (400 MB at most); for longer runs, entries are computed
when needed."""

ANY_STRATEGY_ROUNDS = 20_000
ANY_STRATEGY_OPERATIONS = 2e9
"""Limits, in rounds n and in operations, within which the bound for any C takes about 20 s; it
needs n^2 (k - 1) operations, or n^2 if b = 1. An audit needs several such bounds."""

LOOKED_UP_TO = 64
"""Number of participations up to which looking up all pairs in a table takes no longer than any
other way."""

SUMMED_FROM = 256
"""Number of participations above which a pattern is computed from columns of C instead of Gram
entries, if C >= 0."""

MOST_WITH_SIGNS, MOST_CERTIFIED = 10_000, 1_000
"""Largest numbers of participations in a pattern for which negative Gram entries are looked for,
block by block, and for which the bound for a pattern with such entries is replaced by the exact
value."""
BLOCK = 256

MOST_CERTIFICATES = 200
"""Number of patterns of a trace with negative Gram entries for which the exact value is computed;
if more are needed, the result is the bound."""

ROWS_TOGETHER = 32
"""Number of rows of G per step of the bound for any C; few enough for the processor's cache."""

MOST_IMPROVEMENTS = 20
"""Largest number of improvements per starting pattern of the lower bound for any C. Without a
limit, patterns may move by one round at a time for hundreds of steps."""

ROUNDING = 1e-12
"""Relative rounding error of float64 sums of these lengths; smaller differences are ignored."""

CERTIFIED, MOST_SWEEPS = 1e-8, 5000
"""Relative gap between the squared bounds below which they count as equal, and the largest number
of sweeps."""


@dataclass(frozen=True, slots=True)
class PatternValues:
    """Sensitivities of P patterns at clip norm 1, in their order."""

    values: Float64Array
    """L2 sensitivities, [P]."""
    is_exact: BoolArray
    """Whether the value is attained, [P]; False marks an upper bound (some G[i, j] of the pattern
    is negative)."""


class LargestPattern(NamedTuple):
    """The largest sensitivity among a set of patterns."""

    value: float
    """L2 sensitivity at clip norm 1."""
    is_exact: bool
    """Whether the pattern attains the value; False marks an upper bound for all patterns of the
    set."""
    place: int
    """Position of the pattern in the set; the first if several are equal."""


class PatternSensitivities:
    """Sensitivities of many patterns under one strategy.

    Tabulates G as soon as a table is faster than computing entries, so one object should serve all
    patterns.

    Args:
        strategy: the strategy C.
        rounds: n, number of rounds of the run.
        most_rounds: largest argument of later `grow` calls; None if there will be none.
        G: Gram matrix [n, n] to use instead of C'C, such as `scaled_gram`; None for C'C.
    """

    def __init__(
        self,
        strategy: "Strategy",
        rounds: int,
        most_rounds: int | None = None,
        G: Float64Array | None = None,
    ) -> None:
        strategy.check_rounds(rounds)
        self._strategy = strategy
        self._rounds = rounds
        self._most_rounds = most_rounds
        self._table = None if G is None else GramTable.of_matrix(G)
        self._is_given = G is not None
        self._looked_up = self._asked = 0

    def grow(self, rounds: int) -> None:
        """Extends the run to more rounds, up to `most_rounds`, reusing the table where possible."""
        self._strategy.check_rounds(rounds)
        self._rounds = rounds
        self._looked_up = self._asked = 0

    def of(self, patterns: Int64Array, weights: Float64Array | None = None) -> PatternValues:
        """Returns the sensitivities of patterns [P, c], each sorted and within [0, rounds).

        With weights [P, c] >= 0, contribution i of a pattern has norm at most w_i, so w_i w_j G[i,
        j] replaces G[i, j].

        A repeated round means two contributions in that round, clipped separately: the sum over i,
        j runs over the entries of the pattern, so it includes the product of the two.

        Raises:
            InputError: a pattern is not sorted or has rounds outside the run, or the strategy has
                no finite sensitivity.
        """
        patterns = np.asarray(patterns, dtype=np.int64)
        is_inside = bool((patterns >= 0).all() and (patterns < self._rounds).all())
        is_in_order = (np.diff(patterns, axis=1) >= 0).all()
        if not (is_inside and is_in_order):
            raise InputError(
                "patterns must be sorted, with rounds from 0 to "
                f"rounds-1={self._rounds - 1}; sort them"
            )
        squares = None
        if weights is None and not self._is_given and not self._is_quick_by_table(patterns):
            squares = self._strategy.pattern_squares(patterns, self._rounds)
        if squares is not None:
            squared, is_exact = squares, np.ones(len(patterns), np.bool_)
        # The Python loop runs over the shorter side: few long patterns, or many short ones.
        elif len(patterns) < patterns.shape[1]:
            squared, is_exact = self._row_by_row(patterns, weights)
        elif self._rounds <= GRAM_TABLE_ROUNDS or weights is not None:
            squared, is_exact = self._pair_by_pair(patterns, weights)
        else:
            # Without a table, computing entries costs more than finding equal patterns.
            distinct, place = np.unique(patterns, axis=0, return_inverse=True)
            squared, is_exact = self._pair_by_pair(distinct)
            squared = squared[place]
            is_exact = is_exact[place]
        if not np.isfinite(squared).all():
            raise InputError(
                f"strategy {self._strategy!r} has no finite sensitivity over {self._rounds} rounds"
            )
        return PatternValues(np.sqrt(squared), is_exact)

    def _is_quick_by_table(self, patterns: Int64Array) -> bool:
        """Returns whether looking up the entries of patterns [P, c] takes less time than computing
        sums without them."""
        if self._rounds > GRAM_TABLE_ROUNDS or patterns.shape[1] > LOOKED_UP_TO:
            return False
        # A table pays off only after more entries than it has.
        self._asked += patterns.size * patterns.shape[1]
        has_table = self._table is not None and self._table.rounds == self._rounds
        return has_table or self._asked > self._rounds**2

    def _pair_by_pair(
        self, patterns: Int64Array, weights: Float64Array | None = None
    ) -> tuple[Float64Array, BoolArray]:
        """Computes (squared sensitivities [P], is_exact [P]) for all patterns at once."""
        columns = np.ascontiguousarray(patterns.T)
        scales = None if weights is None else np.ascontiguousarray(weights.T)
        squared = np.zeros(len(patterns))
        is_exact = np.ones(len(patterns), np.bool_)
        for position, later in enumerate(columns):
            for before, earlier in enumerate(columns[:position]):
                entries = self.entries(earlier, later)
                # Negative entries are rare; the minimum is cheaper than the comparison below.
                if entries.min(initial=0.0) < 0:
                    is_exact &= entries >= -self._rounding(earlier, later)
                    # Proposition E.1: |<u_i, u_j>| <= 1, so |G[i, j]| bounds the term of a pair.
                    # Not tight, because the signs wanted for three pairs may contradict one
                    # another.
                    np.abs(entries, out=entries)
                # G is symmetric: the pair also stands for (later, earlier).
                entries *= 2.0
                if scales is not None:
                    entries *= scales[before] * scales[position]
                squared += entries
            own = self.entries(later, later)
            squared += own if scales is None else own * scales[position] ** 2
        return squared, is_exact

    def _row_by_row(
        self, patterns: Int64Array, weights: Float64Array | None
    ) -> tuple[Float64Array, BoolArray]:
        """Computes (squared sensitivities [P], is_exact [P]) one pattern at a time."""
        scales = [None] * len(patterns) if weights is None else list(weights)
        found = [self._one(pattern, scale) for pattern, scale in zip(patterns, scales, strict=True)]
        squared = np.array([square for square, _ in found])
        is_exact = np.array([exact for _, exact in found])
        return squared, is_exact

    def _one(self, pattern: Int64Array, weights: Float64Array | None) -> tuple[float, bool]:
        """Computes (squared sensitivity, is_exact) of one pattern [c], in O(c) memory."""
        # The sum over columns takes n steps instead of c^2, but knows neither weights nor signs.
        if pattern.size > SUMMED_FROM and weights is None and not self._is_given:
            summed = self._strategy.pattern_square(pattern, self._rounds)
            if summed is not None:
                return summed, True
        if pattern.size > MOST_WITH_SIGNS:
            raise InputError(
                f"a device took part {pattern.size:,} times, and this {self._strategy.kind} "
                f"strategy has negative entries, for which the limit is {MOST_WITH_SIGNS:,} "
                "participations; leave this mechanism out"
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
            # Entries within rounding of zero do not count as negative.
            is_aligned = (block >= -ROUNDING * row_norms * norms[later]).all()
            is_exact = is_exact and bool(is_aligned)
            np.abs(block, out=block)
            if weights is not None:
                block *= weights[start : start + BLOCK, None] * weights[later]
            # The block has each of its own pairs twice, and pairs with later rounds once.
            square += 2.0 * float(block.sum()) - float(block[:, :BLOCK].sum())
        return square, is_exact

    def _rounding(self, first: Int64Array, second: Int64Array) -> Float64Array:
        """Returns the largest absolute value that a rounded zero may have in an entry, given the
        norms of its two columns."""
        squared_norms = self.entries(first, first) * self.entries(second, second)
        return ROUNDING * np.sqrt(squared_norms)

    def exact(self, pattern: Int64Array, weights: Float64Array | None = None) -> Sensitivity:
        """Returns the sensitivity of one pattern [c], with optional weights [c], and its theorem.

        If G has negative entries on the pattern, the value is exact for models of at least c
        parameters and a bound for smaller ones. Above MOST_CERTIFIED participations it is only a
        bound.

        Raises:
            InputError: raised by `of`.
        """
        found = self.of(pattern[None, :], None if weights is None else weights[None, :])
        rows = tuple(pattern.tolist())
        # Long patterns get no certificate, because it needs eigenvalues of c x c matrices.
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
        # The certificate and Proposition E.1 are both upper bounds, so their minimum is one.
        upper = max(lower, min(upper, float(found.values[0])))
        theorem = (
            "largest over unit contributions, by a dual certificate (exact for models of as "
            "many parameters as rounds here)"
        )
        return Sensitivity(upper, _agree(lower, upper, CERTIFIED), theorem, lower, rows)

    def largest(
        self,
        patterns: Int64Array,
        weights: Float64Array | None,
        found: PatternValues,
        above: float,
        certificates: int,
    ) -> tuple[LargestPattern | None, int]:
        """Finds the largest sensitivity of patterns [P, c], if it is above a given value.

        Patterns with only an upper bound need a slow certificate for their exact value. They are
        certified from the largest bound down, until the remaining bounds are below the largest
        value. If the certificates run out, the largest remaining bound is the result.

        Args:
            patterns: patterns [P, c], as in `of`.
            weights: weights [P, c], as in `of`, or None.
            found: result of `of` for these patterns.
            above: largest sensitivity known so far.
            certificates: number of certificates allowed.

        Returns:
            The largest sensitivity, or None if no pattern exceeds `above`; and the number of
            certificates left.
        """
        largest = None
        exact_values = np.where(found.is_exact, found.values, -np.inf)
        place = int(exact_values.argmax()) if exact_values.size else 0
        if exact_values.size and exact_values[place] > above:
            above = float(exact_values[place])
            largest = LargestPattern(above, True, place)
        unclear = np.flatnonzero(~found.is_exact & (found.values > above))
        # Many devices share a pattern, which needs only one certificate.
        tried: set[bytes] = set()
        for place in unclear[np.argsort(-found.values[unclear], kind="stable")].tolist():
            bound = float(found.values[place])
            if bound <= above:
                break
            scales = None if weights is None else weights[place]
            pattern = patterns[place].tobytes() + (b"" if scales is None else scales.tobytes())
            if pattern in tried:
                continue
            # Bounds decrease from here on, so this one holds for all remaining patterns.
            if not certificates:
                return LargestPattern(bound, False, place), 0
            tried.add(pattern)
            certificates -= 1
            exact = self.exact(patterns[place], scales)
            if exact.value > above:
                above = exact.value
                largest = LargestPattern(above, exact.is_exact, place)
        return largest, certificates

    def gram_of(self, pattern: Int64Array) -> Float64Array:
        """Returns G[pattern, pattern], [c, c], for a pattern [c]."""
        rows = pattern[:, None]
        return self.entries(np.minimum(rows, pattern), np.maximum(rows, pattern))

    def entries(self, first: Int64Array, second: Int64Array) -> Float64Array:
        """Returns G[first, second] elementwise, for first <= second."""
        # A table pays off only after more entries than one pattern needs.
        self._looked_up += first.size
        if self._is_given and self._table is not None:
            return self._table.entries(first, second)
        is_too_early = self._table is None and self._looked_up <= self._rounds
        if self._rounds > GRAM_TABLE_ROUNDS or is_too_early:
            return self._strategy.gram_entries(first, second, self._rounds)
        if self._most_rounds is None:
            self._table = self._table or self._strategy.gram_table(self._rounds)
        elif self._table is None or self._table.rounds != self._rounds:
            most = min(self._most_rounds, GRAM_TABLE_ROUNDS)
            self._table = self._strategy.grown_table(self._table, self._rounds, most)
        return self._table.entries(first, second)


def unit_vector_sensitivity(G: Float64Array) -> tuple[float, float]:
    """Returns (upper, lower) bounds, equal up to rounding, on the maximum over unit vectors of
    sqrt(sum G[i, j] <u_i, u_j>), G [c, c] p.s.d.

    Lower: a stationary point of block coordinate ascent, u_i = the direction of sum_{j != i} G[i,
    j] u_j (Wang, Chang, Kolter 2018, "The mixing method"), in enough dimensions for an optimum
    (Pataki 1998: rank (rank + 1) / 2 <= c). Upper: weak duality; for any y with diag(y) - G p.s.d.
    the square is at most sum y. y_i = ||sum_j G[i, j] u_j|| is optimal at the optimum; elsewhere
    the least eigenvalue repairs feasibility.
    """
    # In c dimensions <u_i, u_j> ranges over all correlation matrices, so this is a semidefinite
    # program; with one parameter it would be a maximum over signs, and with few parameters the
    # result is only a bound.
    c = len(G)
    # Pataki's dimension plus one. The seed is fixed, so the result is a function of G.
    dimensions = min(c, int(np.sqrt(2 * c)) + 2)
    U = np.random.default_rng(0).normal(size=(c, dimensions))
    U /= np.linalg.norm(U, axis=1, keepdims=True)
    upper = np.inf
    lower = 0.0
    for sweep in range(MOST_SWEEPS):
        for i in range(c):
            direction = G[i] @ U - G[i, i] * U[i]
            norm = np.linalg.norm(direction)
            # For a zero direction every unit vector gives the same sum.
            if norm > 0:
                U[i] = direction / norm
        # Eigenvalues cost more than a sweep, so bounds are computed in every tenth sweep.
        if sweep % 10 == 9:
            total = G @ U
            y = np.linalg.norm(total, axis=1)
            least_eigenvalue = float(np.linalg.eigvalsh(np.diag(y) - G)[0])
            # Raising each y_i by this makes diag(y) - G p.s.d., which duality requires.
            short = max(0.0, -least_eigenvalue)
            upper = min(upper, float(y.sum() + c * short))
            # No theorem says for every G that the ascent ends at the optimum; the dual bound, not
            # its convergence, shows that it did.
            lower = float((total * U).sum())
            if upper <= lower * (1 + CERTIFIED):
                break
    return float(np.sqrt(max(lower, upper))), float(np.sqrt(lower))


def orthogonal_sensitivity(squared_norms: Float64Array, participation: MinSep) -> Sensitivity:
    """Returns the exact sensitivity for a C whose columns at least b apart are orthogonal, such as
    one of at most b bands.

    f(i, j) = max(f(i+1, j), G[i, i] + f(i+b, j-1)) (Choquette-Choo et al. 2023, Theorem 2,
    Algorithms 3 and 5).

    Args:
        squared_norms: the diagonal of G, [n].
        participation: (n, b, k).
    """
    square, pattern = _best_pattern(squared_norms, participation)
    value = square**0.5
    theorem = "Choquette-Choo et al. 2023, Theorem 2 (at most b bands: orthogonal columns)"
    return Sensitivity(value, True, theorem, value, pattern)


# One audit needs the same sensitivity several times.
@lru_cache(maxsize=1)
def any_strategy_sensitivity(strategy: "Strategy", participation: MinSep) -> Sensitivity:
    """Returns an upper and a lower bound for any C; exact for one participation, or if the bounds
    agree.

    Let r_i be the largest sum of |G[i, j]| over the rounds j of a pattern. The squared sensitivity
    is at most the largest sum of r_i over the rounds i of a pattern (Choquette-Choo et al. 2023,
    Theorem 3 and Algorithm 4; up to 5 % loose on dense C).

    Raises:
        InputError: the strategy has fewer rounds than the participation.
        SensitivityUnknown: the bound would take more than ANY_STRATEGY_OPERATIONS.
    """
    n = participation.rounds
    strategy.check_rounds(n)
    # For b = 1 no dynamic program is needed: one step takes the largest entries of each row.
    steps = 1 if participation.min_sep == 1 else participation.max_participations - 1
    if n > ANY_STRATEGY_ROUNDS or n * n * steps > ANY_STRATEGY_OPERATIONS:
        raise SensitivityUnknown(
            f"rounds={n}: no theorem gives this {strategy.kind} strategy's sensitivity under "
            f"(min_sep={participation.min_sep}, "
            f"max_participations={participation.max_participations}); the bound for any C "
            f"is computed for at most {ANY_STRATEGY_ROUNDS} rounds and, if min_sep exceeds 1, for "
            f"rounds^2 x (max_participations - 1) up to {ANY_STRATEGY_OPERATIONS:g}"
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

    def rows(index: Int64Array) -> Float64Array:
        return table.rows(index) if table is not None else strategy.gram_rows(index, n)

    row_sums = np.empty(n)
    for start in range(0, n, ROWS_TOGETHER):
        index = np.arange(start, min(start + ROWS_TOGETHER, n))
        # This is where the bound is loose: every row may choose a worst pattern of its own.
        row_sums[index] = _best_pattern_sums(np.abs(rows(index)), participation)
    # Theorem 3: the worst pattern of each row gives r_i, and the worst pattern for r the bound.
    square, candidate = _best_pattern(row_sums, participation)
    upper = square**0.5

    def summed_rows(pattern: Int64Array) -> Float64Array:
        total = strategy.summed_gram_rows(pattern, n)
        if total is not None:
            return total
        # Blocks, because all rows of a long pattern would need as much memory as G.
        parts = np.split(pattern, range(BLOCK, pattern.size, BLOCK))
        return np.sum([rows(part).sum(axis=0) for part in parts], axis=0)

    lower, pattern = _lower_bound(summed_rows, candidate, participation)
    if _agree(lower, upper, ROUNDING):
        theorem = "Choquette-Choo et al. 2023, Theorem 3, attained by a pattern"
        return Sensitivity(upper, True, theorem, upper, pattern)
    theorem = "Choquette-Choo et al. 2023, Theorem 3 (upper bound for any C)"
    return Sensitivity(upper, False, theorem, lower, pattern)


def _lower_bound(
    summed_rows: Callable[[Int64Array], Float64Array],
    candidate: tuple[int, ...],
    participation: MinSep,
) -> tuple[float, tuple[int, ...]]:
    """Searches for the worst pattern, from regular patterns (McMahan, Xu, Zhang 2024, Remark 3.2)
    and from the pattern of the upper bound.

    x'Gx is convex in the indicator x of a pattern, so the pattern of largest linear weight Gx is at
    least as sensitive as x.
    """
    n = participation.rounds
    b = participation.min_sep
    longest = participation.max_participations
    last_start = n - 1 - (longest - 1) * b
    # Patterns with the smallest gaps have the most terms, and the largest ones if G falls with lag.
    # Which shift of the regular pattern is the worst depends on C; sixteen are tried.
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
            # Stop when the gain is only rounding.
            if reached <= square * (1 + ROUNDING):
                break
            square = reached
            if square > best:
                best = square
                best_pattern = tuple(pattern)
            pattern = _best_pattern(weights, participation)[1]
    return best**0.5, best_pattern


def _best_pattern_sums(weights: Float64Array, participation: MinSep) -> Float64Array:
    """Returns the largest sum over a pattern for each row of weights [R, n] >= 0, by f(i, j) =
    max(f(i+1, j), w_i + f(i+b, j-1))."""
    rows, n = weights.shape
    # For b = 1 every set of k rounds is a pattern.
    if participation.min_sep == 1:
        first_chosen = n - participation.max_participations
        partitioned = np.partition(weights, first_chosen, axis=1)
        return partitioned[:, first_chosen:].sum(axis=1)
    # values[:, i] is f(i, j). With b columns of zeros after the last round, f(i + b, j - 1) needs
    # no bounds check.
    values = np.zeros((rows, n + participation.min_sep))
    taken = np.empty((rows, n))
    for _ in range(participation.max_participations):
        np.add(weights, values[:, participation.min_sep :], out=taken)
        np.maximum.accumulate(taken[:, ::-1], axis=1, out=values[:, n - 1 :: -1])
    return values[:, 0]


def _best_pattern(weights: Float64Array, participation: MinSep) -> tuple[float, tuple[int, ...]]:
    """Returns the largest sum of weights [n] over a pattern, and the rounds of a pattern that
    attains it."""
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
        # Decisions are kept as bits, a 32nd of the memory of the values, which matters for
        # thousands of participations: whether one more participation gains from a round on,
        # and whether it may be placed there.
        gains.append(np.packbits(layer[:n] > values[:n]))
        taken.append(np.packbits(with_this >= layer[:n]))
        values = layer
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


def _bit(bits: UInt8Array, place: int) -> bool:
    return bool(bits[place >> 3] >> (7 - (place & 7)) & 1)


def _agree(lower: float, upper: float, tolerance: float) -> bool:
    return upper <= lower * (1 + tolerance)
