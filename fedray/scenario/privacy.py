"""The table `privacy`: the noise mechanism and its claims."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from fedray.base.errors import InputError
from fedray.base.table import Table
from fedray.encoding.tables import AnyEncoding, FixedPoint
from fedray.mechanisms.accounting.calibration import largest_sensitivity
from fedray.mechanisms.accounting.events import Gaussian
from fedray.mechanisms.accounting.gdp import gdp_epsilon
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.mechanisms.files import strategy_beside
from fedray.mechanisms.registry import BLT, AnyStrategy, Identity
from fedray.mechanisms.strategy import Strategy
from fedray.scenario.clipping import AnyClipping, FixedClipping, NoClipping

NO_GUARANTEE = "no guarantee: no noise was added"
"""Text in place of every privacy figure of a run without noise."""


class NoNoise(Table):
    """Rounds release exact sums, so nothing of the run is private. Such a run shows the accuracy
    that noise is compared with."""

    kind: Literal["none"] = "none"
    """No noise; `noise_multiplier` and `delta` are not read."""


AnyMechanism = Annotated[AnyStrategy | NoNoise, Field(discriminator="kind")]
"""Mechanisms of a scenario, by `kind`."""


class StopAt(Table):
    """A budget: the run ends before the first round with which the worst device, by the rounds in
    which each device was accepted, would have spent more."""

    rho: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Largest rho (zCDP); none: any."""
    epsilon: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Largest epsilon at delta; none: any."""
    delta: Annotated[float, Field(ge=1e-30, lt=1)] | None = None
    """Delta of epsilon; none: privacy.delta."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.rho is None and self.epsilon is None:
            raise ValueError("stop_at names neither rho nor epsilon; give one, or leave it out")
        if self.delta is not None and self.epsilon is None:
            raise ValueError(
                f"stop_at.delta={self.delta:g} is that of an epsilon; give stop_at.epsilon too, or "
                "leave delta out"
            )
        return self


