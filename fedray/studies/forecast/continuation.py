"""Continuation of a deployment from its observed state: which devices take part in which of the
rounds to come.

Each round draws devices in proportion to their activity until enough are open. Of a large
deployment, one random part of the devices does so for its part of the reports. The number of draws
of a round is how much each round asks for; given it, every other device comes back by itself, as a
renewal process, and memory does not grow with the devices.
"""

from typing import NamedTuple

import numpy as np

from fedray.audit.guarantees import allowed
from fedray.audit.participation import Patterns
from fedray.base.arrays import (
    Float64Array,
    Int32Array,
    Int64Array,
    UInt8Array,
    UInt32Array,
)
from fedray.base.compiled import njit
from fedray.base.rng import Stream, stream_generator
from fedray.mechanisms.participation import MinSep
from fedray.studies.forecast.devices import Devices, Groups, Population
from fedray.studies.forecast.history import DAY, History
from fedray.studies.forecast.pace import Pace
from fedray.studies.forecast.privacy import Privacy, Spent

WAIT = 900.0
"""Seconds by which a round is late each time too few devices are open."""
PATIENCE = 64
"""Draws per device of a round before it waits."""
PART = 1 << 16
"""Most observed devices of a part."""


class Continued(NamedTuple):
    """One continuation up to the planned rounds."""

    starts: Float64Array
    """Starts of the rounds to come, [f] seconds."""
    min_seps: Int64Array
    """Least gap of a device so far after each of them, [f]; the number of rounds without any."""
    most: Int64Array
    """Most participations of a device after each, [f]."""
    by_count: Int64Array
    """Number of devices by their participations, from 0, [k + 1]; none has 0."""
    enforced: MinSep
    """(n, b, k) that the rules allow at the times of all rounds."""
    spent: Spent | None
    """Its privacy; None if it is not wanted."""

    @property
    def end(self) -> MinSep:
        """(n, b, k) after the last round."""
        return MinSep(self.enforced.rounds, int(self.min_seps[-1]), int(self.most[-1]))


