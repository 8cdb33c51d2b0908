"""Events: immutable, complete descriptions of releases, and the only input of accountants.

An event states the query and its noise, the largest contribution of a device, the sampling of
devices, and the composition of releases. It does not contain epsilon: `accountants.py` computes
privacy from events. An accountant refuses an event for which it has no theorem.

Adjacency is zero-out of one device everywhere: all its contributions are replaced by zero, and
nothing else changes. With Poisson sampling, the privacy loss is that of add-or-remove.

A noise multiplier is the standard deviation of the noise over the largest norm of one contribution
of a device, which is the clip norm of an update. Sensitivities are at contributions of norm 1.
"""

import json
import math
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    AfterValidator,
    BeforeValidator,
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
from ..files import strategy_of
from ..participation import MinSep
from ..registry import AnyStrategy
from ..strategy import MOST_MATRIX_ROUNDS, Sensitivity, Strategy
from .limits import check_noise_multiplier

MOST_SENSITIVITY = 1e148
"""Sensitivity from which on epsilon is not finite at any noise multiplier."""
MOST_COUNT = 2**53
"""Largest number of repetitions, rounds, devices or coordinates; below it, floats represent every
integer exactly."""
SUMMED_TERMS = 1 << 16
"""Number of terms of tau that are summed; each later term is bounded by the last one summed."""
LEAST_DEVICE_VARIANCE = 0.25
"""Smallest variance of one device's discrete Gaussian noise for which the theorem on sums holds."""
MOST_STATED_EPSILON = 100.0
"""Epsilon from which on a stated guarantee means nothing."""
UPDATES = "sum of clipped updates"
"""Default query of a round's release."""


def _checked(noise_multiplier: float) -> float:
    check_noise_multiplier(noise_multiplier)
    return noise_multiplier


NoiseMultiplier = Annotated[float, AfterValidator(_checked)]
"""z, in the range of meaningful figures."""


class EventRefused(InputError):
    """No theorem lets an accountant bound the epsilon of an event."""


class Event(Explained, ABC):
    """A release: a frozen value whose JSON is its `kind` and its fields."""

    kind: str
    """Kind of event."""

    def to_json(self) -> dict[str, Any]:
        """Returns one JSON object, which `read_event` reads."""
        return self.model_dump(mode="json")


class GaussianEvent(Event):
    """An event that is exactly as hard to tell from its neighbour as N(0, 1) is from N(mu, 1)."""

    noise_multiplier: NoiseMultiplier
    """z, standard deviation of the noise over the largest norm of a contribution, 0.01 to 1e6."""

    @property
    @abstractmethod
    def scale(self) -> float:
        """Sensitivity at contributions of norm 1."""

    @property
    def mu(self) -> float:
        """Sensitivity over the standard deviation of the noise."""
        return self.scale / self.noise_multiplier

    @property
    def noise_at_unit_sensitivity(self) -> float:
        """Standard deviation of the noise over the sensitivity, 1 / mu; infinite at sensitivity
        0."""
        return self.noise_multiplier / self.scale if self.scale else math.inf


class Gaussian(GaussianEvent):
    """One release of a vector, with independent normal noise on every coordinate."""

    kind: Literal["gaussian"] = "gaussian"  # pyright: ignore[reportIncompatibleVariableOverride]
    """One release with normal noise."""
    sensitivity: Annotated[float, Field(ge=0, lt=MOST_SENSITIVITY)] = 1.0
    """s, largest change of the vector by one device, at contributions of norm 1."""

    @property
    def scale(self) -> float:
        return self.sensitivity


def _strategy_of(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, dict):
        return value
    try:
        return strategy_of(value, (info.context or {}).get("directory", Path()))
    except ValidationError as error:
        raise InputError(explain(error, AnyStrategy, value)) from None


