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
    if (guarantees := _guarantees(event)) is not None:
        return _stated_epsilon(0.0, guarantees, delta)
    if isinstance(event, Composed) and (stated := [*filter(_guarantees, event.events)]):
        others: tuple[Any, ...] = tuple(each for each in event.events if each not in stated)
        known = _guarantees(Composed(events=tuple(stated)))  # pyright: ignore[reportArgumentType]
        assert known is not None
        return _stated_epsilon(mu_of(Composed(events=others)), known, delta)
    steps = _sampled_steps(event)
    if steps is None:
        return gdp_epsilon(event, delta)
    if len(steps) > 1:
        raise EventRefused(
            f"the event has {len(steps)} kinds of Poisson-sampled steps, but the accountant pld "
            "composes only one kind; use the accountant renyi"
        )
    ((probability, noise), count) = next(iter(steps.items()))
    check_noise_multiplier(noise)
    return _of_steps(probability, noise, count, delta)


@lru_cache(maxsize=256)
def _of_steps(probability: float, noise: float, count: int, delta: float) -> float:
    # Drawing every device is one Gaussian, with an exact epsilon.
    if probability == 1.0:
        return gaussian_epsilon(count**0.5 / noise, delta)
    return composed_epsilon(probability, noise, count, delta)


def _guarantees(event: Event) -> Counter[tuple[float, float]] | None:
    """Returns how often each (epsilon, delta) occurs; None unless all parts are stated."""
    match event:
        case ApproximateDP():
            return Counter({(event.epsilon, event.delta): 1})
        case PostProcessed():
            return _guarantees(event.event)
        case Repeated():
            parts = _guarantees(event.event)
            return parts and Counter({each: event.count * times for each, times in parts.items()})
        case Composed():
            parts = [_guarantees(each) for each in event.events]
            stated = [each for each in parts if each is not None]
            return sum(stated, Counter()) if len(stated) == len(parts) else None
        case _:
            return None


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


def _sampled_steps(event: Event) -> Counter[tuple[float, float]] | None:
    """Returns how often each (probability, noise at sensitivity 1) occurs; None if nothing is
    sampled."""
    match event:
        case PoissonSampled():
            return Counter({(event.probability, sampled_noise(event)): 1})
        case PostProcessed():
            return _sampled_steps(event.event)
        case Repeated():
            steps = _sampled_steps(event.event)
            if steps is None:
                return None
            return Counter({step: event.count * times for step, times in steps.items()})
        case Composed():
            parts = [_sampled_steps(each) for each in event.events]
            sampled = [each for each in parts if each is not None]
            if not sampled:
                return None
            if len(sampled) < len(parts):
                raise EventRefused(
                    "the event has sampled and other steps, but the accountant pld composes only "
                    "one kind; use the accountant renyi"
                )
            return sum(sampled, Counter())
        case _:
            return None
