"""Local randomisers: each device sends a report that is epsilon-DP by itself (`local`), or one that
becomes so among the reports of others (`shuffled`).

A device with the vector x, of L1 norm at most B steps, draws coordinate k with probability
|x_k| / B, or no coordinate, and sends its category: k, k + P if x_k is negative, or K for none, out
of K = P or 2 P. So the share of devices in a category is a sum over B and n. The category is sent
by

* K-ary randomised response on K + 1 categories: the true one with probability e^epsilon q, each
  other one with q = 1 / (e^epsilon + K) (Kairouz, Bonawitz, Ramage 2016), or
* optimised unary encoding: a bit per category, 1 with probability 1/2 for the true one and with
  q = 1 / (e^epsilon + 1) for the others (Wang, Blocki, Li, Jha 2017, section 4.3),

whichever has the smaller variance at a category without devices. Hadamard response (Acharya, Sun,
Zhang 2019) is never better there than optimised unary encoding, 4 e^epsilon <= (e^epsilon + 1)^2;
it saves communication, which this package does not count.
"""

import math
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedray.base.arrays import Float64Array, Int64Array
from ..accounting.events import MOST_COUNT, ApproximateDP, Event
from ..accounting.shuffling import largest_local_epsilon, shuffled_epsilon
from .trust import Budget, NoisySums, PairRefused, Shape, SumMechanism, Trust, Vectors


class Local(Trust):
    """Every device randomises its own report; no other party is trusted."""

    kind: Literal["local"] = "local"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Reports randomised by the devices."""

    def mechanism(self, shape: Shape, budget: Budget, releases: int = 1) -> SumMechanism:
        return RandomisedReports(shape, budget.epsilon, releases)


class Shuffled(Trust):
    """Every device randomises its own report, less than locally, and a trusted shuffler removes the
    order of the reports."""

    kind: Literal["shuffled"] = "shuffled"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Randomised reports in a random order."""
    least_devices: Annotated[int, Field(ge=2, lt=MOST_COUNT)]
    """Least number of devices that come to a window."""

    def mechanism(self, shape: Shape, budget: Budget, releases: int = 1) -> "ShuffledReports":
        if budget.delta == 0:
            raise PairRefused(
                "shuffled reports at delta=0 have no theorem: shuffling amplifies only at "
                "delta > 0; raise delta, or take the trust model local"
            )
        return ShuffledReports(shape, budget, releases, self.least_devices)


