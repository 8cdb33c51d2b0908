"""Sessions that start as a Poisson process, at any hour of the day equally often, with exponential
lengths; drawn by (device, UTC day)."""

import math
from typing import NamedTuple

import numpy as np

from fedray.base.compiled import njit
from fedray.base.rng import Key, Stream, draw, exponential, poisson, stream_key, uniform
from fedray.scenario.availability import PoissonAvailability
from fedray.wire.zones import Zones
from .compiled import CompiledModel, Request
from .intervals import (
    DAY,
    HOUR,
    JOIN_SECONDS,
    Intervals,
    merge_touching,
    prolong,
)

# A day of 20 sessions hardly ever has 100.
MAX_SESSIONS = 512
# Addresses b within Stream.SESSIONS at (device, a = day).
_COUNT, _SESSION = 0, 1


class _Model(NamedTuple):
    """Numbers of the table."""

    key: Key
    """Key of the draws."""
    sessions_per_day: float
    """Mean number of sessions that a device starts in a day."""
    none_probability: float
    """Probability that it starts none."""
    mean_seconds: float
    """Mean length of a session before it is cut."""
    max_seconds: float
    """Length at which it is cut."""


class PoissonModel(CompiledModel):
    """Availability by a Poisson process; see fedray.clients.availability.model.Availability.

    Args:
        table: rates and lengths.
        seed: the scenario's seed.
        zones: time zones of the devices, on which nothing depends.
    """

    def __init__(self, table: PoissonAvailability, seed: int, zones: Zones) -> None:
        del zones
        self.intervals_per_day = table.sessions_per_day
        self._model = _Model(
            key=stream_key(seed, Stream.SESSIONS),
            sessions_per_day=table.sessions_per_day,
            none_probability=math.exp(-table.sessions_per_day),
            mean_seconds=60.0 * table.session_minutes,
            max_seconds=HOUR * table.session_max_hours,
        )

    def fill(self, request: Request, known: None, room: Intervals) -> int:
        return _list_intervals(self._model, *request, room)


@njit(forceinline=True)
def _gather(model, device, from_time, until_time, starts, ends):
    """Collects the sessions that may touch or join intervals of [from_time, until_time), in no
    order; returns their number."""
    # A session within JOIN_SECONDS of an interval belongs to it.
    from_time -= JOIN_SECONDS
    until_time += 2.0 * JOIN_SECONDS
    # A session may have started as long before as the longest one lasts.
    first_day = math.floor((from_time - model.max_seconds) / DAY)
    last_day = math.floor(until_time / DAY)
    count = 0
    for day in range(first_day, last_day + 1):
        word = draw(model.key, device, day, _COUNT)[0]
        # A Poisson number of uniform starts a day has the law of exponential gaps, and a day can be
        # drawn without the days before it.
        sessions = poisson(model.sessions_per_day, model.none_probability, word)
        for session in range(sessions):
            w0, w1, _, _ = draw(model.key, device, day, _SESSION + session)
            start = DAY * (day + uniform(w0))
            end = start + min(model.max_seconds, model.mean_seconds * exponential(w1))
            if end >= from_time and start <= until_time and count < starts.size:
                starts[count] = start
                ends[count] = end
                count += 1
    return count


@njit(forceinline=True)
def _intervals_between(model, device, from_time, until_time, starts, ends):
    """Finds the intervals that touch [from_time, until_time), with true ends; returns their
    number."""
    sessions = _gather(model, device, from_time, until_time, starts, ends)
    kept = merge_touching(starts, ends, sessions, from_time, until_time)
    covered = until_time
    # The last one may continue: look further until nothing prolongs it.
    while kept > 0 and ends[kept - 1] > covered:
        covered = ends[kept - 1]
        # Further sessions are gathered behind the intervals that are kept.
        found = _gather(model, device, covered, covered, starts[kept:], ends[kept:])
        prolong(starts, ends, kept, found)
    return kept


@njit(cache=True, nogil=True)
def _list_intervals(model, device_ids, from_times, until_times, room):
    starts, ends = np.empty(MAX_SESSIONS), np.empty(MAX_SESSIONS)
    out_local, out_starts, out_ends = room
    total = 0
    for local in range(device_ids.size):
        from_time = from_times[local]
        until_time = until_times[local]
        if from_time >= until_time:
            continue
        count = _intervals_between(model, device_ids[local], from_time, until_time, starts, ends)
        for interval in range(count):
            if total < out_local.size:
                out_local[total] = local
                out_starts[total] = starts[interval]
                out_ends[total] = ends[interval]
            total += 1
    return total
