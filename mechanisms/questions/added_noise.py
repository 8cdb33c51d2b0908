"""Noise on exact sums: by a trusted server (`server`) or its attested enclave (`enclave`), or in
shares by the devices under secure aggregation (`devices`).

Discrete Laplace noise z has P(z) proportional to e^(-|z| epsilon / s) with s the largest L1 norm,
and is epsilon-DP (Ghosh, Roughgarden, Sundararajan 2012). Discrete Gaussian noise, with the largest
L2 norm, is zCDP (Canonne, Kamath, Steinke 2020, Theorem 4), also as a sum of shares (Kairouz, Liu,
Steinke 2021, Proposition 14); it needs delta > 0.
"""

import math
from abc import abstractmethod
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from fedray.base.arrays import Float64Array
from fedray.base.errors import InputError
from ..accounting.calibration import least_noise_multiplier
from ..accounting.events import (
    MOST_COUNT,
    ApproximateDP,
    DiscreteGaussianSum,
    Event,
    Repeated,
)
from ..accounting.zcdp import zcdp_epsilon
from .trust import (
    Budget,
    NoisySums,
    PairRefused,
    Shape,
    SumMechanism,
    Trust,
    Vectors,
)

if TYPE_CHECKING:
    from fedray.base.discrete_noise import NoiseScale

SHARE_VARIANCE = 3.0
"""Least variance of a device's share, in squared finer steps; tau is then below 1e-11 for up to
10^12 devices, so that shares cost nothing."""


class OneNoise(Trust):
    """One party adds noise to the sums: discrete Laplace or discrete Gaussian, whichever has the
    smaller variance."""

    def mechanism(self, shape: Shape, budget: Budget, releases: int = 1) -> SumMechanism:
        laplace = DiscreteLaplace(shape, budget, releases)
        if budget.delta == 0:
            return laplace
        gaussian = DiscreteGaussian(shape, budget, releases)
        if laplace.variance(1) <= gaussian.variance(1):
            return laplace
        gaussian.check_deviation(devices=1)
        return gaussian


class Server(OneNoise):
    """A server that is trusted with every contribution adds the noise."""

    kind: Literal["server"] = "server"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Noise by a trusted server."""


class Enclave(OneNoise):
    """An attested enclave of the server adds the noise, and its operator sees the answer only."""

    kind: Literal["enclave"] = "enclave"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Noise by an attested enclave of the server."""


class Devices(Trust):
    """Every device adds a share of discrete Gaussian noise under secure aggregation, so the server
    sees only the noisy sum."""

    kind: Literal["devices"] = "devices"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Noise in shares by the devices, under secure aggregation."""
    least_devices: Annotated[int, Field(ge=2, lt=MOST_COUNT)]
    """Least number of devices whose shares are in a sum."""

    def mechanism(self, shape: Shape, budget: Budget, releases: int = 1) -> SumMechanism:
        if budget.delta == 0:
            raise PairRefused(
                "noise of devices at delta=0 has no theorem: discrete Gaussian noise needs "
                "delta > 0; raise delta, or take the trust model server"
            )
        gaussian = DiscreteGaussian(shape, budget, releases, self.least_devices)
        gaussian.check_deviation(self.least_devices)
        return gaussian


class AddedNoise(SumMechanism):
    """Sums plus independent noise of a known distribution."""

    @abstractmethod
    def noise(self, size: int, devices: int, rng: np.random.Generator) -> Float64Array:
        """Returns noise for `size` sums over a number of devices, in steps."""

    @abstractmethod
    def width(self, devices: int, failure: float) -> float:
        """Returns a t with P(|noise| > t) <= failure, in steps."""

    @abstractmethod
    def tail(self, least: int) -> float:
        """Returns P(noise >= least) of a server's noise, exactly, for least >= 1."""

    def release(self, vectors: Vectors, rng: np.random.Generator) -> NoisySums:
        estimates = vectors.totals() + self.noise(vectors.size, vectors.devices, rng)

        def interval(failure: float) -> tuple[Float64Array, Float64Array]:
            width = self.width(vectors.devices, failure)
            return estimates - width, estimates + width

        variances = np.full(vectors.size, self.variance(vectors.devices))
        return NoisySums(estimates, variances, "exact", interval)


class DiscreteLaplace(AddedNoise):
    """Discrete Laplace noise; an equal part of epsilon for each release."""

    def __init__(self, shape: Shape, budget: Budget, releases: int = 1) -> None:
        epsilon = budget.epsilon / releases
        self.ratio = math.exp(-epsilon / shape.most_l1)
        self.name = f"discrete Laplace noise of scale {shape.most_l1 / epsilon:.4g}"
        self.theorem = "Ghosh, Roughgarden, Sundararajan 2012"
        self.event = _repeated(ApproximateDP(epsilon=epsilon, theorem=self.theorem), releases)

    def variance(self, devices: int) -> float:
        del devices
        return 2.0 * self.ratio / (1.0 - self.ratio) ** 2

    def noise(self, size: int, devices: int, rng: np.random.Generator) -> Float64Array:
        plus, minus = rng.geometric(1.0 - self.ratio, (2, size))
        return (plus - minus).astype(np.float64)

    def width(self, devices: int, failure: float) -> float:
        # P(|z| > t) = 2 a^(t + 1) / (1 + a), with a the ratio.
        exact = math.log(failure * (1.0 + self.ratio) / 2.0) / math.log(self.ratio)
        return max(0, math.ceil(exact - 1.0))

    def tail(self, least: int) -> float:
        return self.ratio**least / (1.0 + self.ratio)


