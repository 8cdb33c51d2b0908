"""The tables `privacy.encoding`: how the updates of devices are sent and summed.

This module has what a scenario's file says of an encoding; what an encoding does is in the module
of its kind, which loads a compiler.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, Tag

from fedray.table import Table, told_apart_by


class FixedPoint(Table):
    """Whole steps of clip_norm / 2^40, summed without a modulus; see
    fedray/encoding/fixed_point.py."""

    kind: Literal["fixed_point"] = "fixed_point"
    """Exact sums of whole steps."""
    noise_is_relative_to: ClassVar[str] = "the clip norm"
    """What the noise multiplier is multiplied by: the most that a device adds to a sum."""
    assumption: ClassVar[str] = ""
    """What an audit has to say of the encoding, a sentence; empty for nothing."""


class SecAgg(Table):
    """Integers modulo M, as secure aggregation sums them (Xu et al. 2023, Algorithm 2); see
    fedray/encoding/secagg.py."""

    kind: Literal["secagg"] = "secagg"
    """Sums modulo M, of rotated and rounded updates."""
    scale: Annotated[int, Field(ge=1, le=1 << 30)] = 1 << 16
    """Steps that a clip norm is divided into: the paper's scale s times the clip norm."""
    modulus_bits: Annotated[int, Field(ge=1, le=62)] | None = None
    """Sums are taken modulo 2^modulus_bits; none: modulo 2 Cinf report_goal + 1, the least that has
    room for every sum."""
    noise_is_relative_to: ClassVar[str] = (
        "the inflated norm, which is the clip norm times sqrt(1 + 1 / s + d / (4 s^2) + "
        "sqrt(d) / (2 s^2)), with s the scale and d the model's parameters padded to a power of two"
    )
    """What the noise multiplier is multiplied by: the most that a device adds to a sum."""

    @property
    def assumption(self) -> str:
        """What an audit has to say of the encoding, a sentence."""
        return (
            f"Updates are summed by secure aggregation with scale s = {self.scale:,}: a device "
            "rounds its update, and rounds again until it is no longer than the inflated norm "
            "(Kairouz, Liu and Steinke 2021, Theorem 1). Sensitivities are in units of that norm, "
            "and so is the noise that the aggregator adds: the noise multiplier is relative to "
            f"{self.noise_is_relative_to}. So rho and epsilon are those of the noise multiplier "
            "as it stands, and what encoding costs is more noise."
        )


AnyEncoding = Annotated[
    Annotated[FixedPoint, Tag("fixed_point")] | Annotated[SecAgg, Tag("secagg")],
    told_apart_by("kind", "fixed_point"),
]
"""The tables of all encodings, told apart by `kind`."""
