"""Statistics of attacks on a model: exposure of phrases, and inference of who took part."""

import math
from typing import NamedTuple

import numpy as np

from fedray.base.arrays import Float64Array
from fedray.studies import paired
from fedray.studies.paired import CONFIDENCE


class Interval(NamedTuple):
    """An estimate and its 95 % interval."""

    value: float
    """The estimate; NaN if unknown."""
    low: float
    """Lower end; NaN if unknown."""
    high: float
    """Upper end; NaN if unknown."""


def exposures(losses: Float64Array, references: Float64Array) -> Float64Array:
    """Returns the exposure of phrases in bits, [P]: log2 (N + 1) - log2 rank, with the exact rank
    of each phrase's loss among N random phrases that no device holds (Carlini et al. 2019,
    Definition 4, with a sample for the space of all phrases).

    Args:
        losses: losses of phrases, [P].
        references: losses of the random phrases, [N].
    """
    ranks = 1 + np.searchsorted(np.sort(references), losses, side="left")
    return math.log2(references.size + 1) - np.log2(ranks)


def exposure_without_memory(references: int) -> float:
    """Returns the expected exposure of a phrase that no device holds: its rank is uniform."""
    return math.log2(references + 1) - float(np.log2(np.arange(1, references + 2)).mean())


def mean_interval(values: Float64Array) -> Interval:
    """Returns the mean of independent values [P], with Student's interval; NaN for fewer than 2."""
    if values.size < 2:
        return Interval(math.nan, math.nan, math.nan)
    found = paired.mean_interval(values.tolist())
    return Interval(found.mean, found.low, found.high)


def area_under_curve(members: Float64Array, others: Float64Array) -> Interval:
    """Returns the probability that a member's score is above another's, ties counting 1/2, with a
    normal interval (DeLong et al. 1988, equation 5)."""
    from scipy.stats import norm, rankdata

    ranks = rankdata(np.concatenate([members, others]))
    # Share of the others below each member, and of the members above each other.
    below = (ranks[: members.size] - rankdata(members)) / others.size
    above = 1.0 - (ranks[members.size :] - rankdata(others)) / members.size
    area = float(below.mean())
    variance = below.var(ddof=1) / members.size + above.var(ddof=1) / others.size
    half = float(norm.ppf((1 + CONFIDENCE) / 2)) * math.sqrt(variance)
    return Interval(area, max(0.0, area - half), min(1.0, area + half))


def found_members(members: Float64Array, others: Float64Array) -> Interval:
    """Returns the share of members whose score is above that of 99 % of the others, with Clopper
    and Pearson's interval at this threshold."""
    from scipy.stats import binomtest

    threshold = np.sort(others)[-1 - others.size // 100]
    test = binomtest(int((members > threshold).sum()), members.size)
    return Interval(float(test.statistic), *map(float, test.proportion_ci(CONFIDENCE)))
