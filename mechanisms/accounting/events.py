"""Events: immutable, complete descriptions of releases, and the only input of accountants.

An event states the noise, the query, the largest part of a device in it, the sampling of devices,
and the composition of releases. It states no epsilon: `accountants.py` turns events into privacy.
An accountant refuses an event for which it has no theorem.

Adjacency, everywhere: zero-out of one device. Everything that the device contributed is replaced by
zero, and nothing else changes. With Poisson sampling its privacy loss is that of add-or-remove.

Noise is measured as a multiplier: its standard deviation over the largest norm of one contribution
of a device, which is the clip norm of an update. Sensitivities are at contributions of norm 1.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fedray.base.errors import InputError
from fedray.base.mistakes import Explained, explain
from fedray.mechanisms.accounting.limits import check_noise_multiplier
from fedray.mechanisms.files import strategy_of
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import AnyStrategy
from fedray.mechanisms.sensitivity import PatternSensitivities
from fedray.mechanisms.strategy import Sensitivity, Strategy

MOST_SENSITIVITY = 1e148
"""Beyond, no noise multiplier leaves an epsilon that is a number."""
MOST_COUNT = 2**53
"""Most repetitions, rounds, devices and coordinates: whole numbers that floats hold."""
SUMMED_TERMS = 1 << 16
"""Terms of tau that are summed; beyond, each is bounded by the last that was summed."""
LEAST_DEVICE_VARIANCE = 0.25
"""Least variance of discrete Gaussian noise that is summed over devices, by the theorem."""
UPDATES = "sum of clipped updates"
"""Query of a round, unless an event states another."""


class EventRefused(InputError):
    """An accountant has no theorem for an event."""


class Event(Explained, ABC):
    """Something that was released. A frozen value; as JSON, its `kind` and its fields."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True
    )

    kind: str
    """Which event."""

    def to_json(self) -> dict[str, Any]:
        """One JSON object, which `read_event` reads."""
        return self.model_dump(mode="json")


class GaussianEvent(Event):
    """An event as hard to distinguish from its neighbour as N(0, 1) from N(mu, 1)."""

    @property
    @abstractmethod
    def mu(self) -> float:
        """Sensitivity over the noise's standard deviation."""

    @property
    @abstractmethod
    def noise_at_unit_sensitivity(self) -> float:
        """The noise's standard deviation over the sensitivity, 1 / mu; infinite at sensitivity
        0."""


class _ScaledGaussian(GaussianEvent):
    noise_multiplier: float
    """z, the noise's standard deviation over the largest norm of a contribution, 0.01 to 1e6."""

    @property
    @abstractmethod
    def scale(self) -> float:
        """The sensitivity at contributions of norm 1."""

    @property
    def mu(self) -> float:
        return self.scale / self.noise_multiplier

    @property
    def noise_at_unit_sensitivity(self) -> float:
        return self.noise_multiplier / self.scale if self.scale else math.inf

    @field_validator("noise_multiplier")
    @classmethod
    def _is_a_noise_multiplier(cls, value: float) -> float:
        check_noise_multiplier(value)
        return value


class Gaussian(_ScaledGaussian):
    """One release of a vector, with independent normal noise on every coordinate."""

    kind: Literal["gaussian"] = "gaussian"  # pyright: ignore[reportIncompatibleVariableOverride]
    """One release with normal noise."""
    sensitivity: Annotated[float, Field(ge=0, lt=MOST_SENSITIVITY)] = 1.0
    """s, the largest change of the vector by one device, in contributions of norm 1."""

    @property
    def scale(self) -> float:
        return self.sensitivity


def _strategy_of(value: Any, info: ValidationInfo) -> Any:
    """Returns the strategy of a document; a strategy stays as it is."""
    if not isinstance(value, dict):
        return value
    try:
        return strategy_of(value, (info.context or {}).get("directory", Path()))
    except ValidationError as error:
        raise InputError(explain(error, AnyStrategy, value)) from None


