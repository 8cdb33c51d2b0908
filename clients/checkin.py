"""Check-ins of a window: for each eligible run of a device whose timer is open, the first one; by enumeration or by thinning.

An eligible device with an open timer checks in as a Poisson process whose rate the server sets per window. The process has no
memory: what comes after a check-in is drawn when it is needed, from the time at which the device is free (server/selection.py), so
that a list holds the first check-in of each stretch (run within window, after the timer opens) and no more.

* *Enumeration* draws the first arrival of every stretch of the runs that are listed for the period. Cost: per device and day.
* *Thinning* draws candidates (device, time) over a block of devices at its whole rate and keeps those that are eligible with an
  open timer. Cost: per candidate, whatever the population's size.

Both draw the same process (tests/statistical/test_samplers_agree.py); which one is used is the order's to say.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from clients.availability.runs import Runs, joined
from clients.device_map import DeviceMap, value_of
from clients.population import DeviceModel, is_reachable
from fedray.messages import CheckInOrder
from fedray.rng import Key, draw, exponential, uniform
from fedray.trace.schema import BLOCK_DEVICES

_ADDRESSES = 2.0**32
"""A check-in's address b within its (device, window): where its stretch starts, in 2^-32 of the window. Stretches are apart."""


class Stretches(NamedTuple):
    """Stretches [A]: which device of the shard, from when on its timer was taken to be open, first check-in (infinity for none in
    the window), end of the run."""

    which: NDArray[np.uint32]
    begin: NDArray[np.float64]
    time: NDArray[np.float64]
    end: NDArray[np.float64]

    def in_order(self) -> NDArray[np.int64]:
        """Places of those with a check-in, in order of (time, device)."""
        places = np.flatnonzero(self.time < np.inf)
        times = self.time[places]
        order = np.argsort(times)
        if (np.diff(times[order]) == 0.0).any():  # equal times, which hardly occur, count in order of device
            order = np.lexsort((self.which[places], times))
        return places[order]


@dataclass
class RunList:
    """Eligible runs of one shard within a period of windows, in buckets by the window in which they are first seen."""

    runs: Runs
    bucket_edges: NDArray[np.int64]
    first_window: int
    end_window: int

    @classmethod
    def of(cls, runs: Runs, order: CheckInOrder, end_window: int) -> "RunList":
        """Buckets runs by the windows of the order's length from the order's window on."""
        length = order.end_seconds - order.start_seconds
        places, edges = _bucket(runs.start, order.start_seconds, length, end_window - order.window)
        return cls(runs.take(places), edges, order.window, end_window)

    def first_seen_in(self, window: int) -> Runs:
        """The runs first seen in one window of the period."""
        place = window - self.first_window
        return self.runs.take(slice(int(self.bucket_edges[place]), int(self.bucket_edges[place + 1])))


