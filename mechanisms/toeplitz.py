"""Toeplitz strategies, C[i, j] = c_(i-j): the family, and the member defined by its coefficients
(banded Toeplitz, BandToep).

C over four rounds, and with two bands, whose columns two rounds apart share no row:

    | c_0   .    .    .  |        | c_0   .    .    .  |
    | c_1  c_0   .    .  |        | c_1  c_0   .    .  |
    | c_2  c_1  c_0   .  |        |  .   c_1  c_0   .  |
    | c_3  c_2  c_1  c_0 |        |  .    .   c_1  c_0 |

Source: McMahan, Xu, Zhang 2024 (Theorem 3.1, Proposition 3.3); McKenna 2024 (banded Toeplitz,
"Scaling up the banded matrix factorization mechanism for large scale differentially private ML").
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedray.base.arrays import Float64Array, Int64Array
from .fixed_order import fixed_order_sensitivity
from .participation import MinSep
from .recurrence import Outputs, Recurrence
from .sensitivity import any_strategy_sensitivity
from .strategy import Sensitivity, Strategy
from .workload import PREFIX, Workload

DIRECT_SUMS = 256
"""Number of columns, or of bands, up to which columns are summed one by one. Larger sums use an
FFT, whose relative rounding error is below 1e-12."""


class ToeplitzStrategy(Strategy):
    """A strategy with constant diagonals, for any number of rounds.

    Its first column determines the sensitivity, the error and the noise.
    """

    @abstractmethod
    def first_column(self, rounds: int) -> Float64Array:
        """Returns the coefficients c_0 .. c_(rounds-1), [rounds]; c_0 > 0. More rounds append
        coefficients."""

    @abstractmethod
    def defined_coefficients(self, rounds: int) -> list[float]:
        """Returns c_0 .. c_(rounds-1) as the paper defines them, without the code of
        `first_column`."""

    def definition(self, rounds: int) -> Float64Array:
        c = self.defined_coefficients(rounds)
        C = np.zeros((rounds, rounds))
        for i in range(rounds):
            for j in range(i + 1):
                C[i, j] = c[i - j]
        return C

    def inverse_first_column(self, rounds: int) -> Float64Array:
        """Returns the coefficients of C^-1, [rounds]: the power series of 1 / c, by forward
        substitution. C^-1 is Toeplitz too, so its first column determines it."""
        return inverse_series(self.first_column(rounds))

    def is_non_increasing(self, rounds: int) -> bool:
        """Whether c_0 >= c_1 >= ... >= 0: the condition of Theorem 3.1."""
        c = self.first_column(rounds)
        return bool((c >= 0).all() and (np.diff(c) <= 0).all())

    def diagonals(self, rounds: int) -> int:
        return int(np.flatnonzero(self.first_column(rounds))[-1]) + 1

    def is_quick_under_participation(self, rounds: int) -> bool:
        return self.is_non_increasing(rounds)

    def noise_growth(self, rounds: int) -> float:
        # An overflow means infinite growth, not an error.
        with np.errstate(all="ignore"):
            # Slightly heuristic: what rounding does grows with the norms of the rows of C^-1, which
            # may be sqrt(rounds) times this.
            return float(np.abs(self.inverse_first_column(rounds)).max())

    def recurrence(self, rounds: int) -> Recurrence:
        c = np.trim_zeros(self.first_column(rounds), "b")
        return Outputs(row=lambda t: c, bands=len(c))

    def noise_blocks(self, rounds: int) -> Iterator[tuple[int, Float64Array]]:
        return toeplitz_blocks(self.inverse_first_column(rounds))

    def error_variances(self, rounds: int, workload: Workload = PREFIX) -> Float64Array:
        """Returns sum_{i <= t} beta_i^2 for each round t, with beta the coefficients of B = A C^-1,
        if A is Toeplitz too (McMahan, Xu, Zhang 2024, Proposition 3.3)."""
        # With a schedule B is not Toeplitz, so its rows need all columns of C^-1.
        if not workload.is_toeplitz:
            return super().error_variances(rounds, workload)
        # A copy, because `applied` may overwrite its argument.
        beta = workload.applied(self.inverse_first_column(rounds).copy())
        return np.cumsum(beta**2)

    def gram_entries(self, first: Int64Array, second: Int64Array, rounds: int) -> Float64Array:
        """Returns G[i, j] = sum_{s < n-j} c_s c_(s+j-i), by one running sum per lag j - i that
        occurs within the bands."""
        c = np.trim_zeros(self.first_column(rounds), "b")
        lags = (second - first).ravel()
        terms = (rounds - second).ravel()
        # Columns further apart than the bands are orthogonal: their entries stay zero.
        entries = np.zeros(lags.size)
        within = np.flatnonzero(lags < c.size)
        order = within[np.argsort(lags[within], kind="stable")]
        distinct, starts = np.unique(lags[order], return_index=True)
        # strict=False, because np.split returns one empty part if no lag is within the bands.
        for lag, chosen in zip(distinct, np.split(order, starts[1:]), strict=False):
            sums = np.cumsum(c[: c.size - lag] * c[lag:])
            # Late columns end with the run, early columns after the last band.
            last_terms = np.minimum(terms[chosen], sums.size)
            entries[chosen] = sums[last_terms - 1]
        return entries.reshape(np.shape(second - first))

    def gram(self, rounds: int) -> Float64Array:
        c = self.first_column(rounds)
        G = np.zeros((rounds, rounds))
        bands = int(np.flatnonzero(c)[-1]) + 1
        for lag in range(bands):
            # Later columns have fewer rounds left, hence fewer terms: the sums run backwards.
            diagonal = np.cumsum(c[: rounds - lag] * c[lag:])[::-1]
            # A stride of rounds + 1 walks along a diagonal: first the upper one, then the lower.
            G.ravel()[lag : (rounds - lag) * rounds : rounds + 1] = diagonal
            G.ravel()[lag * rounds :: rounds + 1] = diagonal
        return G

    def pattern_square(self, pattern: Int64Array, rounds: int) -> float | None:
        c = self.first_column(rounds)
        # With a negative coefficient, aligned contributions need not be the worst.
        if (c < 0).any():
            return None
        column = _summed_columns(c, pattern)
        return float(column @ column)

    def fixed_order_sensitivity(self, participation: MinSep) -> Sensitivity:
        # A later run has the same columns, without their last rows.
        return fixed_order_sensitivity(self, participation, most_starts=1)

    def min_sep_sensitivity(self, participation: MinSep) -> Sensitivity:
        n = participation.rounds
        b = participation.min_sep
        c = self.first_column(n)
        pattern = tuple(range(0, participation.max_participations * b, b))
        # Theorem 3.1 uses both parts of its condition: with c >= 0 equal contributions are the
        # worst, and as c does not increase, the earliest rounds b apart are.
        if self.is_non_increasing(n):
            column = _summed_columns(c, np.array(pattern))
            value = float(np.linalg.norm(column))
            theorem = "McMahan, Xu, Zhang 2024, Theorem 3.1 (non-negative, non-increasing Toeplitz)"
            return Sensitivity(value, True, theorem, value, pattern)
        if self.diagonals(n) <= b:
            # Column norms never increase, so the earliest rounds are the worst.
            # Signs do not matter here: columns without a common row are orthogonal, so
            # contributions cannot be aligned.
            squared_norms = np.cumsum(c * c)[::-1]
            value = float(squared_norms[list(pattern)].sum()) ** 0.5
            theorem = "Choquette-Choo et al. 2023, Theorem 2 (at most b bands: orthogonal columns)"
            return Sensitivity(value, True, theorem, value, pattern)
        return any_strategy_sensitivity(self, participation)  # pyright: ignore[reportArgumentType]  (frozen, so it has a hash)


class Toeplitz(ToeplitzStrategy):
    """A Toeplitz strategy defined by its coefficients; later coefficients are zero (BandToep,
    McKenna 2024)."""

    kind: Literal["toeplitz"] = "toeplitz"  # pyright: ignore[reportIncompatibleVariableOverride]  (frozen, so narrowing is safe)
    """Toeplitz, by its coefficients."""
    coefficients: Annotated[tuple[float, ...], Field(strict=False, min_length=1)]
    """c_0, c_1, ..., one per band; c_0 must be positive."""
    paper: ClassVar[str] = "McKenna 2024"

    @model_validator(mode="after")
    def _invertible(self) -> Self:
        if not self.coefficients[0] > 0:
            raise ValueError(
                f"coefficients start with {self.coefficients[0]}; c_0 must be positive, or C has "
                "no inverse"
            )
        return self

    def first_column(self, rounds: int) -> Float64Array:
        c = np.zeros(rounds)
        given = self.coefficients[:rounds]
        c[: len(given)] = given
        return c

    def defined_coefficients(self, rounds: int) -> list[float]:
        zeros = [0.0] * rounds
        return [*self.coefficients, *zeros][:rounds]


def _summed_columns(c: Float64Array, pattern: Int64Array) -> Float64Array:
    """Sums columns of a Toeplitz C, [n], given its first column [n]: a convolution of c with the
    number of times that each round occurs in the pattern."""
    n = c.size
    c = np.trim_zeros(c, "b")
    if min(c.size, pattern.size) > DIRECT_SUMS:
        # Importing scipy takes 0.3 s, and most commands do not need it.
        from scipy.signal import oaconvolve

        times = np.bincount(pattern, minlength=n).astype(np.float64)
        return np.asarray(oaconvolve(times, c), np.float64)[:n]
    # Space for entries after the end of the run saves a check in each step.
    column = np.zeros(n + c.size)
    # The Python loop runs over the shorter of bands and pattern.
    if c.size < pattern.size:
        for lag, value in enumerate(c.tolist()):
            # `np.add.at` counts a round twice if it occurs twice; `+=` would not.
            np.add.at(column, pattern + lag, value)
    else:
        for start in pattern.tolist():
            column[start : start + c.size] += c
    return column[:n]


def toeplitz_blocks(column: Float64Array) -> Iterator[tuple[int, Float64Array]]:
    """Yields (first, block): columns of the Toeplitz matrix of a first column [n], from row `first`
    on, [n - first, columns]."""
    n = column.size
    for first in range(0, n, DIRECT_SUMS):
        block = np.zeros((n - first, min(DIRECT_SUMS, n - first)))
        for j in range(block.shape[1]):
            block[j:, j] = column[: n - first - j]
        yield first, block


def inverse_series(c: Float64Array) -> Float64Array:
    """Returns the first n coefficients of 1 / c(x), c [n], c_0 != 0, by forward substitution: the
    first column of the inverse of the Toeplitz matrix of c."""
    # `scipy.signal.lfilter` gives the same bits, but takes half a second to import, and every
    # process that reads a scenario calls this function.
    later = np.append(np.trim_zeros(c, "b")[1:], 0.0) / c[0]
    found = np.empty(c.size)
    rest = np.zeros(later.size + 1)
    rest[0] = 1.0 / c[0]
    # An overflow means infinite growth, which callers check.
    with np.errstate(over="ignore", invalid="ignore"):
        for t in range(c.size):
            found[t] = rest[0]
            rest[:-1] = rest[1:] - rest[0] * later
    return found
