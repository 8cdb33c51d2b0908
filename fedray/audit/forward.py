"""The forward guarantee: the largest sensitivity that any device of a log can reach by the last
planned round. Without a past, it is the largest sensitivity that rules permit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fedray.audit.participation import Chosen, Patterns
from fedray.base.arrays import Float64Array
from fedray.mechanisms.continuation import (
    Continued,
    Future,
    Window,
    largest_continued,
    least_growth,
)
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.sensitivity import PatternSensitivities
from fedray.mechanisms.strategy import Sensitivity, SensitivityUnknown, Strategy

OUTER = (
    "an upper bound, since the rules allow fewer patterns than these (min-sep, participations) "
    "figures"
)


class Period(NamedTuple):
    """A largest number of participations of a device in any half-open window of some length, or on
    a calendar day of one time zone."""

    most: int
    """The largest number."""
    seconds: float = 0.0
    """Length of the window; 0 for a calendar day."""
    offset: float = 0.0
    """Local time minus that of the rounds, seconds, for a calendar day."""

    def window(self, earliest: Float64Array, latest: Float64Array, zone: int) -> Window:
        """Returns the windows of the devices of a zone, at times as in `future_of`."""
        if self.seconds:
            window = Window.of_seconds(earliest, latest, self.seconds, self.most)
            return window._replace(zone=zone)
        return Window.of_days(earliest, self.offset, self.most, zone, latest)


def future_of(
    earliest: Float64Array,
    latest: Float64Array,
    timer_seconds: float = 0.0,
    separation: int = 1,
    most: int | None = None,
    zones: Sequence[Sequence[Period]] = ((),),
) -> Future:
    """Returns the patterns that rules permit in recorded rounds, as the future of a device without
    a past.

    Args:
        earliest: earliest time of a participation in each round, [n seconds].
        latest: latest time of the same, [n seconds].
        timer_seconds: least time between two participations of a device; 0 without a timer.
        separation: least difference between the numbers of two rounds of a device.
        most: largest number of participations of a device; None for any.
        zones: limits within periods of the devices of each time zone.
    """
    permitted = Future.of_times(
        0, earliest, latest, timer_seconds=timer_seconds, separation=separation, most=most
    )
    windows = (
        each.window(earliest, latest, zone)
        for zone, periods in enumerate(zones)
        for each in periods
    )
    return replace(permitted, windows=tuple(windows))


def largest_permitted(strategy: Strategy, rules: Future, participation: MinSep) -> Sensitivity:
    """Returns the largest sensitivity of all patterns that keep both rules and a participation, or
    the smaller one of two bounds on it.

    Args:
        strategy: the mechanism.
        rules: rules in all rounds, without released ones.
        participation: participation in the same rounds.

    Raises:
        SensitivityUnknown: no theorem gives either bound.
    """
    n = rules.rounds
    apart = np.minimum(np.arange(n) + participation.min_sep, n)
    caps = [each for each in (rules.most, participation.max_participations) if each is not None]
    both = replace(rules, following=np.maximum(rules.following, apart), most=min(caps))
    try:
        found = largest_continued(strategy, (), both)
    except SensitivityUnknown:
        outer = strategy.participation_sensitivity(participation)
        return replace(outer, is_exact=False, theorem=f"{outer.theorem}; {OUTER}", lower_bound=0.0)
    if found.is_exact:
        return Sensitivity(found.value, True, found.theorem, found.value, found.future)
    # A device certainly attains the value of a pattern only if that is exact.
    of_pattern = PatternSensitivities(strategy, n).of(np.array([found.future], np.int64))
    attained = found.reached if of_pattern.is_exact[0] else 0.0
    bound = Sensitivity(found.value, False, found.theorem, attained, found.future)
    try:
        outer = strategy.participation_sensitivity(participation)
    except SensitivityUnknown:
        return bound
    if outer.value >= bound.value:
        return bound
    return replace(bound, value=outer.value, theorem=f"{outer.theorem}; {OUTER}")


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
