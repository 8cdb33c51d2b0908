"""Privacy loss distributions: the tightest epsilon of events with Poisson sampling.

Events without sampling are one Gaussian, with a closed form (`gdp.py`). For one kind of sampled
Gaussian, repeated, `composition.py` computes an upper bound that is tight for every delta. The
composition of stated guarantees (epsilon, delta) is optimal (`stated.py`).
"""

from collections import Counter
from functools import lru_cache

from fedray.mechanisms.accounting.composition import composed_epsilon
from fedray.mechanisms.accounting.events import (
    Composed,
    Event,
    EventRefused,
    PoissonSampled,
    PostProcessed,
    Repeated,
)
from fedray.mechanisms.accounting.gdp import gaussian_epsilon, gdp_epsilon, sampled_noise
from fedray.mechanisms.accounting.limits import check_delta, check_noise_multiplier
from fedray.mechanisms.accounting.stated import stated_epsilon, stated_guarantees


def pld_epsilon(event: Event, delta: float) -> float:
    """Returns an upper bound on epsilon at `delta`, exact without sampling. For its tightness with
    sampling see `composed_epsilon`.

    Raises:
        EventRefused: the event has several kinds of sampled Gaussians, sampled and other releases,
            or is not Gaussian.
        InputError: delta is outside [1e-30, 1).
    """
    check_delta(delta)
    if (guarantees := stated_guarantees(event)) is not None:
        return stated_epsilon(guarantees, delta)
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