class DiscreteGaussian(AddedNoise):
    """Discrete Gaussian noise of a server, or in shares of at least `devices` devices.

    Vectors are multiplied by `fineness`, so that a share has enough variance. The sum of shares is
    simulated by one discrete Gaussian; their probabilities differ by a factor of at most e^tau.
    """

    def __init__(
        self, shape: Shape, budget: Budget, releases: int = 1, devices: int | None = None
    ) -> None:
        self.least_devices, self._is_shared = devices or 1, devices is not None
        self._releases = releases

        def event(z: float) -> DiscreteGaussianSum:
            # More devices only add values and noise of their own, which is post-processing.
            # Finer steps raise the norm and the noise alike, so rho stays; only tau, the price of
            # adding shares instead of one discrete Gaussian, falls.
            norm_finer = fineness(z) * shape.most_l2
            return DiscreteGaussianSum(
                sensitivity=norm_finer,
                device_variance=(z * norm_finer) ** 2 / self.least_devices,
                devices=self.least_devices,
                dimension=shape.size,
            )

        def fineness(z: float) -> int:
            share = z * shape.most_l2 / math.sqrt(self.least_devices)
            return math.ceil(math.sqrt(SHARE_VARIANCE) / share) if self._is_shared else 1

        z = least_noise_multiplier(
            lambda z: zcdp_epsilon(_repeated(event(z), releases), budget.delta), budget.epsilon
        )
        self.fineness, self.device_variance = fineness(z), event(z).device_variance
        drawn = self._finer_variance(self.least_devices) / self.least_devices
        self._release = event(z).model_copy(update={"device_variance": drawn})
        self.event = self.event_of(self.least_devices)
        self.name = f"discrete Gaussian noise of deviation {z * shape.most_l2:.4g}"
        self.theorem = "Canonne, Kamath, Steinke 2020, Theorem 4"
        if devices is not None:
            self.name += f" in {devices:,} shares"
            self.theorem = "Kairouz, Liu, Steinke 2021, Proposition 14"

    def event_of(self, honest: int) -> Event:
        shares = {"devices": honest} if self._is_shared else {}
        return _repeated(self._release.model_copy(update=shares), self._releases)

    def variance(self, devices: int) -> float:
        return self._finer_variance(devices) / self.fineness**2

    def noise(self, size: int, devices: int, rng: np.random.Generator) -> Float64Array:
        # Imported here, because it compiles the sampler.
        from fedray.base.discrete_noise import add_noise
        from fedray.base.rng import Key

        self.check_deviation(devices)
        noise = np.zeros(size, np.int64)
        key = Key(*rng.integers(1 << 32, size=2, dtype=np.uint64))
        add_noise(noise, key, 0, 0, *self._scale(devices))
        return noise / self.fineness

    def check_deviation(self, devices: int) -> None:
        """Raises InputError if no sampler is exact for noise this large."""
        from fedray.base.discrete_noise import MOST_DEVIATION

        deviation = math.sqrt(self._finer_variance(devices))
        if deviation > MOST_DEVIATION:
            remedy = "epsilon or delta"
            if self._is_shared:
                remedy = f"least_devices, {remedy}"
            raise InputError(
                f"the noise deviates by {deviation:.3g} steps if {devices:,} devices come, more "
                f"than {MOST_DEVIATION:,}; raise {remedy}"
            )

    def width(self, devices: int, failure: float) -> float:
        # For whole t, P(|z| > t) <= 2 (1 - Phi(t / sigma)): the sum over a tail is below an
        # integral, and the normaliser is above sigma sqrt(2 pi) (Poisson summation).
        from scipy.special import ndtri

        deviation = math.sqrt(self._finer_variance(devices))
        return math.ceil(deviation * -float(ndtri(failure / 2.0))) / self.fineness

    def tail(self, least: int) -> float:
        variance = self._finer_variance(devices=1)
        reach = math.ceil(40.0 * math.sqrt(variance)) + 2
        beyond, inside = (
            np.exp(-(np.arange(start, stop) ** 2) / (2.0 * variance)).sum()
            for start, stop in ((least, least + reach), (-reach, reach))
        )
        return float(beyond / inside)

    def _finer_variance(self, devices: int) -> float:
        return float(self._scale(devices).variance)

    def _scale(self, devices: int) -> "NoiseScale":
        """Returns the noise that is drawn, whose variance is rounded up once."""
        from fedray.base.discrete_noise import NoiseScale

        shares = devices if self._is_shared else 1
        return NoiseScale.at_least(Fraction(self.device_variance) * shares)


def _repeated(event: Event, count: int) -> Event:
    return Repeated(event=event, count=count) if count > 1 else event  # pyright: ignore[reportArgumentType]
