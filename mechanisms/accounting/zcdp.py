"""Zero-concentrated DP (Bun and Steinke 2016): rho of an event, and the epsilon that rho implies.

For Gaussian noise this epsilon is larger than that of `gdp.py`, which uses the whole curve. For
discrete Gaussian noise it is the only one proven.
"""

import math

import numpy as np

from fedray.base.arrays import Float64Array, Int64Array
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
)
from .limits import check_delta

ORDERS = np.exp(np.linspace(-12.0, 30.0, 4201))
"""Values of alpha - 1 to try. Every order gives an upper bound; neighbours differ by 1 %, and the
bound is flat near its minimum."""
ROUNDING = 1e-12
"""Largest relative rounding error of the sums here."""
SUMS_ROUNDING = 2e-13
"""Largest relative rounding error of rho of discrete noise: an exponent of tau is at most 745, and
its rounding error of 2^-53 becomes a relative error of tau."""


def rho_of(event: Event) -> float:
    """Returns rho of an event.

    For Gaussian noise, and compositions of it, this is exact: mu^2 / 2 (Bun and Steinke 2016,
    Proposition 1.6). For sums of discrete Gaussians it is the upper bound `rho_of_sums`. For a
    guarantee epsilon it is the upper bound epsilon^2 / 2 (Bun and Steinke 2016, Proposition 1.4).

    Raises:
        EventRefused: the event is sampled, for which no zCDP is proven, has a delta of its own, or
            is unknown.
    """
    if failure_of(event) > 0:
        raise EventRefused(
            "the event has a delta of its own, so it has no rho; use the accountant pld or zcdp"
        )
    return _rho_besides_failure(event)


def rho_of_sums(
    noise: DiscreteGaussianSum,
    sensitivity: float | Float64Array,
    rounds: int | Int64Array,
) -> float | Float64Array:
    """Returns an upper bound on rho of sums with discrete Gaussian noise of several devices.

    It is the smaller one of (s / sigma + tau sqrt(d N))^2 / 2 and s^2 / (2 sigma^2) + tau d N, with
    sigma the standard deviation of a sum's noise (Kairouz, Liu, Steinke 2021, Proposition 14;
    proven for adaptive vectors in mechanisms/README.md).

    Args:
        noise: noise of each sum; its own sensitivity and rounds do not matter.
        sensitivity: s, one or for each device [P].
        rounds: N, number of sums that a device changes, one or for each device [P].
    """
    apart = sensitivity / math.sqrt(noise.devices * noise.device_variance)
    numbers = noise.dimension * np.asarray(rounds, np.float64)
    adaptive = (apart + noise.tau * np.sqrt(numbers)) ** 2 / 2
    found = np.minimum(adaptive, apart**2 / 2 + noise.tau * numbers)
    return found * (1.0 + SUMS_ROUNDING)


def failure_of(event: Event) -> float:
    """Returns the sum of the deltas that the parts of an event have of their own: with this
    probability at most, rho does not hold (Bun and Steinke 2016, Lemmas 8.2 and 8.8)."""
    match event:
        case ApproximateDP():
            return event.delta
        case PostProcessed() | PoissonSampled():
            return failure_of(event.event)
        case Repeated():
            return event.count * failure_of(event.event)
        case Composed():
            return math.fsum(failure_of(each) for each in event.events)
        case _:
            return 0.0


def _rho_besides_failure(event: Event) -> float:
    match event:
        case GaussianEvent():
            return event.mu**2 / 2
        case DiscreteGaussianSum():
            return float(rho_of_sums(event, event.sensitivity, event.rounds))
        case ApproximateDP():
            return event.epsilon**2 / 2
        case PostProcessed():
            return _rho_besides_failure(event.event)
        case Repeated():
            return event.count * _rho_besides_failure(event.event)
        case Composed():
            return math.fsum(_rho_besides_failure(each) for each in event.events)
        case PoissonSampled(probability=1.0):
            return _rho_besides_failure(event.event)
        case PoissonSampled():
            raise EventRefused(
                f"no zCDP is proven for a Poisson-sampled event (probability="
                f"{event.probability:g}); use the accountant pld or renyi"
            )
        case _:
            raise EventRefused(
                f"event {event.kind!r} is unknown to the accountant zcdp; describe the release "
                "by the events of mechanisms/accounting/events.py"
            )


def zcdp_epsilon(event: Event, delta: float) -> float:
    """Returns the upper bound on epsilon at `delta` that rho implies, rounded up.

    rho alpha + (log(1 / delta) - log(alpha - 1)) / (alpha - 1) + alpha log(1 - 1 / alpha) / (alpha
    - 1), at the best order alpha (Canonne, Kamath, Steinke 2020, Corollary 13). Deltas of the
    event's own parts are subtracted from `delta` first.

    Raises:
        EventRefused: the event is sampled or unknown, or its parts use up delta.
        InputError: delta is outside [1e-30, 1).
    """
    rho, failure = _rho_besides_failure(event), failure_of(event)
    check_delta(delta)
    if failure > delta or (failure == delta and rho > 0):
        raise EventRefused(
            f"delta={delta:g} is used up by the deltas of the event's parts, {failure:g} in total; "
            "use the accountant pld, or a larger delta"
        )
    delta -= failure
    if rho == 0.0:
        return 0.0
    # Tighter than rho + 2 sqrt(rho log(1 / delta)) of Bun and Steinke 2016, Proposition 1.3, the
    # conversion of older papers.
    # ORDERS are alpha - 1, so that orders near 1 are accurate.
    given_up = -math.log(delta) - np.log(ORDERS) + (ORDERS + 1.0) * -np.log1p(1.0 / ORDERS)
    bounds = rho * (ORDERS + 1.0) + given_up / ORDERS
    return max(0.0, float(bounds.min())) * (1.0 + ROUNDING)
