"""BandMF: a banded lower-triangular C, optimised for the prefix sum.

With at most min-sep bands, a device's columns are orthogonal and the sensitivity exact (Theorem 2).
With more there is an upper bound only, and the exact value of a trace; the banded theorem is never
applied there. Source: Choquette-Choo et al. 2023 ("(Amplified) banded matrix factorization",
Problem 2, Proposition 4.1).
"""

from typing import ClassVar, Literal

from fedray.mechanisms.triangular import MatrixFile


class Banded(MatrixFile):
    """Banded matrix factorization."""

    kind: Literal["banded"] = "banded"  # pyright: ignore[reportIncompatibleVariableOverride]  (frozen, so narrowing is safe)
    """Banded lower triangular, from a file."""
    paper: ClassVar[str] = "Choquette-Choo et al. 2023"
