"""Running sensitivity: whether any device exceeds a limit after each round, exactly; and which
devices may take part once more without exceeding it.

With every released round, the sensitivity of every device grows, even of devices that were not in
it: C has one more row, s_n(pi)^2 = sum_{t<n} (sum_{i in pi} C[t, i])^2. Computing it for every
device after every round would take as long as the run. So each device has an upper bound that holds
for some rounds ahead, and the exact value is only computed if the bound exceeds the limit.

If C has no negative entry, s_n(pi) does not fall as n grows. So the bound is s_H(pi) at a horizon H
>= n, and stays valid up to it; only a round of its own moves a device's bound. Strategies with
negative entries have no such bound: all their devices are checked in every round.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedray.base.errors import InputError
from fedray.base.rounding import down, up
from fedray.mechanisms.sensitivity import MOST_CERTIFICATES, ROUNDING, PatternSensitivities
from fedray.mechanisms.strategy import Strategy

LEAST_AHEAD, SHARE_AHEAD = 64, 8
"""A horizon is LEAST_AHEAD rounds ahead, or rounds so far / SHARE_AHEAD if that is more."""
MANY = 1 << 14
"""Devices beyond the limit at the horizon from which a nearer horizon is cheaper than looking at
them in every round."""
CHUNK = 1 << 18
"""Devices that are looked at together."""
_NEW, _NO_LINK = -1, 0


class RunningSensitivity:
    """The rounds of every device so far, and whether a device exceeds a limit.

    rounds: rounds added so far.

    Args:
        strategy: C.
        most_rounds: most rounds that may be added.
        limit: largest permitted sensitivity, at clip norm 1.
    """

    def __init__(self, strategy: Strategy, most_rounds: int, limit: float) -> None:
        strategy.check_rounds(most_rounds)
        self.rounds = 0
        self._strategy, self._most_rounds = strategy, most_rounds
        # A sensitivity that equals the limit must not end the run because of its rounding.
        self._limit = limit * (1.0 + ROUNDING)
        self._devices = _Devices()
        self._now = PatternSensitivities(strategy, 1, most_rounds)
        self._horizon = 0
        self._ahead = self._now
        """Over the rounds of the horizon."""
        self._bounds = np.zeros(0)
        """Squared, at the horizon, by place of the device, with room for more; stale once there
        are more rounds."""
        # A strategy gives a pattern's square only where no entry of C is negative, so this asks for
        # that.
        first = np.zeros(1, np.int64)
        self._never_falls = strategy.pattern_square(first, most_rounds) is not None

    def add(self, device_ids: NDArray[np.uint64]) -> None:
        """Takes the devices [A] of the next round, each once."""
        places = self._devices.places_of(device_ids)
        # Bounds beyond their horizon are computed again before their next use.
        if self.rounds < self._horizon:
            self._bounds = _with_room(self._bounds, self._devices.count)
            self._bounds[places] += self._devices.growth(places, self.rounds, self._ahead)
        self._devices.add(places, self.rounds)
        self.rounds += 1

    def beyond(self) -> float | None:
        """The largest sensitivity after the rounds so far, if it is beyond the limit; else None.

        Exact, as an audit of these rounds finds it; or the upper bound that it finds, where that
        is all that is known.
        """
        if not self._never_falls:
            return self._largest_beyond(np.arange(self._devices.count))
        if self.rounds > self._horizon:
            ahead = max(LEAST_AHEAD, self.rounds // SHARE_AHEAD)
            self._look_ahead(min(self._most_rounds, self.rounds + ahead))
        suspects = self._suspects()
        # At a far horizon many devices look too close to the limit. A nearer horizon has tighter
        # bounds; it is computed more often, which is cheaper than the exact values of that many
        # devices.
        while suspects.size > MANY and self._horizon > self.rounds:
            self._look_ahead(self.rounds + (self._horizon - self.rounds) // 4)
            suspects = self._suspects()
        return self._largest_beyond(suspects)

    def _suspects(self) -> NDArray[np.int64]:
        # Bounds are sums in another order than the exact values, so they may be off by rounding.
        bounds = self._bounds[: self._devices.count]
        return np.flatnonzero(bounds > self._limit**2 * (1.0 - 1e-9))

    def _look_ahead(self, horizon: int) -> None:
        """Computes every device's bound at a horizon."""
        self._horizon = horizon
        self._ahead = PatternSensitivities(self._strategy, horizon)
        self._bounds = np.zeros(self._devices.count)
        for places, patterns in self._devices.patterns(np.arange(self._devices.count)):
            self._bounds[places] = self._ahead.of(patterns).values ** 2

    def _largest_beyond(self, suspects: NDArray[np.int64]) -> float | None:
        self._now.grow(self.rounds)
        # Only devices beyond the limit matter, so the search begins there.
        largest, certificates = self._limit, MOST_CERTIFICATES
        for _, patterns in self._devices.patterns(suspects):
            values = self._now.of(patterns)
            found, certificates = self._now.largest(patterns, None, values, largest, certificates)
            largest = largest if found is None else found.value
        return largest if largest > self._limit else None


