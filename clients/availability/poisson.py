"""Sessions that start as a Poisson process, at any time of the day alike, with exponential lengths;
drawn by (device, UTC day)."""

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedray.base.rng import Key, Stream, draw, exponential, poisson, stream_key, uniform
from fedray.clients.availability.intervals import (
    DAY,
    JOIN_SECONDS,
    Intervals,
    filled,
    keep_touching,
    merge,
)
from fedray.clients.availability.model import NothingKnown
from fedray.scenario import Scenario
from fedray.scenario.availability import PoissonAvailability

MAX_SESSIONS = 512
_COUNT, _SESSION = 0, 1


class _Model(NamedTuple):
    """What compiled code needs of the table.

    key: of the sessions.
    sessions_per_day: mean number that a device starts in a day.
    none_probability: that it starts none.
    mean_seconds: length of a session before it is cut.
    max_seconds: length at which it is cut.
    """

    key: Key
    sessions_per_day: float
    none_probability: float
    mean_seconds: float
    max_seconds: float

    @classmethod
    def of(cls, scenario: Scenario, table: PoissonAvailability) -> "_Model":
        """The compiled form of a scenario's table.

        Args:
            scenario: says the seed.
            table: its availability.
        """
        return cls(
            key=stream_key(scenario.seed, Stream.SESSIONS),
            sessions_per_day=table.sessions_per_day,
            none_probability=math.exp(-table.sessions_per_day),
            mean_seconds=60.0 * table.session_minutes,
            max_seconds=3600.0 * table.session_max_hours,
        )


class PoissonModel(NothingKnown):
    """Availability by a Poisson process; see fedray.clients.availability.model.Availability.

    Args:
        scenario: says the seed.
        table: its availability.
    """

    def __init__(self, scenario: Scenario, table: PoissonAvailability) -> None:
        self._model = _Model.of(scenario, table)

    def list_intervals(
        self,
        device_ids: NDArray[np.uint64],
        open_times: NDArray[np.float64],
        from_time: float,
        until_time: float,
        known: None = None,
    ) -> Intervals:
        """The intervals of `device_ids` that touch a time, from each one's `open_times` on.

        Args:
            device_ids: [N].
            open_times: [N], seconds since start.
            from_time: seconds since start.
            until_time: seconds since start.
            known: nothing.
        """

        def fill(room: Intervals) -> int:
            return _list_intervals(self._model, device_ids, open_times, from_time, until_time, room)

        days = (until_time - from_time) / DAY
        # This is more than the mean, because too little room would cost a second listing.
        expected = device_ids.size * (2.0 + self._model.sessions_per_day * days)
        return filled(fill, int(expected + 1024))

    def interval_ends(
        self,
        device_ids: NDArray[np.uint64],
        times: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """When the intervals of `device_ids` end that hold the `times`, one for each, [C]."""
        return _interval_ends(self._model, device_ids, times)


@njit(forceinline=True)
def _gather(model, device, from_time, until_time, starts, ends):
    """Sessions that touch [from_time - JOIN_SECONDS, until_time], in no order; how many. A day of
    20 has hardly 100."""
    from_time -= JOIN_SECONDS
    # A session may have started as long before as the longest one lasts.
    first_day = math.floor((from_time - model.max_seconds) / DAY)
    count = 0
    last_day = math.floor(until_time / DAY)
    for day in range(first_day, last_day + 1):
        word, _, _, _ = draw(model.key, device, day, _COUNT)
        sessions = poisson(model.sessions_per_day, model.none_probability, word)
        for session in range(sessions):
            w0, w1, _, _ = draw(model.key, device, day, _SESSION + session)
            start = DAY * (day + uniform(w0))
            seconds = min(model.max_seconds, model.mean_seconds * exponential(w1))
            end = start + seconds
            if end >= from_time and start <= until_time and count < starts.size:
                starts[count], ends[count] = start, end
                count += 1
    return count


@njit(forceinline=True)
def _intervals_between(model, device, from_time, until_time, starts, ends):
    """Intervals that touch [from_time, until_time), with their true ends; how many."""
    # What starts within JOIN_SECONDS after an end belongs to the same interval, so a little more
    # than the time asked for is looked at.
    until = until_time + 2.0 * JOIN_SECONDS
    sessions = _gather(model, device, from_time, until, starts, ends)
    intervals = merge(starts, ends, sessions)
    kept = keep_touching(starts, ends, intervals, from_time, until_time)
    covered = until_time
    # The last one may go on: look at what it touches further on, until nothing prolongs it.
    while kept > 0 and ends[kept - 1] > covered:
        covered = ends[kept - 1]
        # What is gathered goes behind the intervals that are kept.
        until = covered + 2.0 * JOIN_SECONDS
        found = _gather(model, device, covered, until, starts[kept:], ends[kept:])
        for session in range(kept, kept + found):
            if starts[session] <= covered + JOIN_SECONDS:
                ends[kept - 1] = max(ends[kept - 1], ends[session])
    return kept


@njit(cache=True, nogil=True)
def _list_intervals(model, device_ids, open_times, from_time, until_time, room):
    starts, ends = np.empty(MAX_SESSIONS), np.empty(MAX_SESSIONS)
    out_local, out_starts, out_ends = room
    total = 0
    for local in range(device_ids.size):
        if open_times[local] >= until_time:
            continue
        begin = max(from_time, open_times[local])
        count = _intervals_between(model, device_ids[local], begin, until_time, starts, ends)
        for interval in range(count):
            if total < out_local.size:
                out_local[total] = local
                out_starts[total] = starts[interval]
                out_ends[total] = ends[interval]
            total += 1
    return total


@njit(cache=True, nogil=True)
def _interval_ends(model, device_ids, times):
    starts, ends = np.empty(MAX_SESSIONS), np.empty(MAX_SESSIONS)
    out = np.full(device_ids.size, -np.inf)
    for asked in range(device_ids.size):
        device, time = device_ids[asked], times[asked]
        # The shortest time that holds the moment: at most one interval touches it.
        after = np.nextafter(time, np.inf)
        if _intervals_between(model, device, time, after, starts, ends) > 0:
            out[asked] = ends[0]
    return out
