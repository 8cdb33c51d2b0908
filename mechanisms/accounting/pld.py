"""Privacy loss distributions: the tightest epsilon of events with Poisson sampling.

Events without sampling are one Gaussian, with a closed form (`gdp.py`). For one kind of sampled
Gaussian, repeated, `composition.py` computes an upper bound that is tight for every delta. Stated
guarantees (epsilon, delta) have a closed form, also beside Gaussian releases.
"""

import math
from collections import Counter
from functools import lru_cache
from typing import Any

import numpy as np

from .composition import composed_epsilon
from .events import (
    ApproximateDP,
    Composed,
    Event,
    EventRefused,
    PoissonSampled,
    PostProcessed,
    Repeated,
)
from .gdp import (
    gaussian_deltas,
    gaussian_epsilon,
    gdp_epsilon,
    mu_of,
    sampled_noise,
)
from .limits import LEAST_DELTA, check_delta, check_noise_multiplier

MOST_LOSSES = 1 << 16
"""Most losses of stated guarantees together whose composition is computed, in 0.1 to 0.5 s."""
ROUNDING = 1e-9
"""Allowance for rounding, relative to delta; binomial probabilities are more accurate."""


def pld_epsilon(event: Event, delta: float) -> float:
    """Returns an upper bound on epsilon at `delta`, exact without sampling. For its tightness with
    sampling see `composed_epsilon`.

    Raises:
        EventRefused: the event has several kinds of sampled Gaussians, sampled and other releases,
            or is not Gaussian; its stated guarantees use up delta, or have more losses than
            `MOST_LOSSES`.
        InputError: delta is outside [1e-30, 1).
    """
    check_delta(delta)
    parts = parts_of(event)
    guarantees, sampled = Counter[tuple[float, float]](), Counter[tuple[float, float]]()
    for part, times in parts.items():
        match part:
            case ApproximateDP():
                guarantees[part.epsilon, part.delta] += times
            case PoissonSampled():
                sampled[part.probability, sampled_noise(part)] += times
    if guarantees:
        others = [each for each in parts.items() if not isinstance(each[0], ApproximateDP)]
        mu = math.hypot(*(math.sqrt(times) * mu_of(part) for part, times in others))
        return _stated_epsilon(mu, guarantees, delta)
    if not sampled:
        return gdp_epsilon(event, delta)
    if len(sampled) > 1 or sampled.total() < parts.total():
        raise EventRefused(
            "the event has several kinds of Poisson-sampled steps, or sampled and other ones, but "
            "the accountant pld composes only one kind; use the accountant renyi"
        )
    (((probability, noise), count),) = sampled.items()
    check_noise_multiplier(noise)
    return _of_steps(probability, noise, count, delta)


@lru_cache(maxsize=256)
def _of_steps(probability: float, noise: float, count: int, delta: float) -> float:
    # Drawing every device is one Gaussian, with an exact epsilon.
    if probability == 1.0:
        return gaussian_epsilon(count**0.5 / noise, delta)
    return composed_epsilon(probability, noise, count, delta)


def parts_of(event: Event) -> Counter[Any]:
    """Returns how often each part of a composition occurs; what is computed from a release spends
    nothing, and order does not matter."""
    match event:
        case PostProcessed():
            return parts_of(event.event)
        case Repeated():
            parts = parts_of(event.event)
            return Counter({each: event.count * times for each, times in parts.items()})
        case Composed():
            return sum(map(parts_of, event.events), Counter())
        case _:
            return Counter([event])


def _stated_epsilon(mu: float, guarantees: Counter[tuple[float, float]], delta: float) -> float:
    """Returns an upper bound on epsilon of a Gaussian mechanism and stated guarantees, exact to
    1e-9 for guarantees whose delta is 0 and for which nothing else is known.

    Randomized response dominates a guarantee (Kairouz, Oh, Viswanath 2015, Theorem 3.3), and
    dominating pairs compose, adaptively too (Zhu, Dong, Wang 2022, Theorem 10): delta is the mean
    of the Gaussian's delta at epsilon minus the loss of the responses, plus the sum of the stated
    deltas in place of 1 minus the product of 1 - delta. Never more than the sum of all epsilons
    (Dwork, Roth 2014, Theorem 3.16).
    """
    from scipy.special import expit
    from scipy.stats import binom

    own = math.fsum(times * each for (_, each), times in guarantees.items())
    left = delta - own * (1.0 + ROUNDING)
    if own > delta or (mu and left < LEAST_DELTA):
        raise EventRefused(
            f"delta={delta:g} is used up by the deltas of the event's parts, {own:g} in total; use "
            "the accountant zcdp, or describe the release at a larger delta"
        )
    counts = Counter[float]()
    for (epsilon, _), times in guarantees.items():
        counts[epsilon] += times if epsilon else 0
    total = math.fsum(times * each for each, times in counts.items())
    if not mu and (counts.total() <= 1 or left <= 0):
        return total
    if math.prod(times + 1 for times in counts.values()) > MOST_LOSSES:
        raise EventRefused(
            f"the event has {counts.total():,} stated guarantees of {len(counts):,} epsilons, too "
            "many for the accountant pld; use the accountant zcdp"
        )
    losses, chances = np.zeros(1), np.full(1, 1.0 + ROUNDING)
    for epsilon, times in counts.items():
        true = np.arange(times + 1)
        losses = np.add.outer(losses, (2 * true - times) * epsilon).ravel()
        chances = np.outer(chances, binom.pmf(true, times, expit(epsilon))).ravel()
    total += gaussian_epsilon(mu, left) if mu else 0.0
    low, high = 0.0, total
    while high - low > 1e-12 * total:
        middle = (low + high) / 2
        is_enough = chances @ gaussian_deltas(mu, middle - losses) <= left
        low, high = (low, middle) if is_enough else (middle, high)
    # Losses are rounded by less than this.
    return min(total, high + 1e-14 * total)
