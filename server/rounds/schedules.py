"""Schedules: which stored uploads take part in a round.

All draws are addressed by device and window or attempt, so that they do not depend on how devices
are split over shards.
"""

from typing import Protocol

import numpy as np

from fedray.base.arrays import BoolArray, Int64Array, UInt64Array
from fedray.base.rng import Stream, long_words, stream_key
from fedray.scenario import Scenario
from fedray.scenario.uploads import (
    AllSchedule,
    CyclicPoissonSchedule,
    CyclicSchedule,
    MinSepSchedule,
    PoissonSchedule,
)


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


class All:
    """Every upload of a window.

    Args:
        least: number of uploads below which a window has no round.
    """

    def __init__(self, least: int) -> None:
        self._least = least
        self._uploads = 0

    def start_window(self, window: int, device_ids: UInt64Array) -> None:
        self._uploads = device_ids.size

    def eligible(self, round_index: int) -> Int64Array:
        return np.arange(self._uploads)

    def least_eligible(self) -> int:
        return self._least

    def draw(self, eligible: Int64Array, attempt: int) -> Int64Array:
        return eligible


class _InTurn:
    """Groups of uploads that take turns.

    Args:
        seed: seed of the draws.
        groups: number of groups, which is the least difference between two rounds of an upload.
        keeps_groups: whether every device has one random group in all windows; if not, the uploads
            of a window are shuffled into groups of equal size, and a remainder is in none.
    """

    def __init__(self, seed: int, groups: int, keeps_groups: bool) -> None:
        self._shuffle_key = stream_key(seed, Stream.UPLOAD_SHUFFLE)
        self._draw_key = stream_key(seed, Stream.UPLOAD_DRAW)
        self._groups, self._keeps_groups = groups, keeps_groups
        self._group = np.empty(0, np.int64)
        """Group of each upload; groups from `groups` on have no turn."""
        self._device_ids = np.empty(0, np.uint64)

    def start_window(self, window: int, device_ids: UInt64Array) -> None:
        self._device_ids = device_ids
        # A group that depends on the device only does not depend on who else uploads.
        if self._keeps_groups:
            words = long_words(self._shuffle_key, device_ids, 0)
            self._group = (words % np.uint64(self._groups)).astype(np.int64)
            return
        words = long_words(self._shuffle_key, device_ids, window)
        # Sorting by independent random words is a uniform shuffle, and needs no shared generator.
        order = np.argsort(words, kind="stable")
        size = device_ids.size // self._groups
        self._group = np.full(device_ids.size, self._groups)
        self._group[order[: size * self._groups]] = np.repeat(np.arange(self._groups), size)

    def eligible(self, round_index: int) -> Int64Array:
        """See `Schedule`: the uploads of the group whose turn it is."""
        # A device thus waits `groups` rounds: the b of min-separated participation (Choquette-Choo
        # et al. 2023).
        # By the number of the round, not of the attempt: a repeated round draws from the same
        # group.
        return np.flatnonzero(self._group == round_index % self._groups)


class Cyclic(_InTurn):
    """Groups of equal size that take turns, with the same number of uploads in every round.

    Args:
        seed: seed of the draws.
        groups: number of groups, which is the least difference between two rounds of an upload.
        drawn: number of uploads of a round, drawn without replacement.
    """

    def __init__(self, seed: int, groups: int, drawn: int) -> None:
        super().__init__(seed, groups, keeps_groups=False)
        self._drawn = drawn

    def least_eligible(self) -> int:
        return self._drawn

    def draw(self, eligible: Int64Array, attempt: int) -> Int64Array:
        """See `Schedule`. The smallest words of a group give a uniform sample of it."""
        words = long_words(self._draw_key, self._device_ids[eligible], attempt)
        return np.sort(eligible[np.argsort(words, kind="stable")[: self._drawn]])


class Poisson(_InTurn):
    """Groups that take turns, each of whose uploads has the same probability, independently.

    Args:
        seed: seed of the draws.
        probability: q; the draws round it down to whole 2^-64.
        groups: number of groups; one for plain Poisson samples.
        keeps_groups: whether every device has one random group in all windows; if not, groups have
            equal sizes.
    """

    def __init__(
        self, seed: int, probability: float, groups: int = 1, keeps_groups: bool = True
    ) -> None:
        super().__init__(seed, groups, keeps_groups)
        self._probability = probability

    def least_eligible(self) -> int:
        """See `Schedule`: a Poisson sample may be empty."""
        return 0

    def draw(self, eligible: Int64Array, attempt: int) -> Int64Array:
        # The address includes the attempt: the draws of a failed attempt reveal nothing about the
        # next.
        # Each upload by itself: the theorems on amplification are about Poisson samples, and a
        # sample of a fixed size would not do.
        words = long_words(self._draw_key, self._device_ids[eligible], attempt)
        return eligible[_happens(words, self._probability)]


class MinSepPoisson(Poisson):
    """Every upload, with the same probability and independently, unless it was drawn in one of the
    last rounds.

    Args:
        seed: seed of the draws.
        probability: p, as of `Poisson`.
        min_sep: least difference between two rounds of an upload.
    """

    def __init__(self, seed: int, probability: float, min_sep: int) -> None:
        super().__init__(seed, probability)
        self._min_sep = min_sep
        self._waits = np.empty(0, np.int64)
        self._drawn = np.empty(0, np.int64)
        self._round: int | None = None

    def start_window(self, window: int, device_ids: UInt64Array) -> None:
        super().start_window(window, device_ids)
        words = long_words(self._shuffle_key, device_ids, window)
        # Stationary: an upload waits for each of 1 to b - 1 rounds p times as often as for none.
        # With p per round and b rounds between, pi_j = p pi_0 for j = 1 .. b - 1, so pi_0 = 1 / (1
        # + p (b - 1)). In units of pi_j, each wait takes 1 and no wait takes 1 / p.
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


def schedule_of(scenario: Scenario) -> Schedule:
    """Returns the schedule of a scenario's table `rounds.uploads`."""
    uploads = scenario.rounds.uploads
    assert uploads is not None
    seed, goal = scenario.seed, scenario.rounds.report_goal
    match uploads.schedule:
        case AllSchedule():
            return All(goal)
        case CyclicSchedule(min_sep=groups):
            return Cyclic(seed, groups, drawn=goal)
        case MinSepSchedule(probability=probability, min_sep=min_sep):
            return MinSepPoisson(seed, probability, min_sep)
        case PoissonSchedule(probability=probability):
            return Poisson(seed, probability)
        case CyclicPoissonSchedule(probability=probability, partitions=groups):
            # A single group needs no shuffle.
            keeps_groups = uploads.keeps_groups or groups == 1
            return Poisson(seed, probability, groups, keeps_groups)


def _happens(words: UInt64Array, probability: float) -> BoolArray:
    """Whether each event happens, by one word each; never with more than its probability."""
    # 2^64 itself is no uint64. Scaling a float by a power of two is exact.
    if probability >= 1.0:
        return np.ones(words.size, np.bool_)
    return words < np.uint64(int(probability * 2.0**64))
