"""Rounds in which a device may still take part, given its participations so far.

All rules have one form: the q-th last participation of a device, in round x, bars the rounds before
`barred[q - 1, x]`. A separation or a timer has q = 1, and at most m participations in a window have
q = m. Every row of `barred` is non-decreasing, so the earliest allowed rounds, taken one after the
other, come no later than the rounds of any other allowed continuation, one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.errors import InputError


class Window(NamedTuple):
    """At most `most` participations of a device within any window of rounds."""

    begins: Int64Array
    """First round of the window that ends with round i, [R]."""
    most: int
    """Largest number of participations within a window, at least 1."""
    zone: int | None = None
    """Zone of the devices that keep it; None if all devices do. Each device is in one of the zones
    that occur, and which one is unknown."""

    @classmethod
    def of_seconds(
        cls, earliest: Float64Array, latest: Float64Array, seconds: float, most: int
    ) -> Self:
        """Returns the half-open windows of a length in seconds by the server's clock.

        Args:
            earliest: earliest time of a participation in each round, [R seconds].
            latest: latest time of the same, [R seconds].
            seconds: length of a window.
            most: largest number of participations within it.
        """
        # Two participations may be in different windows if the later one may come `seconds` later.
        since = np.minimum.accumulate(earliest[::-1])[::-1]
        until = np.maximum.accumulate(latest)
        return cls(np.searchsorted(since + seconds, until, side="right"), most)

    @classmethod
    def of_days(
        cls,
        earliest: Float64Array,
        utc_offset_seconds: float,
        most: int,
        zone: int,
        latest: Float64Array | None = None,
    ) -> Self:
        """Returns the local calendar days of the devices of a zone.

        Args:
            earliest: earliest time of a participation in each round, [R seconds], at time 0 of
                which it is midnight in UTC.
            utc_offset_seconds: local time minus UTC.
            most: largest number of participations within a day.
            zone: number of the zone.
            latest: latest time of the same, [R seconds]; None if both are the round's start.
        """
        latest = earliest if latest is None else latest
        since = np.minimum.accumulate(earliest[::-1])[::-1]
        until = np.maximum.accumulate(latest)
        first_day, last_day = (
            np.floor((each + utc_offset_seconds) / 86400.0) for each in (since, until)
        )
        return cls(np.searchsorted(first_day, last_day, side="left"), most, zone)


@dataclass(frozen=True, eq=False)
class Future:
    """Rules from round `released` on, and the rounds that have passed.

    Raises:
        InputError: an array has another length than `rounds`, or a figure is outside its range.
    """

    released: int
    """r: rounds 0 .. r - 1 are released; rounds r .. rounds - 1 are still to come."""
    rounds: int
    """R, planned number of rounds."""
    following: Int64Array
    """First round in which a device of round i may take part again, [R]; R if never."""
    most: int | None = None
    """Largest number of participations of a device, past ones included."""
    windows: tuple[Window, ...] = ()
    """Windows within which participations are limited, past ones included."""
    first: Int64Array | None = None
    """First round in which each device of the past may take part again, by its place; R if never.
    None if no device waits longer than the rules demand."""

    def __post_init__(self) -> None:
        if not 0 <= self.released <= self.rounds:
            raise InputError.of(
                "released", self.released, f"must be from 0 to rounds={self.rounds}", "raise rounds"
            )
        for name, each in [
            ("following", self.following),
            *(("windows", each.begins) for each in self.windows),
        ]:
            if each.shape != (self.rounds,):
                raise InputError(
                    f"{name}: has {each.size} entries, and must have one for each of rounds="
                    f"{self.rounds}; extend it to the last planned round"
                )
        if (self.following <= np.arange(self.rounds)).any():
            raise InputError(
                "following: a device must not take part twice in a round; use round i + 1 or later"
            )
        for window in self.windows:
            if window.most < 1:
                raise InputError.of("most", window.most, "must be at least 1 per window")
        if self.most is not None and self.most < 0:
            raise InputError.of("most", self.most, "must not be negative")

    @classmethod
    def of_times(
        cls,
        released: int,
        earliest: Float64Array,
        latest: Float64Array | None = None,
        *,
        timer_seconds: float = 0.0,
        separation: int = 1,
        most: int | None = None,
        windows: Sequence[tuple[float, int]] = (),
        first: Int64Array | None = None,
    ) -> Self:
        """Returns the future of rules in rounds and in seconds.

        Args:
            released: number of released rounds.
            earliest: earliest time of a participation in each planned round, [R seconds]: recorded
                for released rounds, and assumed for later ones.
            latest: latest time of the same, [R seconds]; None if both are the round's start.
            timer_seconds: least time between two participations of a device; 0 without a timer.
            separation: least difference between the numbers of two rounds of a device.
            most: largest number of participations of a device.
            windows: pairs (length in seconds, largest number of participations within it).
            first: first round in which each past device may take part again; None if at once.
        """
        latest = earliest if latest is None else latest
        n = earliest.size
        rounds = np.arange(n)
        following = np.minimum(rounds + max(1, separation), n)
        if timer_seconds > 0:
            since = np.minimum.accumulate(earliest[::-1])[::-1]
            until = np.maximum.accumulate(latest)
            in_time = np.searchsorted(until, since + timer_seconds, side="left")
            following = np.maximum(following, in_time)
        limits = tuple(Window.of_seconds(earliest, latest, *each) for each in windows)
        # No device returns after the last round.
        following = np.where(rounds + 1 >= n, n, following) if n else following
        return cls(released, n, following, most, limits, first)

    @cached_property
    def rules(self) -> tuple["Barred", ...]:
        """The rules of each zone, or of all devices; zones with equal rules occur once."""
        zones = sorted({each.zone for each in self.windows if each.zone is not None})
        found: dict[bytes, Barred] = {}
        for zone in zones or [None]:
            mine = [each for each in self.windows if each.zone in (None, zone)]
            barred = self._barred(mine)
            found.setdefault(
                barred.tobytes(), Barred(self.released, self.rounds, self.most, barred)
            )
        return tuple(found.values())

    def _barred(self, windows: list[Window]) -> Int64Array:
        n = self.rounds
        depth = max([1, *(each.most for each in windows)])
        barred = np.zeros((depth, n + 1), np.int64)
        # Of entries out of order, the weakest rule counts: no allowed pattern may be missing.
        barred[0, :n] = np.minimum.accumulate(self.following[::-1])[::-1]
        for window in windows:
            # A window ending with round j holds round x unless it begins later.
            begins = np.maximum.accumulate(window.begins)
            row = barred[window.most - 1]
            row[:n] = np.maximum(row[:n], np.searchsorted(begins, np.arange(n), side="right"))
        barred[:, n] = n
        # A row that the first row implies bars nothing.
        kept = [0, *(q for q in range(1, depth) if (barred[q] > barred[0]).any())]
        return np.minimum(barred[: kept[-1] + 1], n)


@dataclass(frozen=True, eq=False)
class Barred:
    """The rules of `Future` in one form."""

    released: int
    """r, number of released rounds."""
    rounds: int
    """R, planned number of rounds."""
    most: int | None
    """Largest number of participations of a device."""
    barred: Int64Array
    """The q-th last participation, in round x, bars rounds before barred[q - 1, x], [M, R + 1];
    column R is R."""

    def entries(self, patterns: Int64Array, first: Int64Array | None = None) -> Int64Array:
        """Returns the first round in which devices with patterns [P, c] may take part again, [P]; R
        if never.

        Args:
            patterns: their participations so far, sorted.
            first: rounds before which they must wait, [P]; None without.
        """
        count = patterns.shape[1]
        found = np.full(len(patterns), self.released)
        if self.most is not None and count >= self.most:
            found[:] = self.rounds
        for q in range(1, min(count, len(self.barred)) + 1):
            np.maximum(found, self.barred[q - 1, patterns[:, count - q]], out=found)
        if first is not None:
            np.maximum(found, first, out=found)
        return np.minimum(found, self.rounds)

    def left(self, count: int) -> int | None:
        """Returns the number of participations left after `count`; None for any number."""
        return None if self.most is None else max(0, self.most - count)

    def earliest(self, past: Sequence[int], first: int = 0) -> list[int]:
        """Returns the earliest continuation of one pattern, as often as allowed."""
        pattern = list(past)
        left = self.left(len(pattern))
        at_least = max(self.released, first)
        found: list[int] = []
        while left is None or len(found) < left:
            last = pattern[: -len(self.barred) - 1 : -1]
            limits = [int(self.barred[q, x]) for q, x in enumerate(last)]
            at = max([at_least, *limits])
            if at >= self.rounds:
                break
            found.append(at)
            pattern.append(at)
        return found

    @cached_property
    def least_lags(self) -> Int64Array:
        """Least difference between a future round of a device and its q-th next, [q]: from 0, which
        is 0, to the largest q that is possible."""
        starts = np.arange(self.released, self.rounds)
        recent = [starts]
        lags = [0]
        while starts.size:
            following = self.barred[0, recent[0]]
            for q, earlier in enumerate(recent[1 : len(self.barred)], start=1):
                following = np.maximum(following, self.barred[q, earlier])
            is_possible = following < self.rounds
            if not is_possible.any():
                break
            # The starts are increasing and so are the rounds reached from them.
            starts = starts[is_possible]
            recent = [each[is_possible] for each in [following, *recent]][: len(self.barred)]
            lags.append(int((recent[0] - starts).min()))
        return np.array(lags)

    @cached_property
    def allows_all(self) -> bool:
        """Whether a device may take part in every round from its first allowed one on."""
        future = np.arange(self.released, self.rounds)
        is_next = (self.barred[0, future] == future + 1).all()
        return len(self.barred) == 1 and self.most is None and bool(is_next)

    @cached_property
    def has_growing_gaps(self) -> bool:
        """Whether only the last participation counts, and its least gap never falls from round r
        on: then the earliest continuation has the smallest gaps too."""
        if len(self.barred) > 1:
            return False
        following = self.barred[0, self.released : self.rounds]
        inside = following[following < self.rounds]
        return bool((np.diff(inside) >= 1).all())
