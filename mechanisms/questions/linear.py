"""Questions that one release of sums answers. The rows of `count`, `histogram`, `sum` and
`distinct` are sums."""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedray.base.arrays import Float64Array, Int64Array
from .added_noise import OneNoise
from .question import Answer, Items, Plan, Question, Truth, answer_of
from .trust import (
    Budget,
    NoisySums,
    PairRefused,
    Shape,
    SumMechanism,
    Trust,
    Vectors,
)

RESOLUTION = 1 << 14
"""Steps of the largest number. Numbers are rounded to a neighbouring step at random, so sums are
unbiased; of n devices the rounding deviates by at most sqrt(n) / 2 steps, and intervals are about
the rounded numbers."""
MOST_SIZE = 1 << 24
"""Largest closed domain; a sum over it takes 128 MB."""
KEYS = 1 << 62
"""End of the keys of an open domain."""
MOST_NUMBER, LEAST_RANGE = 1e9, 1e-9
Size = Annotated[int, Field(ge=1, le=MOST_SIZE)]
MostKeys = Annotated[int, Field(ge=1, le=1 << 16)]


class LinearQuestion(Question):
    """A question that is answered from one sum of the devices' vectors."""

    @abstractmethod
    def vectors(self, items: Items, rng: np.random.Generator) -> Vectors:
        """Returns the devices' vectors, within the shape."""

    def decode(self, sums: NoisySums, devices: int, confidence: float) -> Answer:
        """Returns the answer from noisy sums; by default they are its rows."""
        return answer_of(sums, self.unit, devices, confidence)

    def answered(
        self, sums: SumMechanism, items: Items, rng: np.random.Generator, confidence: float
    ) -> Answer:
        return self.decode(sums.release(self.vectors(items, rng), rng), items.devices, confidence)

    def compared(self, items: Items, rng: np.random.Generator, exact: NDArray[Any]) -> Truth:
        """Returns exact sums, [P], beside the sums of bounded vectors."""
        bounded = self.unit * self.vectors(items, rng).totals().astype(np.float64)
        return Truth(np.arange(bounded.size), exact.astype(np.float64), bounded)


class Count(LinearQuestion):
    """Number of devices that hold any item."""

    kind: Literal["count"] = "count"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Number of devices with an item."""

    @property
    def shape(self) -> Shape:
        return Shape(size=1, most_l1=1, most_l2=1.0)

    def vectors(self, items: Items, rng: np.random.Generator) -> Vectors:
        holders = np.flatnonzero(np.diff(items.starts))
        return _ones(holders, np.zeros_like(holders), 1, items)

    def truth(self, items: Items, rng: np.random.Generator) -> Truth:
        return self.compared(items, rng, np.array([np.count_nonzero(np.diff(items.starts))]))


class Histogram(LinearQuestion):
    """Number of devices that hold each key of a closed domain."""

    kind: Literal["histogram"] = "histogram"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Devices by key of a closed domain."""
    size: Size
    """P, number of keys; keys are 0 to P - 1."""
    most_keys: MostKeys = 1
    """L0, most keys of a device; of more, a uniform sample counts."""

    @property
    def shape(self) -> Shape:
        most = min(self.most_keys, self.size)
        return Shape(size=self.size, most_l1=most, most_l2=most**0.5)

    def vectors(self, items: Items, rng: np.random.Generator) -> Vectors:
        owners, keys, _ = items.bounded(self.size, self.most_keys, rng)
        return _ones(owners, keys, self.size, items)

    def truth(self, items: Items, rng: np.random.Generator) -> Truth:
        _, keys, _ = items.summed(self.size)
        return self.compared(items, rng, np.bincount(keys, minlength=self.size))


