"""Amplification by shuffling: each device sends one report of the same epsilon0-DP local
randomiser, and the server sees the reports in a uniformly random order.

Delta is at most that of the pair (A + D, C - A + 1 - D) and (A + 1 - D, C - A + D), with C ~
Bin(n - 1, 2 p) reports that look like that of the device or of its neighbour, p = 1 / (e^epsilon0 +
1), A ~ Bin(C, 1/2) and D ~ Bernoulli(e^epsilon0 p) (Feldman, McMillan, Talwar 2023, "Stronger
privacy amplification by shuffling", Theorem 3.1; their paper of 2021 has e^-epsilon0 for 2 p). It
was stated for randomisers that differ and adapt. By an erratum its proof had an error, and it is
kept for some randomisers only. For one that all devices share, it holds:

Let R0 and R1 be the reports of the device and of its neighbour, and m(y) the least probability of
the report y over all contributions. Delta of the shuffle at epsilon is at most E[(X_1 + .. + X_n)+]
/ n, with X = (R0(y) - e^epsilon R1(y)) / m(y) with probability m(y), and else 0 (Balle, Bell,
Gascon, Nissim 2019, "The privacy blanket of the shuffle model", section 5). Delta of the pair has
the same form, with equality: X' is a = e^epsilon0 - e^epsilon or -b = 1 - e^(epsilon0 + epsilon)
with probability p each, and else 0. X and X' are in [-b, a] and have the mean 1 - e^epsilon. E[X+]
is delta of one report, at most p a (Kairouz, Oh, Viswanath 2015). E[(X - t)+] is convex in t;
E[(X' - t)+] is linear in [-b, 0] and in [0, a], equal to it at -b and at a, and no smaller at 0. So
E[(X - t)+] <= E[(X' - t)+] for all t: X is below X' in the convex order, and so are sums of
independent copies.

Delta of the pair is computed by a sum over C instead of the closed form (Theorem 3.2 of 2023),
which is about twice as large in epsilon and needs a least n.
"""

import math

import numpy as np

TAIL = 1e-3
"""Share of the target delta charged for values of C outside the sum."""
ROUNDING = 1e-6
"""Allowance for rounding, relative to delta; binomial tails are accurate to 1e-10."""
MOST_LOCAL_EPSILON = 30.0
"""Largest epsilon0 that is looked for."""


def shuffled_delta(local_epsilon: float, devices: int, epsilon: float, tail: float) -> float:
    """Returns an upper bound on delta at `epsilon` of the shuffle of `devices` reports.

    Args:
        local_epsilon: epsilon0 of each report, between any two contributions.
        devices: n, number of reports.
        epsilon: epsilon of the shuffle, at least 0.
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


def shuffled_epsilon(local_epsilon: float, devices: int, delta: float) -> float:
    """Returns the least epsilon that the shuffle of `devices` reports has at `delta`, above 0,
    rounded up; at most `local_epsilon`."""
    from scipy.optimize import brentq

    def excess(epsilon: float) -> float:
        return shuffled_delta(local_epsilon, devices, epsilon, TAIL * delta) - delta

    if excess(0.0) <= 0:
        return 0.0
    found = brentq(excess, 0.0, local_epsilon, xtol=1e-9)
    assert isinstance(found, float), "brentq returns a float unless full_output is set"
    # The root may be slightly too small.
    while excess(found) > 0:
        found = min(local_epsilon, found + 1e-8)
    return found


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
