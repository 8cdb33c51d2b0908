"""Check-ins of a window: arrivals of eligible devices whose timer is open, by enumeration of their eligible runs.

An eligible device with an open timer checks in as a Poisson process whose rate the server sets per window. Because the process
has no memory, each stretch (run within window, after the timer opens) is drawn afresh, at addresses of (device, window).
"""

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from clients.availability import DAY, HabitModel, Habits, list_runs
from clients.latency import FixedWork, LatencyModel, work_of
from fedray.errors import ScenarioError
from fedray.messages import CheckIns
from fedray.rng import Key, draw, exponential

_STRETCH_STEPS = 2.0**22
_ARRIVAL_BITS = 10
"""A check-in's address b within its (device, window): where its stretch starts, in 2^-22 of the window, and its number there.

Runs are a second apart, so stretches differ; 60 check-ins an hour for 6 hours stay far below 2^10 in a stretch."""


@dataclass
class RunList:
    """Eligible runs of one shard within one day, in buckets by the window in which they are first seen."""

    index: NDArray[np.uint32]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    bucket_edges: NDArray[np.int64]


def runs_of_day(
    model: HabitModel,
    habits: Habits,
    first_device: int,
    reopen: NDArray[np.uint32],
    census_stride: int,
    day_start: float,
    window_seconds: float,
) -> RunList:
    """Runs that touch the UTC day starting at day_start (seconds), bucketed by window."""
    capacity = reopen.size + 1024
    while True:
        index = np.empty(capacity, np.uint32)
        start, end = np.empty(capacity), np.empty(capacity)
        try:
            total = list_runs(model, habits, first_device, day_start, day_start + DAY, reopen, census_stride, index, start, end)
        except ValueError as error:  # more sessions in a day than there is room for
            raise ScenarioError(str(error)) from None
        if total <= capacity:
            break
        capacity = total
    window_count = round(DAY / window_seconds)
    order, edges = _bucket(start[:total], day_start, window_seconds, window_count)
    return RunList(index[order], start[order], end[order], edges)


