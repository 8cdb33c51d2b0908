"""Sessions that start as a Poisson process, at any time of the day alike, with exponential lengths;
drawn by (device, UTC day)."""

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from clients.availability.model import NothingKnown
from clients.availability.runs import DAY, JOIN_SECONDS, Runs, keep_touching, merge
from fedray.rng import Key, Stream, draw, exponential, poisson, stream_key, uniform
from fedray.scenario import Scenario
from fedray.scenario.availability import PoissonAvailability

MAX_SESSIONS = 512
_COUNT, _SESSION = 0, 1


class _Model(NamedTuple):
    key: Key
    rate: float
    none_probability: float
    mean_seconds: float
    max_seconds: float


class PoissonModel(NothingKnown):
    """See clients.availability.model.Availability."""

    def __init__(self, scenario: Scenario, table: PoissonAvailability) -> None:
        self._model = _Model(
            key=stream_key(scenario.seed, Stream.SESSIONS),
            rate=table.sessions_per_day,
            none_probability=math.exp(-table.sessions_per_day),
            mean_seconds=60.0 * table.session_minutes,
            max_seconds=3600.0 * table.session_max_hours,
        )

    def list_runs(
        self,
        device_ids: NDArray[np.uint64],
        opens: NDArray[np.float64],
        low: float,
        high: float,
        known: None = None,
    ) -> Runs:
        """See clients.availability.model.Availability."""
        capacity = int(device_ids.size * (2.0 + self._model.rate * (high - low) / DAY) + 1024)
        while True:
            index, start, end = (
                np.empty(capacity, np.uint32),
                np.empty(capacity),
                np.empty(capacity),
            )
            total = _list_runs(self._model, device_ids, opens, low, high, index, start, end)
            if total <= capacity:
                return Runs(index[:total], start[:total], end[:total])
            capacity = total

    def run_ends(
        self, device_ids: NDArray[np.uint64], times: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """See clients.availability.model.Availability."""
        return _run_ends(self._model, device_ids, times)


@njit(forceinline=True)
def _gather(model, device, low, high, starts, ends):
    """Sessions that touch [low - JOIN_SECONDS, high], in no order; how many. A day of 20 has hardly
    100."""
    low -= JOIN_SECONDS
    count = 0
    for day in range(math.floor((low - model.max_seconds) / DAY), math.floor(high / DAY) + 1):
        word, _, _, _ = draw(model.key, device, day, _COUNT)
        for session in range(poisson(model.rate, model.none_probability, word)):
            w0, w1, _, _ = draw(model.key, device, day, _SESSION + session)
            start = DAY * (day + uniform(w0))
            end = start + min(model.max_seconds, model.mean_seconds * exponential(w1))
            if end >= low and start <= high and count < starts.size:
                starts[count], ends[count] = start, end
                count += 1
    return count


@njit(forceinline=True)
def _runs_between(model, device, low, high, starts, ends):
    """Runs that touch [low, high), with their true ends; how many."""
    count = _gather(model, device, low, high + 2.0 * JOIN_SECONDS, starts, ends)
    kept = keep_touching(starts, ends, merge(starts, ends, count), low, high)
    covered = high
    while kept > 0 and ends[kept - 1] > covered:
        covered = ends[kept - 1]
        count = kept + _gather(
            model, device, covered, covered + 2.0 * JOIN_SECONDS, starts[kept:], ends[kept:]
        )
        for session in range(kept, count):
            if starts[session] <= covered + JOIN_SECONDS:
                ends[kept - 1] = max(ends[kept - 1], ends[session])
    return kept


@njit(cache=True, nogil=True)
def _list_runs(model, device_ids, opens, low, high, out_index, out_start, out_end):
    starts, ends = np.empty(MAX_SESSIONS), np.empty(MAX_SESSIONS)
    total = 0
    for index in range(device_ids.size):
        if opens[index] >= high:
            continue
        for run in range(
            _runs_between(model, device_ids[index], max(low, opens[index]), high, starts, ends)
        ):
            if total < out_index.size:
                out_index[total], out_start[total], out_end[total] = index, starts[run], ends[run]
            total += 1
    return total


@njit(cache=True, nogil=True)
def _run_ends(model, device_ids, times):
    starts, ends = np.empty(MAX_SESSIONS), np.empty(MAX_SESSIONS)
    out = np.full(device_ids.size, -np.inf)
    for index in range(device_ids.size):
        if (
            _runs_between(
                model,
                device_ids[index],
                times[index],
                np.nextafter(times[index], np.inf),
                starts,
                ends,
            )
            > 0
        ):
            out[index] = ends[0]
    return out