class RandomisedReports(SumMechanism):
    """Reports of local randomisers. For several releases devices are divided into equal groups, of
    which each reports once, with all of epsilon.

    Reports are independent, so a number of reports is at least as concentrated as a binomial of the
    same mean (Hoeffding 1956, Theorems 4 and 5): its variance is at most the binomial's, here at
    the observed share, and the interval of Clopper and Pearson covers at least as often as stated,
    if it holds one report or more on average and the confidence is 1/2 or more. The same holds of a
    group, a uniform sample of the devices, whose number of reports is also distributed as a sum of
    independent bits (Borcea, Branden, Liggett 2009).
    """

    def __init__(self, shape: Shape, epsilon: float, releases: int) -> None:
        self.shape, self.groups, self.least_devices = shape, releases, releases
        self.categories = shape.size * (2 if shape.is_signed else 1)
        grown = math.exp(epsilon)
        # Probabilities of a category: p if it is the true one, else q.
        response = grown / (grown + self.categories), 1.0 / (grown + self.categories)
        # Optimised unary encoding: p = 1/2 is the p of least variance at equal epsilon for rare
        # categories.
        unary = 0.5, 1.0 / (grown + 1.0)
        self.p, self.q = min((response, unary), key=_variance_at_none)
        self.is_unary = (self.p, self.q) == unary
        self.scale = shape.most_l1 / (self.p - self.q)
        if self.is_unary:
            self.name = f"optimised unary encoding of {self.categories:,} bits"
            self.theorem = "Wang, Blocki, Li, Jha 2017, section 4.3"
        else:
            self.name = f"{self.categories + 1:,}-ary randomised response"
            self.theorem = "Kairouz, Bonawitz, Ramage 2016, section 3"
        self.name += f" at local epsilon {epsilon:.4g}"
        self.event = ApproximateDP(epsilon=epsilon, theorem=self.theorem)

    def variance(self, devices: int) -> float:
        signs = 2 if self.shape.is_signed else 1
        # The other groups' sums are unknown, so a group's is multiplied by their number.
        return signs * self.groups * devices * self.scale**2 * self.q * (1.0 - self.q)

    def release(self, vectors: Vectors, rng: np.random.Generator) -> NoisySums:
        counts = np.bincount(self.drawn(vectors, rng), minlength=self.categories + 1)
        devices = vectors.devices
        if self.is_unary:
            seen = rng.binomial(counts, self.p) + rng.binomial(devices - counts, self.q)
        else:
            # Randomised response keeps the category, or sends a uniform one of all K + 1.
            kept = rng.binomial(counts, self.p - self.q)
            uniform = np.full(counts.size, 1.0 / counts.size)
            seen = kept + rng.multinomial(devices - kept.sum(), uniform)
        seen = seen[: self.categories]

        def interval(failure: float) -> tuple[Float64Array, Float64Array]:
            from scipy.special import betainccinv, betaincinv

            # Each end may fail, of either sign.
            tail = failure / (4.0 if self.shape.is_signed else 2.0)
            unseen = devices - seen
            low = np.where(seen > 0, betaincinv(np.maximum(seen, 1), unseen + 1, tail), 0.0)
            high = np.where(unseen > 0, betainccinv(seen + 1, np.maximum(unseen, 1), tail), 1.0)
            return devices * self._sums(low, high), devices * self._sums(high, low)

        share = seen / devices
        variances = devices * self.scale**2 * self._spread(share)
        return NoisySums(devices * self._sums(share, share), variances, "estimate", interval)

    def drawn(self, vectors: Vectors, rng: np.random.Generator) -> Int64Array:
        """Returns the category that each device draws, [devices]."""
        sizes = np.abs(vectors.steps)
        ends = np.cumsum(sizes)
        # Coordinates of a device lie one after the other on a line of most_l1 steps.
        base = (ends - sizes)[np.searchsorted(vectors.owners, vectors.owners)]
        place = base + rng.integers(self.shape.most_l1, size=vectors.devices)[vectors.owners]
        is_drawn = (place < ends) & (place >= ends - sizes)
        drawn = np.full(vectors.devices, self.categories)
        signs = np.where(vectors.steps < 0, self.shape.size, 0)
        drawn[vectors.owners[is_drawn]] = (vectors.keys + signs)[is_drawn]
        return drawn

    def _spread(self, share: Float64Array) -> Float64Array:
        """Returns the variance of a device's report at the shares of the categories."""
        if not self.shape.is_signed:
            return share * (1.0 - share)
        plus, minus = np.split(share, 2)
        # Covariance of two bits of a report, or of two categories of which it is one.
        offset = self.q if self.is_unary else 0.0
        crossed = np.maximum((plus - offset) * (minus - offset), 0.0)
        return plus * (1.0 - plus) + minus * (1.0 - minus) + 2.0 * crossed

    def _sums(self, share: Float64Array, opposite: Float64Array) -> Float64Array:
        """Returns the sums of a device from shares of categories, and from the shares `opposite` of
        negative values."""
        if not self.shape.is_signed:
            return self.scale * (share - self.q)
        return self.scale * (share[: self.shape.size] - opposite[self.shape.size :])


class ShuffledReports(RandomisedReports):
    """Reports at the largest local epsilon that shuffling amplifies to the budget. Each group of
    devices is a shuffle of its own."""

    def __init__(self, shape: Shape, budget: Budget, releases: int, least_devices: int) -> None:
        self._group, self._delta = max(least_devices // releases, 1), budget.delta
        local = largest_local_epsilon(budget.epsilon, budget.delta, self._group)
        super().__init__(shape, local, releases)
        self.report = ApproximateDP(epsilon=local, theorem=self.theorem)
        """Spending of a device against an observer who knows which report is its own."""
        self.name += f", of {self._group:,} reports shuffled"
        self.theorem = "Feldman, McMillan, Talwar 2023, Theorem 3.1, for one randomiser"
        self.event = self._event(budget.epsilon)
        self.least_devices = max(least_devices, releases)

    def event_of(self, honest: int) -> Event:
        if honest >= self._group:
            return self.event
        return self._event(shuffled_epsilon(self.report.epsilon, honest, self._delta))

    def _event(self, epsilon: float) -> Event:
        return ApproximateDP(epsilon=epsilon, delta=self._delta, theorem=self.theorem)


def _variance_at_none(probabilities: tuple[float, float]) -> float:
    p, q = probabilities
    return q * (1.0 - q) / (p - q) ** 2
