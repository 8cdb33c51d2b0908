"""Gaussian DP (Dong, Roth, Su 2022): the number mu that describes a Gaussian mechanism completely,
and its (epsilon, delta).

The curve has a closed form: delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 -
epsilon/mu) (Balle and Wang 2018, Theorem 8; Dong, Roth, Su 2022, Corollary 2.13). Its terms
overflow or cancel if epsilon is large or mu small, so it is computed as phi(a) (M(a) - M(a + mu)),
with a = epsilon/mu - mu/2, phi the normal density and M = (1 - Phi) / phi the Mills ratio, since
e^epsilon is phi(a) / phi(a + mu).
"""

import math
from functools import lru_cache

import numpy as np

from fedray.base.arrays import Float64Array
from fedray.base.errors import InputError
from .events import (
    ApproximateDP,
    Composed,
    DiscreteGaussianSum,
    Event,
    EventRefused,
    GaussianEvent,
    PoissonSampled,
    PostProcessed,
    Repeated,
    StrategyRelease,
)
from .limits import check_delta

SLACK = 1e-12
"""Allowance for rounding in log delta, whose error is below 1e-13: epsilon is computed for a delta
smaller by this share."""

_LOWEST, _HIGHEST = -9.0, 12.0
"""Range of a: below it delta rounds to 1, above it delta is below 1e-30."""
_LOG_ROOT_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_FRACTION_FROM, _FRACTION_TERMS = 3.0, 100
_NODES, _WEIGHTS = (each.tolist() for each in np.polynomial.legendre.leggauss(16))


def mu_of(event: Event) -> float:
    """Returns mu of an event, which is as hard to tell from its neighbour as N(0, 1) is from N(mu,
    1).

    For one release with Gaussian noise this is exact: sensitivity / standard deviation. For several
    it is the root of the sum of squares (Dong, Roth, Su 2022, Corollary 3.3): an upper bound, which
    is exact if one device attains all sensitivities.

    Raises:
        EventRefused: the event is not a Gaussian mechanism.
    """
    match event:
        case GaussianEvent():
            return event.mu
        case PostProcessed():
            return mu_of(event.event)
        case Repeated():
            # One device may attain the sensitivity in every repetition.
            return math.sqrt(event.count) * mu_of(event.event)
        case Composed():
            # Exact only if one device is the worst of all events; else no device spends this much.
            return math.hypot(*map(mu_of, event.events))
        case PoissonSampled(probability=1.0):
            return mu_of(event.event)
        case PoissonSampled():
            raise EventRefused(
                f"a Poisson-sampled event (probability={event.probability:g}) is not a Gaussian "
                "mechanism, so it has no mu; use the accountant pld"
            )
        case DiscreteGaussianSum():
            raise EventRefused(
                "no mu is proven for a sum of discrete Gaussians; use the accountant zcdp"
            )
        case ApproximateDP():
            raise EventRefused("a stated guarantee has no mu; use the accountant pld or zcdp")
        case _:
            raise EventRefused(
                f"event {event.kind!r} is unknown to the accountant gdp; describe the release by "
                "the events of mechanisms/accounting/events.py"
            )


def sampled_noise(event: PoissonSampled) -> float:
    """Returns the standard deviation, at sensitivity 1, of the noise on a Poisson sample's release.

    Several releases from one sample are one Gaussian release of a longer vector.

    Raises:
        EventRefused: the release is not Gaussian, or is the stream of a strategy, in which every
            round draws its own sample.
    """
    inner = event.event
    if isinstance(inner, StrategyRelease):
        raise EventRefused(
            f"the event draws one Poisson sample for all {inner.rounds:,} rounds of a "
            f"{inner.strategy.kind} strategy, but every round draws its own; make the event with "
            "`fedray.mechanisms.accounting.sampled.sampled_release`"
        )
    if isinstance(inner, GaussianEvent):
        return inner.noise_at_unit_sensitivity
    mu = mu_of(inner)
    return 1.0 / mu if mu else math.inf


