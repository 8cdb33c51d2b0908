"""Continuation of a deployment from its observed state: which devices take part in which of the
rounds to come."""

from typing import NamedTuple

import numpy as np

from fedray.audit.guarantees import allowed
from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.compiled import njit
from fedray.base.rng import Stream, stream_generator
from fedray.mechanisms.participation import MinSep
from fedray.studies.forecast.devices import Devices
from fedray.studies.forecast.history import DAY, History
from fedray.studies.forecast.pace import Pace

WAIT = 900.0
"""Seconds by which a round is late each time too few devices are open."""
PATIENCE = 64
"""Draws per device of a round before it waits."""


class Continued(NamedTuple):
    """One continuation up to the planned rounds."""

    starts: Float64Array
    """Starts of the rounds to come, [f] seconds."""
    min_seps: Int64Array
    """Least gap of a device so far after each of them, [f]; the number of rounds without any."""
    most: Int64Array
    """Most participations of a device after each, [f]."""
    counts: Int64Array
    """Participations of every device that took part, [P']."""
    enforced: MinSep
    """(n, b, k) that the rules allow at the times of all rounds."""


def continued(history: History, pace: Pace, devices: Devices, rounds: int, seed: int) -> Continued:
    """Returns a continuation of a history, a function of the seed.

    Args:
        history: observed state: past rounds, and the open timer of each device.
        pace: fitted pace.
        devices: fitted devices.
        rounds: planned rounds, more than observed.
        seed: seed of all its draws.
    """
    rng = stream_generator(seed, Stream.FORECAST, rounds, history.rounds)
    count = rounds - history.rounds
    starts = pace.continued(count, rng)
    population = devices.drawn(rng)
    seen = devices.activity(population, rng)
    last = float(history.starts[-1])
    unseen, waits = devices.unseen(population, (float(starts[-1]) - last) / DAY, rng)
    groups = devices.groups
    of_unseen = rng.choice(groups.shares.size, unseen.size, p=groups.shares)
    group = np.concatenate([groups.drawn(history, rng), of_unseen])
    order = np.argsort(group, kind="stable")
    cumulated = np.cumsum(np.concatenate([seen, unseen])[order])
    ends = np.searchsorted(group[order], np.arange(groups.shares.size), side="right")
    edges = np.concatenate([[0.0], cumulated])[np.append(0, ends)]
    # The total activity of a group is its share of all hours.
    rates = groups.hours / np.maximum(groups.hours.sum(axis=1, keepdims=True), 1e-300)
    patterns, rules = history.patterns, history.rules
    opens = np.concatenate([np.empty(seen.size), last + waits])
    lasts = patterns.rounds[patterns.starts + patterns.counts - 1].astype(np.int64)
    timer = devices.opening(rng)
    opens[: seen.size] = history.starts[lasts] + timer
    previous = np.concatenate([lasts, np.full(unseen.size, -1)])
    counts = np.concatenate([patterns.counts, np.zeros(unseen.size, np.int64)])
    # Rounds to come are as large as recent ones.
    recent = devices.sizes[-max(1, history.rounds // 4) :]
    sizes = rng.choice(recent, count)
    cells = np.linspace(0.0, cumulated[-1], cumulated.size + 1)[:-1]
    guide = np.searchsorted(cumulated, cells, side="right").astype(np.int64)
    most = rules.most if rules.most is not None else np.iinfo(np.int64).max
    limits = np.array([max(1, rules.separation), most], np.int64)
    state = np.array([patterns.min_sep, patterns.max_participations], np.int64)
    if state[1] == 1:
        state[0] = rounds
    min_seps, kept = np.empty(count, np.int64), np.empty(count, np.int64)
    _take_part(
        rng, starts, sizes, history.rounds, rates, edges, cumulated, guide, order, opens, previous,
        counts, timer, limits, state, min_seps, kept,
    )  # fmt: skip
    whole = np.concatenate([history.starts, starts])
    enforced = allowed(whole, whole, rules.timer_seconds, rules.separation, rules.most)
    return Continued(starts, min_seps, kept, counts[counts > 0], enforced)


@njit
def _take_part(
    rng, starts, sizes, first, rates, edges, cumulated, guide, order, opens, previous,
    counts, timer, limits, state, min_seps, kept,
):  # fmt: skip
    """Draws the devices of each round among the open ones, in proportion to their activity, and
    updates the state in place. A round that finds too few is late, and so are those after it."""
    groups = edges.size - 1
    whole = cumulated[-1]
    late = 0.0
    shares = np.empty(groups)
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
            if opens[device] > start or counts[device] >= limits[1]:
                continue
            if previous[device] >= 0:
                gap = now - previous[device]
                if gap < limits[0]:
                    continue
                state[0] = min(state[0], gap)
            opens[device] = start + timer
            if timer == 0.0:
                # A device takes part in a round at most once.
                opens[device] = start + 1e-6
            previous[device] = now
            counts[device] += 1
            state[1] = max(state[1], counts[device])
            taken += 1
        starts[t] = start
        min_seps[t] = state[0]
        kept[t] = state[1]
