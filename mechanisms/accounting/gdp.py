"""Gaussian DP (Dong, Roth, Su 2022): the one number mu that says all about a Gaussian mechanism,
and its (epsilon, delta).

The curve is closed: delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)
(Balle and Wang 2018, Theorem 8; Dong, Roth, Su 2022, Corollary 2.13). Both terms overflow or cancel
where epsilon is large or mu small, so it is computed as phi(a) (M(a) - M(a + mu)), with a =
epsilon/mu - mu/2, phi the normal density and M = (1 - Phi) / phi the Mills ratio: e^epsilon is
phi(a) / phi(a + mu).
"""

import math
from functools import lru_cache

import numpy as np

from fedray.base.errors import InputError
from fedray.mechanisms.accounting.events import (
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
from fedray.mechanisms.accounting.limits import check_delta

SLACK = 1e-12
"""By how much log delta may be off: rounding is below 1e-13. The epsilon returned is that of a
delta smaller by as much."""

_LOWEST, _HIGHEST = -9.0, 12.0
"""Values of a beyond which delta is 1 in floating point, and below 1e-30."""
_LOG_ROOT_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_FRACTION_FROM, _FRACTION_TERMS = 3.0, 100
_NODES, _WEIGHTS = (each.tolist() for each in np.polynomial.legendre.leggauss(16))


def mu_of(event: Event) -> float:
    """Returns mu of an event, which is as hard to distinguish from its neighbour as N(0, 1) from
    N(mu, 1).

    Exact for one release with Gaussian noise, sensitivity / standard deviation. For several it is
    the root of the sum of squares (Dong, Roth, Su 2022, Corollary 3.3): an upper bound, exact if
    one device attains all their sensitivities.

    Raises:
        EventRefused: the event is not a Gaussian mechanism.
    """
    match event:
        case GaussianEvent():
            return event.mu
        case PostProcessed():
            return mu_of(event.event)
        case Repeated():
            return math.sqrt(event.count) * mu_of(event.event)
        case Composed():
            return math.hypot(*map(mu_of, event.events))
        case PoissonSampled(probability=1.0):
            return mu_of(event.event)
        case PoissonSampled():
            raise EventRefused(
                f"a Poisson-sampled event (probability={event.probability:g}) is no Gaussian "
                "mechanism, so it has no mu; take the accountant pld"
            )
        case DiscreteGaussianSum():
            raise EventRefused(
                "a sum of discrete Gaussians has no mu that is proven; take the accountant zcdp"
            )
        case _:
            raise EventRefused(
                f"event {event.kind!r} is not known to the accountant gdp; describe the release by "
                "the events of mechanisms/accounting/events.py"
            )


def sampled_noise(event: PoissonSampled) -> float:
    """Returns the noise's standard deviation, at sensitivity 1, of a release of a Poisson sample.

    Several releases of one sample are one Gaussian release of a longer vector.

    Raises:
        EventRefused: the release is not Gaussian, or is the stream of a strategy, whose rounds draw
            one sample each.
    """
    inner = event.event
    if isinstance(inner, StrategyRelease):
        raise EventRefused(
            f"a Poisson sample of the {inner.strategy.kind} strategy's {inner.rounds:,} rounds "
            "together: every round draws its own sample; describe it by "
            "`fedray.mechanisms.accounting.sampled.cyclically_sampled`"
        )
    if isinstance(inner, GaussianEvent):
        return inner.noise_at_unit_sensitivity
    mu = mu_of(inner)
    return 1.0 / mu if mu else math.inf


def gdp_epsilon(event: Event, delta: float) -> float:
    """Returns the least epsilon of a Gaussian mechanism at `delta`, rounded up.

    Raises:
        EventRefused: as `mu_of`.
        InputError: delta is impossible, or epsilon is beyond the floats.
    """
    return gaussian_epsilon(mu_of(event), delta)


@lru_cache(maxsize=256)
def gaussian_epsilon(mu: float, delta: float) -> float:
    """Returns the least epsilon of one Gaussian of standard deviation 1 / mu at sensitivity 1,
    rounded up.

    Never below the true one, and above it by at most the effect of a delta smaller by the factor 1
    - 1e-12, and a relative 1e-15. Accepts every mu whose epsilon is a float.

    Args:
        mu: sensitivity over standard deviation; 0 gives 0.
        delta: from 1e-30 to below 1.

    Raises:
        InputError: an argument is outside these ranges.
    """
    check_delta(delta)
    if not 0 <= mu < 1e150:
        raise InputError.of(
            "mu",
            mu,
            "must be from 0 to below 1e150, beyond which epsilon would be above 1e299 and no "
            "guarantee at all",
            "raise the noise multiplier",
        )
    target = math.log(delta) - SLACK
    # At a = -mu / 2 epsilon is 0, which is where the search begins.
    low, high = max(-mu / 2, _LOWEST), _HIGHEST
    if mu == 0 or log_delta(mu, low) <= target:
        return 0.0
    while low < (middle := 0.5 * (low + high)) < high:  # until no float is between them
        if log_delta(mu, middle) > target:
            low = middle
        else:
            high = middle
    # The upper end and a slack for rounding keep epsilon from being too small.
    return mu * (high + mu / 2) * (1.0 + 1e-15)


def log_delta(mu: float, a: float) -> float:
    """log delta(epsilon) at epsilon = mu (a + mu/2) >= 0, for a >= -9; within 1e-13 down to delta =
    1e-30. Decreases in a."""
    if mu > 1.0:
        difference = _mills(a)[0] - _mills(a + mu)[0]
    else:  # the difference would cancel, so the derivative -M' = 1 - t M is integrated
        half = 0.5 * mu
        difference = half * sum(
            w * _mills(a + half * (1.0 + x))[1] for x, w in zip(_NODES, _WEIGHTS, strict=True)
        )
    return -0.5 * a * a - _LOG_ROOT_TWO_PI + math.log(difference)


def _mills(t: float) -> tuple[float, float]:
    """(M(t), 1 - t M(t)), relatively accurate. From 3 on by Laplace's continued fraction, where 1 -
    t M would cancel."""
    if t < _FRACTION_FROM:
        ratio = 0.5 * math.erfc(t / math.sqrt(2.0)) * math.exp(0.5 * t * t + _LOG_ROOT_TWO_PI)
        return ratio, 1.0 - t * ratio
    tail = 0.0
    for term in range(_FRACTION_TERMS, 0, -1):
        tail = term / (t + tail)
    return 1.0 / (t + tail), tail / (t + tail)
