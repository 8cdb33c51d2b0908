"""A question about what devices hold, and the plan that answers it under a trust model.

A window asks every device that comes once. `question.plan(trust, budget)` calibrates a mechanism
without looking at data, or refuses the pair in one line; `plan.answer(items, rng)` answers from the
items of the devices that came. A device that came without items takes part too, because whether it
holds anything is private.

    plan = Histogram(size=3600).plan(Server(), Budget(math.log(3)))
    plan.sums.variance(100_000)
    answer = plan.answer(items, rng)

Adjacency is zero-out of one device, as in all events; local and shuffled reports also hide any
other change of what one device holds.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np

from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.errors import InputError
from ..accounting.events import Event
from .trust import (
    Budget,
    Claim,
    NoisySums,
    Shape,
    SumMechanism,
    Trust,
    Value,
)


@dataclass(frozen=True, slots=True)
class Items:
    """Keys and values that the devices of a window hold: device g has items starts[g] to
    starts[g + 1]."""

    starts: Int64Array
    """First item of each device, and the number of items, [G + 1]."""
    keys: Int64Array
    """Index in the question's closed domain, or any whole number from 0 in an open one, [I]."""
    values: Float64Array
    """Value at the key, [I]; questions about keys only ignore it."""

    @property
    def devices(self) -> int:
        """G, number of devices that came."""
        return self.starts.size - 1

    @property
    def owners(self) -> Int64Array:
        """Row of the device of each item, [I]."""
        return np.repeat(np.arange(self.devices), np.diff(self.starts))

    @property
    def most_keys(self) -> int:
        """Largest number of different keys of a device."""
        owners, _, _ = self.summed(int(self.keys.max(initial=0)) + 1)
        return int(np.bincount(owners).max(initial=0))

    def summed(self, end: int) -> tuple[Int64Array, Int64Array, Float64Array]:
        """Returns (owner, key, sum of the device's values there), [J] each, by device and key.

        Raises:
            InputError: a key is not from 0 to below `end`.
        """
        outside = self.keys[(self.keys < 0) | (self.keys >= end)]
        if outside.size:
            rule = f"must be from 0 to below {end:,}, the domain"
            raise InputError.of("keys", int(outside[0]), rule, "drop the items outside it")
        order = np.lexsort((self.keys, self.owners))
        owners, keys = self.owners[order], self.keys[order]
        is_first = np.ones(keys.size, bool)
        is_first[1:] = (np.diff(owners) > 0) | (np.diff(keys) > 0)
        sums = np.bincount(np.cumsum(is_first) - 1, self.values[order]).astype(np.float64)
        return owners[is_first], keys[is_first], sums

    def bounded(
        self, end: int, most_keys: int, rng: np.random.Generator
    ) -> tuple[Int64Array, Int64Array, Float64Array]:
        """Returns as `summed`, with a uniform sample of `most_keys` keys of devices with more."""
        owners, keys, sums = self.summed(end)
        at_random = np.lexsort((rng.random(keys.size), owners))
        ranks = np.arange(keys.size) - np.searchsorted(owners, owners)
        kept = np.sort(at_random[ranks < most_keys])
        return owners[kept], keys[kept], sums[kept]


@dataclass(frozen=True, slots=True)
class Answer:
    """A private answer with its errors: a row per key, number or quantile, [R]."""

    keys: Int64Array
    """Keys released, ascending: the closed domain, or keys of an open one. For numbers and
    quantiles 0 to R - 1."""
    estimates: Float64Array
    """Estimate of each row, in the unit of the question."""
    standard_errors: Float64Array
    """Standard error by noise and sampling, given the devices that came; NaN if only the interval
    is known."""
    error_claim: Claim
    """Kind of the standard errors: exact, bounds or estimates."""
    low: Float64Array
    """Lower end of each row's confidence interval."""
    high: Float64Array
    """Upper end."""
    confidence: float
    """Least probability that the interval of a row holds the true answer of the bounded
    contributions; of `quantiles` and `prefix_tree` all rows at once."""
    devices: int
    """Devices that came."""

    def rows(self, chosen: Int64Array | slice) -> "Answer":
        """Returns some rows of the answer."""
        columns = ("keys", "estimates", "standard_errors", "low", "high")
        return replace(self, **{each: getattr(self, each)[chosen] for each in columns})


