"""Zero-concentrated DP (Bun and Steinke 2016): rho of an event, and the epsilon that rho implies.

For Gaussian noise this epsilon is larger than that of `gdp.py`, which uses the whole curve. For
discrete Gaussian noise it is the only one proven.
"""

import math

import numpy as np

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


def rho_of(event: Event) -> float:
    """Returns rho of an event.

    For Gaussian noise, and compositions of it, this is exact: mu^2 / 2 (Bun and Steinke 2016,
    Proposition 1.6). For a sum of discrete Gaussians it is an upper bound, (s / sigma +
    tau sqrt(d))^2 / 2, with s the sensitivity and sigma the deviation of the sum's noise (Kairouz,
    Liu, Steinke 2021, Proposition 14). For a guarantee epsilon it is the upper bound epsilon^2 / 2
    (Bun and Steinke 2016, Proposition 1.4).

    Raises:
        EventRefused: the event is sampled, for which no zCDP is proven, has a delta of its own, or
            is unknown.
    """
    if failure_of(event) > 0:
        raise EventRefused(
            "the event has a delta of its own, so it has no rho; use the accountant pld or zcdp"
        )
    return _rho_besides_failure(event)


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
            apart = 1.0 / event.noise_at_unit_sensitivity
            return (apart + event.tau * math.sqrt(event.dimension * event.rounds)) ** 2 / 2
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
