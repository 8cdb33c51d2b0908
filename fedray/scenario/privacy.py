"""The table `privacy`: the noise mechanism and its claims."""

import math
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from fedray.base.errors import InputError
from fedray.base.table import Table
from fedray.encoding.tables import AnyEncoding, DeviceNoiseTable, FixedPoint, SentTable
from fedray.mechanisms.accounting.calibration import largest_sensitivity
from fedray.mechanisms.accounting.events import Gaussian
from fedray.mechanisms.accounting.gdp import gdp_epsilon
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.mechanisms.files import strategy_beside
from fedray.mechanisms.integer_toeplitz import IntegerToeplitz, integer_of
from fedray.mechanisms.registry import BLT, AnyStrategy, Identity
from fedray.mechanisms.strategy import Strategy
from fedray.scenario.clipping import (
    LEAST_NORM,
    MOST_NORM,
    AnyClipping,
    FixedClipping,
    NoClipping,
)
from fedray.scenario.trust import AnyTrust, DevicesTrust, LocalTrust, ServerTrust

NO_GUARANTEE = "no guarantee: no noise was added"
"""Text in place of every privacy figure of a run without noise."""


TARGETS = ("target_epsilon", "target_rho")
"""Keys that state a privacy target in place of a noise multiplier."""


class NoNoise(Table):
    """Rounds release exact sums, so nothing of the run is private. Such a run shows the accuracy
    that noise is compared with."""

    kind: Literal["none"] = "none"
    """No noise; `noise_multiplier` and `delta` are not read."""


AnyMechanism = Annotated[AnyStrategy | NoNoise, Field(discriminator="kind")]
"""Mechanisms of a scenario, by `kind`."""


