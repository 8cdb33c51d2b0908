"""Amplification by shuffling: each device sends one report of an epsilon0-DP local randomiser, and
the server sees the reports in a uniformly random order.

The two shuffles of neighbouring data are post-processings of (A + D, C - A + 1 - D) and of
(A + 1 - D, C - A + D), with C ~ Bin(n - 1, 2 / (e^epsilon0 + 1)) reports that look like that of the
device or of its neighbour, A ~ Bin(C, 1/2), and D ~ Bernoulli(e^epsilon0 / (e^epsilon0 + 1))
(Feldman, McMillan, Talwar 2023, "Stronger privacy amplification by shuffling", Theorem 3.1). Here
delta of this pair is computed by a sum over C instead of the paper's closed form (Theorem 3.2),
which is about twice as large in epsilon and needs a least n.
"""

import math

import numpy as np

TAIL = 1e-3
"""Share of the target delta charged for values of C outside the sum."""
ROUNDING = 1e-6
"""Allowance for rounding, relative to delta; binomial tails are accurate to 1e-10."""
MOST_LOCAL_EPSILON = 30.0


def shuffled_delta(local_epsilon: float, devices: int, epsilon: float, tail: float) -> float:
    """Returns an upper bound on delta at `epsilon` of the shuffle of `devices` reports.

    Args:
        local_epsilon: epsilon0 of each report, between any two contributions.
        devices: n, number of reports.
        epsilon: epsilon of the shuffle, above 0.
        tail: probability of C outside the sum, which is added to delta.
    """
    from scipy.stats import binom

    if local_epsilon <= epsilon:
        return 0.0
    share = 2.0 / (math.exp(local_epsilon) + 1.0)
    first = int(binom.ppf(tail / 2, devices - 1, share))
    # By the other reports, because isf knows no tail below 1e-16.
    last = devices - 1 - int(binom.ppf(tail / 2, devices - 1, 1.0 - share))
    c = np.arange(max(0, first - 1), min(devices - 1, last + 1) + 1)
    right = 1.0 / (1.0 + math.exp(-local_epsilon))
    wrong = 1.0 / (1.0 + math.exp(local_epsilon))
    # delta is the expectation of the positive part of p - e^epsilon q; both have the same C, so it
    # is summed for each C by itself.
    gain = right - math.exp(epsilon) * wrong
    cost = math.exp(epsilon) * right - wrong
    # An outcome a has a positive part if it is above this, because the ratio increases in a.
    least = np.floor((c + 1) * (cost / (gain + cost))) + 1
    above = gain * binom.sf(least - 2, c, 0.5) - cost * binom.sf(least - 1, c, 0.5)
    weights = binom.pmf(c, devices - 1, share)
    return float(weights @ np.maximum(above, 0.0)) * (1.0 + ROUNDING) + tail


def largest_local_epsilon(epsilon: float, delta: float, devices: int) -> float:
    """Returns the largest epsilon0 with which the shuffle of `devices` reports has (epsilon,
    delta), delta > 0, rounded down; at least `epsilon`, because no order of reports is more
    private."""
    from scipy.optimize import brentq

    def excess(local_epsilon: float) -> float:
        return shuffled_delta(local_epsilon, devices, epsilon, TAIL * delta) - delta

    if excess(MOST_LOCAL_EPSILON) <= 0:
        return MOST_LOCAL_EPSILON
    found = brentq(excess, epsilon, MOST_LOCAL_EPSILON, xtol=1e-9)
    assert isinstance(found, float), "brentq returns a float unless full_output is set"
    # The root may be slightly too large.
    while found > epsilon and excess(found) > 0:
        found = max(epsilon, found - 1e-8)
    return found
