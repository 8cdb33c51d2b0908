"""Trust models: where noise is added to sums of the devices' vectors, and so who must be trusted.

A question turns a device's items into a bounded vector of whole steps; a trust model is calibrated
to the bounds, and releases noisy sums, of which the question makes its answer.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.errors import InputError
from fedray.base.mistakes import Explained
from ..accounting.events import MOST_STATED_EPSILON, Event
from ..accounting.limits import LEAST_DELTA

LEAST_EPSILON, MOST_DELTA = 1e-4, 0.1
Claim = Literal["exact", "bound", "estimate"]


class PairRefused(InputError):
    """No theorem here answers a question under a trust model."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Privacy that one device may spend in one window."""

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        if not LEAST_EPSILON <= self.epsilon < MOST_STATED_EPSILON:
            rule = f"must be from {LEAST_EPSILON:g} to below {MOST_STATED_EPSILON:g}"
            raise InputError.of("epsilon", self.epsilon, rule, "1 is usual")
        if self.delta != 0 and not LEAST_DELTA <= self.delta <= MOST_DELTA:
            rule = f"must be 0, or from {LEAST_DELTA:g} to {MOST_DELTA:g}"
            raise InputError.of("delta", self.delta, rule, "1e-10 is usual for millions of devices")


@dataclass(frozen=True, slots=True)
class Shape:
    """Bounds of a device's vector, in steps."""

    size: int
    """P, number of coordinates."""
    most_l1: int
    """Largest sum of absolute values."""
    most_l2: float
    """Largest Euclidean norm."""
    is_signed: bool = False
    """Whether a coordinate may be negative."""


@dataclass(frozen=True, slots=True)
class Vectors:
    """The nonzero coordinates of the devices' vectors, [I] each, ordered by device."""

    owners: Int64Array
    keys: Int64Array
    steps: Int64Array
    size: int
    """P, number of coordinates."""
    devices: int
    """Devices that came, with or without a vector."""

    def totals(self) -> Int64Array:
        """Returns the exact sums, [P]."""
        total = np.zeros(self.size, np.int64)
        np.add.at(total, self.keys, self.steps)
        return total


@dataclass(frozen=True, slots=True)
class NoisySums:
    """A release of sums, [P] each."""

    estimates: Float64Array
    """Unbiased estimates, in steps."""
    variances: Float64Array
    """Variances of the estimates."""
    claim: Claim
    """Kind of the variances: exact, bounds or estimates."""
    interval: Callable[[float], tuple[Float64Array, Float64Array]]
    """Function that returns lower and upper ends from the largest probability that the interval of
    a sum misses it."""


class SumMechanism(ABC):
    """A trust model calibrated to a shape and a budget."""

    name: str
    """Name of the mechanism, such as "discrete Laplace noise of scale 0.91"."""
    theorem: str
    """Theorem that proves the privacy."""
    event: Event
    """Spending of one device in all releases of a window."""
    least_devices: int = 1
    """Least number of devices for which the event holds."""
    groups: int = 1
    """Number of groups of devices that take turns at the releases; 1 if all take part in each."""

    def event_of(self, honest: int) -> Event:
        """Returns the spending of a device in all releases of a window against an observer who
        knows the items, noise and reports of the other devices of a release, except `honest` ones.

        Args:
            honest: number of devices of a release unknown to the observer, with the device itself.
        """
        del honest
        return self.event

    @abstractmethod
    def variance(self, devices: int) -> float:
        """Returns the variance of an estimate of a sum that is 0, in squared steps."""

    @abstractmethod
    def release(self, vectors: Vectors, rng: np.random.Generator) -> NoisySums:
        """Returns noisy sums of the vectors."""


class Value(Explained):
    """A frozen value whose JSON is its `kind` and its fields."""

    kind: str
    """Kind of question or trust model."""


class Trust(Value, ABC):
    """A trust model: server, enclave, devices, shuffled or local (`registry.AnyTrust`)."""

    @abstractmethod
    def mechanism(self, shape: Shape, budget: Budget, releases: int = 1) -> SumMechanism:
        """Returns the mechanism for a number of adaptive releases of vectors of one shape.

        Raises:
            PairRefused: no theorem applies.
            InputError: the budget cannot be met.
        """