class Privacy(Table):
    """The noise mechanism and its claims."""

    mechanism: AnyMechanism = Field(
        default=BLT(
            kind="blt",
            theta=(0.9953348970002772, 0.8122920858683399),
            omega=(0.12828660029532482, 0.32906048602262866),
        ),
        description="Strategy matrix C: a table with `kind` and that kind's parameters (see "
        "mechanisms/README.md), the name of a mechanism file beside the scenario's, or a kind that "
        'needs no parameters, such as "tree"; "none" adds no noise.',
    )
    noise_multiplier: Annotated[float, Field(ge=0.01, le=1e6)] = 7.0
    """Noise standard deviation over the largest contribution of a device, for C of unit scale (z of
    mechanisms/README.md). That contribution is the clip norm, or its value after encoding."""
    clip_norm: Annotated[float, Field(ge=1e-6, le=1e6)] = 1.0
    """Largest L2 norm of a device's update; of adaptive clipping, the first."""
    clipping: AnyClipping = Field(
        default=FixedClipping(),
        description="How updates are clipped: a table with `kind` and its parameters.",
        # Scenarios that were written before there was a choice keep their digest.
        exclude_if=lambda clipping: clipping == FixedClipping(),
    )
    delta: Annotated[float, Field(ge=1e-30, lt=1)] = 1e-10
    """Delta at which epsilon is reported."""
    encoding: AnyEncoding = Field(
        default=FixedPoint(),
        description="How the updates of devices are sent and summed: a table with `kind`.",
        # Scenarios that were written before there was a choice keep their digest.
        exclude_if=lambda encoding: encoding == FixedPoint(),
    )

    stop_at: StopAt | None = None
    """Table: a budget at which a simulation ends early; none: it commits all rounds. A training
    takes the rounds of its trace."""
    at_limit: Annotated[
        Literal["stop", "exclude"],
        # Scenarios that were written before there was a choice keep their digest.
        Field(exclude_if=lambda at_limit: at_limit == "stop"),
    ] = "stop"
    """Reaction if a device would exceed `stop_at`. `stop` ends the run. `exclude` continues without
    the device: a device whose participation in the round being formed would exceed the budget,
    counted over all rounds.count rounds, is not selected then or later. Only with rounds.mode
    on-device, and mechanisms without negative entries."""

    @property
    def strategy(self) -> Strategy | None:
        """Strategy matrix of the noise; None if no noise is added."""
        return None if isinstance(self.mechanism, NoNoise) else self.mechanism

    def needed_strategy(self) -> Strategy:
        """Returns the strategy matrix for what has no meaning without noise. Raises InputError."""
        if self.strategy is None:
            raise InputError(
                "privacy.mechanism='none' adds no noise, so there is nothing to count or check; "
                "name another mechanism"
            )
        return self.strategy

    @property
    def largest_sensitivity(self) -> float | None:
        """The largest sensitivity that `stop_at` allows, at clip norm 1; None without a budget."""
        if self.stop_at is None:
            return None
        # Rho and epsilon both grow with the sensitivity, so one limit, the stricter one, decides.
        return largest_sensitivity(
            self.noise_multiplier,
            self.budget_delta,
            rho=self.stop_at.rho,
            epsilon=self.stop_at.epsilon,
        )

    @property
    def budget_delta(self) -> float:
        """Delta of the epsilon of `stop_at`."""
        own = self.stop_at.delta if self.stop_at is not None else None
        # Delta is never 0, so `or` takes the default only if no delta is given.
        return own or self.delta

    def beyond_budget(self, sensitivity: float) -> list[tuple[str, float, float]]:
        """Returns (name, limit, spent) of each figure of `stop_at` that a device exceeds.

        Args:
            sensitivity: sensitivity of the device's contributions so far, at clip norm 1.
        """
        if self.stop_at is None:
            return []
        # Each device's contributions are together one release of a Gaussian mechanism.
        release = Gaussian(noise_multiplier=self.noise_multiplier, sensitivity=sensitivity)
        figures = (
            ("rho", self.stop_at.rho, rho_of(release)),
            ("epsilon", self.stop_at.epsilon, gdp_epsilon(release, self.budget_delta)),
        )
        return [
            (what, most, spent)
            for what, most, spent in figures
            # A device that has spent exactly its budget is still within it.
            if most is not None and spent > most
        ]

    @model_validator(mode="after")
    def _devices_can_add_the_noise(self) -> Self:
        # A device sees one round, so its noise cannot cancel that of rounds before.
        if self.encoding.adds_noise and not isinstance(self.mechanism, Identity):
            raise ValueError(
                f"encoding.kind={self.encoding.kind!r} with mechanism.kind="
                f"{self.mechanism.kind!r}: devices add independent noise in every round; take the "
                "mechanism identity, or the encoding secagg"
            )
        if self.encoding.adds_noise and self.clipping.counts_short:
            raise ValueError(
                f"encoding.kind={self.encoding.kind!r} with clipping.kind="
                f"{self.clipping.kind!r}: counts of short updates need noise of the server; take "
                "another clipping, or the encoding secagg"
            )
        if self.encoding.adds_noise and self.stop_at is not None:
            raise ValueError(
                f"encoding.kind={self.encoding.kind!r} with stop_at: the budget counts noise of "
                "the server; leave stop_at out, or take the encoding secagg"
            )
        return self

    @model_validator(mode="after")
    def _only_noise_protects(self) -> Self:
        is_clipped = not isinstance(self.clipping, NoClipping)
        if self.strategy is None:
            if self.stop_at is not None:
                raise ValueError(
                    "stop_at with mechanism.kind='none': without noise every round spends more "
                    "than any budget; leave stop_at out"
                )
        elif not is_clipped:
            raise ValueError(
                f"clipping.kind='none' with mechanism.kind={self.mechanism.kind!r}: the noise is "
                "measured by the clip norm; take another clipping, or the mechanism none"
            )
        if not is_clipped and not isinstance(self.encoding, FixedPoint):
            raise ValueError(
                f"clipping.kind='none' with encoding.kind={self.encoding.kind!r}: sums modulo M "
                "have room for clipped updates only; take another clipping, or fixed_point"
            )
        return self

    @model_validator(mode="after")
    def _a_limit_is_one_of_a_budget(self) -> Self:
        if self.at_limit == "exclude" and self.stop_at is None:
            raise ValueError(
                "at_limit='exclude' without stop_at: there is no limit; give a budget, as "
                "stop_at = {epsilon = 3.0}, or leave at_limit out"
            )
        return self

    @field_validator("mechanism", mode="before")
    @classmethod
    def _from_file(cls, value: Any, info: ValidationInfo) -> Any:
        if value == "none":
            return NoNoise()
        if isinstance(value, str):
            return strategy_beside(value, "scenario", info.context)
        return value

    @model_validator(mode="after")
    def _layers_stay_within_the_clip_norm(self) -> Self:
        # The noise is measured by clip_norm, which a clipping table cannot see by itself.
        self.clipping.check_clip_norm(self.clip_norm)
        return self
