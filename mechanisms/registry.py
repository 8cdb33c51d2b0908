"""The union of all strategies, by `kind`. To add one: docs/extending.md."""

from typing import Annotated

from pydantic import Field

from fedray.base.mistakes import classes_in
from .band_fhu import BandFHU
from .bisr import BISR
from .blt import BLT
from .identity import Identity
from .integer_toeplitz import IntegerToeplitz
from .matrix_files import Banded, Dense, Matrix
from .toeplitz import Toeplitz
from .tree import Tree
from .tree_full import TreeFull

__all__ = [
    "BISR",
    "BLT",
    "BandFHU",
    "Banded",
    "Dense",
    "Identity",
    "IntegerToeplitz",
    "Matrix",
    "Toeplitz",
    "Tree",
    "TreeFull",
]

AnyStrategy = Annotated[
    Identity
    | BLT
    | Toeplitz
    | IntegerToeplitz
    | BandFHU
    | BISR
    | Banded
    | Dense
    | Matrix
    | Tree
    | TreeFull,
    Field(discriminator="kind"),
]
STRATEGY_KINDS: tuple[str, ...] = tuple(
    each.model_fields["kind"].default for each in classes_in(AnyStrategy)
)
"""The `kind` of every strategy."""
