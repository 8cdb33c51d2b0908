"""The tables `privacy.encoding`: how the updates of devices are sent and summed.

Encodings themselves are in the modules of their kinds, which load a compiler.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, Tag

from fedray.base.table import Table, told_apart_by

__all__ = [
    "DiscreteGaussian",
    "FixedPoint",
    "SecAgg",
]

FIXED_POINT_BITS = 40
"""Resolution of sums in fixed point: 2^40 steps per clip norm, or per unit of a loss, leave room
for 2^22 devices in an int64 sum."""
LEAST_DEVICE_VARIANCE = 0.25
"""Least variance of the discrete noise of one device, squared steps: a condition of the theorem on
their sum (Kairouz, Liu and Steinke 2021, Proposition 14)."""
_INFLATED_NORM = (
    "the inflated norm, which is the clip norm times sqrt(1 + 1 / s + d / (4 s^2) + "
    "sqrt(d) / (2 s^2)), with s the scale and d the model's parameters padded to a power of two"
)


class EncodingTable(Table):
    """The table of an encoding: what audits and pages say of it."""

    implementation: ClassVar[str]
    """`module:name` of the encoding: called with this table and a `SumSetting`, it returns an
    `Encoding`."""
    adds_noise: ClassVar[bool] = False
    """Whether devices add the noise."""
    noise_is_relative_to: ClassVar[str] = "the clip norm"
    """Norm that the noise multiplier multiplies: the largest addition of a device to a sum."""

    @property
    def assumption(self) -> str:
        """Note about the encoding for audits; may be empty."""
        return ""


class FixedPoint(EncodingTable):
    """Whole steps of clip_norm / 2^40, summed without a modulus; see
    fedray/encoding/fixed_point.py."""

    kind: Literal["fixed_point"] = "fixed_point"
    """Exact sums of whole steps."""
    implementation: ClassVar[str] = "fedray.encoding.fixed_point:FixedPointEncoding.of"


class ModularTable(EncodingTable):
    """Base class of tables of secure aggregation."""

    noise_is_relative_to: ClassVar[str] = _INFLATED_NORM
    scale: Annotated[int, Field(ge=1, le=1 << 30)] = 1 << 16
    """Steps that a clip norm is divided into: the paper's scale s times the clip norm."""
    modulus_bits: Annotated[int, Field(ge=1, le=62)] | None = None
    """Sums are taken modulo 2^modulus_bits; none: modulo the least M that has room for the sum of
    report_goal devices."""

    @property
    def _bounded(self) -> str:
        return (
            f"Updates are summed by secure aggregation with scale s = {self.scale:,}: a device "
            "rounds its update, and rounds again until it is no longer than the inflated norm "
            "(Kairouz, Liu and Steinke 2021, Theorem 1). Sensitivities are in units of that norm, "
            "and so is the noise: the noise multiplier is relative to "
            f"{self.noise_is_relative_to}."
        )


class SecAgg(ModularTable):
    """Integers modulo M, as secure aggregation sums them (Xu et al. 2023, Algorithm 2); see
    fedray/encoding/secagg.py."""

    kind: Literal["secagg"] = "secagg"
    """Sums modulo M, of rotated and rounded updates."""
    implementation: ClassVar[str] = "fedray.encoding.secagg:SecAggEncoding"

    @property
    def assumption(self) -> str:
        return (
            f"{self._bounded} So rho and epsilon are those of the noise multiplier as it stands, "
            "and what encoding costs is more noise."
        )


class DiscreteGaussian(ModularTable):
    """Secure aggregation of updates to which devices have added discrete Gaussian noise (Kairouz,
    Liu and Steinke 2021); see fedray/encoding/discrete_gaussian.py.

    The mechanism must be `identity`: devices cannot add noise that is correlated between rounds.
    """

    kind: Literal["discrete_gaussian"] = "discrete_gaussian"
    """Sums modulo M of rounded updates and the devices' own noise."""
    implementation: ClassVar[str] = "fedray.encoding.discrete_gaussian:DiscreteGaussianEncoding"
    adds_noise: ClassVar[bool] = True
    parameters: Annotated[int, Field(ge=1, le=1 << 40)]
    """Parameters of the model; the privacy of discrete noise depends on how many there are."""

    @property
    def assumption(self) -> str:
        return (
            f"{self._bounded} Every accepted device adds discrete Gaussian noise of its own, and "
            "the server adds none. The noise multiplier "
            "is that of a round with report_goal accepted devices; observed figures are those of "
            "the round with the fewest, enforced and claimed ones those of a round with the fewest "
            "that the rules permit, by zCDP (Kairouz, Liu and Steinke 2021, Proposition 14)."
        )


AnyEncoding = Annotated[
    Annotated[FixedPoint, Tag("fixed_point")]
    | Annotated[SecAgg, Tag("secagg")]
    | Annotated[DiscreteGaussian, Tag("discrete_gaussian")],
    told_apart_by("kind", "fixed_point"),
]
"""Tables of all encodings, distinguished by `kind`."""