class SensitivityFilter:
    """Devices that may take part in the next round: those that stay within a limit, however many
    rounds are released afterwards.

    A device with the rounds pi may take part in round t if s_N(pi + {t}) <= limit, where N is the
    number of rounds of the whole run. If C has no negative entry that is exact, and s_n(pi) <=
    s_N(pi) for every n <= N. So if only such devices take part, no device ever exceeds the limit,
    and a contribution pays for its effect on later rounds when it is made.

    rounds: rounds added so far.

    Args:
        strategy: C.
        rounds: N.
        limit: largest permitted sensitivity, at clip norm 1.

    Raises:
        InputError: C has negative entries, or a single participation may exceed the limit.
    """

    def __init__(self, strategy: Strategy, rounds: int, limit: float) -> None:
        check_can_be_filtered(strategy, rounds, limit)
        self.rounds = 0
        # A sensitivity that equals the limit must not be refused because of its rounding.
        self._most_square = (limit * (1.0 + ROUNDING)) ** 2
        self._devices = _Devices()
        self._over_all_rounds = PatternSensitivities(strategy, rounds)
        self._squares = np.zeros(0)
        """Squared sensitivities over all rounds, by place of the device, with room for more."""

    def admits(self, device_ids: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Whether each of the devices [A] may take part in the next round."""
        _, squares = self._with_next_round(device_ids)
        return squares <= self._most_square

    def add(self, device_ids: NDArray[np.uint64]) -> None:
        """Takes the devices [A] of the next round, each once."""
        places, squares = self._with_next_round(device_ids)
        self._squares[places] = squares
        self._devices.add(places, self.rounds)
        self.rounds += 1

    def _with_next_round(
        self, device_ids: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """(places of devices [A], their squared sensitivities with the next round)."""
        places = self._devices.places_of(device_ids)
        self._squares = _with_room(self._squares, self._devices.count)
        growth = self._devices.growth(places, self.rounds, self._over_all_rounds)
        return places, self._squares[places] + growth


def check_can_be_filtered(strategy: Strategy, rounds: int, limit: float) -> None:
    """Raises InputError unless devices can be held to a limit one by one (`SensitivityFilter`).

    Args:
        strategy: C.
        rounds: N, of the whole run.
        limit: the largest sensitivity that is allowed, at clip norm 1.
    """
    if strategy.pattern_square(np.zeros(1, np.int64), rounds) is None:
        raise InputError(
            f"this {strategy.kind} mechanism has negative entries, for which a device's loss in "
            "later rounds is not known before they are over; take a mechanism without, or end the "
            "run at the budget"
        )
    every = np.arange(rounds)
    most = float(strategy.gram_entries(every, every, rounds).max()) ** 0.5
    if most > limit * (1.0 + ROUNDING):
        raise InputError(
            f"one participation has the sensitivity {up(most, 6)} over {rounds:,} rounds, and the "
            f"budget allows {down(limit, 6)}, so devices would be excluded before they took "
            "part once; raise the budget or the noise multiplier"
        )


class _Devices:
    """The rounds of every device: numbers of places, and for each a chain of rounds, the latest
    first.

    count: devices so far; their places are 0 .. count - 1, in order of their first round.
    """

    def __init__(self) -> None:
        self.count = 0
        self._old, self._recent = (_sorted_pairs(), _sorted_pairs())
        """Device ids in order and their places; the recent ones apart, so that a round does not
        move all of them."""
        self._latest = np.zeros(0, np.int64)
        """By place, the number of the latest link; these arrays have room for more."""
        self._lengths = np.zeros(0, np.int64)
        """By place, how many rounds."""
        self._rounds, self._before = np.zeros(1, np.uint32), np.zeros(1, np.int64)
        """By link, its round, and the number of the link before. Link 0 is none."""
        self._links = 1

    def places_of(self, device_ids: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The places of devices [A]; new ones get one."""
        places = np.full(device_ids.size, _NEW)
        for ids, known in (self._old, self._recent):
            at = np.searchsorted(ids, device_ids)
            # `searchsorted` may point behind the last id; any place will do, because the ids are
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
        # The old ids are only moved when there are an eighth as many recent ones, which is seldom;
        # a round only moves the recent ones.
        if self._recent[0].size > max(1 << 16, self._old[0].size // 8):
            self._old, self._recent = _merged(self._old, self._recent), _sorted_pairs()
        self._latest = _with_room(self._latest, self.count)
        self._lengths = _with_room(self._lengths, self.count)
        return places

    def add(self, places: NDArray[np.int64], round_index: int) -> None:
        """Adds a round to devices [A], each once."""
        links = np.arange(self._links, self._links + places.size)
        self._links += places.size
        self._rounds = _with_room(self._rounds, self._links)
        self._before = _with_room(self._before, self._links)
        self._rounds[links], self._before[links] = round_index, self._latest[places]
        self._latest[places] = links
        self._lengths[places] += 1

    def growth(
        self, places: NDArray[np.int64], round_index: int, sensitivities: PatternSensitivities
    ) -> NDArray[np.float64]:
        """Returns the increase of the squared sensitivities of devices [A] by one more round.

        Args:
            places: places of the devices.
            round_index: t, after all their rounds.
            sensitivities: sensitivities over the rounds of the square.
        """
        now = np.full(places.size, round_index)
        # (sum of a pattern and one more round)^2 = the old square + G[t, t] + 2 sum of G[i, t].
        growth = sensitivities.entries(now, now)
        for whose, earlier in self.steps_back(places):
            growth[whose] += 2.0 * sensitivities.entries(earlier, now[whose])
        return growth

    def steps_back(
        self, places: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """(which of the devices [A], their rounds) of the latest rounds, of those before, ..."""
        # All devices go back by one link at a time: a step costs an array operation, not a loop
        # over devices.
        links, whose = self._latest[places], np.arange(places.size)
        while True:
            is_there = links != _NO_LINK
            links, whose = links[is_there], whose[is_there]
            if not links.size:
                return
            yield whose, self._rounds[links].astype(np.int64)
            links = self._before[links]

    def patterns(
        self, places: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """(places [Q], their rounds in order [Q, c]), in parts of devices with equally many."""
        lengths = self._lengths[places]
        for length in np.flatnonzero(np.bincount(lengths, minlength=1)).tolist():
            chosen = places[lengths == length]
            # Fewer long patterns are taken at a time, so that a part fits in memory.
            step = max(1, min(CHUNK, 32 * CHUNK // length))
            for start in range(0, chosen.size, step):
                part = chosen[start : start + step]
                rounds = np.empty((part.size, length), np.int64)
                # The chain has the latest round first, and a pattern is in order: it is filled from
                # its end.
                for column, (whose, found) in enumerate(self.steps_back(part)):
                    rounds[whose, length - 1 - column] = found
                yield part, rounds


def _with_room(array: NDArray, size: int) -> NDArray:
    """The array, with zeros after it if it is shorter; twice as long, so that this is rare."""
    if size <= array.size:
        return array
    more = max(size, 2 * array.size) - array.size
    return np.concatenate([array, np.zeros(more, array.dtype)])


_Pairs = tuple[NDArray[np.uint64], NDArray[np.int64]]


def _sorted_pairs() -> _Pairs:
    return np.zeros(0, np.uint64), np.zeros(0, np.int64)


def _merged(one: _Pairs, other: _Pairs) -> _Pairs:
    ids = np.concatenate([one[0], other[0]])
    # Both are in order, and a stable sort finds and merges such runs.
    order = np.argsort(ids, kind="stable")
    return ids[order], np.concatenate([one[1], other[1]])[order]
