"""Zero-concentrated DP (Bun and Steinke 2016): rho of an event, and the epsilon that rho implies.

For Gaussian noise this epsilon is larger than that of `gdp.py`, which uses the whole curve. For
discrete Gaussian noise it is the only one proven.
"""

import math

import numpy as np

from fedray.mechanisms.accounting.events import (
    Composed,
    DiscreteGaussianSum,
    Event,
    EventRefused,
    GaussianEvent,
    PoissonSampled,
    PostProcessed,
    Repeated,
)
from fedray.mechanisms.accounting.limits import check_delta

ORDERS = np.exp(np.linspace(-12.0, 30.0, 4201))
"""Values of alpha - 1 to try. Every order gives an upper bound; neighbours differ by 1 %, and the
bound is flat near its minimum."""
ROUNDING = 1e-12
"""Largest relative rounding error of the sums here."""


def rho_of(event: Event) -> float:
    """Returns rho of an event.

    For Gaussian noise, and compositions of it, this is exact: mu^2 / 2 (Bun and Steinke 2016,
    Proposition 1.6). For a sum of discrete Gaussians it is an upper bound, (1 /
    sqrt(variance_ratio) + tau sqrt(d))^2 / 2 (Kairouz, Liu, Steinke 2021, Proposition 14).

    Raises:
        EventRefused: the event is sampled, for which no zCDP is proven, or unknown.
    """
    match event:
        case GaussianEvent():
            return event.mu**2 / 2
        case DiscreteGaussianSum():
            apart = 1.0 / event.noise_at_unit_sensitivity
            return (apart + event.tau * math.sqrt(event.dimension)) ** 2 / 2
        case PostProcessed():
            return rho_of(event.event)
        case Repeated():
            return event.count * rho_of(event.event)
        case Composed():
            return math.fsum(rho_of(each) for each in event.events)
        case PoissonSampled(probability=1.0):
            return rho_of(event.event)
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
    - 1), at the best order alpha (Canonne, Kamath, Steinke 2020, Corollary 13).

    Raises:
        EventRefused: as `rho_of`.
        InputError: delta is outside [1e-30, 1).
    """
    rho = rho_of(event)
    check_delta(delta)
    if rho == 0.0:
        return 0.0
    # ORDERS are alpha - 1, so that orders near 1 are accurate.
    given_up = -math.log(delta) - np.log(ORDERS) + (ORDERS + 1.0) * -np.log1p(1.0 / ORDERS)
    bounds = rho * (ORDERS + 1.0) + given_up / ORDERS
    return max(0.0, float(bounds.min())) * (1.0 + ROUNDING)
