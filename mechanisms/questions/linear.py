"""Questions that are one release of sums: the plan they share, and the kinds whose rows are the sums
themselves (`count`, `sum`, `histogram`, `distinct`)."""

from abc import abstractmethod
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from fedray.base.errors import InputError
from fedray.mechanisms.questions.central import Central
from fedray.mechanisms.questions.question import (
    Answer,
    Budget,
    Items,
    PairRefused,
    Plan,
    Question,
    Trust,
    Truth,
)
from fedray.mechanisms.questions.sums import (
    RESOLUTION,
    NoisySums,
    Shape,
    SumMechanism,
    SumTrust,
    Vectors,
    bounded,
    rounded,
)

MOST_SIZE = 1 << 24
"""Largest closed domain; a sum over it takes 128 MB."""
Size = Annotated[int, Field(ge=1, le=MOST_SIZE)]
MostKeys = Annotated[int, Field(ge=1, le=1 << 16)]


class LinearQuestion(Question):
    """A question that is answered from one sum of the devices' vectors."""

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """Bounds of a device's vector."""

    @abstractmethod
    def vectors(self, items: Items, rng: np.random.Generator) -> Vectors:
        """Returns the devices' vectors, within the shape."""

    @abstractmethod
    def decode(self, sums: NoisySums, devices: int, confidence: float) -> Answer:
        """Returns the answer from noisy sums."""

    @property
    def unit(self) -> float:
        """Value of one step."""
        return 1.0

    def plan(self, trust: Trust, budget: Budget) -> "LinearPlan":
        assert isinstance(trust, SumTrust)
        return LinearPlan(self, trust.mechanism(self.shape, budget))


class LinearPlan(Plan):
    """One release of sums."""

    def __init__(self, question: LinearQuestion, mechanism: SumMechanism) -> None:
        self._question, self.sums = question, mechanism
        self.mechanism, self.theorem = mechanism.name, mechanism.theorem
        self.event, self.least_devices = mechanism.event, mechanism.least_devices

    def standard_error(self, devices: int) -> float:
        return self._question.unit * self.sums.variance(devices) ** 0.5

    def answer(self, items: Items, rng: np.random.Generator, confidence: float = 0.95) -> Answer:
        check_devices(self, items)
        sums = self.sums.release(self._question.vectors(items, rng), rng)
        return self._question.decode(sums, items.devices, confidence)


def check_devices(plan: Plan, items: Items) -> None:
    """Raises InputError if fewer devices came than a plan is calibrated for."""
    if items.devices < plan.least_devices:
        raise InputError.of(
            "devices",
            items.devices,
            f"must be at least {plan.least_devices:,}, for which the mechanism is calibrated",
            "wait for more devices, or state fewer",
        )


def rows(sums: NoisySums, unit: float, devices: int, confidence: float) -> Answer:
    """Returns an answer whose rows are the sums, each in steps of `unit`."""
    low, high = sums.interval(1.0 - confidence)
    return Answer(
        keys=np.arange(sums.estimates.size),
        estimates=sums.estimates * unit,
        standard_errors=np.sqrt(sums.variances) * unit,
        error_claim=sums.claim,
        low=low * unit,
        high=high * unit,
        confidence=confidence,
        bias=0.0,
        bias_claim="exact",
        devices=devices,
    )


