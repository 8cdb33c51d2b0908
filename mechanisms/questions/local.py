"""Local randomisers: each device sends a report that is epsilon-DP by itself (`local`), or one that
becomes so among the reports of others (`shuffled`).

A device with the vector x, of L1 norm at most B steps, draws coordinate k with probability
|x_k| / B, or none of them, and sends its category: k, k + P if x_k is negative, or K for none, out
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
from fedray.mechanisms.accounting.events import MOST_COUNT, ApproximateDP
from fedray.mechanisms.accounting.shuffling import largest_local_epsilon
from fedray.mechanisms.questions.question import Budget, PairRefused
from fedray.mechanisms.questions.sums import NoisySums, Shape, SumMechanism, SumTrust, Vectors

MOST_DEFINED = 12
"""Most categories for which `RandomisedReports.definition` lists all outputs."""


class Local(SumTrust):
    """Every device randomises its own report; no other party is trusted."""

    kind: Literal["local"] = "local"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Reports randomised by the devices."""

    def mechanism(self, shape: Shape, budget: Budget, releases: int = 1) -> SumMechanism:
        mechanism = RandomisedReports(shape, budget.epsilon, releases)
        mechanism.event = ApproximateDP(epsilon=budget.epsilon, theorem=mechanism.theorem)
        return mechanism


