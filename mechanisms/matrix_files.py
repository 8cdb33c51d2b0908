"""Strategies whose matrix C is a `.npy` file: banded and dense matrices that `fedray optimize`
finds, and matrices of users.

Entries that may differ from zero, with two bands and dense; here every entry is free, and in a
Toeplitz matrix only the first column is:

    | x  .  .  . |        | x  .  .  . |
    | x  x  .  . |        | x  x  .  . |
    | .  x  x  . |        | x  x  x  . |
    | .  .  x  x |        | x  x  x  x |
"""

from typing import ClassVar, Literal

from .triangular import MatrixFile


class Banded(MatrixFile):
    """BandMF: a banded lower-triangular C, optimised for the prefix sum.

    Source: Choquette-Choo et al. 2023 ("(Amplified) banded matrix factorization", Problem 2,
    Proposition 4.1).

    With at most min-sep bands, a device's columns are orthogonal and the sensitivity is exact
    (Theorem 2, which is never applied to more bands). With more bands there is an upper bound, and
    the exact value of a trace.
    """

    kind: Literal["banded"] = "banded"  # pyright: ignore[reportIncompatibleVariableOverride]  (frozen, so narrowing is safe)
    """Banded lower triangular, from a file."""
    paper: ClassVar[str] = "Choquette-Choo et al. 2023"


class Dense(MatrixFile):
    """An optimised lower-triangular C without bands, single-epoch or (k, b) multi-epoch.

    Source: Denisov et al. 2022 ("Improved differential privacy for SGD via optimal private linear
    operators on adaptive streams"); Choquette-Choo et al. 2022 ("Multi-epoch matrix factorization
    mechanisms for private machine learning").
    """

    kind: Literal["dense"] = "dense"  # pyright: ignore[reportIncompatibleVariableOverride]  (frozen, so narrowing is safe)
    """Dense lower triangular, from a file."""
    paper: ClassVar[str] = "Denisov et al. 2022; Choquette-Choo et al. 2022"


class Matrix(MatrixFile):
    """A user's own strategy: any lower-triangular C. Audits assume nothing about it."""

    kind: Literal["matrix"] = "matrix"  # pyright: ignore[reportIncompatibleVariableOverride]  (frozen, so narrowing is safe)
    """Any lower-triangular matrix, from a file."""
    paper: ClassVar[str] = "the user's own"
