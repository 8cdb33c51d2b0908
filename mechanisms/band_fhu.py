"""BandFHU, or BSR, the banded square root: c_i = binom(2i, i) / 4^i for i < bands, the truncated
series of (1 - x)^(-1/2).

Without truncation C is the square root of the prefix sum A. Source: Fichtenberger, Henzinger,
Upadhyay 2022 ("Constant matters"); Kalinin and Lampert 2024 ("Banded square root matrix
factorization").
"""

import math
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedray.base.arrays import Float64Array
from .toeplitz import ToeplitzStrategy


class BandFHU(ToeplitzStrategy):
    """Square root of the prefix sum, truncated to `bands` coefficients; their number is the only
    parameter."""

    kind: Literal["band-fhu"] = "band-fhu"  # pyright: ignore[reportIncompatibleVariableOverride]  (frozen, so narrowing is safe)
    """Banded square root."""
    bands: Annotated[int, Field(ge=1)]
    """Number of coefficients kept, including the diagonal."""
    paper: ClassVar[str] = "Kalinin, Lampert 2024"

    def first_column(self, rounds: int) -> Float64Array:
        c = np.zeros(rounds)
        kept = min(self.bands, rounds)
        i = np.arange(1, kept)
        # Ratios of consecutive coefficients, because the binomials would overflow.
        ratios = (2 * i - 1) / (2 * i)
        c[:kept] = np.cumprod(np.concatenate([[1.0], ratios]))
        return c

    def defined_coefficients(self, rounds: int) -> list[float]:
        # The coefficients of (1 - x)^(-1/2), the square root of the prefix sum's 1 / (1 - x).
        kept = min(rounds, self.bands)
        c = [math.comb(2 * i, i) / 4**i for i in range(kept)]
        return [*c, *([0.0] * (rounds - kept))]
