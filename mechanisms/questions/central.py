"""Noise on exact sums: by a trusted server (`central`), or in shares by the devices under secure
aggregation (`distributed`).

Discrete Laplace noise has P(z) proportional to e^(-|z| epsilon / s), s the largest L1 norm, and is
epsilon-DP (Ghosh, Roughgarden, Sundararajan 2012). Discrete Gaussian noise is 1/2 (s / sigma)^2-zCDP
with s the largest L2 norm (Canonne, Kamath, Steinke 2020, Theorem 4), in shares by Kairouz, Liu,
Steinke 2021, Proposition 14; it needs delta > 0.
"""

import math
from fractions import Fraction
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedray.base.arrays import Float64Array
from fedray.base.errors import InputError
from fedray.mechanisms.accounting.calibration import least_noise_multiplier
from fedray.mechanisms.accounting.events import (
    MOST_COUNT,
    ApproximateDP,
    DiscreteGaussianSum,
    Event,
    Repeated,
)
from fedray.mechanisms.accounting.zcdp import zcdp_epsilon
from fedray.mechanisms.questions.question import Budget, PairRefused
from fedray.mechanisms.questions.sums import (
    NoisySums,
    Shape,
    SumMechanism,
    SumTrust,
    Vectors,
    rounding_width,
)

SHARE_VARIANCE = 3.0
"""Least variance of a device's share, in squared finer steps: tau is then below 1e-11 for up to
10^12 devices, so that shares cost nothing."""
ROUNDING_SHARE = 0.1
"""Share of an interval's failure that is given to the rounding of values."""


class Central(SumTrust):
    """A server that is trusted with every contribution adds noise to the sums: discrete Laplace or
    discrete Gaussian, whichever has the smaller variance."""

    kind: Literal["central"] = "central"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Noise by a trusted server."""

    def mechanism(self, shape: Shape, budget: Budget, releases: int = 1) -> SumMechanism:
        laplace = DiscreteLaplace(shape, budget, releases)
        if budget.delta == 0:
            return laplace
        gaussian = DiscreteGaussian(shape, budget, releases, devices=1)
        return min((laplace, gaussian), key=lambda each: each.variance(1))


class Distributed(SumTrust):
    """Every device adds a share of discrete Gaussian noise under secure aggregation, so the server
    sees only the noisy sum."""

    kind: Literal["distributed"] = "distributed"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Noise in shares by the devices, under secure aggregation."""
    least_devices: Annotated[int, Field(ge=2, lt=MOST_COUNT)]
    """Least number of devices whose shares are in a sum."""

    def mechanism(self, shape: Shape, budget: Budget, releases: int = 1) -> SumMechanism:
        if budget.delta == 0:
            raise PairRefused(
                "distributed noise at delta=0 has no theorem: discrete Gaussian noise needs "
                "delta > 0; raise delta, or take the trust model central"
            )
        return DiscreteGaussian(shape, budget, releases, self.least_devices)


class DiscreteLaplace(SumMechanism):
    """Discrete Laplace noise; an equal part of epsilon for each release."""

    def __init__(self, shape: Shape, budget: Budget, releases: int) -> None:
        epsilon = budget.epsilon / releases
        self.shape, self.ratio = shape, math.exp(-epsilon / shape.most_l1)
        self.name = f"discrete Laplace noise of scale {shape.most_l1 / epsilon:.4g}"
        self.theorem = "Ghosh, Roughgarden, Sundararajan 2012; L1 sensitivity"
        one = ApproximateDP(epsilon=epsilon, theorem=self.theorem)
        self.event = Repeated(event=one, count=releases) if releases > 1 else one

    def variance(self, devices: int) -> float:
        del devices
        return 2.0 * self.ratio / (1.0 - self.ratio) ** 2

    def release(self, vectors: Vectors, rng: np.random.Generator) -> "AddedNoise":
        size, p = self.shape.size, 1.0 - self.ratio
        noise = rng.geometric(p, size) - rng.geometric(p, size)
        return AddedNoise(self, vectors, (vectors.totals(size) + noise).astype(np.float64))

    def width(self, devices: int, failure: float) -> float:
        """Returns the smallest t with P(|noise| > t) at most `failure`."""
        del devices
        # P(|z| > t) = 2 a^(t+1) / (1 + a), with a the ratio.
        exact = math.log(failure * (1.0 + self.ratio) / 2.0) / math.log(self.ratio) - 1.0
        return max(0.0, math.ceil(exact))

    def tail(self, least: int) -> float:
        """Returns P(noise >= least), for least >= 1."""
        return self.ratio**least / (1.0 + self.ratio)


