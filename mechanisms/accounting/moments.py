"""The moments accountant as first published, for comparison with tables of 2016 to 2018.

It is the loosest upper bound here: it uses integer orders up to 32 only, and the first conversion,
epsilon = min over lambda of (moment(lambda) + log(1 / delta)) / lambda (Abadi et al. 2016, Theorem
2; McMahan et al. 2018).
"""

import math

import numpy as np

from fedray.base.arrays import Float64Array
from .events import (
    Composed,
    Event,
    PoissonSampled,
    PostProcessed,
    Repeated,
)
from .gdp import sampled_noise
from .limits import check_delta
from .zcdp import rho_of

LAMBDAS = np.arange(1, 33)
"""Orders of the moments."""


def moments_epsilon(event: Event, delta: float) -> float:
    """Returns an upper bound on epsilon at `delta`, as computed in 2016.

    Raises:
        EventRefused: no moments are proven for the event.
        InputError: delta is outside [1e-30, 1).
    """
    check_delta(delta)
    return float(((_moments(event) - math.log(delta)) / LAMBDAS).min())


def _moments(event: Event) -> Float64Array:
    """Returns log E[e^(lambda L)] of the privacy loss L, [32]."""
    match event:
        case PoissonSampled() if event.probability < 1.0:
            return _sampled_moments(event.probability, sampled_noise(event))
        case PostProcessed():
            return _moments(event.event)
        case Repeated():
            return event.count * _moments(event.event)
        case Composed():
            return sum(map(_moments, event.events), np.zeros(LAMBDAS.size))
        case _:
            return rho_of(event) * (LAMBDAS * (LAMBDAS + 1)).astype(np.float64)


def _sampled_moments(probability: float, noise: float) -> Float64Array:
    """Returns log sum_j binom(a, j) (1 - q)^(a-j) q^j e^(j (j-1) / (2 z^2)), a = lambda + 1."""
    # Imported here, because it takes 0.2 s.
    from scipy.special import gammaln, logsumexp

    moments = []
    for a in (LAMBDAS + 1).tolist():
        j = np.arange(a + 1)
        ways = gammaln(a + 1) - gammaln(j + 1) - gammaln(a - j + 1)
        shares = (a - j) * math.log1p(-probability) + j * math.log(probability)
        moments.append(logsumexp(ways + shares + j * (j - 1) / (2.0 * noise**2)))
    return np.array(moments, np.float64)