@njit(cache=True, nogil=True)
def _bucket(starts, day_start, window_seconds, window_count):
    """Counting sort by window, stable; the order and the buckets' edges."""
    edges = np.zeros(window_count + 1, np.int64)
    bucket = np.empty(starts.size, np.int32)
    for position in range(starts.size):
        bucket[position] = min(window_count - 1, max(0, int((starts[position] - day_start) // window_seconds)))
        edges[bucket[position] + 1] += 1
    edges = np.cumsum(edges)
    cursor = edges[:-1].copy()
    order = np.empty(starts.size, np.int64)
    for position in range(starts.size):
        order[cursor[bucket[position]]] = position
        cursor[bucket[position]] += 1
    return order, edges


class ActiveRuns:
    """The runs of a shard that may still matter: those that touch the present window or were seen and have not ended."""

    def __init__(self) -> None:
        self.index = np.empty(0, np.uint32)
        self.start = np.empty(0)
        self.end = np.empty(0)

    def add(self, runs: RunList, bucket: int) -> None:
        """Takes the runs first seen in one window of the day."""
        chosen = slice(int(runs.bucket_edges[bucket]), int(runs.bucket_edges[bucket + 1]))
        self.index = np.concatenate([self.index, runs.index[chosen]])
        self.start = np.concatenate([self.start, runs.start[chosen]])
        self.end = np.concatenate([self.end, runs.end[chosen]])

    def drop_finished(self, window_start: float, reopen: NDArray[np.uint32], first_device: int, census_stride: int) -> None:
        """Forgets runs that ended before the window, and those that end before their device's timer opens."""
        keep = _still_matters(self.index, self.end, window_start, reopen, first_device, census_stride)
        self.index, self.start, self.end = self.index[keep], self.start[keep], self.end[keep]


@njit(cache=True, nogil=True)
def _still_matters(index, end, window_start, reopen, first_device, census_stride):
    keep = np.empty(index.size, np.bool_)
    for run in range(index.size):
        device = first_device + index[run]
        keep[run] = end[run] > window_start and (reopen[index[run]] < end[run] or device % census_stride == 0)
    return keep


@njit(cache=True, nogil=True)
def census(index, start, end, reopen, first_device, census_stride, time):
    """(census devices eligible at `time`, devices eligible at `time` with an open timer)."""
    counted, is_open = 0, 0
    for run in range(index.size):
        if start[run] <= time < end[run]:
            counted += (first_device + index[run]) % census_stride == 0
            is_open += reopen[index[run]] <= time
    return counted, is_open


def list_check_ins(
    active: ActiveRuns,
    reopen: NDArray[np.uint32],
    last_rounds: NDArray[np.int32],
    key: Key,
    latency: LatencyModel,
    fixed_work: FixedWork,
    first_device: int,
    census_stride: int,
    window: int,
    window_start: float,
    window_end: float,
    checkins_per_hour: float,
) -> CheckIns:
    """Every check-in in [window_start, window_end), sorted by (time, device)."""
    counted, is_open = census(active.index, active.start, active.end, reopen, first_device, census_stride, window_start)
    expected = active.index.size * (1.0 + (window_end - window_start) / 3600.0 * checkins_per_hour)
    capacity = int(min(expected, 4.0 * is_open * (window_end - window_start) / 3600.0 * checkins_per_hour) + 4096)
    mean_gap = 3600.0 / checkins_per_hour if checkins_per_hour > 0.0 else np.inf
    while True:
        columns = _columns(capacity)
        total = _draw_check_ins(
            active.index, active.start, active.end, reopen, key, latency, fixed_work.fixed, fixed_work.training, first_device,
            window, window_start, window_end, mean_gap, *columns,
        )  # fmt: skip
        if total <= capacity:
            break
        capacity = total
    devices, times, ends, work, failure = (column[:total] for column in columns)
    order = np.argsort(times)
    if (np.diff(times[order]) == 0.0).any():  # equal times, which hardly occur, count in order of device
        order = np.lexsort((devices, times))
    devices = devices[order]
    return CheckIns(
        device_ids=devices,
        times=times[order],
        session_ends=ends[order],
        work_seconds=work[order],
        failure_seconds=failure[order],
        last_rounds=last_rounds[(devices - np.uint64(first_device)).astype(np.int64)] if last_rounds.size else last_rounds,
        eligible_estimate=int(counted) * census_stride,
        open_eligible=int(is_open),
    )


def _columns(capacity: int) -> tuple[NDArray, ...]:
    return (
        np.empty(capacity, np.uint64),
        np.empty(capacity),
        np.empty(capacity),
        np.empty(capacity, np.float32),
        np.empty(capacity, np.float32),
    )


@njit(cache=True, nogil=True)
def _draw_check_ins(
    index, start, end, reopen, key, latency, fixed, training, first_device, window, window_start, window_end, mean_gap,
    out_device, out_time, out_end, out_work, out_failure,
):  # fmt: skip
    total = 0
    for run in range(index.size):
        opens = np.float64(reopen[index[run]])
        time = max(start[run], window_start, opens)
        until = min(end[run], window_end)
        if time >= until:
            continue
        device = first_device + index[run]
        stretch = int((time - window_start) / (window_end - window_start) * _STRETCH_STEPS) << _ARRIVAL_BITS
        arrival = 0
        words = draw(key, device, window, stretch)
        while True:
            if arrival > 0 and arrival % 4 == 0:
                words = draw(key, device, window, stretch + arrival // 4)
            slot = arrival % 4
            word = words[0] if slot == 0 else words[1] if slot == 1 else words[2] if slot == 2 else words[3]
            time += exponential(word) * mean_gap
            if time >= until:
                break
            if total < out_device.size:
                work, failure = work_of(
                    latency, fixed[index[run]], training[index[run]], device, window, stretch + arrival
                )  # fmt: skip
                out_device[total] = device
                out_time[total] = time
                out_end[total] = end[run]
                out_work[total] = work
                out_failure[total] = failure
            total += 1
            arrival += 1
    return total
