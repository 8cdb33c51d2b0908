"""A user's own lower-triangular C from a `.npy` file. Nothing is assumed of it, so an audit can
take anybody's matrix."""

from typing import ClassVar, Literal

from fedray.mechanisms.triangular import MatrixFile


class Matrix(MatrixFile):
    """A user's own strategy."""

    kind: Literal["matrix"] = "matrix"  # pyright: ignore[reportIncompatibleVariableOverride]  (frozen, so narrowing is safe)
    """Any lower-triangular matrix, from a file."""
    paper: ClassVar[str] = "the user's own"