class Sum(LinearQuestion):
    """Sums of numbers by key. A device's number at a key is the sum of its values there, clipped to
    [low, high]."""

    kind: Literal["sum"] = "sum"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Sums of clipped numbers, by key."""
    low: Annotated[float, Field(ge=-MOST_NUMBER, le=0)] = 0.0
    """Least number; 0 or negative, because a device without the key adds 0."""
    high: Annotated[float, Field(ge=LEAST_RANGE, le=MOST_NUMBER, examples=[10.0])]
    """Largest number, L-infinity if it is above -low."""
    size: Size = 1
    """P, number of keys; keys are 0 to P - 1."""
    most_keys: MostKeys = 1
    """L0, most keys of a device; of more, a uniform sample counts."""

    @property
    def unit(self) -> float:
        return max(-self.low, self.high) / RESOLUTION

    @property
    def shape(self) -> Shape:
        most = min(self.most_keys, self.size)
        return Shape(self.size, most * RESOLUTION, most**0.5 * RESOLUTION, is_signed=self.low < 0)

    def vectors(self, items: Items, rng: np.random.Generator) -> Vectors:
        owners, keys, sums = items.bounded(self.size, self.most_keys, rng)
        steps = rounded(np.clip(sums, self.low, self.high) / self.unit, rng)
        return Vectors(owners, keys, steps, self.size, items.devices)

    def loosened(self, items: Items) -> dict[str, float]:
        _, _, sums = items.summed(self.size)
        return super().loosened(items) | loosened_range(self.low, self.high, sums)

    def truth(self, items: Items, rng: np.random.Generator) -> Truth:
        _, keys, sums = items.summed(self.size)
        return self.compared(items, rng, np.bincount(keys, sums, self.size))


class Distinct(LinearQuestion):
    """Number of distinct keys, of an open domain, that any device holds: the exact number with
    noise. A device changes it by at most its `most_keys` keys."""

    kind: Literal["distinct"] = "distinct"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Number of distinct keys."""
    most_keys: MostKeys = 1
    """L0, most keys of a device; of more, a uniform sample counts."""

    @property
    def shape(self) -> Shape:
        return Shape(size=1, most_l1=self.most_keys, most_l2=float(self.most_keys))

    def plan(self, trust: Trust, budget: Budget) -> Plan:
        check_one_noise(self, trust, "a union of keys is no sum of vectors")
        return super().plan(trust, budget)

    def vectors(self, items: Items, rng: np.random.Generator) -> Vectors:
        _, keys, _ = items.bounded(KEYS, self.most_keys, rng)
        one = np.zeros(1, np.int64)
        return Vectors(one, one, np.array([np.unique(keys).size]), 1, items.devices)

    def truth(self, items: Items, rng: np.random.Generator) -> Truth:
        return self.compared(items, rng, np.array([np.unique(items.keys).size]))


def check_one_noise(question: Question, trust: Trust, reason: str) -> None:
    """Raises PairRefused unless one party adds the noise (`server` or `enclave`)."""
    if not isinstance(trust, OneNoise):
        raise PairRefused(
            f"{question.kind} under the trust model {trust.kind} has no theorem: {reason}; "
            "take the trust model server or enclave"
        )


def loosened_range(low: float, high: float, numbers: Float64Array) -> dict[str, float]:
    """Returns `low` and `high` that clip none of the numbers, rounded outward to three digits;
    without an end that clips none as it is."""
    numbers = numbers[np.isfinite(numbers)]

    def outward(extreme: float, towards: Callable[[float], int]) -> float:
        if extreme == 0:
            return 0.0
        step = 10.0 ** (math.floor(math.log10(abs(extreme))) - 2)
        return towards(extreme / step) * step

    found = {}
    if numbers.min(initial=low) < low:
        found["low"] = outward(float(numbers.min()), math.floor)
    if numbers.max(initial=high) > high:
        found["high"] = outward(float(numbers.max()), math.ceil)
    return found


def rounded(steps: Float64Array, rng: np.random.Generator) -> Int64Array:
    """Returns numbers of at most RESOLUTION rounded to a neighbouring whole number at random,
    without bias."""
    below = np.floor(steps)
    whole = (below + (rng.random(steps.shape) < steps - below)).astype(np.int64)
    # A number may exceed the bound by the rounding of a division.
    return np.clip(whole, -RESOLUTION, RESOLUTION)


def _ones(owners: Int64Array, keys: Int64Array, size: int, items: Items) -> Vectors:
    return Vectors(owners, keys, np.ones_like(keys), size, items.devices)
