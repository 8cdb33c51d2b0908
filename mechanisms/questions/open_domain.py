"""Questions about the keys of an open domain: which are common, and how common.

`open_histogram` releases the keys whose noisy count passes a threshold, in one release. It is also
the private vocabulary of McMahan, Ramage, Talwar, Zhang 2018, appendix B: `answer.largest(K)`, at
the cost of the plan's event. `prefix_tree` finds keys digit by digit, with a closed histogram per
level, so every trust model has it. Heavy hitters are either of the two.
"""

import math
from copy import copy
from dataclasses import replace
from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.errors import InputError
from fedray.mechanisms.accounting.events import ApproximateDP, Composed
from fedray.mechanisms.questions.central import DiscreteGaussian, DiscreteLaplace
from fedray.mechanisms.questions.linear import MostKeys, check_central, check_devices
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
    NoisySums,
    Shape,
    SumMechanism,
    SumTrust,
    Vectors,
    bounded,
)

LARGEST_KEY = 1 << 62
"""End of the keys that digits can spell."""


class _Keys(Question):
    most_keys: MostKeys = 1
    """L0, most keys of a device; of more, a uniform sample counts."""

    def truth(self, items: Items, rng: np.random.Generator) -> Truth:
        kept, counts = np.unique(bounded(items, None, self.most_keys, rng)[1], return_counts=True)
        keys, exact = np.unique(
            bounded(items, None, max(items.keys.size, 1), rng)[1], return_counts=True
        )
        inside = np.zeros(keys.size)
        inside[np.searchsorted(keys, kept)] = counts
        return Truth(keys, exact.astype(np.float64), inside)


