"""Schedules: which stored uploads take part in a round.

All draws are addressed by device and window or attempt, so that they do not depend on how devices
are split over shards.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from fedray.base.arrays import BoolArray, Int64Array, UInt64Array
from fedray.base.rng import Stream, long_words, stream_key
from fedray.scenario import Scenario
from fedray.scenario.uploads import CyclicSchedule, MinSepSchedule, PoissonSchedule


class Schedule(Protocol):
    """Decides which uploads of a window take part in a round."""

    def start_window(self, window: int, device_ids: UInt64Array) -> None:
        """Takes the uploads of a window, given as their devices [U], sorted and distinct."""
        ...

    def eligible(self, round_index: int) -> Int64Array:
        """Returns the uploads that may take part in a round, as sorted places among the window's
        uploads."""
        ...

    def least_eligible(self) -> int:
        """Smallest number of uploads from which a round can be drawn."""
        ...

    def draw(self, eligible: Int64Array, attempt: int) -> Int64Array:
        """Returns the eligible uploads drawn for an attempt, as sorted places."""
        ...


class Cyclic:
    """Groups of equal size that take turns.

    Args:
        seed: seed of the draws.
        groups: number of groups, which is the least difference between two rounds of an upload.
        drawn: number of uploads of a round, drawn without replacement.
    """

    @classmethod
    def of(cls, table: CyclicSchedule, scenario: Scenario) -> "Cyclic":
        """Returns the schedule of a table and a scenario."""
        return cls(scenario.seed, table.min_sep, scenario.rounds.report_goal)

    def __init__(self, seed: int, groups: int, drawn: int) -> None:
        self._shuffle_key = stream_key(seed, Stream.UPLOAD_SHUFFLE)
        self._draw_key = stream_key(seed, Stream.UPLOAD_DRAW)
        self._groups, self._drawn = groups, drawn
        self._order = np.empty(0, np.int64)
        self._device_ids = np.empty(0, np.uint64)

    def start_window(self, window: int, device_ids: UInt64Array) -> None:
        self._device_ids = device_ids
        # Sorting by independent random words is a uniform shuffle, and needs no shared generator.
        words = long_words(self._shuffle_key, device_ids, window)
        self._order = np.argsort(words, kind="stable")

    def eligible(self, round_index: int) -> Int64Array:
        """See `Schedule`. Uploads that equal groups leave over take part in no round."""
        size = self._order.size // self._groups
        # By the number of the round, not of the attempt: a repeated round draws from the same
        # group.
        start = size * (round_index % self._groups)
        # The shuffle only forms the groups; within one, places are in order.
        return np.sort(self._order[start : start + size])

    def least_eligible(self) -> int:
        return self._drawn

    def draw(self, eligible: Int64Array, attempt: int) -> Int64Array:
        """See `Schedule`. The smallest words of a group give a uniform sample of it."""
        words = long_words(self._draw_key, self._device_ids[eligible], attempt)
        return np.sort(eligible[np.argsort(words, kind="stable")[: self._drawn]])


class Poisson:
    """Every upload, with the same probability and independently.

    Args:
        seed: seed of the draws.
        probability: q; the draws round it down to whole 2^-64.
    """

    @classmethod
    def of(cls, table: PoissonSchedule, scenario: Scenario) -> "Poisson":
        """Returns the schedule of a table and a scenario."""
        return cls(scenario.seed, table.probability)

    def __init__(self, seed: int, probability: float) -> None:
        self._key = stream_key(seed, Stream.UPLOAD_DRAW)
        self._probability = probability
        self._device_ids = np.empty(0, np.uint64)

    def start_window(self, window: int, device_ids: UInt64Array) -> None:
        self._device_ids = device_ids

    def eligible(self, round_index: int) -> Int64Array:
        """See `Schedule`: all uploads."""
        return np.arange(self._device_ids.size)

    def least_eligible(self) -> int:
        """See `Schedule`: a Poisson sample may be empty."""
        return 0

    def draw(self, eligible: Int64Array, attempt: int) -> Int64Array:
        # The address includes the attempt: the draws of a failed attempt reveal nothing about the
        # next.
        words = long_words(self._key, self._device_ids[eligible], attempt)
        return eligible[_happens(words, self._probability)]


class MinSepPoisson(Poisson):
    """Every upload, with the same probability and independently, unless it was drawn in one of the
    last rounds.

    Args:
        seed: seed of the draws.
        probability: p, as of `Poisson`.
        min_sep: least difference between two rounds of an upload.
    """

    @classmethod
    def of(cls, table: MinSepSchedule, scenario: Scenario) -> "MinSepPoisson":
        """Returns the schedule of a table and a scenario."""
        return cls(scenario.seed, table.probability, table.min_sep)

    def __init__(self, seed: int, probability: float, min_sep: int) -> None:
        super().__init__(seed, probability)
        self._shuffle_key = stream_key(seed, Stream.UPLOAD_SHUFFLE)
        self._min_sep = min_sep
        self._waits = np.empty(0, np.int64)
        self._drawn = np.empty(0, np.int64)
        self._round: int | None = None

    def start_window(self, window: int, device_ids: UInt64Array) -> None:
        super().start_window(window, device_ids)
        words = long_words(self._shuffle_key, device_ids, window)
        # Stationary: an upload waits for each of 1 to b - 1 rounds p times as often as for none.
        places = (words >> np.uint64(11)) * 2.0**-53 * (self._min_sep - 1 + 1 / self._probability)
        waiting = np.floor(places).astype(np.int64) + 1
        self._waits = np.where(waiting < self._min_sep, waiting, 0)
        self._drawn, self._round = np.empty(0, np.int64), None

    def eligible(self, round_index: int) -> Int64Array:
        """See `Schedule`: uploads that do not wait. Repeated attempts at a round are drawn from the
        same ones."""
        passed = round_index - (round_index if self._round is None else self._round)
        if passed:
            self._waits = np.maximum(self._waits - passed, 0)
            self._waits[self._drawn] = max(self._min_sep - passed, 0)
        self._round = round_index
        return np.flatnonzero(self._waits == 0)

    def draw(self, eligible: Int64Array, attempt: int) -> Int64Array:
        self._drawn = super().draw(eligible, attempt)
        return self._drawn


class Unresolved:
    """Drawn uploads that cannot be read.

    Args:
        seed: seed of the draws.
        share: probability of each upload.
    """

    def __init__(self, seed: int, share: float) -> None:
        self._key = stream_key(seed, Stream.UPLOAD_UNRESOLVED)
        self._share = share

    def among(self, device_ids: UInt64Array, attempt: int) -> BoolArray:
        """Whether the upload of each device [S] is unreadable in an attempt."""
        return _happens(long_words(self._key, device_ids, attempt), self._share)


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "cyclic": Cyclic.of,
    "poisson": Poisson.of,
    "min_sep": MinSepPoisson.of,
}
"""Schedules by `rounds.uploads.schedule.kind`; their arguments are their table and the scenario."""


def schedule_of(scenario: Scenario) -> Schedule:
    """Returns the schedule of a scenario's table `rounds.uploads`."""
    uploads = scenario.rounds.uploads
    assert uploads is not None
    return SCHEDULES[uploads.schedule.kind](uploads.schedule, scenario)


def _happens(words: UInt64Array, probability: float) -> BoolArray:
    """Whether each event happens, by one word each; never with more than its probability."""
    # 2^64 itself is no uint64. Scaling a float by a power of two is exact.
    if probability >= 1.0:
        return np.ones(words.size, np.bool_)
    return words < np.uint64(int(probability * 2.0**64))