class StrategyRelease(_ScaledGaussian):
    """The stream C X + z N(0, I) of a strategy C over some rounds, and all that is computed of it.

    The sensitivity is that of the recorded patterns of a trace, or that of every pattern which a
    participation permits. `under` and `of_patterns` compute it.
    """

    kind: Literal["strategy-release"] = "strategy-release"  # pyright: ignore[reportIncompatibleVariableOverride]
    """The rounds of a strategy."""
    strategy: Annotated[SerializeAsAny[Strategy], BeforeValidator(_strategy_of)]
    """C, whose noise is correlated between rounds."""
    rounds: Annotated[int, Field(ge=1, lt=MOST_COUNT)]
    """n, rounds that were released."""
    sensitivity: Sensitivity
    """s at contributions of norm 1, what proves it, and a pattern that attains its lower bound."""
    participation: MinSep | None = None
    """The patterns of which it is the sensitivity: (b, k); none for the recorded patterns of
    devices, of which none has a larger one."""
    query: str = UPDATES
    """Query of a round, before the noise."""

    @property
    def scale(self) -> float:
        return self.sensitivity.value

    @field_validator("sensitivity")
    @classmethod
    def _is_a_number(cls, sensitivity: Sensitivity) -> Sensitivity:
        if not 0 <= sensitivity.value < MOST_SENSITIVITY:
            raise ValueError(
                f"sensitivity {sensitivity.value} must be from 0 to below {MOST_SENSITIVITY:g}; "
                "use a strategy whose columns have finite norms"
            )
        return sensitivity

    @classmethod
    def under(
        cls,
        strategy: Strategy,
        participation: MinSep,
        noise_multiplier: float,
        query: str = UPDATES,
    ) -> Self:
        """Returns the stream under every pattern that a participation permits.

        Args:
            strategy: C.
            participation: (n, b, k).
            noise_multiplier: z.
            query: query of a round, before the noise.

        Raises:
            InputError: a setting is impossible, or no theorem gives the sensitivity.
        """
        return cls(
            strategy=strategy,
            rounds=participation.rounds,
            noise_multiplier=noise_multiplier,
            sensitivity=strategy.participation_sensitivity(participation),
            participation=participation,
            query=query,
        )

    @classmethod
    def of_patterns(
        cls,
        strategy: Strategy,
        patterns: Sequence[Sequence[int]],
        rounds: int,
        noise_multiplier: float,
        query: str = UPDATES,
    ) -> Self:
        """Returns the stream of recorded patterns, each the rounds of a device in order.

        Args:
            strategy: C.
            patterns: patterns of the devices; the most sensitive one decides.
            rounds: n.
            noise_multiplier: z.
            query: query of a round, before the noise.

        Raises:
            InputError: a setting is impossible.
        """
        sensitivities = PatternSensitivities(strategy, rounds)
        found = [sensitivities.exact(np.asarray(each, np.int64)) for each in patterns]
        return cls(
            strategy=strategy,
            rounds=rounds,
            noise_multiplier=noise_multiplier,
            sensitivity=max(found, key=lambda each: each.value),
            query=query,
        )


class GaussianSum(GaussianEvent):
    """One sum of a number per device, with normal noise: a count, such as that of clipped updates.

    A count of flags 0 or 1 is released as the sum of flag - 1/2, which has the bound 1/2 (Andrew et
    al. 2021, Theorem 1); the number of devices is not secret. A stream of counts that shares the
    strategy of the updates is a `StrategyRelease`, whose noise multiplier is the standard deviation
    over the bound.
    """

    kind: Literal["gaussian-sum"] = "gaussian-sum"  # pyright: ignore[reportIncompatibleVariableOverride]
    """A noisy sum of numbers."""
    standard_deviation: Annotated[float, Field(gt=0)]
    """Standard deviation of the noise on the sum, in the unit of the numbers."""
    bound: Annotated[float, Field(gt=0)] = 0.5
    """Largest absolute value of a device's number."""
    query: str = "number of clipped updates"
    """The sum."""

    @property
    def mu(self) -> float:
        return self.bound / self.standard_deviation

    @property
    def noise_at_unit_sensitivity(self) -> float:
        return self.standard_deviation / self.bound

    @model_validator(mode="after")
    def _is_noise(self) -> Self:
        check_noise_multiplier(self.noise_at_unit_sensitivity)
        return self


