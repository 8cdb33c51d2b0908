"""Optimal composition of stated guarantees (epsilon, delta), possibly chosen adaptively.

A release with a guarantee is a post-processing of one of four outcomes: with probability delta the
data are revealed, and otherwise randomised response reveals a bit with loss +epsilon or -epsilon
(Kairouz, Oh, Viswanath 2015, Theorem 3.4). So the composition's delta at epsilon is a sum over the
numbers of positive losses. It is exact for releases that attain their guarantees, and for no other
mechanism is more known.
"""

import math
from collections import Counter

import numpy as np

from fedray.mechanisms.accounting.events import (
    ApproximateDP,
    Composed,
    Event,
    EventRefused,
    PostProcessed,
    Repeated,
)

MOST_OUTCOMES = 1 << 20
"""Largest number of different sums of losses."""
ROUNDING = 1e-12
"""Allowance for rounding, relative to delta."""
Guarantee = tuple[float, float]
"""Epsilon and delta."""


def stated_guarantees(event: Event) -> Counter[Guarantee] | None:
    """Returns how often each guarantee occurs; None unless all parts are stated guarantees."""
    match event:
        case ApproximateDP():
            return Counter({(event.epsilon, event.delta): 1})
        case PostProcessed():
            return stated_guarantees(event.event)
        case Repeated():
            parts = stated_guarantees(event.event)
            return parts and Counter({each: event.count * times for each, times in parts.items()})
        case Composed():
            total: Counter[Guarantee] = Counter()
            for each in event.events:
                if (parts := stated_guarantees(each)) is None:
                    return None
                total += parts
            return total
        case _:
            return None


def stated_epsilon(guarantees: Counter[Guarantee], delta: float) -> float:
    """Returns the smallest epsilon of the composition at `delta`, rounded up.

    Raises:
        EventRefused: the guarantees' own deltas exceed delta, or there are too many different sums.
    """
    kept = math.fsum(times * math.log1p(-own) for (_, own), times in guarantees.items())
    # 1 - (1 - delta) / prod(1 - delta_i): what the losses may use.
    left = -math.expm1(math.log1p(-delta) - kept)
    if left < -ROUNDING * delta:
        raise EventRefused(
            f"delta={delta:g} is below the deltas of the event's parts, {-math.expm1(kept):g} in "
            "total; describe the release at a larger delta"
        )
    losses, logs = _losses(guarantees)
    most = float(losses.max())
    # Exact at the top, so that one release has exactly its own epsilon.
    if left <= ROUNDING * delta:
        return most
    low, high = 0.0, most
    if _delta(losses, logs, low) <= left:
        return 0.0
    while low < (middle := 0.5 * (low + high)) < high:
        if _delta(losses, logs, middle) * (1.0 + ROUNDING) > left:
            low = middle
        else:
            high = middle
    return high


def _delta(losses: np.ndarray, logs: np.ndarray, epsilon: float) -> float:
    above = losses > epsilon
    return float(np.sum(np.exp(logs[above]) * -np.expm1(epsilon - losses[above])))


def _losses(guarantees: Counter[Guarantee]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the sums of losses and the logarithms of their probabilities, both [outcomes]."""
    # Imported here, because it takes 0.2 s.
    from scipy.stats import binom

    counts: Counter[float] = Counter()
    for (epsilon, _), times in guarantees.items():
        if epsilon > 0:
            counts[epsilon] += times
    if math.prod(times + 1 for times in counts.values()) > MOST_OUTCOMES:
        raise EventRefused(
            f"the event has {counts.total():,} releases of {len(counts)} different epsilons, too "
            "many for an optimal composition; use the accountant zcdp"
        )
    losses, logs = np.zeros(1), np.zeros(1)
    for epsilon, times in counts.items():
        positive = np.arange(times + 1)
        share = 1.0 / (1.0 + math.exp(-epsilon))
        losses = np.add.outer(losses, epsilon * (2 * positive - times)).ravel()
        logs = np.add.outer(logs, binom.logpmf(positive, times, share)).ravel()
    return losses, logs
