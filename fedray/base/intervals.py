"""Intervals of metrics of examples that come in clusters, such as devices, whose own examples are
alike."""

import math
from typing import NamedTuple

from fedray.base.arrays import Float64Array

CONFIDENCE = 0.95
"""Confidence of every interval."""


class Interval(NamedTuple):
    """An interval at 95 %."""

    low: float
    """Lower end; NaN if unknown."""
    high: float
    """Upper end; NaN if unknown."""


UNKNOWN = Interval(math.nan, math.nan)


def ratio_with_error(sums: Float64Array) -> tuple[float, float]:
    """Returns a metric and its standard error, given the sums of numerators and weights of each
    cluster, [clusters, 2]. Both are NaN without weight, and the error of a single cluster is.

    The error is that of a ratio estimator whose sampling units are the clusters (Cochran 1977,
    equation 6.13).
    """
    numerators, weights = sums.T
    clusters, total = weights.size, float(weights.sum())
    if not total > 0:
        return math.nan, math.nan
    ratio = float(numerators.sum()) / total
    # A single cluster does not show the spread between clusters.
    if clusters < 2:
        return ratio, math.nan
    # Difference of each cluster from its expected numerator, as in Cochran's equation.
    residuals = numerators - ratio * weights
    spread = float((residuals**2).sum())
    return ratio, math.sqrt(spread * clusters / (clusters - 1)) / total


def mean_interval(mean: float, error: float, clusters: int) -> Interval:
    """Returns Student's interval of a mean with an estimated standard error, which is unknown for
    fewer than two clusters."""
    if clusters < 2 or not math.isfinite(error):
        return UNKNOWN
    half = _student(clusters - 1) * error
    return Interval(mean - half, mean + half)


def share_interval(share: float, error: float, clusters: int, weight: float) -> Interval:
    """Returns the interval of Korn and Graubard 1998 of a share: that of Clopper and Pearson for
    the number of independent examples that would have the same standard error.

    That number is at most that of the examples. If all or none of them count, or they are of one
    cluster, the error says nothing, and it is the number of clusters.

    Args:
        share: the share, from 0 to 1.
        error: its standard error, between clusters; NaN if unknown.
        clusters: number of clusters.
        weight: sum of the examples' weights.
    """
    from scipy.special import betaincinv

    if not math.isfinite(share) or clusters < 1:
        return UNKNOWN
    number = float(clusters)
    if clusters > 1 and error > 0 and 0 < share < 1:
        # With few clusters the error itself is uncertain, as Student's quantile says.
        worse = (_student(math.inf) / _student(clusters - 1)) ** 2
        number = worse * share * (1 - share) / error**2
    number = min(number, max(1.0, weight))
    # Rounding may bring a share of 0 or 1 out of its range.
    hits = min(max(share, 0.0), 1.0) * number
    tail = (1 - CONFIDENCE) / 2
    low = float(betaincinv(hits, number - hits + 1, tail)) if hits > 0 else 0.0
    high = float(betaincinv(hits + 1, number - hits, 1 - tail)) if hits < number else 1.0
    return Interval(low, high)


def quantile_interval(ordered: Float64Array, share: float) -> Interval:
    """Returns the interval of a quantile of independent values of any distribution, by the numbers
    of values below it, which are binomial (Thompson 1936).

    Args:
        ordered: the values, [n], in ascending order.
        share: share of the distribution below the quantile.

    Returns:
        Values of the sample; NaN for an end that the sample is too small for.
    """
    from scipy.special import bdtr

    n, tail = ordered.size, (1 - CONFIDENCE) / 2
    below = [float(bdtr(k, n, share)) for k in range(n)]
    # The k-th value is at most the quantile unless fewer than k values are.
    first = sum(each <= tail for each in below)
    last = sum(each < 1 - tail for each in below)
    low = math.nan if first == 0 else float(ordered[first - 1])
    return Interval(low, math.nan if last >= n else float(ordered[last]))


def _student(freedom: float) -> float:
    """Returns the quantile of Student's distribution at the upper end of an interval."""
    from scipy.special import ndtri, stdtrit

    upper = (1 + CONFIDENCE) / 2
    return float(ndtri(upper) if math.isinf(freedom) else stdtrit(freedom, upper))