def continued(
    history: History,
    pace: Pace,
    devices: Devices,
    rounds: int,
    seed: int,
    privacy: Privacy | None = None,
) -> Continued:
    """Returns a continuation of a history, a function of the seed.

    Args:
        history: observed state: past rounds, and the open timer of each device.
        pace: fitted pace.
        devices: fitted devices.
        rounds: planned rounds, more than observed.
        seed: seed of all its draws.
        privacy: mechanism and noise to judge it by, which takes memory for the rounds of all
            devices; None not to.
    """
    rng = stream_generator(seed, Stream.FORECAST, rounds, history.rounds)
    count = rounds - history.rounds
    starts = pace.continued(count, rng)
    population = devices.drawn(rng)
    days = (float(starts[-1]) - float(history.starts[-1])) / DAY
    timer = devices.opening(rng)
    # Rounds to come are as large as recent ones.
    sizes = rng.choice(devices.sizes[-max(1, history.rounds // 4) :], count)
    past, rules = history.patterns, history.rules
    ahead = history.ahead or rules
    timer += ahead.timer_seconds - rules.timer_seconds
    parts = -(-past.counts.size // PART)
    sizes = np.floor(sizes / parts + rng.random(count)).astype(np.int64)
    min_seps = np.full(count, past.min_sep if past.max_participations > 1 else rounds)
    most = np.full(count, past.max_participations)
    separation, limit = max(1, ahead.separation), ahead.most or np.iinfo(np.int64).max
    by_count = np.zeros(1, np.int64)
    found: list[tuple[Int64Array, UInt32Array]] = []
    demand = np.empty((devices.groups.shares.size, count))
    again = np.empty(count, np.int64)
    for number in range(parts):
        part = slice(number, None, parts)
        state = _State(history, devices, population, part, days, rng)
        own = past.rounds, past.starts[part], past.counts[part]
        if number == 0:
            whole = 0 if privacy is None else int(sizes.sum())
            taken = np.empty(whole, np.int32), np.empty(whole, np.uint32)
            filled = _take_part(
                rng, starts, sizes, history.rounds, *_cells(state, devices.groups), state.opens,
                state.previous, state.counts, timer, separation, limit, state.first, min_seps,
                most, demand, *taken,
            )  # fmt: skip
            rows = np.empty(0, np.uint32)
            if privacy is not None:
                rows = _joined(*own, state.counts, *(each[:filled] for each in taken))
            demand = np.concatenate([np.zeros((len(demand), 1)), np.cumsum(demand, axis=1)], axis=1)
            # First round to come that a device may join after each of them.
            again = np.searchsorted(starts, starts + timer)
            again = np.maximum(again, np.arange(count) + separation)
        else:
            entries = np.searchsorted(starts, state.opens + timer * (state.previous >= 0))
            entries = np.maximum(entries, state.previous + separation - history.rounds)
            entries = np.maximum(entries, state.first - history.rounds)
            rows = _come_back(
                rng, state.activity, state.group, entries, again, demand, history.rounds,
                state.previous, state.counts, limit, min_seps, most, *own, privacy is not None,
            )  # fmt: skip
        counted = np.bincount(state.counts)
        by_count = np.pad(by_count, (0, max(0, counted.size - by_count.size)))
        by_count[: counted.size] += counted
        if privacy is not None:
            found.append((state.counts[state.counts > 0].astype(np.int64), rows))
    min_seps, most = np.minimum.accumulate(min_seps), np.maximum.accumulate(most)
    by_count[0] = 0
    spent = None
    if privacy is not None:
        counts, rows = (np.concatenate(each) for each in zip(*found, strict=True))
        patterns = Patterns(rounds, np.arange(counts.size, dtype=np.uint64), counts, rows)
        spent = privacy.of_patterns(patterns, history.rounds)
    whole = np.concatenate([history.starts, starts])
    enforced = allowed(whole, whole, rules.timer_seconds, rules.separation, rules.most)
    return Continued(starts, min_seps, most, by_count, enforced, spent)


class _State:
    """Observed state of the devices of a part, and of devices that have not come yet: Q in all."""

    activity: Float64Array
    """Activity, [Q]."""
    group: UInt8Array
    """Group, [Q]."""
    opens: Float64Array
    """Start of the last round of a device; of one that has not come, its first time. [Q] seconds.
    """
    previous: Int32Array
    """Last round; -1 without one, [Q]."""
    counts: Int32Array
    """Participations so far, [Q]."""

    def __init__(
        self,
        history: History,
        devices: Devices,
        population: Population,
        part: slice,
        days: float,
        rng: np.random.Generator,
    ) -> None:
        patterns, groups = history.patterns, devices.groups
        seen = devices.activity.of_seen(population.shares, part, rng)
        share = seen.size / patterns.counts.size
        unseen, waits = devices.unseen(population, days, share, rng)
        self.activity = np.concatenate([seen, unseen])
        of_unseen = rng.choice(groups.shares.size, unseen.size, p=groups.shares)
        group = np.concatenate([devices.groups_of_seen(part, rng), of_unseen])
        self.group = group.astype(np.uint8)
        counts = patterns.counts[part]
        lasts = patterns.rounds[patterns.starts[part] + counts - 1].astype(np.int32)
        self.opens = np.concatenate([history.starts[lasts], history.starts[-1] + waits])
        none = np.zeros(unseen.size, np.int32)
        self.previous = np.concatenate([lasts, none - 1])
        self.counts = np.concatenate([counts.astype(np.int32), none])
        self.first = np.zeros(self.counts.size, np.int64)
        if history.waits is not None:
            self.first[: counts.size] = history.waits[part]


def _cells(
    state: _State, groups: Groups
) -> tuple[Float64Array, Float64Array, Float64Array, Int32Array, Int32Array]:
    """Returns rates of the groups by hour [C, 24], the cumulated activity before and after each
    group [C + 1], that of the devices in order of groups [Q], a guide into it [Q], and the order
    [Q]."""
    order = np.argsort(state.group, kind="stable").astype(np.int32)
    cumulated = np.cumsum(state.activity[order])
    ends = np.searchsorted(state.group[order], np.arange(groups.shares.size), side="right")
    edges = np.concatenate([[0.0], cumulated])[np.append(0, ends)]
    # The total activity of a group is its share of all hours.
    rates = groups.hours / np.maximum(groups.hours.sum(axis=1, keepdims=True), 1e-300)
    cells = np.linspace(0.0, cumulated[-1], cumulated.size + 1)[:-1]
    guide = np.searchsorted(cumulated, cells, side="right").astype(np.int32)
    return rates, edges, cumulated, guide, order


@njit(nogil=True)
def _take_part(
    rng, starts, sizes, first, rates, edges, cumulated, guide, order, opens, previous,
    counts, timer, separation, limit, begins, min_seps, most, demand, taken_by, taken_in,
):  # fmt: skip
    """Draws the devices of each round among the open ones, in proportion to their activity, and
    updates the state in place. A round that finds too few is late, and so are those after it. The
    `demand` of a round from each group is how often it drew a device of activity 1, [C, f].

    Returns:
        Number of entries of `taken_by` and `taken_in`, devices and rounds, if these have room.
    """
    for device in range(previous.size):
        if previous[device] >= 0:
            opens[device] += timer
    groups = edges.size - 1
    whole = cumulated[-1]
    late = 0.0
    shares = np.empty(groups)
    least, largest = min_seps[0], most[0]
    filled = 0
    for t in range(starts.size):
        start = starts[t] + late
        taken = 0
        tries = 0
        waited = 0
        draws = 0
        total = 0.0
        hour = 0
        while taken < sizes[t]:
            if tries % 1024 == 0:
                hour = int(start % DAY // 3600.0)
                total = 0.0
                for g in range(groups):
                    total += rates[g, hour] * (edges[g + 1] - edges[g])
                    shares[g] = total
            tries += 1
            draws += 1
            if tries > PATIENCE * sizes[t]:
                if waited == 10_000:
                    break
                waited += 1
                tries = 0
                start += WAIT
                late += WAIT
                continue
            where = rng.random() * shares[groups - 1]
            g = 0
            while g < groups - 1 and where >= shares[g]:
                g += 1
            target = edges[g] + rng.random() * (edges[g + 1] - edges[g])
            place = guide[min(int(target / whole * guide.size), guide.size - 1)]
            while place < cumulated.size - 1 and cumulated[place] <= target:
                place += 1
            device = order[place]
            now = first + t
            if opens[device] > start or counts[device] >= limit or begins[device] > now:
                continue
            if previous[device] >= 0:
                gap = now - previous[device]
                if gap < separation:
                    continue
                least = min(least, gap)
            opens[device] = start + timer
            if timer == 0.0:
                # A device takes part in a round at most once.
                opens[device] = start + 1e-6
            previous[device] = now
            counts[device] += 1
            largest = max(largest, counts[device])
            if taken_by.size:
                taken_by[filled], taken_in[filled] = device, now
                filled += 1
            taken += 1
        starts[t] = start
        min_seps[t] = least
        most[t] = largest
        for g in range(groups):
            demand[g, t] = draws * rates[g, hour] / max(total, 1e-300)
    return filled


@njit(nogil=True)
def _joined(past, begins, past_counts, counts, taken_by, taken_in):
    """Returns the rounds of devices that took part, device after device.

    Args:
        past: past rounds of all devices.
        begins, past_counts: place of the first past round of each seen device, and their number.
        counts: number of all rounds of each device, seen ones first.
        taken_by, taken_in: devices and rounds of participations to come, in order of rounds.
    """
    found = np.empty(counts.sum(), np.uint32)
    at = np.cumsum(counts) - counts
    for device in range(begins.size):
        for place in range(past_counts[device]):
            found[at[device] + place] = past[begins[device] + place]
        at[device] += past_counts[device]
    for place in range(taken_by.size):
        device = taken_by[place]
        found[at[device]] = taken_in[place]
        at[device] += 1
    return found


@njit(nogil=True)
def _come_back(
    rng, activity, group, entries, again, demand, first, previous, counts, limit, min_seps, most,
    past, begins, past_counts, has_rows,
):  # fmt: skip
    """Draws the rounds of each device by itself, and updates the state in place: an open device of
    activity a takes part at the rate a times the demand of the rounds.

    Args:
        rng: generator of the draws.
        activity, group: of each device, [Q].
        entries: first round to come that each device may join, [Q].
        again: first round to come that a device may join after each of them, [f].
        demand: demand before each round to come, and after the last one, from each group, [C, f +
            1].
        first: number of observed rounds.
        previous, counts: last round and participations of each device, [Q].
        limit: most participations of a device.
        min_seps, most: least gap that ends in each round, and most participations in it, [f].
        past, begins, past_counts: past rounds of all devices, the place of the first one of each
            seen device, and their number.
        has_rows: whether to return rounds.

    Returns:
        Rounds of devices that took part, device after device; empty if not wanted.
    """
    rounds = again.size
    rows = np.empty(2 * past_counts.sum() if has_rows else 0, np.uint32)
    filled = 0
    for device in range(activity.size):
        if has_rows and filled + rounds + first > rows.size:
            grown = np.empty(2 * rows.size + rounds + first, np.uint32)
            grown[:filled] = rows[:filled]
            rows = grown
        if has_rows and device < begins.size:
            for place in range(begins[device], begins[device] + past_counts[device]):
                rows[filled] = past[place]
                filled += 1
        curve = demand[group[device]]
        t = entries[device]
        while t < rounds and counts[device] < limit:
            target = curve[t] + rng.standard_exponential() / activity[device]
            if target >= curve[rounds]:
                break
            t = np.searchsorted(curve, target, side="right") - 1
            now = first + t
            if previous[device] >= 0:
                min_seps[t] = min(min_seps[t], now - previous[device])
            previous[device] = now
            counts[device] += 1
            most[t] = max(most[t], counts[device])
            if has_rows:
                rows[filled] = now
                filled += 1
            t = again[t]
    return rows[:filled]
