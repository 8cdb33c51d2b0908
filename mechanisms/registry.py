"""Every strategy, told apart by `kind`. To add one: its file, its name here, its test."""

from typing import Annotated

from pydantic import Field

from mechanisms.blt import BLT
from mechanisms.identity import Identity
from mechanisms.tree import Tree

__all__ = ["BLT", "AnyStrategy", "Identity", "Tree"]

AnyStrategy = Annotated[Identity | BLT | Tree, Field(discriminator="kind")]
