"""The union of all strategies, by `kind`. To add one: docs/extending.md."""

from typing import Annotated

from pydantic import Field

from fedray.mechanisms.band_fhu import BandFHU
from fedray.mechanisms.bisr import BISR
from fedray.mechanisms.blt import BLT
from fedray.mechanisms.identity import Identity
from fedray.mechanisms.matrix_files import Banded, Dense, Matrix
from fedray.mechanisms.restarted import Restarted
from fedray.mechanisms.toeplitz import Toeplitz
from fedray.mechanisms.tree import Tree
from fedray.mechanisms.tree_full import TreeFull

__all__ = [
    "BISR",
    "BLT",
    "BandFHU",
    "Banded",
    "Dense",
    "Identity",
    "Matrix",
    "Restarted",
    "Toeplitz",
    "Tree",
    "TreeFull",
]

AnyStrategy = Annotated[
    Identity
    | BLT
    | Toeplitz
    | BandFHU
    | BISR
    | Banded
    | Dense
    | Matrix
    | Tree
    | TreeFull
    | Restarted,
    Field(discriminator="kind"),
]