class DiscreteGaussian(SumMechanism):
    """Discrete Gaussian noise, of one server or in shares of at least `devices` devices.

    Integer vectors are multiplied by `fineness`, so that a share has enough variance. The sum of
    shares is simulated by one discrete Gaussian, whose probabilities differ from those of the sum
    by a factor of at most e^tau.
    """

    def __init__(self, shape: Shape, budget: Budget, releases: int, devices: int) -> None:
        self.shape, self.least_devices = shape, devices
        self.theorem = (
            "Canonne, Kamath, Steinke 2020, Theorem 4"
            if devices == 1
            else "Kairouz, Liu, Steinke 2021, Proposition 14"
        )

        def event(z: float) -> Event:
            one = self._event(z)
            return Repeated(event=one, count=releases) if releases > 1 else one

        z = least_noise_multiplier(
            lambda z: zcdp_epsilon(event(z), budget.delta), budget.epsilon, math.sqrt(releases)
        )
        self.event, self.fineness = event(z), self._fineness(z)
        self.device_variance = self._event(z).device_variance
        self._check(math.sqrt(devices * self.device_variance))
        self.name = f"discrete Gaussian noise of deviation {z * shape.most_l2:.4g}" + (
            f", in {devices:,} shares" if devices > 1 else ""
        )

    def _fineness(self, z: float) -> int:
        """Returns the finer steps per step at a noise multiplier."""
        if self.least_devices == 1:
            return 1
        share = z * self.shape.most_l2 / math.sqrt(self.least_devices)
        return math.ceil(math.sqrt(SHARE_VARIANCE) / share)

    def _event(self, z: float) -> DiscreteGaussianSum:
        # More devices only add independent values and noise, which is post-processing.
        norm_finer = self._fineness(z) * self.shape.most_l2
        return DiscreteGaussianSum(
            sensitivity=norm_finer,
            device_variance=(z * norm_finer) ** 2 / self.least_devices,
            devices=self.least_devices,
            dimension=self.shape.size,
        )

    def _check(self, deviation: float) -> None:
        from fedray.base.discrete_noise import MOST_DEVIATION

        if deviation > MOST_DEVIATION:
            raise InputError(
                f"the noise deviates by {deviation:.3g} steps, more than {MOST_DEVIATION:,}; raise "
                "epsilon or delta, or state fewer devices"
            )

    def variance(self, devices: int) -> float:
        shares = 1 if self.least_devices == 1 else devices
        return shares * self.device_variance / self.fineness**2

    def release(self, vectors: Vectors, rng: np.random.Generator) -> "AddedNoise":
        variance = self.variance(vectors.devices) * self.fineness**2
        self._check(math.sqrt(variance))
        total = vectors.totals(self.shape.size) * self.fineness
        # Numba is loaded for answers only, so that scenarios with questions are read at once.
        from fedray.base.discrete_noise import NoiseScale, add_noise
        from fedray.base.rng import Key

        key = Key(*rng.integers(1 << 32, size=2, dtype=np.uint64))
        add_noise(total, key, 0, 0, *NoiseScale.at_least(Fraction(variance)))
        return AddedNoise(self, vectors, total / self.fineness)

    def width(self, devices: int, failure: float) -> float:
        """Returns a t with P(|noise| > t) at most `failure`.

        P(|z| > t) <= 2 (1 - Phi(t / sigma)) for whole t in finer steps: the sum over the tail is at
        most an integral, and the normaliser at least sigma sqrt(2 pi) (Poisson summation).
        """
        deviation = math.sqrt(self.variance(devices)) * self.fineness
        from scipy.stats import norm

        return math.ceil(deviation * norm.isf(failure / 2.0)) / self.fineness

    def tail(self, least: int) -> float:
        """Returns P(noise >= least) of one server's noise, for least >= 1."""
        deviation = math.sqrt(self.device_variance)
        beyond = np.arange(least, least + math.ceil(40 * deviation) + 2)
        inside = np.arange(-math.ceil(40 * deviation) - 1, math.ceil(40 * deviation) + 2)
        masses = [np.exp(-(each**2) / (2 * deviation**2)).sum() for each in (beyond, inside)]
        return float(masses[0] / masses[1])


class AddedNoise(NoisySums):
    """Sums with noise of a known distribution."""

    claim = "exact"

    def __init__(
        self,
        mechanism: DiscreteLaplace | DiscreteGaussian,
        vectors: Vectors,
        estimates: Float64Array,
    ) -> None:
        self.estimates, self._mechanism, self._devices = estimates, mechanism, vectors.devices
        variance = mechanism.variance(vectors.devices)
        if mechanism.shape.is_rounded:
            # A value rounded at random has a variance of at most 1/4.
            variance, self.claim = variance + vectors.devices / 4.0, "bound"
        self.variances = np.full(estimates.size, variance)

    def interval(self, failure: float) -> tuple[Float64Array, Float64Array]:
        extra = 0.0
        if self._mechanism.shape.is_rounded:
            extra = rounding_width(self._devices, ROUNDING_SHARE * failure)
            failure *= 1.0 - ROUNDING_SHARE
        width = self._mechanism.width(self._devices, failure) + extra
        return self.estimates - width, self.estimates + width
