"""Privacy loss distributions: the tightest epsilon of events with Poisson sampling.

Events without sampling are one Gaussian, with a closed form (`gdp.py`). For one kind of sampled
Gaussian, repeated, `composition.py` computes an upper bound that is tight for every delta. Stated
guarantees (epsilon, delta) are composed by dp_accounting.
"""

import math
from collections import Counter
from functools import lru_cache

from fedray.mechanisms.accounting.composition import composed_epsilon
from fedray.mechanisms.accounting.events import (
    ApproximateDP,
    Composed,
    Event,
    EventRefused,
    PoissonSampled,
    PostProcessed,
    Repeated,
)
from fedray.mechanisms.accounting.gdp import gaussian_epsilon, gdp_epsilon, sampled_noise
from fedray.mechanisms.accounting.limits import check_delta, check_noise_multiplier

STATED_INTERVAL = 1e-4
"""Grid of the losses of stated guarantees, to which each is rounded up."""


def pld_epsilon(event: Event, delta: float) -> float:
    """Returns an upper bound on epsilon at `delta`, exact without sampling. For its tightness with
    sampling see `composed_epsilon`.

    Raises:
        EventRefused: the event has several kinds of sampled Gaussians, sampled and other releases,
            or is not Gaussian.
        InputError: delta is outside [1e-30, 1).
    """
    check_delta(delta)
    if (guarantees := _guarantees(event)) is not None:
        return _stated_epsilon(guarantees, delta)
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


def _stated_epsilon(guarantees: Counter[tuple[float, float]], delta: float) -> float:
    """Returns the smaller epsilon of sums (Dwork, Roth 2014, Theorem 3.16) and of the optimal
    composition (Kairouz, Oh, Viswanath 2015), rounded up by dp_accounting."""
    own = math.fsum(times * each for (_, each), times in guarantees.items())
    if own > delta:
        raise EventRefused(
            f"delta={delta:g} is below the deltas of the event's parts, {own:g} in total; describe "
            "the release at a larger delta"
        )
    total = math.fsum(times * each for (each, _), times in guarantees.items())
    if guarantees.total() == 1 or total == 0.0:
        return total
    from dp_accounting.pld.common import DifferentialPrivacyParameters
    from dp_accounting.pld.privacy_loss_distribution import from_privacy_parameters, identity

    losses = identity(STATED_INTERVAL)
    for (epsilon, each), times in guarantees.items():
        one = from_privacy_parameters(DifferentialPrivacyParameters(epsilon, each), STATED_INTERVAL)
        losses = losses.compose(one.self_compose(times))
    return min(total, float(losses.get_epsilon_for_delta(delta)))


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