class OpenHistogram(_Keys):
    """Counts of the devices that hold each key, released where the noisy count passes a threshold.

    Noise hides a device at keys that others hold too. A key that only this device holds has count
    1, and is released with P(noise >= threshold - 1); with L0 keys, any of them is released with
    1 - (1 - P)^L0, which is delta, exactly. At other outcomes the noise's guarantee holds (Korolova,
    Kenthapadi, Mishra, Ntoulas 2009; Wilson et al. 2020).
    """

    kind: Literal["open_histogram"] = "open_histogram"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Common keys of an open domain, by a threshold."""

    def plan(self, trust: Trust, budget: Budget) -> "OpenPlan":
        check_central(
            self, trust, "sums and reports need a closed domain (prefix_tree has one per level)"
        )
        if budget.delta == 0:
            raise PairRefused(
                "open_histogram at delta=0 has no theorem: that a key is released at all reveals "
                "it; raise delta, or close the domain and take histogram"
            )
        laplace = OpenPlan(self, budget, DiscreteLaplace, budget.delta)
        # Half of delta each for the noise and the threshold.
        gaussian = OpenPlan(self, budget, DiscreteGaussian, budget.delta / 2)
        return min((laplace, gaussian), key=lambda each: each.threshold)


class OpenPlan(Plan):
    """Counts with noise of one kind, released from a threshold on.

    The interval of a key covers with the stated probability before it is known whether the key
    passes. Given that it passes, its noise is larger; `bias` is its mean at a count of 1, and less
    at every larger one.
    """

    least_devices = 1

    def __init__(
        self,
        question: OpenHistogram,
        budget: Budget,
        noise: type[DiscreteLaplace] | type[DiscreteGaussian],
        delta: float,
    ) -> None:
        most = question.most_keys
        shape = Shape(size=1, most_l1=most, most_l2=most**0.5)
        if noise is DiscreteLaplace:
            self.sums = DiscreteLaplace(shape, budget, 1)
        else:
            self.sums = DiscreteGaussian(shape, Budget(budget.epsilon, budget.delta - delta), 1, 1)
        self._question = question
        self.threshold = self._least_threshold(delta)
        """Least noisy count that is released."""
        self.delta = self.release_probability(self.threshold)
        """Probability that any key is released that only one device holds."""
        self.mechanism = f"{self.sums.name}, threshold {self.threshold:,}"
        self.theorem = f"{self.sums.theorem}; Wilson et al. 2020, by the exact tail"
        unique = ApproximateDP(
            epsilon=0.0, delta=self.delta, theorem="release of a key that one device holds"
        )
        self.event = Composed(events=(self.sums.event, unique))

    def release_probability(self, threshold: int) -> float:
        """Returns 1 - (1 - P(1 + noise >= threshold))^L0."""
        one = self.sums.tail(threshold - 1)
        return -math.expm1(self._question.most_keys * math.log1p(-one))

    def _least_threshold(self, delta: float) -> int:
        high = 2
        while self.release_probability(high) > delta:
            high *= 2
        low = high // 2
        while low + 1 < high:
            middle = (low + high) // 2
            if self.release_probability(middle) > delta:
                low = middle
            else:
                high = middle
        return high

    @property
    def bias(self) -> float:
        """Bound on E[noise | noise >= threshold - 1]; exact for discrete Laplace noise."""
        least = self.threshold - 1
        # Tails of log-concave noise fall at least geometrically from here on.
        ratio = self.sums.tail(least + 1) / self.sums.tail(least)
        return least + ratio / (1.0 - ratio)

    def standard_error(self, devices: int) -> float:
        return self.sums.variance(devices) ** 0.5

    def answer(self, items: Items, rng: np.random.Generator, confidence: float = 0.95) -> Answer:
        check_devices(self, items)
        owners, held, _ = bounded(items, None, self._question.most_keys, rng)
        keys, places = np.unique(held, return_inverse=True)
        # A key without devices is never released, so noise is drawn for the others only.
        mechanism = copy(self.sums)
        mechanism.shape = replace(self.sums.shape, size=keys.size)
        vectors = Vectors(owners, places, np.ones_like(places), items.devices)
        sums = mechanism.release(vectors, rng)
        passes = sums.estimates >= self.threshold
        low, high = sums.interval(1.0 - confidence)
        return Answer(
            keys=keys[passes],
            estimates=sums.estimates[passes],
            standard_errors=np.sqrt(sums.variances[passes]),
            error_claim="exact",
            low=np.maximum(low[passes], 1.0),
            high=high[passes],
            confidence=confidence,
            bias=self.bias,
            bias_claim="bound",
            devices=items.devices,
        )


class PrefixTree(_Keys):
    """Common keys, found digit by digit: a level releases the histogram of the devices' prefixes
    below the prefixes kept so far, and keeps those whose interval excludes 0.

    A key is a number of `levels` digits in base `branching`; `spelled` makes keys of words. The
    levels are adaptive releases and compose: each has its part of the budget (central,
    distributed), or its own group of devices with all of it (shuffled, local; Wang, Li, Jha 2021,
    "Locally differentially private heavy hitter identification").

    With the probability `confidence` the intervals of all levels hold at once: then every released
    key is held by a device, and its row's interval holds its count. Every key more common than the
    widest interval of a level is released, unless a level had more than `most_prefixes`.
    """

    kind: Literal["prefix_tree"] = "prefix_tree"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Common keys of an open domain, digit by digit."""
    branching: Annotated[int, Field(ge=2, le=4096)]
    """Values of a digit, such as letters and an end mark."""
    levels: Annotated[int, Field(ge=1, le=62)]
    """Digits of a key."""
    most_prefixes: Annotated[int, Field(ge=1, le=1 << 14)] = 256
    """Most prefixes kept by a level, the most common ones."""

    @model_validator(mode="after")
    def _has_keys(self):
        if self.branching**self.levels > LARGEST_KEY:
            rule = f"makes keys of more than 62 bits with `branching={self.branching}`"
            raise InputError.of("levels", self.levels, rule, "lower one of them")
        return self

    def plan(self, trust: Trust, budget: Budget) -> "PrefixPlan":
        assert isinstance(trust, SumTrust)
        # The first level has one prefix, of no digits.
        size = self.branching * (self.most_prefixes if self.levels > 1 else 1)
        most = min(self.most_keys, size)
        shape = Shape(size, most, most**0.5)
        return PrefixPlan(self, trust.mechanism(shape, budget, self.levels))

    def spelled(self, words: list[str], alphabet: str) -> Int64Array:
        """Returns the keys of words, [W]: a letter is its place in the alphabet plus 1, and the
        digits after the end are 0.

        Raises:
            InputError: a word is longer than `levels` or has another letter.
        """
        places = {letter: digit for digit, letter in enumerate(alphabet, start=1)}
        keys = np.zeros(len(words), np.int64)
        for row, word in enumerate(words):
            if len(word) > self.levels or not all(each in places for each in word):
                rule = f"must have at most {self.levels} letters of the alphabet"
                raise InputError.of("word", word, rule, "drop it from the items")
            for letter in word.ljust(self.levels, "\0"):
                keys[row] = keys[row] * self.branching + places.get(letter, 0)
        return keys