class DiscreteGaussianSum(Event):
    """One sum of integer vectors, to which every device adds discrete Gaussian noise of its own.

    Sums of discrete Gaussians are nearly, but not exactly, discrete Gaussians: `tau` is what that
    costs (Kairouz, Liu, Steinke 2021, Proposition 14). With one device it is the central discrete
    Gaussian mechanism, and costs nothing (Canonne, Kamath, Steinke 2020).
    """

    kind: Literal["discrete-gaussian-sum"] = "discrete-gaussian-sum"  # pyright: ignore[reportIncompatibleVariableOverride]
    """A sum with discrete Gaussian noise from every device."""
    sensitivity: Annotated[float, Field(gt=0)]
    """Largest L2 norm of a device's integer vector, in steps of the integers."""
    device_variance: Annotated[float, Field(gt=0)]
    """Variance of the noise that one device adds to a coordinate, in squared steps."""
    devices: Annotated[int, Field(ge=1, lt=MOST_COUNT)]
    """Devices whose noise is in the sum: those that reported, not all selected."""
    dimension: Annotated[int, Field(ge=1, lt=MOST_COUNT)]
    """d, coordinates of the vectors."""

    @property
    def noise_at_unit_sensitivity(self) -> float:
        """Standard deviation of the sum's noise over the sensitivity."""
        return math.sqrt(self.devices * self.device_variance) / self.sensitivity

    @property
    def variance_ratio(self) -> float:
        """The sum's variance over the squared sensitivity."""
        return self.noise_at_unit_sensitivity**2

    @property
    def tau(self) -> float:
        """10 sum_{k=1}^{n-1} exp(-2 pi^2 sigma^2 k / (k + 1)), rounded up: 0 for one device."""
        k = np.arange(1, min(self.devices, SUMMED_TERMS + 1))
        terms = np.exp(-2.0 * math.pi**2 * self.device_variance * k / (k + 1))
        beyond = self.devices - 1 - k.size  # terms fall as k grows
        return 10.0 * float(terms.sum() + beyond * terms.min(initial=1.0))

    @model_validator(mode="after")
    def _has_a_theorem(self) -> Self:
        check_noise_multiplier(self.noise_at_unit_sensitivity)
        if self.devices > 1 and self.device_variance < LEAST_DEVICE_VARIANCE:
            raise ValueError(
                f"device_variance={self.device_variance:g} must be at least "
                f"{LEAST_DEVICE_VARIANCE:g} where several devices add noise, which the theorem of "
                "their sum needs; use finer steps"
            )
        return self


class PoissonSampled(Event):
    """An event on a sample in which every device is with the same probability, independently."""

    kind: Literal["poisson-sampled"] = "poisson-sampled"  # pyright: ignore[reportIncompatibleVariableOverride]
    """An event on a Poisson sample."""
    probability: Annotated[float, Field(gt=0, le=1)]
    """q, with which a device is in the sample."""
    event: "AnyEvent"
    """Release of the sample; several releases are all of the same sample."""


class Repeated(Event):
    """The same event several times, with fresh noise and fresh samples; each may depend on the
    earlier ones."""

    kind: Literal["repeated"] = "repeated"  # pyright: ignore[reportIncompatibleVariableOverride]
    """An event, several times."""
    event: "AnyEvent"
    """The repeated event."""
    count: Annotated[int, Field(ge=1, lt=MOST_COUNT)]
    """Number of repetitions."""


class Composed(Event):
    """Several events, with independent noise; each may depend on the earlier ones."""

    kind: Literal["composed"] = "composed"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Several events."""
    events: Annotated[tuple["AnyEvent", ...], Field(strict=False, min_length=1)]
    """In order of their release."""


class PostProcessed(Event):
    """A computation on an event's release, and on no other data of the devices."""

    kind: Literal["post-processed"] = "post-processed"  # pyright: ignore[reportIncompatibleVariableOverride]
    """A computation on a release."""
    event: "AnyEvent"
    """The release."""
    computation: str
    """The computation in words."""


AnyEvent = Annotated[
    Gaussian
    | StrategyRelease
    | GaussianSum
    | DiscreteGaussianSum
    | PoissonSampled
    | Repeated
    | Composed
    | PostProcessed,
    Field(discriminator="kind"),
]

for _each in (PoissonSampled, Repeated, Composed, PostProcessed):
    _each.model_rebuild()

_ADAPTER: TypeAdapter[Any] = TypeAdapter(AnyEvent)


def read_event(document: Any, directory: str | Path = ".") -> Event:
    """Returns the event that a JSON object describes.

    Args:
        document: result of `Event.to_json`.
        directory: folder of the strategies' matrices, named by their content or their `file`.

    Raises:
        InputError: it does not describe an event, or a matrix is missing.
    """
    try:
        # As JSON, since only there a list may be a tuple, and an object a dataclass.
        content = json.dumps(document)
        return _ADAPTER.validate_json(content, context={"directory": Path(directory)})
    except ValidationError as error:
        raise InputError(f"event: {explain(error, AnyEvent, document)}") from None
