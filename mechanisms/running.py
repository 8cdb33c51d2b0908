"""Running sensitivity: exact checks, after each round, whether a device exceeds a limit, and which
devices may take part again without exceeding it.

Each released round adds a row to C and so raises the sensitivity of every device, including devices
that are not in the round: s_n(pi)^2 = sum_{t<n} (sum_{i in pi} C[t, i])^2. Computing it for every
device after every round would take as long as the run. So each device has an upper bound that holds
for some rounds ahead, and the exact value is computed only if the bound exceeds the limit.

If C has no negative entry, s_n(pi) never decreases in n. The bound is then s_H(pi) at a horizon
H >= n: it holds up to round H, and changes only when the device takes part. For a C with negative
entries there is no such bound, and every device is checked in every round.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedray.base.arrays import BoolArray, Float64Array, Int64Array, UInt64Array
from fedray.base.errors import InputError
from fedray.base.rounding import down, up
from .sensitivity import (
    MOST_CERTIFICATES,
    ROUNDING,
    LargestPattern,
    PatternSensitivities,
)
from .strategy import Strategy

LEAST_AHEAD, SHARE_AHEAD = 64, 8
"""Distance of a horizon in rounds: LEAST_AHEAD, or if larger, the number of rounds so far /
SHARE_AHEAD."""
MANY = 1 << 14
"""Number of devices beyond the limit at the horizon from which on a nearer horizon is cheaper than
checking them in every round."""
CHUNK = 1 << 18
"""Largest number of devices per step."""
_NEW, _NO_LINK = -1, 0


class RunningSensitivity:
    """The rounds of every device so far, and a check whether any exceeds a limit on the
    sensitivity.

    Args:
        strategy: the strategy C.
        most_rounds: largest number of rounds that may be added.
        limit: largest sensitivity allowed, at clip norm 1.
    """

    def __init__(self, strategy: Strategy, most_rounds: int, limit: float) -> None:
        strategy.check_rounds(most_rounds)
        self.rounds = 0
        """Number of rounds added."""
        self._strategy = strategy
        self._most_rounds = most_rounds
        # Rounding of a sensitivity that equals the limit must not end the run.
        self._limit = limit * (1.0 + ROUNDING)
        self._devices = DeviceRounds()
        self._now = PatternSensitivities(strategy, 1, most_rounds)
        self._horizon = 0
        self._ahead = self._now
        """Sensitivities at the horizon."""
        self._bounds = np.zeros(0)
        """Squared bounds at the horizon by device, with spare capacity; stale after the horizon."""
        # `pattern_square` returns a value only if no entry of C is negative.
        first = np.zeros(1, np.int64)
        self._never_falls = strategy.pattern_square(first, most_rounds) is not None
        self._largest = LargestPattern(0.0, True, -1)

    def add(self, device_ids: UInt64Array) -> None:
        """Adds the next round, with its distinct devices [A]."""
        places = self._devices.places_of(device_ids)
        # Up to the horizon, bounds grow by the new round's terms there; after it, they are
        # recomputed before their next use.
        if self.rounds < self._horizon:
            self._bounds = with_room(self._bounds, self._devices.count)
            self._bounds[places] += self._devices.growth(places, self.rounds, self._ahead)
        self._devices.add(places, self.rounds)
        self.rounds += 1

    def beyond(self) -> float | None:
        """Returns the largest sensitivity so far if it exceeds the limit, else None.

        The value is the one that an audit of these rounds finds: exact, or an upper bound.
        """
        found = self._beyond(self._limit)
        return None if found is None else found.value

    def largest(self) -> LargestPattern:
        """Returns the largest sensitivity so far, as `beyond`, with the place of a device that has
        it among all devices in order of their first rounds; 0 before the first device."""
        above = self._largest.value if self._never_falls else 0.0
        self._largest = self._beyond(above) or self._largest
        return self._largest

    def _beyond(self, limit: float) -> LargestPattern | None:
        # With negative entries a later round may lower a value, so no bound lasts.
        if not self._never_falls:
            return self._largest_beyond(np.arange(self._devices.count), limit)
        if self.rounds > self._horizon:
            ahead = max(LEAST_AHEAD, self.rounds // SHARE_AHEAD)
            self._look_ahead(min(self._most_rounds, self.rounds + ahead))
        suspects = self._suspects(limit)
        # A nearer horizon has tighter bounds. It is recomputed more often, which is cheaper than
        # exact values of this many devices.
        while suspects.size > MANY and self._horizon > self.rounds:
            self._look_ahead(self.rounds + (self._horizon - self.rounds) // 4)
            suspects = self._suspects(limit)
        return self._largest_beyond(suspects, limit)

    def _suspects(self, limit: float) -> Int64Array:
        # Bounds are summed in another order than exact values, so rounding differs.
        bounds = self._bounds[: self._devices.count]
        return np.flatnonzero(bounds > limit**2 * (1.0 - 1e-9))

    def _look_ahead(self, horizon: int) -> None:
        self._horizon = horizon
        self._ahead = PatternSensitivities(self._strategy, horizon)
        self._bounds = np.zeros(self._devices.count)
        for places, patterns in self._devices.patterns(np.arange(self._devices.count)):
            self._bounds[places] = self._ahead.of(patterns).values ** 2

    def _largest_beyond(self, suspects: Int64Array, limit: float) -> LargestPattern | None:
        if not suspects.size:
            return None
        self._now.grow(self.rounds)
        largest, above, certificates = None, limit, MOST_CERTIFICATES
        for places, patterns in self._devices.patterns(suspects):
            values = self._now.of(patterns)
            found, certificates = self._now.largest(patterns, None, values, above, certificates)
            if found is not None:
                largest = found._replace(place=int(places[found.place]))
                above = found.value
        return largest


class SensitivityFilter:
    """Admits devices to a round only if they stay within a limit until the end of the run.

    A device with rounds pi may take part in round t if s_N(pi + {t}) <= limit, where N is the
    number of rounds of the run. If C has no negative entry, this is exact, and s_n(pi) <= s_N(pi)
    for every n <= N. So no device ever exceeds the limit, and the effect of a contribution on later
    rounds is paid for when the device takes part.

    Args:
        strategy: the strategy C.
        rounds: N.
        limit: largest sensitivity allowed, at clip norm 1.

    Raises:
        InputError: C has negative entries, or a single participation may exceed the limit.
    """

    def __init__(self, strategy: Strategy, rounds: int, limit: float) -> None:
        check_can_be_filtered(strategy, rounds, limit)
        self.rounds = 0
        """Number of rounds added."""
        # Rounding must not exclude a device whose sensitivity equals the limit.
        self._most_square = (limit * (1.0 + ROUNDING)) ** 2
        self._devices = DeviceRounds()
        self._over_all_rounds = PatternSensitivities(strategy, rounds)
        self._squares = np.zeros(0)
        """Squared sensitivities over all rounds by device, with spare capacity."""

    def admits(self, device_ids: UInt64Array, round_index: int | None = None) -> BoolArray:
        """Returns whether each of the devices [A] may take part in the next round, or in a later
        one with no round before it."""
        _, squares = self._with(device_ids, self.rounds if round_index is None else round_index)
        return squares <= self._most_square

    def add(self, device_ids: UInt64Array) -> None:
        """Adds the next round, with its distinct devices [A]."""
        places, squares = self._with(device_ids, self.rounds)
        self._squares[places] = squares
        self._devices.add(places, self.rounds)
        self.rounds += 1

    def _with(self, device_ids: UInt64Array, round_index: int) -> tuple[Int64Array, Float64Array]:
        """Returns the places of devices [A] and their squared sensitivities with one more round."""
        places = self._devices.places_of(device_ids)
        self._squares = with_room(self._squares, self._devices.count)
        growth = self._devices.growth(places, round_index, self._over_all_rounds)
        return places, self._squares[places] + growth


def check_can_be_filtered(strategy: Strategy, rounds: int, limit: float) -> None:
    """Raises InputError unless a `SensitivityFilter` can be made from these arguments."""
    if strategy.pattern_square(np.zeros(1, np.int64), rounds) is None:
        raise InputError(
            f"this {strategy.kind} mechanism has negative entries, so the privacy that a device "
            "will have spent after later rounds is not known in advance; use a mechanism without "
            "negative entries, or end the run at the budget"
        )
    every = np.arange(rounds)
    most = float(strategy.gram_entries(every, every, rounds).max()) ** 0.5
    if most > limit * (1.0 + ROUNDING):
        raise InputError(
            f"one participation has the sensitivity {up(most, 6)} over {rounds:,} rounds, but the "
            f"budget allows {down(limit, 6)}, so no device could take part; raise the budget or "
            "the noise multiplier"
        )


class DeviceRounds:
    """The rounds of every device, as linked lists with the latest round first.

    All arrays have spare capacity. A place is the index of a device, in order of first rounds.
    """

    def __init__(self) -> None:
        self.count = 0
        """Number of devices."""
        # Recent ids are separate, so that adding a round does not move all ids.
        self._old = _sorted_pairs()
        self._recent = _sorted_pairs()
        self._latest = np.zeros(0, np.int64)
        """Latest link by place."""
        self._lengths = np.zeros(0, np.int64)
        """Number of rounds by place."""
        self._rounds = np.zeros(1, np.uint32)
        """Round by link. Link 0 ends a list."""
        self._before = np.zeros(1, np.int64)
        """Previous link by link."""
        self._links = 1

    def places_of(self, device_ids: UInt64Array) -> Int64Array:
        """Returns the places of devices [A], after assigning places to new devices."""
        places = np.full(device_ids.size, _NEW)
        for ids, known in (self._old, self._recent):
            at = np.searchsorted(ids, device_ids)
            # `searchsorted` may point past the last id; any index will do there, because ids are
            # compared.
            at[at == ids.size] = 0
            if ids.size:
                is_known = ids[at] == device_ids
                places[is_known] = known[at[is_known]]
        is_new = places == _NEW
        new = np.arange(self.count, self.count + int(is_new.sum()))
        places[is_new] = new
        self.count += new.size
        self._recent = _merged(self._recent, (device_ids[is_new], new))
        # Merging is rare: only once recent ids are an eighth of the old ones.
        old, recent = self._old[0].size, self._recent[0].size
        if recent > max(1 << 16, old // 8):
            self._old = _merged(self._old, self._recent)
            self._recent = _sorted_pairs()
        self._latest = with_room(self._latest, self.count)
        self._lengths = with_room(self._lengths, self.count)
        return places

    def counts_of(self, places: Int64Array) -> Int64Array:
        """Returns the number of rounds of devices [A]."""
        return self._lengths[places]

    def add(self, places: Int64Array, round_index: int) -> None:
        """Adds a round to distinct devices [A]."""
        links = np.arange(self._links, self._links + places.size)
        self._links += places.size
        self._rounds = with_room(self._rounds, self._links)
        self._before = with_room(self._before, self._links)
        self._rounds[links] = round_index
        self._before[links] = self._latest[places]
        self._latest[places] = links
        self._lengths[places] += 1

    def growth(
        self, places: Int64Array, round_index: int, sensitivities: PatternSensitivities
    ) -> Float64Array:
        """Returns the increase of the squared sensitivities of devices [A] by one more round.

        Args:
            places: places of the devices.
            round_index: the new round t, after all their rounds.
            sensitivities: source of G; its rounds define the sensitivity.
        """
        now = np.full(places.size, round_index)
        # (sum of a pattern and one more round)^2 = the old square + G[t, t] + 2 sum of G[i, t].
        growth = sensitivities.entries(now, now)
        for whose, earlier in self.steps_back(places):
            growth[whose] += 2.0 * sensitivities.entries(earlier, now[whose])
        return growth

    def steps_back(self, places: Int64Array) -> Iterator[tuple[Int64Array, Int64Array]]:
        """Yields indices into `places` [A] and a round of each: first the latest rounds, then the
        second latest, and so on."""
        for whose, links in self.links_back(places):
            yield whose, self._rounds[links].astype(np.int64)

    def links_back(self, places: Int64Array) -> Iterator[tuple[Int64Array, Int64Array]]:
        """Yields indices into `places` [A] and the number of a participation of each, in the order
        of `steps_back`. Participations are numbered from 1 in the order in which they were
        added."""
        # One array operation per step instead of a loop over devices.
        links = self._latest[places]
        whose = np.arange(places.size)
        while True:
            is_there = links != _NO_LINK
            links = links[is_there]
            whose = whose[is_there]
            if not links.size:
                return
            yield whose, links
            links = self._before[links]

    def patterns(self, places: Int64Array) -> Iterator[tuple[Int64Array, Int64Array]]:
        """Yields (places [Q], their rounds in order [Q, c]), grouped by number of rounds."""
        lengths = self.counts_of(places)
        for length in np.flatnonzero(np.bincount(lengths, minlength=1)).tolist():
            chosen = places[lengths == length]
            # Long patterns are taken in smaller parts, to bound memory.
            step = max(1, min(CHUNK, 32 * CHUNK // length))
            for start in range(0, chosen.size, step):
                part = chosen[start : start + step]
                rounds = np.empty((part.size, length), np.int64)
                # Lists have the latest round first, so patterns are filled from their ends.
                for column, (whose, found) in enumerate(self.steps_back(part)):
                    rounds[whose, length - 1 - column] = found
                yield part, rounds


def with_room(array: NDArray, size: int) -> NDArray:
    """Pads the array with zeros to at least `size`, doubling it so that this is rare."""
    if size <= array.size:
        return array
    more = max(size, 2 * array.size) - array.size
    return np.concatenate([array, np.zeros(more, array.dtype)])


_Pairs = tuple[UInt64Array, Int64Array]


def _sorted_pairs() -> _Pairs:
    return np.zeros(0, np.uint64), np.zeros(0, np.int64)


def _merged(one: _Pairs, other: _Pairs) -> _Pairs:
    ids = np.concatenate([one[0], other[0]])
    # Both are sorted, and numpy's stable sort merges sorted runs.
    order = np.argsort(ids, kind="stable")
    return ids[order], np.concatenate([one[1], other[1]])[order]
