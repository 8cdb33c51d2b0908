"""The table `privacy`: the noise mechanism and what it claims."""

from typing import Annotated, Any, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from fedray.encoding.tables import AnyEncoding, FixedPoint
from fedray.table import Table
from mechanisms.files import strategy_beside
from mechanisms.registry import BLT, AnyStrategy, Identity


class Privacy(Table):
    """The noise mechanism and what it claims."""

    mechanism: AnyStrategy = Field(
        default=BLT(
            kind="blt",
            theta=(0.9953348970002772, 0.8122920858683399),
            omega=(0.12828660029532482, 0.32906048602262866),
        ),
        description="Strategy matrix C: a table with `kind` and that kind's parameters (see "
        "mechanisms/README.md), or the name of "
        "a mechanism file beside the scenario's.",
    )
    noise_multiplier: Annotated[float, Field(ge=0.01, le=1e6)] = 7.0
    """Noise standard deviation over the most that a device contributes, for C of unit scale (z of
    mechanisms/README.md). That is the clip norm, or what the encoding makes of it."""
    clip_norm: Annotated[float, Field(ge=1e-6, le=1e6)] = 1.0
    """Largest L2 norm of a device's update."""
    delta: Annotated[float, Field(ge=1e-30, lt=1)] = 1e-10
    """Delta at which epsilon is reported."""
    encoding: AnyEncoding = Field(
        default=FixedPoint(),
        description="How the updates of devices are sent and summed: a table with `kind`.",
        # Scenarios that were written before there was a choice keep their digest.
        exclude_if=lambda encoding: encoding == FixedPoint(),
    )

    @model_validator(mode="after")
    def _devices_can_add_the_noise(self) -> Self:
        if self.encoding.adds_noise and not isinstance(self.mechanism, Identity):
            raise ValueError(
                f"encoding.kind={self.encoding.kind!r} with mechanism.kind="
                f"{self.mechanism.kind!r}: devices cannot add noise that is correlated between "
                "rounds; take the mechanism identity, or the encoding secagg"
            )
        return self

    @field_validator("mechanism", mode="before")
    @classmethod
    def _from_file(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, str):
            return strategy_beside(value, "scenario", info.context)
        return value
