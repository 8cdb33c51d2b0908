"""The tables `training.planted`: phrases among the devices' texts, to audit a model with."""

from typing import Annotated

from pydantic import Field

from fedray.base.table import Table


class Planted(Table):
    """Phrases of random words that are planted among the texts of some devices; see
    clients/data/planted.py. `fedray audit-model` measures what a model remembers of them."""

    phrases: Annotated[int, Field(ge=2, le=100_000)]
    """Number of candidate phrases. A fair coin decides whether a phrase is planted; the others are
    controls."""
    devices: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Number of devices that hold a planted phrase. No device has two candidates."""
    copies: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Number of texts of such a device that the phrase replaces: its first ones, or all if it has
    fewer."""