class StopAt(Table):
    """A privacy budget. The run ends before the first round after which some device, by the rounds
    in which it was accepted, would have exceeded the budget."""

    rho: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Largest rho (zCDP). Default: unlimited."""
    epsilon: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Largest epsilon at `delta`. Default: unlimited."""
    delta: Annotated[float, Field(ge=1e-30, lt=1)] | None = None
    """Delta of `epsilon`. Default: privacy.delta."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.rho is None and self.epsilon is None:
            raise ValueError(
                "stop_at has neither rho nor epsilon; set one of them, or leave stop_at out"
            )
        if self.delta is not None and self.epsilon is None:
            raise ValueError(
                f"stop_at.delta={self.delta:g} has no effect without stop_at.epsilon; set it too, "
                "or leave delta out"
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
        "mechanisms/README.md), the name of a mechanism file next to the scenario file, or a kind "
        'that needs no parameters, such as "tree"; "none" adds no noise.',
    )
    noise_multiplier: Annotated[
        float,
        # NaN until a target is calibrated, which no file can hold.
        Field(ge=0.01, le=1e6, exclude_if=math.isnan),
    ] = 7.0
    """Standard deviation of the noise divided by the largest contribution of a device (the clip
    norm, or its value after encoding), for C of unit scale (z in mechanisms/README.md)."""
    target_epsilon: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Largest enforced epsilon of a device at `delta`, in place of noise_multiplier: a run gets,
    and records, the least noise with which the rules that hold before it ensure this epsilon; a
    training gets that of the rules at the times of its trace. Default: noise_multiplier is used."""
    target_rho: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Largest enforced rho (zCDP) of a device, in place of target_epsilon."""
    wanted_epsilon: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Epsilon at `delta` that the run is to meet: its audit says whether it does. It changes no
    noise. A run with target_epsilon records that here."""
    clip_norm: Annotated[float, Field(ge=LEAST_NORM, le=MOST_NORM)] = 1.0
    """Largest L2 norm of a device's update; its first value if `clipping` changes it."""
    clipping: AnyClipping = Field(
        default=FixedClipping(),
        description="How updates are clipped: a table with `kind` and its parameters.",
        # Left out at its default, so that scenarios without the key keep their digest.
        exclude_if=lambda clipping: clipping == FixedClipping(),
    )
    delta: Annotated[float, Field(ge=1e-30, lt=1)] = 1e-10
    """Delta at which epsilon is reported."""
    encoding: AnyEncoding = Field(
        default=FixedPoint(),
        description="How the updates of devices are sent and summed: a table with `kind`.",
        # Left out at its default, so that scenarios without the key keep their digest.
        exclude_if=lambda encoding: encoding == FixedPoint(),
    )
    trust: AnyTrust = Field(
        default=ServerTrust(),
        description="Who is trusted with updates without noise: a table with `kind`.",
        # Left out at its default, so that scenarios without the key keep their digest.
        exclude_if=lambda trust: trust == ServerTrust(),
    )
    stop_at: StopAt | None = None
    """Table: a budget at which a simulation ends early. Default: it commits all rounds. A training
        uses the rounds of its trace."""
    at_limit: Annotated[
        Literal["stop", "exclude"],
        # Left out at its default, so that scenarios without the key keep their digest.
        Field(exclude_if=lambda at_limit: at_limit == "stop"),
    ] = "stop"
    """Reaction if a device would exceed `stop_at`. `stop` ends the run. `exclude` continues without
    any device whose participation in the round being formed would exceed the budget over all
    rounds.count rounds: it is not selected then or later. This needs rounds.mode on-device and a
    mechanism without negative entries."""

    @property
    def sent(self) -> SentTable:
        """Table of how updates are sent and summed: that of the trust, if devices add the noise,
        else `encoding`."""
        return self.trust if isinstance(self.trust, DeviceNoiseTable) else self.encoding

    @property
    def strategy(self) -> Strategy | None:
        """Strategy matrix of the noise; None if no noise is added. If devices add the noise of
        correlated rounds, it is that of `mechanism` with whole coefficients."""
        if isinstance(self.mechanism, NoNoise):
            return None
        if not isinstance(self.trust, DevicesTrust):
            return self.mechanism
        return integer_of(self.mechanism, self.trust.coefficient_bits, self.trust.coefficients)

    @property
    def coefficients(self) -> tuple[int, ...]:
        """Whole coefficients of C if devices add the noise of correlated rounds; else (1,)."""
        strategy = self.strategy if self.sent.adds_noise else None
        return strategy.coefficients if isinstance(strategy, IntegerToeplitz) else (1,)

    def as_added(self, strategy: Strategy) -> Strategy:
        """Returns the table's own `mechanism` as its noise is added, with whole coefficients if
        devices add it; any other strategy as it is."""
        own = self.strategy
        return own if own is not None and strategy == self.mechanism else strategy

    def needed_strategy(self) -> Strategy:
        """Returns the strategy matrix for what has no meaning without noise. Raises InputError."""
        if self.strategy is None:
            raise InputError(
                "privacy.mechanism='none' adds no noise, so there is nothing to count or check; "
                "name another mechanism"
            )
        return self.strategy

    @property
    def target(self) -> tuple[str, float] | None:
        """Key and value of the target that the noise is to be calibrated to; None if the noise
        multiplier is known."""
        stated = ((key, getattr(self, key)) for key in TARGETS)
        return next((each for each in stated if each[1] is not None), None)

    @property
    def largest_sensitivity(self) -> float | None:
        """Largest sensitivity that `stop_at` allows, at clip norm 1; None without a budget."""
        if self.stop_at is None:
            return None
        # Rho and epsilon both grow with the sensitivity, so the stricter limit decides.
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
        """Returns (name, limit, spent) for each figure of `stop_at` that a device exceeds.

        Args:
            sensitivity: sensitivity of the device's contributions so far, at clip norm 1.
        """
        if self.stop_at is None:
            return []
        # Together a device's contributions are one release of a Gaussian mechanism.
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
    def _noise_is_stated_once(self) -> Self:
        if self.target is None:
            return self
        key, most = self.target
        others = {*TARGETS, "noise_multiplier", "stop_at", "wanted_epsilon"} - {key}
        for other in sorted(others & self.model_fields_set):
            if getattr(self, other) is not None:
                raise ValueError(f"{key}={most:g} with {other}: leave one of the two out")
        if self.strategy is None:
            raise ValueError(f"{key}={most:g}: the run adds no noise; leave {key} out")
        # Whatever reads the noise before it is calibrated gets no number to rely on.
        object.__setattr__(self, "noise_multiplier", math.nan)
        return self

    @model_validator(mode="after")
    def _devices_can_add_the_noise(self) -> Self:
        if not isinstance(self.trust, DeviceNoiseTable):
            return self
        kind = self.trust.kind
        if self.strategy is None:
            raise ValueError(
                f"trust.kind={kind!r} with mechanism.kind='none': devices would add no noise; "
                "name another mechanism, or leave trust out"
            )
        if isinstance(self.trust, LocalTrust) and not isinstance(self.mechanism, Identity):
            raise ValueError(
                f"trust.kind='local' with mechanism.kind={self.mechanism.kind!r}: a device adds "
                "its noise to one update, independently of earlier rounds; use the mechanism "
                "identity, or trust.kind='devices'"
            )
        if self.encoding != FixedPoint():
            raise ValueError(
                f"trust.kind={kind!r} with encoding.kind={self.encoding.kind!r}: its updates are "
                "encoded by the keys of trust; leave encoding out"
            )
        if self.clipping.counts_short:
            raise ValueError(
                f"trust.kind={kind!r} with clipping.kind={self.clipping.kind!r}: counts of short "
                "updates need noise that the server adds; use another clipping, or "
                "trust.kind='server'"
            )
        if self.stop_at is not None:
            raise ValueError(
                f"trust.kind={kind!r} with stop_at: the budget counts only noise that the server "
                "adds; leave stop_at out, or use trust.kind='server'"
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
                "scaled by the clip norm; take another clipping, or the mechanism none"
            )
        if not is_clipped and not isinstance(self.sent, FixedPoint):
            raise ValueError(
                f"clipping.kind='none' with encoding.kind={self.encoding.kind!r}: sums modulo M "
                "have room for clipped updates only; take another clipping, or fixed_point"
            )
        return self

    @model_validator(mode="after")
    def _a_limit_is_one_of_a_budget(self) -> Self:
        if self.at_limit == "exclude" and self.stop_at is None:
            raise ValueError(
                "at_limit='exclude' has no effect without stop_at; set a budget, such as "
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
        # The noise is in proportion to clip_norm, which a clipping table does not know.
        self.clipping.check_clip_norm(self.clip_norm)
        return self
