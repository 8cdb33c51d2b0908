"""Renyi DP, by dp_accounting: the accountant of most other tools.

It is an upper bound, looser than `pld.py` and `monte_carlo.py`, reported next to them for
comparison.
"""

import math

import numpy as np

from fedray.base.arrays import Float64Array
from .events import Event, EventRefused, MinSepSampled
from .limits import check_delta
from .monte_carlo import allocation_gram, columns_of
from .peer import peer_epsilon

_ORDERS = np.arange(2, 65)
"""Orders of the moments of random allocation."""


def renyi_epsilon(event: Event, delta: float) -> float:
    """Returns an upper bound on epsilon at `delta`.

    Moments by Mironov, Talwar, Zhang 2019, for samples of a fixed size by Wang, Balle,
    Kasiviswanathan 2019 (Theorem 27), or of random allocation; conversion by Canonne, Kamath,
    Steinke 2020.

    Raises:
        EventRefused: the event is unknown, or no moments are proven for it.
        InputError: delta is outside [1e-30, 1).
    """
    check_delta(delta)
    if isinstance(event, MinSepSampled):
        return _allocated_epsilon(event, delta)
    return peer_epsilon(event, delta)


def _allocated_epsilon(event: MinSepSampled, delta: float) -> float:
    """Returns the larger epsilon of both directions of random allocation.

    The moment of order a of P against Q is the mean over a independent bins of e^(sum of G over
    pairs of them), G the inner products of the means. Since 2 n_i n_j <= n_i^2 + n_j^2, it is at
    most a product over bins, with the row sums of G, which dynamic programming sums over the
    numbers n of choices of each bin; it is equal if G is diagonal. For Q against P, the mean of
    exponentials in P / Q is at least the exponential of their mean, which is Gaussian.
    """
    from dp_accounting.rdp import compute_epsilon

    if event.probability < 1.0:
        raise EventRefused(
            f"b-min-sep sampling with probability={event.probability:g} has no moments in closed "
            "form; use the accountant monte-carlo"
        )
    # Integer orders only, since the moments are sums over numbers of choices. A better order may
    # lie between two of them; every order gives a valid bound.
    gram = allocation_gram(columns_of(event), event.min_sep)
    present = allocated_moments(gram) / (_ORDERS - 1)
    absent = (np.trace(gram) / len(gram) + (_ORDERS - 1) * gram.mean()) / 2.0
    orders = _ORDERS.tolist()
    return max(compute_epsilon(orders, each.tolist(), delta)[0] for each in (present, absent))


def allocated_moments(gram: Float64Array) -> Float64Array:
    """Returns bounds on log E_Q[(P / Q)^a] for the `_ORDERS` a, from the Gram matrix
    of `allocation_gram`, [b, b]."""
    from scipy.special import gammaln, logsumexp

    counts = np.arange(_ORDERS[-1] + 1)
    # total[k]: logarithm of the sum over ways to choose k bins among those seen.
    total = np.where(counts == 0, 0.0, -np.inf)
    remaining = counts[:, None] - counts
    for square, row_sum in zip(np.diag(gram), gram.sum(axis=1), strict=True):
        ways = (row_sum * counts**2 - square * counts) / 2.0 - gammaln(counts + 1)
        before = np.where(remaining >= 0, total[remaining], -np.inf)
        total = logsumexp(before + ways, axis=1)
    return (total + gammaln(counts + 1) - counts * math.log(len(gram)))[_ORDERS]