class StrategyRelease(GaussianEvent):
    """The stream C X + z N(0, I) of a strategy C over some rounds, and everything computed from it.

    `under` makes one with the sensitivity of all patterns that a participation permits.
    """

    kind: Literal["strategy-release"] = "strategy-release"  # pyright: ignore[reportIncompatibleVariableOverride]
    """The rounds of a strategy."""
    strategy: Annotated[SerializeAsAny[Strategy], BeforeValidator(_strategy_of)]
    """C, whose noise is correlated between rounds."""
    rounds: Annotated[int, Field(ge=1, lt=MOST_COUNT)]
    """n, number of rounds released."""
    sensitivity: Sensitivity
    """s at contributions of norm 1, its proof, and a pattern that attains its lower bound."""
    participation: MinSep | None = None
    """The (b, k) whose patterns have at most this sensitivity; None for the recorded patterns of
    the devices, or for those that rules within periods permit."""
    query: str = UPDATES
    """Name of a round's release, before the noise."""

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
        """Returns the stream with the sensitivity of all patterns that a participation permits.

        Raises:
            InputError: the setting is impossible, or no theorem gives the sensitivity.
        """
        return cls(
            strategy=strategy,
            rounds=participation.rounds,
            noise_multiplier=noise_multiplier,
            sensitivity=strategy.participation_sensitivity(participation),
            participation=participation,
            query=query,
        )


class DiscreteGaussianSum(Event):
    """Sums of integer vectors, to each of which every device adds its own discrete Gaussian noise.
    The vectors may depend on earlier sums.

    A sum of discrete Gaussians is nearly, but not exactly, a discrete Gaussian; `tau` is the cost
    (Kairouz, Liu, Steinke 2021, Proposition 14). It is 0 for one device, the central discrete
    Gaussian mechanism (Canonne, Kamath, Steinke 2020).
    """

    kind: Literal["discrete-gaussian-sum"] = "discrete-gaussian-sum"  # pyright: ignore[reportIncompatibleVariableOverride]
    """A sum with discrete Gaussian noise from every device."""
    sensitivity: Annotated[float, Field(gt=0)]
    """Largest L2 norm of a device's integer vectors in all sums together, in steps."""
    device_variance: Annotated[float, Field(gt=0)]
    """Variance of the noise that one device adds to a coordinate, in squared steps."""
    devices: Annotated[int, Field(ge=1, lt=MOST_COUNT)]
    """Number of devices whose noise is in each sum, at least."""
    dimension: Annotated[int, Field(ge=1, lt=MOST_COUNT)]
    """d, number of coordinates of the vectors."""
    rounds: Annotated[int, Field(ge=1, lt=MOST_COUNT)] = 1
    """Largest number of sums, each with noise of its own, that a device changes."""

    @property
    def noise_at_unit_sensitivity(self) -> float:
        """Standard deviation of the noise of the sum over the sensitivity."""
        return math.sqrt(self.devices * self.device_variance) / self.sensitivity

    @property
    def tau(self) -> float:
        """10 sum_{k=1}^{n-1} exp(-2 pi^2 sigma^2 k / (k + 1)), rounded up; 0 for one device."""
        k = np.arange(1, min(self.devices, SUMMED_TERMS + 1))
        terms = np.exp(-2.0 * math.pi**2 * self.device_variance * k / (k + 1))
        # Terms decrease in k, so the last one summed bounds the rest.
        beyond = self.devices - 1 - k.size
        return 10.0 * float(terms.sum() + beyond * terms.min(initial=1.0))

    @model_validator(mode="after")
    def _has_a_theorem(self) -> Self:
        check_noise_multiplier(self.noise_at_unit_sensitivity)
        # The bounds on sums are for sigma >= 1/2 of each device; one device needs no sum.
        if self.devices > 1 and self.device_variance < LEAST_DEVICE_VARIANCE:
            raise ValueError(
                f"device_variance={self.device_variance:g} must be at least "
                f"{LEAST_DEVICE_VARIANCE:g} for a sum over several devices; use finer steps"
            )
        return self


