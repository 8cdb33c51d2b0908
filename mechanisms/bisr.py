"""BISR, the banded inverse square root: C^-1 is the series of (1 - x)^(1/2), truncated after
`bands` coefficients.

The noise of a round is therefore a short weighted sum of the latest draws. Source: Kalinin,
McKenna, Upadhyay, Lampert 2025 ("Back to square roots: an optimal bound on the matrix factorization
error for multi-epoch differentially private SGD").
"""

import math
from fractions import Fraction
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedray.base.arrays import Float64Array
from .recurrence import Draws
from .toeplitz import ToeplitzStrategy, inverse_series


class BISR(ToeplitzStrategy):
    """Inverse square root of the prefix sum, truncated to `bands` diagonals. C has no zeros below
    its diagonal."""

    kind: Literal["bisr"] = "bisr"  # pyright: ignore[reportIncompatibleVariableOverride]  (frozen, so narrowing is safe)
    """Banded inverse square root."""
    bands: Annotated[int, Field(ge=1)]
    """Number of coefficients of C^-1 kept, including the diagonal."""
    paper: ClassVar[str] = "Kalinin, McKenna, Upadhyay, Lampert 2025"

    def inverse_first_column(self, rounds: int) -> Float64Array:
        """Returns the coefficients of C^-1, [rounds]: binom(2i, i) / 4^i / (1 - 2i) for i < bands,
        else 0. This is the series of (1 - x)^(1/2), the inverse square root of the prefix sum,
        truncated."""
        inverse = np.zeros(rounds)
        kept = min(self.bands, rounds)
        i = np.arange(1, kept)
        # Ratios of consecutive coefficients, because the binomials would overflow.
        # All but the first are negative: a round takes back some of the noise of earlier ones.
        ratios = (2 * i - 3) / (2 * i)
        inverse[:kept] = np.cumprod(np.concatenate([[1.0], ratios]))
        return inverse

    def first_column(self, rounds: int) -> Float64Array:
        return inverse_series(self.inverse_first_column(rounds))

    def defined_coefficients(self, rounds: int) -> list[float]:
        # C is the inverse of the truncated series of (1 - x)^(1/2). Fractions, because the
        # recursion would accumulate rounding errors.
        kept = min(rounds, self.bands)
        inverse = []
        for i in range(kept):
            inverse.append(Fraction(math.comb(2 * i, i), 4**i * (1 - 2 * i)))
        c = [Fraction(1)]
        for i in range(1, rounds):
            lags = range(1, min(i + 1, kept))
            products = [inverse[j] * c[i - j] for j in lags]
            c.append(-sum(products, Fraction(0)))
        return [float(each) for each in c]

    def recurrence(self, rounds: int) -> Draws:
        return Draws(coefficients=np.trim_zeros(self.inverse_first_column(rounds), "b"))

    def is_non_increasing(self, rounds: int) -> bool:
        """Returns True, by proof and not from rounded coefficients.

        Let r > 0 be the negated coefficients of C^-1 after the first, so c_t = sum_i r_i c_(t-i).
        Within the bands c is the series of (1 - x)^(-1/2), which decreases; after them, c_t -
        c_(t-1) = sum_i r_i (c_(t-i) - c_(t-1-i)) <= 0 by induction.
        """
        del rounds
        return True
