"""Tables of the ways in which a sampler may draw the devices of a round."""

from typing import Annotated, Literal

from pydantic import Field, Tag

from fedray.base.table import PositiveShare, Table, told_apart_by

__all__ = ["FixedSizeDraws", "InTurn", "PoissonDraws"]

Count = Annotated[int, Field(ge=1, lt=2**31)]


class _Sampling(Table):
    devices: Count
    """Number of devices (or examples) that the sampler draws from."""
    false_alarm_rate: Annotated[float, Field(gt=0, lt=0.5)] = 1e-3
    """Probability that a sampler which does as claimed is found to break the claim."""


class PoissonDraws(_Sampling):
    """Every device is in every round with the same probability, independently."""

    kind: Literal["poisson"] = "poisson"
    """Poisson samples."""
    probability: PositiveShare
    """Probability that a device is in a round."""


class FixedSizeDraws(_Sampling):
    """Every round draws the same number of devices, uniformly without replacement, independently of
    other rounds."""

    kind: Literal["fixed_size"] = "fixed_size"
    """Draws of a fixed size."""
    size: Count
    """Number of devices of a round."""


class InTurn(_Sampling):
    """Every device comes once before any comes again, in each pass over the devices."""

    kind: Literal["in_turn"] = "in_turn"
    """Passes over all devices, such as epochs, in the same or another order."""


AnySampling = Annotated[
    Annotated[PoissonDraws, Tag("poisson")]
    | Annotated[FixedSizeDraws, Tag("fixed_size")]
    | Annotated[InTurn, Tag("in_turn")],
    told_apart_by("kind", "poisson"),
]
"""Tables of sampling, distinguished by `kind`."""