class PrefixPlan(Plan):
    """A histogram for each level of a tree."""

    def __init__(self, question: PrefixTree, mechanism: SumMechanism) -> None:
        self._question, self.sums = question, mechanism
        groups = ", each by a group of devices" if mechanism.groups > 1 else ""
        self.mechanism = f"{mechanism.name}; {question.levels} levels{groups}"
        self.theorem, self.event = mechanism.theorem, mechanism.event
        self.least_devices = mechanism.least_devices

    def standard_error(self, devices: int) -> float:
        return self.sums.variance(devices) ** 0.5

    def answer(self, items: Items, rng: np.random.Generator, confidence: float = 0.95) -> Answer:
        check_devices(self, items)
        question = self._question
        owners, keys, _ = bounded(items, None, question.most_keys, rng)
        if keys.size and keys.max() >= question.branching**question.levels:
            rule = f"must have at most {question.levels} digits in base {question.branching}"
            raise InputError.of("keys", int(keys.max()), rule, "drop the items outside the domain")
        groups = np.array_split(rng.permutation(items.devices), self.sums.groups)
        kept = np.zeros(1, np.int64)
        level = None
        for depth in range(1, question.levels + 1):
            prefixes = keys // question.branching ** (question.levels - depth)
            vectors = self._vectors(owners, prefixes, kept, items.devices)
            if self.sums.groups > 1:
                vectors = vectors.of_devices(np.sort(groups[depth - 1]))
            children = (kept[:, None] * question.branching + np.arange(question.branching)).ravel()
            failure = (1.0 - confidence) / (question.levels * max(children.size, 1))
            sums = self.sums.release(vectors, rng)
            level = _Level.of(children, sums, failure, items.devices / vectors.devices)
            level = level.significant(question.most_prefixes)
            kept = level.keys
        assert level is not None, "a tree has a level"
        return Answer(
            *level[:3],
            error_claim="estimate" if self.sums.groups > 1 else "exact",
            low=level.low,
            high=level.high,
            confidence=confidence,
            # The interval of every released row is on one side of the truth by at most its width.
            bias=float((level.high - level.low).max(initial=0.0)),
            bias_claim="bound",
            devices=items.devices,
        )

    def _vectors(
        self, owners: Int64Array, prefixes: Int64Array, kept: Int64Array, devices: int
    ) -> Vectors:
        """Returns a 1 at each child of a kept prefix that a device holds."""
        parents, digits = np.divmod(prefixes, self._question.branching)
        rows = np.searchsorted(kept, parents)
        is_kept = np.zeros(rows.size, bool)
        if kept.size:
            is_kept = kept[np.minimum(rows, kept.size - 1)] == parents
        places = (rows * self._question.branching + digits)[is_kept]
        # Several keys of a device may share a prefix.
        pairs = np.unique(np.stack([owners[is_kept], places]), axis=1)
        return Vectors(pairs[0], pairs[1], np.ones_like(pairs[0]), devices)


class _Level(NamedTuple):
    """Rows of an answer, for the prefixes of a level."""

    keys: Int64Array
    estimates: Float64Array
    standard_errors: Float64Array
    low: Float64Array
    high: Float64Array

    @classmethod
    def of(cls, keys: Int64Array, sums: NoisySums, failure: float, scale: float) -> Self:
        """Returns a row for each child from the first sums, times `scale` for a group's sums."""
        low, high = sums.interval(failure)
        columns = (sums.estimates, np.sqrt(sums.variances), low, high)
        return cls(keys, *(scale * each[: keys.size] for each in columns))

    def significant(self, most: int) -> Self:
        """Returns the rows whose interval excludes 0, of which the `most` largest, by key."""
        order = np.argsort(-self.estimates, kind="stable")
        chosen = np.sort(order[self.low[order] > 0][:most])
        return type(self)(*(each[chosen] for each in self))