class Shuffled(SumTrust):
    """Every device randomises its own report, less than locally, and a trusted shuffler removes the
    order of the reports."""

    kind: Literal["shuffled"] = "shuffled"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Randomised reports in a random order."""
    least_devices: Annotated[int, Field(ge=2, lt=MOST_COUNT)]
    """Least number of devices that come to a window."""

    def mechanism(self, shape: Shape, budget: Budget, releases: int = 1) -> SumMechanism:
        if budget.delta == 0:
            raise PairRefused(
                "shuffled reports at delta=0 have no theorem: shuffling amplifies only at "
                "delta > 0; raise delta, or take the trust model local"
            )
        # Devices are divided into groups for several releases, and each group is a shuffle.
        group = self.least_devices // releases
        local = largest_local_epsilon(budget.epsilon, budget.delta, max(group, 1))
        mechanism = RandomisedReports(shape, local, releases)
        mechanism.name += f", of {group:,} reports shuffled"
        mechanism.theorem = "Feldman, McMillan, Talwar 2023, Theorem 3.1, numerically"
        mechanism.event = ApproximateDP(
            epsilon=budget.epsilon, delta=budget.delta, theorem=mechanism.theorem
        )
        mechanism.least_devices = max(self.least_devices, releases)
        return mechanism


class RandomisedReports(SumMechanism):
    """Reports of local randomisers. For several releases devices are divided into equal groups, of
    which each reports once, with all of epsilon."""

    def __init__(self, shape: Shape, epsilon: float, releases: int) -> None:
        self.shape, self.groups, self.least_devices = shape, releases, releases
        self.categories = shape.size * (2 if shape.is_signed else 1)
        grown = math.exp(epsilon)
        # As functions of e^epsilon: p of the true category, q of the others.
        response = grown / (grown + self.categories), 1.0 / (grown + self.categories)
        unary = 0.5, 1.0 / (grown + 1.0)
        self.p, self.q = min((response, unary), key=_variance_at_none)
        self.is_unary = (self.p, self.q) == unary
        if self.is_unary:
            self.name = f"optimised unary encoding of {self.categories:,} bits"
            self.theorem = "Wang, Blocki, Li, Jha 2017, section 4.3"
        else:
            self.name = f"{self.categories + 1:,}-ary randomised response"
            self.theorem = "Kairouz, Bonawitz, Ramage 2016, section 3"
        self.name += f" at local epsilon {epsilon:.4g}"

    def variance(self, devices: int) -> float:
        signs = 2.0 if self.shape.is_signed else 1.0
        one = devices * self.shape.most_l1**2 * _variance_at_none((self.p, self.q))
        # Reports of other groups are unknown, so a group's sum is scaled up.
        return signs * self.groups * one

    def release(self, vectors: Vectors, rng: np.random.Generator) -> "Reports":
        counts = np.bincount(self.drawn(vectors, rng), minlength=self.categories + 1)
        if self.is_unary:
            total = counts.sum()
            seen = rng.binomial(counts, self.p) + rng.binomial(total - counts, self.q)
        else:
            # Randomised response keeps the category, or sends a uniform one of all K + 1.
            kept = rng.binomial(counts, self.p - self.q)
            uniform = np.full(counts.size, 1.0 / counts.size)
            seen = kept + rng.multinomial(vectors.devices - kept.sum(), uniform)
        return Reports(self, seen[: self.categories], vectors.devices)

    def drawn(self, vectors: Vectors, rng: np.random.Generator) -> Int64Array:
        """Returns the category that each device draws, [devices]."""
        ends = np.cumsum(np.abs(vectors.steps))
        first = np.searchsorted(vectors.owners, vectors.owners)
        base = np.concatenate([[0], ends])[first]
        place = rng.integers(self.shape.most_l1, size=vectors.devices)[vectors.owners] + base
        is_drawn = (place < ends) & (place >= ends - np.abs(vectors.steps))
        drawn = np.full(vectors.devices, self.categories)
        signs = np.where(vectors.steps < 0, self.shape.size, 0)
        drawn[vectors.owners[is_drawn]] = (vectors.keys + signs)[is_drawn]
        return drawn

    def definition(self) -> Float64Array:
        """Returns the probability of each output given each category, [K + 1, outputs]; the outputs
        are categories, or all settings of the bits. Slow; for tests."""
        size = self.categories
        assert size <= MOST_DEFINED, "too many outputs to list"
        if not self.is_unary:
            return self.q + (self.p - self.q) * np.eye(size + 1)
        bits = np.arange(1 << size)[:, None] >> np.arange(size) & 1
        ones = self.q + (self.p - self.q) * np.eye(size + 1, size)
        return np.prod(np.where(bits[None], ones[:, None], 1.0 - ones[:, None]), axis=2)


class Reports(NoisySums):
    """Numbers of reports of each category, and the sums that they estimate.

    Reports are independent, so a number of reports is at least as concentrated as a binomial of the
    same mean (Hoeffding 1956, Theorems 4 and 5): its variance is at most the binomial's, here at
    the observed share, and Clopper and Pearson's interval covers at least as often as stated. The
    same holds if the devices are a uniform sample of all, as one of several groups.
    """

    claim = "estimate"

    def __init__(self, mechanism: RandomisedReports, seen: Int64Array, devices: int) -> None:
        self._mechanism, self._seen, self._devices = mechanism, seen, devices
        share = seen / max(devices, 1)
        scale = mechanism.shape.most_l1 * devices / (mechanism.p - mechanism.q)
        spread = share * (1.0 - share)
        if mechanism.shape.is_signed:
            plus, minus = np.split(share, 2)
            # Covariance of two bits of a report, or of two of its categories.
            if mechanism.is_unary:
                crossed = (plus - mechanism.q) * (minus - mechanism.q)
            else:
                crossed = plus * minus
            spread = sum(np.split(spread, 2)) + 2.0 * np.maximum(crossed, 0.0)
        self.variances = scale**2 * spread / max(devices, 1)
        self.estimates = self._sums(share, share)

    def interval(self, failure: float) -> tuple[Float64Array, Float64Array]:
        from scipy.stats import beta

        # Both signs may fail.
        tail = failure / (4.0 if self._mechanism.shape.is_signed else 2.0)
        seen, unseen = self._seen, self._devices - self._seen
        with np.errstate(invalid="ignore"):
            low = np.where(seen == 0, 0.0, beta.ppf(tail, seen, unseen + 1))
            high = np.where(unseen == 0, 1.0, beta.isf(tail, seen + 1, unseen))
        return self._sums(low, high), self._sums(high, low)

    def _sums(self, share: Float64Array, opposite: Float64Array) -> Float64Array:
        """Returns sums from shares of reports; `opposite` has the shares to subtract, of negative
        values."""
        mechanism = self._mechanism
        scale = mechanism.shape.most_l1 * self._devices / (mechanism.p - mechanism.q)
        if not mechanism.shape.is_signed:
            return (share - mechanism.q) * scale
        size = mechanism.shape.size
        return (share[:size] - opposite[size:]) * scale


def _variance_at_none(probabilities: tuple[float, float]) -> float:
    p, q = probabilities
    return q * (1.0 - q) / (p - q) ** 2
