"""Every strategy, told apart by `kind`. To add one: ARCHITECTURE.md, "To add"."""

from typing import Annotated

from pydantic import Field

from mechanisms.band_fhu import BandFHU
from mechanisms.banded import Banded
from mechanisms.bisr import BISR
from mechanisms.blt import BLT
from mechanisms.dense import Dense
from mechanisms.identity import Identity
from mechanisms.matrix import Matrix
from mechanisms.restarted import Restarted
from mechanisms.toeplitz import Toeplitz
from mechanisms.tree import Tree
from mechanisms.tree_full import TreeFull

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
