"""Questions about the keys of an open domain: which are common, and how common.

`open_histogram` releases the keys whose noisy count passes a threshold, in one release. It is also
the private vocabulary of McMahan, Ramage, Talwar, Zhang 2018, appendix B, at the cost of the plan's
event. `prefix_tree` finds keys digit by digit, with a closed histogram per level, so every trust
model has it. Heavy hitters are either of the two.
"""

import math
from dataclasses import replace
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedray.base.arrays import Int64Array
from fedray.base.errors import InputError
from ..accounting.events import ApproximateDP, Composed
from .added_noise import AddedNoise, DiscreteGaussian, DiscreteLaplace
from .linear import KEYS, MostKeys, check_one_noise
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


class _Keys(Question):
    most_keys: MostKeys = 1
    """L0, most keys of a device; of more, a uniform sample counts."""

    def truth(self, items: Items, rng: np.random.Generator) -> Truth:
        keys, exact = np.unique(items.summed(KEYS)[1], return_counts=True)
        kept = items.bounded(KEYS, self.most_keys, rng)[1]
        bounded = np.bincount(np.searchsorted(keys, kept), minlength=keys.size)
        return Truth(keys, exact.astype(np.float64), bounded.astype(np.float64))


class OpenHistogram(_Keys):
    """Counts of the devices that hold each key, released if the noisy count passes a threshold.

    The interval of a key covers with the stated probability before it is known whether the key
    passes. Given that it passes, its noise is larger; the bias is at most that at a count of 1.
    """

    kind: Literal["open_histogram"] = "open_histogram"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Common keys of an open domain, by a threshold."""

    @property
    def shape(self) -> Shape:
        return Shape(size=1, most_l1=self.most_keys, most_l2=self.most_keys**0.5)

    def plan(self, trust: Trust, budget: Budget) -> Plan:
        check_one_noise(self, trust, "sums and reports need a closed domain, as prefix_tree has")
        if budget.delta == 0:
            raise PairRefused(
                "open_histogram at delta=0 has no theorem: that a key is released at all reveals "
                "it; raise delta, or close the domain and take histogram"
            )
        half = Budget(budget.epsilon, budget.delta / 2)
        laplace = Thresholded(DiscreteLaplace(self.shape, budget), budget.delta, self.most_keys)
        gaussian = Thresholded(DiscreteGaussian(self.shape, half), half.delta, self.most_keys)
        return Plan(self, min((laplace, gaussian), key=lambda each: each.threshold))

    def answered(
        self, sums: SumMechanism, items: Items, rng: np.random.Generator, confidence: float
    ) -> Answer:
        assert isinstance(sums, Thresholded)
        owners, held, _ = items.bounded(KEYS, self.most_keys, rng)
        # A key without devices is never released, so noise is drawn for the others only.
        keys, places = np.unique(held, return_inverse=True)
        vectors = Vectors(owners, places, np.ones_like(places), keys.size, items.devices)
        answer = answer_of(sums.release(vectors, rng), 1.0, items.devices, confidence, keys)
        passes = np.flatnonzero(answer.estimates >= sums.threshold)
        return answer.rows(passes)


class Thresholded(SumMechanism):
    """Counts with noise, released from a threshold on.

    Noise hides a device at keys that others hold too. A key that only this device holds has count
    1, and is released with the probability p = P(noise >= threshold - 1). One of L0 such keys is
    with 1 - (1 - p)^L0, which is delta, exactly; otherwise the noise's guarantee holds (Korolova,
    Kenthapadi, Mishra, Ntoulas 2009; Wilson et al. 2020).
    """

    def __init__(self, noise: AddedNoise, delta: float, most_keys: int) -> None:
        self._noise, self._most_keys = noise, most_keys
        low, high = 1, 2
        while self.release_probability(high) > delta:
            low, high = high, 2 * high
        while low + 1 < high:
            middle = (low + high) // 2
            is_enough = self.release_probability(middle) <= delta
            low, high = (low, middle) if is_enough else (middle, high)
        self.threshold = high
        """Least noisy count that is released."""
        self.name = f"{noise.name}, threshold {high:,}"
        self.theorem = f"{noise.theorem}; Wilson et al. 2020, with the exact tail"
        own = self.release_probability(high)
        unique = ApproximateDP(epsilon=0.0, delta=own, theorem="a key that one device holds")
        self.event = Composed(events=(noise.event, unique))  # pyright: ignore[reportArgumentType]

    def release_probability(self, threshold: int) -> float:
        """Returns 1 - (1 - p)^L0 at a threshold, from 2."""
        return -math.expm1(self._most_keys * math.log1p(-self._noise.tail(threshold - 1)))

    def variance(self, devices: int) -> float:
        return self._noise.variance(devices)

    def release(self, vectors: Vectors, rng: np.random.Generator) -> NoisySums:
        return self._noise.release(vectors, rng)


class PrefixTree(_Keys):
    """Common keys, found digit by digit: a level releases the histogram of the devices' prefixes
    below the prefixes kept so far, and keeps those whose interval excludes 0.

    A key is a number of `levels` digits in base `branching`. The levels are adaptive releases and
    compose: each has its part of the budget (server, enclave, devices), or its own group of devices
    with all of it (shuffled, local; Wang, Li, Jha 2021, "Locally differentially private heavy
    hitter identification").

    With the probability `confidence` the intervals of all levels hold at once: then every released
    key is held by a device, and every key is released that is more common than the widest interval
    of a level, unless a level kept `most_prefixes`. With groups this neglects that the earlier
    groups, which decide on the prefixes, have left when a level reports.
    """

    kind: Literal["prefix_tree"] = "prefix_tree"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Common keys of an open domain, digit by digit."""
    branching: Annotated[int, Field(ge=2, le=4096, examples=[32])]
    """Values of a digit, such as letters and an end mark."""
    levels: Annotated[int, Field(ge=1, le=62, examples=[3])]
    """Digits of a key."""
    most_prefixes: Annotated[int, Field(ge=1, le=1 << 14)] = 256
    """Most prefixes kept by a level, the most common ones."""

    @model_validator(mode="after")
    def _has_keys(self) -> Self:
        if self.branching**self.levels > KEYS:
            rule = f"makes keys of more than 62 bits with `branching={self.branching}`"
            raise InputError.of("levels", self.levels, rule, "lower one of them")
        return self

    @property
    def shape(self) -> Shape:
        size = min(self.branching * self.most_prefixes, self.branching**self.levels)
        most = min(self.most_keys, size)
        return Shape(size, most, most**0.5)

    def plan(self, trust: Trust, budget: Budget) -> Plan:
        return Plan(self, trust.mechanism(self.shape, budget, self.levels))

    def answered(
        self, sums: SumMechanism, items: Items, rng: np.random.Generator, confidence: float
    ) -> Answer:
        end = self.branching**self.levels
        owners, keys, _ = items.bounded(end, self.most_keys, rng)
        devices = np.arange(items.devices)
        turns = [devices]
        if sums.groups > 1:
            turns = np.array_split(rng.permutation(devices), sums.groups)
        kept, answer = np.zeros(1, np.int64), None
        for level in range(self.levels):
            end //= self.branching
            turn = np.sort(turns[level % sums.groups])
            children = (kept[:, None] * self.branching + np.arange(self.branching)).ravel()
            noisy = sums.release(self._vectors(owners, keys // end, children, turn), rng)
            failure = (1.0 - confidence) / (self.levels * max(children.size, 1))
            answer = answer_of(noisy, items.devices / turn.size, items.devices, 1.0 - failure)
            # The mechanism has room for more children.
            answer = answer.rows(slice(children.size))
            order = np.argsort(-answer.estimates, kind="stable")
            chosen = np.sort(order[answer.low[order] > 0][: self.most_prefixes])
            kept = children[chosen]
            answer = replace(answer.rows(chosen), keys=kept, confidence=confidence)
        assert answer is not None, "a tree has a level"
        return answer

    def _vectors(
        self, owners: Int64Array, prefixes: Int64Array, children: Int64Array, turn: Int64Array
    ) -> Vectors:
        """Returns a 1 at each child that a device of the turn holds; nothing at prefixes that were
        not kept.

        Args:
            owners: device of each key, [J].
            prefixes: prefix of each key, [J].
            children: prefixes of the level, ascending.
            turn: devices that report in the level, ascending.
        """
        row = np.minimum(np.searchsorted(turn, owners), turn.size - 1)
        place = np.minimum(np.searchsorted(children, prefixes), children.size - 1)
        counts = turn[row] == owners
        counts &= children[place] == prefixes if children.size else False
        # Several keys of a device may share a prefix.
        pairs = np.unique(np.stack([row[counts], place[counts]]), axis=1)
        return Vectors(pairs[0], pairs[1], np.ones_like(pairs[0]), self.shape.size, turn.size)
