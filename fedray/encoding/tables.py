"""The tables `privacy.encoding`, and those of `privacy.trust` in which devices add noise: the
encoding of updates for their sum.

The code of each kind is in its own module, because it loads a compiler.
"""

from abc import abstractmethod
from typing import Annotated, ClassVar, Literal

from pydantic import Field, Tag

from fedray.base.table import Table, told_apart_by

__all__ = [
    "DevicesTrust",
    "FixedPoint",
    "LocalTrust",
    "SecAgg",
]

FIXED_POINT_BITS = 40
"""Resolution of sums in fixed point: with 2^40 steps per clip norm, or per unit of a loss, an int64
sum holds 2^22 devices."""
LEAST_DEVICE_VARIANCE = 0.25
"""Least variance of one device's discrete noise, in squared steps, for which the theorem on sums
holds (Kairouz, Liu and Steinke 2021, Proposition 14)."""
_INFLATED_NORM = (
    "the inflated norm, which is the clip norm times sqrt(1 + 1 / s + d / (4 s^2) + "
    "sqrt(d) / (2 s^2)), with s the scale and d the model's parameters padded to a power of two"
)


class EncodingTable(Table):
    """Table of an encoding, with its description for audits and pages."""

    kind: str
    """Kind of the encoding, or of the trust."""
    implementation: ClassVar[str]
    """The encoding as `module:name`: a callable of this table and a `SumSetting` that returns an
    `Encoding`."""
    adds_noise: ClassVar[bool] = False
    """Whether devices add the noise."""
    noise_is_relative_to: ClassVar[str] = "the clip norm"
    """Unit of the noise multiplier: the largest contribution of a device to a sum."""

    @property
    def assumption(self) -> str:
        """Assumption of the encoding for audits, or an empty string."""
        return ""


class FixedPoint(EncodingTable):
    """Whole steps of clip_norm / 2^40, summed without a modulus; see
    fedray/encoding/fixed_point.py."""

    kind: Literal["fixed_point"] = "fixed_point"  # pyright: ignore[reportIncompatibleVariableOverride]  (frozen, so narrowing is safe)
    """Exact sums of whole steps."""
    implementation: ClassVar[str] = "fedray.encoding.fixed_point:FixedPointEncoding.of"


class ModularTable(EncodingTable):
    """Base of the encodings of secure aggregation."""

    noise_is_relative_to: ClassVar[str] = _INFLATED_NORM
    place: ClassVar[str] = "privacy.encoding"
    """Path of the table in a scenario."""
    scale: Annotated[int, Field(ge=1, le=1 << 30)] = 1 << 16
    """Steps per clip norm: the paper's scale s times the clip norm."""
    modulus_bits: Annotated[int, Field(ge=1, le=62)] | None = None
    """Bits of the modulus, 2^modulus_bits. Default: the least modulus M that holds the sum of
    report_goal devices."""

    @property
    def _bounded(self) -> str:
        return (
            f"Updates are summed by secure aggregation with scale s = {self.scale:,}. A device "
            "rounds its update, and rounds again until it is no longer than the inflated norm "
            "(Kairouz, Liu and Steinke 2021, Theorem 1). Sensitivities are in units of that norm, "
            "and so is the noise. The noise multiplier is relative to "
            f"{self.noise_is_relative_to}."
        )


class SecAgg(ModularTable):
    """Integers modulo M, as secure aggregation sums them (Xu et al. 2023, Algorithm 2); see
    fedray/encoding/secagg.py."""

    kind: Literal["secagg"] = "secagg"  # pyright: ignore[reportIncompatibleVariableOverride]  (frozen, so narrowing is safe)
    """Sums modulo M, of rotated and rounded updates."""
    implementation: ClassVar[str] = "fedray.encoding.secagg:SecAggEncoding"

    @property
    def assumption(self) -> str:
        return (
            f"{self._bounded} So rho and epsilon are those of the noise multiplier as it stands, "
            "and what encoding costs is more noise."
        )


class DeviceNoiseTable(ModularTable):
    """Base of the tables of trust in which devices add the noise: rotated and rounded updates with
    discrete Gaussian noise, modulo M; see fedray/encoding/device_noise.py."""

    implementation: ClassVar[str] = "fedray.encoding.device_noise:DeviceNoiseEncoding"
    adds_noise: ClassVar[bool] = True
    place: ClassVar[str] = "privacy.trust"
    parameters: Annotated[int, Field(ge=1, le=1 << 40)]
    """Number of parameters of the model, on which the privacy of discrete noise depends."""

    @abstractmethod
    def sharing(self, report_goal: int) -> int:
        """Returns the number of devices whose noise together has the noise multiplier as its
        standard deviation, in inflated norms."""


MALICIOUS_SHARE = 1 / 3
"""Share of malicious devices, inclusive, up to which a store or secure aggregation is taken to keep
its secrets unless a run states another: that of protocols with an honest supermajority."""


class DevicesTrust(DeviceNoiseTable):
    """Trust in the devices and in a store that opens agreed sums only: each device adds its share
    of the noise before secure aggregation, and the store correlates the rounds (Ball et al. 2024,
    "Secure Stateful Aggregation"; "DMM: Distributed Matrix Mechanism", arXiv 2410.16161)."""

    kind: Literal["devices"] = "devices"  # pyright: ignore[reportIncompatibleVariableOverride]  (frozen, so narrowing is safe)
    """Devices add noise in shares, and a store opens sums of rounds weighted by C."""
    coefficient_bits: Annotated[int, Field(ge=1, le=20)] = 8
    """q: coefficients of C are rounded to multiples of c_0 / 2^q. The identity needs none."""
    coefficients: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Number of coefficients of C that are kept. Default: all. The mechanisms blt and bisr, whose C
    has no last coefficient, need it."""
    malicious_share: Annotated[float, Field(ge=0, lt=1)] = MALICIOUS_SHARE
    """Largest share of malicious devices among those that run the store's protocol for which it
    keeps its secrets."""

    def sharing(self, report_goal: int) -> int:
        return report_goal

    @property
    def assumption(self) -> str:
        return (
            f"{self._bounded} Every accepted device adds discrete Gaussian noise of its own, and "
            "the server adds none. The noise multiplier is that of a round with report_goal "
            "accepted devices. Observed figures are those of the round with the fewest devices. "
            "Enforced and claimed ones are those of a round with the fewest that the rules permit. "
            "They are by zCDP (Kairouz, Liu and Steinke 2021, Proposition 14)."
        )


class LocalTrust(DeviceNoiseTable):
    """Trust in no one: each device adds all the noise to its own update. The mechanism must be
    `identity`."""

    kind: Literal["local"] = "local"  # pyright: ignore[reportIncompatibleVariableOverride]  (frozen, so narrowing is safe)
    """Each device adds the noise of the noise multiplier to its own update."""

    def sharing(self, report_goal: int) -> int:
        del report_goal
        return 1

    @property
    def assumption(self) -> str:
        return (
            f"{self._bounded} Every accepted device adds discrete Gaussian noise of the noise "
            "multiplier to its own update, and the server adds none. So whoever receives an update "
            "sees it with this noise, and the sum of n updates has n times the variance."
        )


AnyEncoding = Annotated[
    Annotated[FixedPoint, Tag("fixed_point")] | Annotated[SecAgg, Tag("secagg")],
    told_apart_by("kind", "fixed_point"),
]
"""The union of all encodings' tables, by `kind`."""
SentTable = FixedPoint | SecAgg | DevicesTrust | LocalTrust
"""The union of all tables of how updates are sent: encodings, and trusts in which devices add the
noise."""