class ApproximateDP(Event):
    """A release with a proven guarantee (epsilon, delta), and nothing more known about its losses:
    a report that a device randomised, discrete Laplace noise, a threshold."""

    kind: Literal["approximate-dp"] = "approximate-dp"  # pyright: ignore[reportIncompatibleVariableOverride]
    """A release with a proven guarantee."""
    epsilon: Annotated[float, Field(ge=0, lt=MOST_STATED_EPSILON)]
    """Epsilon at `delta`, under zero-out of one device."""
    delta: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Delta; 0 for pure DP."""
    theorem: str
    """Theorem that proves the guarantee."""


class PoissonSampled(Event):
    """An event on a Poisson sample, in which each device is included independently with the same
    probability."""

    kind: Literal["poisson-sampled"] = "poisson-sampled"  # pyright: ignore[reportIncompatibleVariableOverride]
    """An event on a Poisson sample."""
    probability: Annotated[float, Field(gt=0, le=1)]
    """q, probability that a device is in the sample."""
    event: "AnyEvent"
    """Release from the sample; if it has several parts, all are from the same sample."""


class FixedSizeSampled(Event):
    """One Gaussian release from a sample of a fixed size, drawn uniformly without replacement.

    Its epsilon also holds for the replacement of one device's contribution by any other, which
    changes the sum by up to two clip norms.
    """

    kind: Literal["fixed-size-sampled"] = "fixed-size-sampled"  # pyright: ignore[reportIncompatibleVariableOverride]
    """A release from a sample of a fixed size."""
    devices: Annotated[int, Field(ge=2, lt=MOST_COUNT)]
    """Number of devices that the sample is drawn from."""
    size: Annotated[int, Field(ge=1, lt=MOST_COUNT)]
    """Number of devices of the sample, less than `devices`."""
    event: Gaussian
    """Release from the sample."""

    @model_validator(mode="after")
    def _leaves_some_out(self) -> Self:
        if self.size >= self.devices:
            raise ValueError(
                f"size={self.size:,} must be below devices={self.devices:,}; a release from all "
                "devices is its own event, without sampling"
            )
        return self


class MinSepSampled(Event):
    """The rounds of a strategy under b-min-sep sampling: a device takes part in a round with the
    same probability, independently, unless it did in one of the last b - 1 rounds.

    Before round 0 the process is in its stationary state, so that rounds are equally large. With
    probability 1 it is random allocation: a uniform first round, and every b-th from there (Dong et
    al. 2026, arXiv 2602.09338).
    """

    kind: Literal["min-sep-sampled"] = "min-sep-sampled"  # pyright: ignore[reportIncompatibleVariableOverride]
    """The rounds of a strategy under b-min-sep sampling."""
    strategy: Annotated[SerializeAsAny[Strategy], BeforeValidator(_strategy_of)]
    """C, whose noise is correlated between rounds."""
    rounds: Annotated[int, Field(ge=1, le=MOST_MATRIX_ROUNDS)]
    """n, number of rounds released."""
    min_sep: Annotated[int, Field(ge=1, le=MOST_MATRIX_ROUNDS)]
    """b, least difference between two rounds of a device."""
    probability: Annotated[float, Field(gt=0, le=1)]
    """p, probability that a device takes part in a round in which it may."""
    noise_multiplier: NoiseMultiplier
    """z, standard deviation of the noise over the largest norm of a contribution, 0.01 to 1e6."""

    if TYPE_CHECKING:

        def __hash__(self) -> int: ...  # pydantic makes it for a frozen class


class Repeated(Event):
    """The same event several times, with fresh noise and fresh samples, possibly chosen
    adaptively."""

    kind: Literal["repeated"] = "repeated"  # pyright: ignore[reportIncompatibleVariableOverride]
    """An event, several times."""
    event: "AnyEvent"
    """The event to repeat."""
    count: Annotated[int, Field(ge=1, lt=MOST_COUNT)]
    """Number of times."""


class Composed(Event):
    """Several events with independent noise, possibly chosen adaptively."""

    kind: Literal["composed"] = "composed"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Several events."""
    events: Annotated[tuple["AnyEvent", ...], Field(strict=False, min_length=1)]
    """Events in order of release."""


class PostProcessed(Event):
    """A computation on an event's release that uses no other data of devices."""

    kind: Literal["post-processed"] = "post-processed"  # pyright: ignore[reportIncompatibleVariableOverride]
    """A computation on a release."""
    event: "AnyEvent"
    """The release."""
    computation: str
    """The computation, in words."""


AnyEvent = Annotated[
    Gaussian
    | StrategyRelease
    | DiscreteGaussianSum
    | ApproximateDP
    | PoissonSampled
    | FixedSizeSampled
    | MinSepSampled
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
        directory: directory of the strategies' matrices, which are named by content or by `file`.

    Raises:
        InputError: the object does not describe an event, or a matrix is missing.
    """
    try:
        # Strict validation accepts lists as tuples, and objects as dataclasses, only in JSON.
        content = json.dumps(document)
        return _ADAPTER.validate_json(content, context={"directory": Path(directory)})
    except ValidationError as error:
        raise InputError(f"event: {explain(error, AnyEvent, document)}") from None