def gdp_epsilon(event: Event, delta: float) -> float:
    """Returns the least epsilon of a Gaussian mechanism at `delta`, rounded up.

    Raises:
        EventRefused: raised by `mu_of`.
        InputError: delta is outside [1e-30, 1), or epsilon is not finite.
    """
    return gaussian_epsilon(mu_of(event), delta)


@lru_cache(maxsize=256)
def gaussian_epsilon(mu: float, delta: float) -> float:
    """Returns the least epsilon of one Gaussian release with standard deviation 1 / mu at
    sensitivity 1.

    It is never below the true epsilon at delta, and exceeds the true epsilon at (1 - 1e-12) delta
    by at most a relative 1e-15.

    Args:
        mu: sensitivity over standard deviation, from 0 to below 1e150; 0 gives 0.
        delta: at least 1e-30, below 1.

    Raises:
        InputError: an argument is outside its range.
    """
    check_delta(delta)
    if not 0 <= mu < 1e150:
        raise InputError.of(
            "mu",
            mu,
            "must be from 0 to below 1e150, where epsilon exceeds 1e299",
            "raise the noise multiplier",
        )
    target = math.log(delta) - SLACK
    # The search begins at a = -mu / 2, where epsilon is 0.
    low, high = max(-mu / 2, _LOWEST), _HIGHEST
    if mu == 0 or log_delta(mu, low) <= target:
        return 0.0
    # Bisection ends when no float is between the bounds.
    while low < (middle := 0.5 * (low + high)) < high:
        if log_delta(mu, middle) > target:
            low = middle
        else:
            high = middle
    # The upper end, raised for rounding, so that epsilon is never too small.
    return mu * (high + mu / 2) * (1.0 + 1e-15)


def gaussian_deltas(mu: float, epsilons: Float64Array) -> Float64Array:
    """Returns upper bounds on delta of a Gaussian release at any epsilons, which exceed delta by
    the rounding errors of its two terms at most: 1e-11 of them unless mu or epsilon is above
    100."""
    from scipy.special import log_ndtr, ndtr

    if mu == 0:
        return -np.expm1(np.minimum(epsilons, 0.0))
    if mu > 1e6:  # rounding would say anything
        return np.ones(epsilons.size)
    shifts = epsilons / mu
    terms = ndtr(mu / 2 - shifts), np.exp(epsilons + log_ndtr(-mu / 2 - shifts))
    # Phi below -40 is 0, so arguments that matter are below mu + 40, and the slope of log Phi is
    # below 41.
    rounding = 1e-15 * (2e3 + 40 * mu + 10 * np.abs(epsilons))
    return np.minimum(terms[0] - terms[1] + rounding * (terms[0] + terms[1]), 1.0)


def log_delta(mu: float, a: float) -> float:
    """Returns log delta(epsilon) at epsilon = mu (a + mu/2) >= 0, for a >= -9, accurate to 1e-13
    down to delta = 1e-30. It decreases in a."""
    if mu > 1.0:
        difference = _mills(a)[0] - _mills(a + mu)[0]
    else:
        # The difference would cancel, so the derivative -M' = 1 - t M is integrated.
        half = 0.5 * mu
        difference = half * sum(
            w * _mills(a + half * (1.0 + x))[1] for x, w in zip(_NODES, _WEIGHTS, strict=True)
        )
    return -0.5 * a * a - _LOG_ROOT_TWO_PI + math.log(difference)


def _mills(t: float) -> tuple[float, float]:
    """Returns (M(t), 1 - t M(t)), both with small relative error."""
    if t < _FRACTION_FROM:
        ratio = 0.5 * math.erfc(t / math.sqrt(2.0)) * math.exp(0.5 * t * t + _LOG_ROOT_TWO_PI)
        return ratio, 1.0 - t * ratio
    # Laplace's continued fraction, because 1 - t M would cancel.
    tail = 0.0
    for term in range(_FRACTION_TERMS, 0, -1):
        tail = term / (t + tail)
    return 1.0 / (t + tail), tail / (t + tail)
