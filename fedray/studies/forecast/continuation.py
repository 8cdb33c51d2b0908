"""Continuation of a deployment from its observed state: which devices take part in which of the
rounds to come.

Devices of large deployments are drawn shard by shard: each shard has a random part of the devices
and of the reports of every round. Its state fits into the cache, and memory does not grow with the
devices.
"""

from typing import NamedTuple

import numpy as np

from fedray.audit.guarantees import allowed
from fedray.audit.participation import Patterns
from fedray.base.arrays import Float64Array, Int64Array, UInt32Array
from fedray.base.compiled import njit
from fedray.base.rng import Stream, stream_generator
from fedray.mechanisms.participation import MinSep
from fedray.studies.forecast.devices import Devices, Population
from fedray.studies.forecast.history import DAY, History
from fedray.studies.forecast.pace import Pace
from fedray.studies.forecast.privacy import Privacy, Spent

WAIT = 900.0
"""Seconds by which a round is late each time too few devices are open."""
PATIENCE = 64
"""Draws per device of a round before it waits."""
SHARD = 1 << 16
"""Most observed devices of a shard."""


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
    shards = -(-past.counts.size // SHARD)
    sizes = rng.multinomial(sizes, np.full(shards, 1 / shards)).T.copy()
    min_seps = np.full(count, past.min_sep if past.max_participations > 1 else rounds)
    most = np.full(count, past.max_participations)
    by_count = np.zeros(1, np.int64)
    parts: list[tuple[Int64Array, UInt32Array]] = []
    for shard, wanted in enumerate(sizes):
        state = _State(history, devices, population, slice(shard, None, shards), days, rng)
        whole = 0 if privacy is None else int(wanted.sum())
        taken = np.empty(whole, np.int32), np.empty(whole, np.uint32)
        filled = _take_part(
            rng, starts, wanted, history.rounds, state.rates, state.edges, state.cumulated,
            state.guide, state.order, state.opens, state.previous, state.counts, timer,
            max(1, ahead.separation), ahead.most or np.iinfo(np.int64).max, state.first, min_seps,
            most, *taken,
        )  # fmt: skip
        found = np.bincount(state.counts)
        by_count = np.pad(by_count, (0, max(0, found.size - by_count.size)))
        by_count[: found.size] += found
        if privacy is not None:
            own = slice(shard, None, shards)
            rows = _joined(
                past.rounds, past.starts[own], past.counts[own], state.counts,
                *(each[:filled] for each in taken),
            )  # fmt: skip
            parts.append((state.counts[state.counts > 0], rows))
    by_count[0] = 0
    spent = None
    if privacy is not None:
        counts, rows = (np.concatenate(each) for each in zip(*parts, strict=True))
        patterns = Patterns(rounds, np.arange(counts.size, dtype=np.uint64), counts, rows)
        spent = privacy.of_patterns(patterns, history.rounds)
    whole = np.concatenate([history.starts, starts])
    enforced = allowed(whole, whole, rules.timer_seconds, rules.separation, rules.most)
    return Continued(starts, min_seps, most, by_count, enforced, spent)


class _State:
    """Observed state of the devices of a shard, and of devices that have not come yet: of Q seen
    and U unseen ones."""

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
        of_unseen = rng.choice(groups.shares.size, unseen.size, p=groups.shares)
        group = np.concatenate([devices.groups_of_seen(part, rng), of_unseen]).astype(np.uint8)
        self.order = np.argsort(group, kind="stable").astype(np.int32)
        self.cumulated = np.cumsum(np.concatenate([seen, unseen])[self.order])
        ends = np.searchsorted(group[self.order], np.arange(groups.shares.size), side="right")
        self.edges = np.concatenate([[0.0], self.cumulated])[np.append(0, ends)]
        # The total activity of a group is its share of all hours.
        self.rates = groups.hours / np.maximum(groups.hours.sum(axis=1, keepdims=True), 1e-300)
        cells = np.linspace(0.0, self.cumulated[-1], self.cumulated.size + 1)[:-1]
        self.guide = np.searchsorted(self.cumulated, cells, side="right").astype(np.int32)
        counts = patterns.counts[part]
        lasts = patterns.rounds[patterns.starts[part] + counts - 1].astype(np.int64)
        self.opens = np.concatenate([history.starts[lasts], history.starts[-1] + waits])
        # Small types, so that the state stays in the cache.
        self.previous = np.concatenate([lasts, np.full(unseen.size, -1)]).astype(np.int32)
        self.counts = np.concatenate([counts, np.zeros(unseen.size, np.int64)]).astype(np.int32)
        self.first = np.zeros(self.counts.size, np.int64)
        if history.waits is not None:
            self.first[: counts.size] = history.waits[part]


@njit(nogil=True)
def _take_part(
    rng, starts, sizes, first, rates, edges, cumulated, guide, order, opens, previous,
    counts, timer, separation, limit, begins, min_seps, most, taken_by, taken_in,
):  # fmt: skip
    """Draws the devices of each round among the open ones, in proportion to their activity, and
    updates the state in place. A round that finds too few is late, and so are those after it.

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
        while taken < sizes[t]:
            if tries % 1024 == 0:
                hour = int(start % DAY // 3600.0)
                total = 0.0
                for g in range(groups):
                    total += rates[g, hour] * (edges[g + 1] - edges[g])
                    shares[g] = total
            tries += 1
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
        min_seps[t] = min(min_seps[t], least)
        most[t] = max(most[t], largest)
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