@njit(cache=True, nogil=True)
def _bucket(starts, first_start, window_seconds, window_count):
    """Counting sort by window, stable; the places and the buckets' edges."""
    edges = np.zeros(window_count + 1, np.int64)
    bucket = np.empty(starts.size, np.int32)
    for position in range(starts.size):
        bucket[position] = min(window_count - 1, max(0, int((starts[position] - first_start) // window_seconds)))
        edges[bucket[position] + 1] += 1
    edges = np.cumsum(edges)
    cursor = edges[:-1].copy()
    places = np.empty(starts.size, np.int64)
    for position in range(starts.size):
        places[cursor[bucket[position]]] = position
        cursor[bucket[position]] += 1
    return places, edges


class ActiveRuns:
    """The runs of a shard that may still matter: those that touch the present window or were seen and have not ended."""

    def __init__(self) -> None:
        self.runs = joined([])

    def add(self, runs: Runs) -> None:
        """Takes the runs first seen in a window."""
        self.runs = joined([self.runs, runs])

    def drop_finished(self, window_start: float, reopen: DeviceMap) -> None:
        """Forgets runs that ended before the window, and those that end before their device's timer opens."""
        self.runs = self.runs.take(_still_matters(self.runs, window_start, reopen.table))


@njit(cache=True, nogil=True)
def _still_matters(runs, window_start, table):
    index, _, end = runs
    dense, keys, values = table
    keep = np.empty(index.size, np.bool_)
    for run in range(index.size):
        keep[run] = end[run] > window_start and value_of(dense, keys, values, index[run]) < end[run]
    return keep


def enumerate_check_ins(runs: Runs, reopen: DeviceMap, key: Key, first_device: int, order: CheckInOrder) -> Stretches:
    """The stretch of each run in the window, and its first check-in."""
    size = runs.which.size
    stretches = Stretches(runs.which, np.full(size, -np.inf), np.full(size, np.inf), runs.end)
    draw_again(stretches, runs, reopen, key, first_device, order)
    return stretches


def draw_again(
    stretches: Stretches,
    runs: Runs,
    reopen: DeviceMap,
    key: Key,
    first_device: int,
    order: CheckInOrder,
    moved: NDArray[np.uint8] | None = None,
) -> NDArray[np.bool_]:
    """Draws first check-ins anew, in place, where a timer opens later than was known; which they were [A].

    moved: a bit per device of the shard, of those whose timers have been started since; None looks at all of them.
    """
    seconds = order.start_seconds, order.end_seconds, order.ask_until_seconds
    mean_gap = 3600.0 / order.checkins_per_hour if order.checkins_per_hour > 0.0 else np.inf
    return _draw_again(
        runs.start, stretches.which, stretches.begin, stretches.time, stretches.end, reopen.table, key, first_device, order.window,
        *seconds, mean_gap, np.empty(0, np.uint8) if moved is None else moved,
    )  # fmt: skip


def bits_of(indices: NDArray[np.int64], devices: int) -> NDArray[np.uint8]:
    """A bit per device of a shard, set for some."""
    bits = np.zeros(devices // 8 + 1, np.uint8)
    np.bitwise_or.at(bits, indices >> 3, (1 << (indices & 7)).astype(np.uint8))
    return bits


@njit(cache=True, nogil=True)
def _draw_again(
    start, which, begin, time, end, table, key, first_device, window, window_start, window_end, ask_until, mean_gap, moved
):  # fmt: skip
    dense, keys, values = table
    is_new = np.zeros(which.size, np.bool_)
    for run in range(which.size):
        if moved.size and not moved[which[run] >> 3] >> (which[run] & 7) & 1:
            continue
        opens = max(start[run], window_start, np.float64(value_of(dense, keys, values, which[run])))
        if opens <= begin[run]:
            continue
        begin[run], time[run], is_new[run] = opens, np.inf, True
        until = min(end[run], ask_until)
        if opens < until:
            address = int((opens - window_start) / (window_end - window_start) * _ADDRESSES)
            word, _, _, _ = draw(key, first_device + which[run], window, address)
            if uniform(word) > 1.0 - (until - opens) / mean_gap:  # else too late, since exp(-x) > 1 - x: most logarithms are spared
                arrival = opens + exponential(word) * mean_gap
                if arrival < until:
                    time[run] = arrival
    return is_new


def draw_candidates(
    model: DeviceModel, key: Key, first_device: int, end_device: int, order: CheckInOrder
) -> tuple[NDArray[np.uint32], NDArray[np.float64]]:
    """Candidates (device of the shard, time) [C] of every block at its whole rate, on devices that the task can use."""
    seconds = order.ask_until_seconds - order.start_seconds
    expected = (end_device - first_device) * order.checkins_per_hour / 3600.0 * seconds
    capacity = int(expected + 10.0 * np.sqrt(expected) + 100.0)
    while True:
        index, time = np.empty(capacity, np.uint32), np.empty(capacity)
        total = _candidates(
            model, key, first_device, end_device, order.window, order.start_seconds, order.ask_until_seconds,
            order.checkins_per_hour / 3600.0, index, time,
        )  # fmt: skip
        if total <= capacity:
            return index[:total], time[:total]
        capacity = total


@njit(cache=True, nogil=True)
def _candidates(model, key, first_device, end_device, window, window_start, ask_until, rate, out_index, out_time):
    total = 0
    if rate == 0.0:
        return total
    for block in range(first_device, end_device, BLOCK_DEVICES):
        size = min(end_device - block, BLOCK_DEVICES)
        mean_gap = 1.0 / (rate * size)
        time, arrival = window_start, 0
        while True:
            w0, w1, w2, w3 = draw(key, block, window, arrival // 2)
            for gap_word, device_word in ((w0, w1), (w2, w3)):
                time += exponential(gap_word) * mean_gap
                if time >= ask_until:
                    break
                device = block + np.int64((device_word * np.uint64(size)) >> np.uint64(32))
                arrival += 1
                if not is_reachable(model, device):
                    continue
                if total < out_index.size:
                    out_index[total] = device - first_device
                    out_time[total] = time
                total += 1
            if time >= ask_until:
                break
    return total


def first_of_each_run(which: NDArray[np.uint32], time: NDArray[np.float64], end: NDArray[np.float64]) -> NDArray[np.int64]:
    """Places, in order, of the first check-ins: of several of a device in one run, the earliest."""
    order = np.lexsort((time, which))
    device, run = which[order], end[order]
    again = np.zeros(order.size, np.bool_)
    again[1:] = (device[1:] == device[:-1]) & (run[1:] == run[:-1])
    return np.sort(order[~again])


@njit(cache=True, nogil=True)
def count_at(runs: Runs, reopen, last_rounds, time: float, held_back: int):
    """(runs that hold `time`, of them those whose device's timer is open, of them those whose last round + 1 is <= held_back)."""
    index, start, end = runs
    dense, keys, values = reopen
    last_dense, last_keys, last_values = last_rounds
    eligible, is_open, is_free = 0, 0, 0
    for run in range(index.size):
        if start[run] <= time < end[run]:
            eligible += 1
            if value_of(dense, keys, values, index[run]) <= time:
                is_open += 1
                is_free += value_of(last_dense, last_keys, last_values, index[run]) <= held_back
    return eligible, is_open, is_free
