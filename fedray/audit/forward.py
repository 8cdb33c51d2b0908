"""The forward guarantee: the largest sensitivity that any device of a log can reach by the last
planned round."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fedray.audit.participation import Chosen, Patterns
from fedray.base.arrays import Float64Array
from fedray.mechanisms.continuation import Continued, Future, largest_continued, least_growth
from fedray.mechanisms.strategy import Strategy


@dataclass(frozen=True, slots=True)
class _Pasts:
    """The devices of a log, in parts with equally many participations."""

    patterns: Patterns

    def __iter__(self) -> Iterator[Chosen]:
        counts = np.bincount(self.patterns.counts)
        # Most participations first, since their sensitivities are the largest.
        for count in np.flatnonzero(counts)[::-1].tolist():
            yield from self.patterns.with_count(count)


def forward_sensitivity(
    strategy: Strategy, patterns: Patterns, future: Future, scales: Float64Array | None = None
) -> Continued:
    """Returns the largest sensitivity over all devices and all their allowed continuations.

    Contributions with weights count in full, which is a bound.

    Args:
        strategy: the mechanism.
        patterns: rounds of every device among the released ones.
        future: the rules from now on; `first` in the order of `patterns.device_ids`.
        scales: noise of each row relative to the first, [R]; None if constant.

    Raises:
        InputError, SensitivityUnknown: raised by `largest_continued`.
    """
    found = largest_continued(strategy, _Pasts(patterns), future, scales)
    if patterns.weights is None:
        return found
    theorem = f"{found.theorem}; contributions count in full, whatever their weights"
    return replace(found, is_exact=False, theorem=theorem)


def least_noise_growth(
    strategy: Strategy, patterns: Patterns, future: Future, limit: float
) -> tuple[float, Continued] | None:
    """Returns the least factor on the noise from now on that keeps a sensitivity, as
    `fedray.mechanisms.continuation.least_growth` does."""
    return least_growth(strategy, _Pasts(patterns), future, limit)


def spent_sensitivity(strategy: Strategy, patterns: Patterns) -> Continued:
    """Returns the largest sensitivity over the released rounds only: the future has no round."""
    n = patterns.committed_rounds
    following = np.arange(1, n + 1)
    return forward_sensitivity(strategy, patterns, Future(n, n, following))
