"""The moments accountant as first published, for tables of 2016 to 2018: integer orders up to 32 and the first conversion,
epsilon = min over lambda of (moment(lambda) + log(1 / delta)) / lambda (Abadi et al. 2016, Theorem 2; McMahan et al. 2018).
"""

import math

import numpy as np
from scipy.special import gammaln, logsumexp

from fedray.mechanisms.accounting.events import Composed, Event, PoissonSampled, Repeated
from fedray.mechanisms.accounting.gdp import sampled_noise


def moments_epsilon(event: Event, delta: float) -> float:
    """Epsilon of repeated Poisson samples, as computed in 2016."""
    return min((_moment(event, order) - math.log(delta)) / order for order in range(1, 33))


def _moment(event: Event, order: int) -> float:
    """log sum_j binom(a, j) (1 - q)^(a-j) q^j e^(j (j-1) / (2 z^2)), a = order + 1, for each step."""
    match event:
        case Repeated():
            return event.count * _moment(event.event, order)
        case Composed():
            return sum(_moment(each, order) for each in event.events)
        case PoissonSampled():
            q, noise, a = event.probability, sampled_noise(event), order + 1
            j = np.arange(a + 1)
            ways = gammaln(a + 1) - gammaln(j + 1) - gammaln(a - j + 1)
            shares = (a - j) * math.log1p(-q) + j * math.log(q)
            return float(logsumexp(ways + shares + j * (j - 1) / (2.0 * noise**2)))
    raise TypeError(event)