class Count(LinearQuestion):
    """Number of devices that hold any item."""

    kind: Literal["count"] = "count"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Number of devices with an item."""

    @property
    def shape(self) -> Shape:
        return Shape(size=1, most_l1=1, most_l2=1.0)

    def vectors(self, items: Items, rng: np.random.Generator) -> Vectors:
        del rng
        holders = np.flatnonzero(np.diff(items.starts))
        return Vectors(holders, np.zeros_like(holders), np.ones_like(holders), items.devices)

    def decode(self, sums: NoisySums, devices: int, confidence: float) -> Answer:
        return rows(sums, self.unit, devices, confidence)

    def truth(self, items: Items, rng: np.random.Generator) -> Truth:
        exact = self.vectors(items, rng).totals(1).astype(np.float64)
        return Truth(np.zeros(1, np.int64), exact, exact)


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
        owners, keys, _ = bounded(items, self.size, self.most_keys, rng)
        return Vectors(owners, keys, np.ones_like(keys), items.devices)

    def decode(self, sums: NoisySums, devices: int, confidence: float) -> Answer:
        return rows(sums, self.unit, devices, confidence)

    def truth(self, items: Items, rng: np.random.Generator) -> Truth:
        kept = self.vectors(items, rng).totals(self.size).astype(np.float64)
        _, keys, _ = bounded(items, self.size, items.keys.size, rng)
        exact = np.bincount(keys, minlength=self.size).astype(np.float64)
        return Truth(np.arange(self.size), exact, kept)


class Sum(LinearQuestion):
    """Sums of numbers by key: each device's number at a key, the sum of its values there, is clipped
    to a range."""

    kind: Literal["sum"] = "sum"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Sums of clipped numbers, by key."""
    low: float = 0.0
    """Least number after clipping; 0 or negative, because a device without the key adds 0."""
    high: Annotated[float, Field(gt=0)]
    """Largest number after clipping."""
    size: Size = 1
    """P, number of keys; keys are 0 to P - 1."""
    most_keys: MostKeys = 1
    """L0, most keys of a device; of more, a uniform sample counts."""
    most_l1: Annotated[float, Field(gt=0)] | None = None
    """Largest sum of a device's absolute numbers; a device with more is scaled down."""
    most_l2: Annotated[float, Field(gt=0)] | None = None
    """Largest Euclidean norm of a device's numbers; a device with more is scaled down."""

    @model_validator(mode="after")
    def _has_a_range(self) -> "Sum":
        if self.low > 0:
            raise InputError.of("low", self.low, "must not be above 0", "subtract it beforehand")
        return self

    @property
    def unit(self) -> float:
        return max(-self.low, self.high) / RESOLUTION

    @property
    def shape(self) -> Shape:
        most = min(self.most_keys, self.size)
        l1, l2 = most * RESOLUTION, most**0.5 * RESOLUTION
        # Rounding adds less than one step to each number.
        if self.most_l1 is not None:
            l1 = min(l1, int(self.most_l1 / self.unit) + most)
        if self.most_l2 is not None:
            l2 = min(l2, self.most_l2 / self.unit + most**0.5)
            l1 = min(l1, int(self.most_l2 * most**0.5 / self.unit) + most)
        # The L2 norm is at most the L1 norm.
        return Shape(self.size, l1, min(l2, float(l1)), self.low < 0, is_rounded=True)

    def vectors(self, items: Items, rng: np.random.Generator) -> Vectors:
        owners, keys, numbers = self._numbers(items, rng)
        # Clipped again, because a division may have rounded up.
        steps = np.clip(rounded(numbers / self.unit, rng), -RESOLUTION, RESOLUTION)
        return Vectors(owners, keys, steps, items.devices)

    def decode(self, sums: NoisySums, devices: int, confidence: float) -> Answer:
        return rows(sums, self.unit, devices, confidence)

    def truth(self, items: Items, rng: np.random.Generator) -> Truth:
        owners, keys, numbers = self._numbers(items, rng)
        kept = np.bincount(keys, numbers, self.size)
        return Truth(np.arange(self.size), np.bincount(items.keys, items.values, self.size), kept)

    def _numbers(self, items: Items, rng: np.random.Generator):
        """Returns (owner, key, bounded number), [I] each."""
        owners, keys, sums = bounded(items, self.size, self.most_keys, rng)
        numbers = np.clip(sums, self.low, self.high)
        for order, most in ((1, self.most_l1), (2, self.most_l2)):
            if most is not None and numbers.size:
                powers = np.bincount(owners, np.abs(numbers) ** order, items.devices)
                norms = powers[owners] ** (1.0 / order)
                numbers = numbers * np.minimum(1.0, most / np.maximum(norms, 1e-300))
        return owners, keys, numbers


class Distinct(LinearQuestion):
    """Number of distinct keys, of an open domain, that any device holds.

    A device adds at most its `most_keys` keys to the set, so the exact number with noise at this
    sensitivity is private. No sum of vectors has that number, so only a trusted server can answer.
    """

    kind: Literal["distinct"] = "distinct"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Number of distinct keys."""
    most_keys: MostKeys = 1
    """L0, most keys of a device; of more, a uniform sample counts."""

    @property
    def shape(self) -> Shape:
        return Shape(size=1, most_l1=self.most_keys, most_l2=float(self.most_keys))

    def plan(self, trust: Trust, budget: Budget) -> LinearPlan:
        check_central(self, trust, "the union of keys is no sum of vectors")
        return super().plan(trust, budget)

    def vectors(self, items: Items, rng: np.random.Generator) -> Vectors:
        _, keys, _ = bounded(items, None, self.most_keys, rng)
        one = np.zeros(1, np.int64)
        return Vectors(one, one, np.array([np.unique(keys).size]), items.devices)

    def decode(self, sums: NoisySums, devices: int, confidence: float) -> Answer:
        return rows(sums, self.unit, devices, confidence)

    def truth(self, items: Items, rng: np.random.Generator) -> Truth:
        kept = self.vectors(items, rng).totals(1).astype(np.float64)
        return Truth(np.zeros(1, np.int64), np.array([np.unique(items.keys).size * 1.0]), kept)


def check_central(question: Question, trust: Trust, reason: str) -> None:
    """Raises PairRefused unless the trust model is `central`."""
    if not isinstance(trust, Central):
        raise PairRefused(
            f"{question.kind} under the trust model {trust.kind} has no theorem: {reason}; "
            "take the trust model central"
        )
