"""BISR: the banded inverse square root. C^-1 is the series of (1 - x)^(1/2), cut off after `bands`
coefficients.

So the noise of a round is a short weighted sum of the latest draws. Source: Kalinin, McKenna,
Upadhyay, Lampert 2025 ("Back to square roots: an optimal bound on the matrix factorization error
for multi-epoch differentially private SGD").
"""

from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedray.mechanisms.recurrence import Draws
from fedray.mechanisms.toeplitz import ToeplitzStrategy, inverse_series


class BISR(ToeplitzStrategy):
    """Inverse of the square root of the prefix sum, cut off; C itself has no zero below its
    diagonal."""

    kind: Literal["bisr"] = "bisr"  # pyright: ignore[reportIncompatibleVariableOverride]  (frozen, so narrowing is safe)
    """Banded inverse square root."""
    bands: Annotated[int, Field(ge=1)]
    """Coefficients of C^-1 kept, the diagonal's included."""
    paper: ClassVar[str] = "Kalinin, McKenna, Upadhyay, Lampert 2025"

    def inverse_first_column(self, rounds: int) -> NDArray[np.float64]:
        """Returns the coefficients of C^-1, [rounds]: binom(2i, i) / 4^i / (1 - 2i) for i < bands,
        and 0 beyond. They are those of (1 - x)^(1/2), the inverse of the square root of the prefix
        sum, truncated."""
        inverse = np.zeros(rounds)
        kept = min(self.bands, rounds)
        i = np.arange(1, kept)
        # Each coefficient is the one before times (2i - 3) / (2i), with no binomials to overflow.
        ratios = (2 * i - 3) / (2 * i)
        inverse[:kept] = np.cumprod(np.concatenate([[1.0], ratios]))
        return inverse

    def first_column(self, rounds: int) -> NDArray[np.float64]:
        return inverse_series(self.inverse_first_column(rounds))

    def recurrence(self, rounds: int) -> Draws:
        return Draws(coefficients=np.trim_zeros(self.inverse_first_column(rounds), "b"))

    def is_non_increasing(self, rounds: int) -> bool:
        """Always: with r the negated coefficients of C^-1 past the first, all positive, c_t = sum_i
        r_i c_(t-i).

        Up to the bands c is the series of (1 - x)^(-1/2), which falls; beyond, c_t - c_(t-1) =
        sum_i r_i (c_(t-i) - c_(t-1-i)) <= 0 by induction. Decided by this, not by rounded
        coefficients.
        """
        del rounds
        return True
