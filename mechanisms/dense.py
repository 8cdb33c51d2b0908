"""Dense matrix factorization: an optimised lower-triangular C without bands, for one participation
or for (k, b) multi-epoch.

Source: Denisov et al. 2022 ("Improved differential privacy for SGD via optimal private linear
operators on adaptive streams"); Choquette-Choo et al. 2022 ("Multi-epoch matrix factorization
mechanisms for private machine learning").
"""

from typing import ClassVar, Literal

from fedray.mechanisms.triangular import MatrixFile


class Dense(MatrixFile):
    """Single-epoch or multi-epoch matrix factorization."""

    kind: Literal["dense"] = "dense"  # pyright: ignore[reportIncompatibleVariableOverride]  (frozen, so narrowing is safe)
    """Dense lower triangular, from a file."""
    paper: ClassVar[str] = "Denisov et al. 2022; Choquette-Choo et al. 2022"