@dataclass(frozen=True, slots=True)
class Truth:
    """The exact answer, which only a simulation knows, [R] each."""

    keys: Int64Array
    """Keys, ascending; of an open domain, the ones that any device holds."""
    values: Float64Array
    """Exact answer."""
    bounded: Float64Array
    """Exact answer from the bounded contributions: the target of the estimates."""


class Question(Value, ABC):
    """A question with its contribution bounds and domain. Kinds: count, sum, mean, histogram,
    open_histogram, prefix_tree, quantiles, distinct (`registry.AnyQuestion`)."""

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """Bounds of a device's vector in one release."""

    @property
    def unit(self) -> float:
        """Value of one step of a vector."""
        return 1.0

    def plan(self, trust: Trust, budget: Budget) -> "Plan":
        """Returns the mechanism calibrated to a budget.

        Raises:
            PairRefused: no theorem answers the question under the trust model.
            InputError: the budget cannot be met.
        """
        return Plan(self, trust.mechanism(self.shape, budget))

    def loosened(self, items: Items) -> dict[str, float]:
        """Returns the tightest bounds, by their keys, that change no contribution of these devices;
        without the bounds of the question that change none as they are."""
        held = items.most_keys
        return {"most_keys": held} if getattr(self, "most_keys", held) < held else {}

    @abstractmethod
    def answered(
        self, sums: SumMechanism, items: Items, rng: np.random.Generator, confidence: float
    ) -> Answer:
        """Returns the answer by a calibrated mechanism."""

    @abstractmethod
    def truth(self, items: Items, rng: np.random.Generator) -> Truth:
        """Returns the exact answers. With a generator in the state that `answer` had, the bounded
        contributions agree with the answer."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A question and a calibrated mechanism. It reads no data before `answer`."""

    question: Question
    sums: SumMechanism

    @property
    def mechanism(self) -> str:
        """Name of the mechanism, such as "discrete Laplace noise of scale 0.91"."""
        return self.sums.name

    @property
    def theorem(self) -> str:
        """Theorem that proves the privacy."""
        return self.sums.theorem

    @property
    def event(self) -> Event:
        """Spending of one device in one window; windows compose by `Composed` and `Repeated`."""
        return self.sums.event

    @property
    def least_devices(self) -> int:
        """Least number of devices for which the event holds; `answer` refuses fewer."""
        return self.sums.least_devices

    def answer(self, items: Items, rng: np.random.Generator, confidence: float = 0.95) -> Answer:
        """Returns the private answer.

        Args:
            items: contributions of the devices that came.
            rng: generator addressed by the caller, for bounding, noise and sampling.
            confidence: coverage of the intervals.

        Raises:
            InputError: fewer devices came than the plan is calibrated for, a key is outside the
                domain, or the confidence is impossible.
        """
        if not 0 < confidence < 1:
            raise InputError.of(
                "confidence", confidence, "must be above 0 and below 1", "take 0.95"
            )
        if items.devices < self.least_devices:
            rule = f"must be at least {self.least_devices:,}, for which the plan is calibrated"
            raise InputError.of("devices", items.devices, rule, "wait for more, or state fewer")
        return self.question.answered(self.sums, items, rng, confidence)


def answer_of(
    sums: NoisySums, unit: float, devices: int, confidence: float, keys: Int64Array | None = None
) -> Answer:
    """Returns an answer whose rows are the sums, by `keys` or from 0."""
    low, high = sums.interval(1.0 - confidence)
    return Answer(
        keys=np.arange(sums.estimates.size) if keys is None else keys,
        estimates=sums.estimates * unit,
        standard_errors=np.sqrt(sums.variances) * unit,
        error_claim=sums.claim,
        low=low * unit,
        high=high * unit,
        confidence=confidence,
        devices=devices,
    )
