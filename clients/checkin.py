"""Check-ins of a window: for each eligible run of a device whose timer is open, the first one; by
enumeration or by thinning.

An eligible device with an open timer checks in as a Poisson process whose rate the server sets per
window. The process has no memory: what comes after a check-in is drawn when it is needed, from the
time at which the device is free (server/selection.py), so that a list holds the first check-in of
each stretch (run within window, after the timer opens) and no more.

* *Enumeration* draws the first arrival of every stretch of the runs that are listed for the period.
  Cost: per device and day.
* *Thinning* draws candidates (device, time) over a block of devices at its whole rate and keeps
  those that are eligible with an open timer. Cost: per candidate, whatever the population's size.

Both draw the same process (tests/statistical/test_samplers_agree.py); which one is used is the
order's to say.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from clients.availability.runs import Runs, joined
from clients.device_map import DeviceMap, value_of
from clients.population import DeviceModel, Presence, is_reachable, joined_before, joined_in_block
from fedray.blocks import BLOCK_DEVICES
from fedray.messages import NEVER, CheckInOrder
from fedray.rng import Key, draw, exponential, uniform

_ADDRESSES = 2.0**32
"""A check-in's address b within its (device, window): where its stretch starts, in 2^-32 of the
window. Stretches are apart."""


class Stretches(NamedTuple):
    """Stretches [A]: which device of the shard, from when on its timer was taken to be open, first
    check-in (infinity for none in the window), end of the run."""

    which: NDArray[np.uint32]
    begin: NDArray[np.float64]
    time: NDArray[np.float64]
    end: NDArray[np.float64]

    def in_order(
        self, places: NDArray[np.int64], window_start: float, window_end: float
    ) -> NDArray[np.int64]:
        """The places of those with a check-in in the window, in order of (time, device)."""
        times, which = self.time[places], self.which[places]
        fine = ((times - window_start) * (2.0**32 / (window_end - window_start))).astype(np.uint64)
        order = by_bits(np.minimum(fine, np.uint64(2**32 - 1)), 32)
        _put_right(order, times, which)
        return places[order]


def by_bits(keys: NDArray[np.uint64], bits: int) -> NDArray[np.int64]:
    """Places of keys below 2^bits in order, stable: by 16 bits after 16 bits, which numpy sorts by
    counting."""
    order = np.argsort(keys.astype(np.uint16), kind="stable")
    for shift in range(16, bits, 16):
        order = order[
            np.argsort((keys >> np.uint64(shift)).astype(np.uint16)[order], kind="stable")
        ]
    return order


@njit(cache=True, nogil=True)
def _put_right(order, times, which):
    """Insertion sort by (time, device) of what is nearly in order."""
    for position in range(1, order.size):
        mine, slot = order[position], position
        while slot > 0:
            other = order[slot - 1]
            if times[other] < times[mine] or (
                times[other] == times[mine] and which[other] <= which[mine]
            ):
                break
            order[slot] = other
            slot -= 1
        order[slot] = mine


class ListedRuns:
    """Eligible runs of one shard within a period of windows, in buckets by the window in which they
    are first seen; and, of those seen, the ones that may still matter. Runs are given from when
    their device's timer opens."""

    def __init__(self, runs: Runs, order: CheckInOrder, end_window: int) -> None:
        """Buckets runs by the windows of the order's length, from the order's window on."""
        self.first_window, self.end_window = order.window, end_window
        self._runs, self._next_window = runs, order.window
        self.active, self.opens = joined([]), np.empty(0, np.uint32)
        """The runs that matter from the present window on: not over, and not before their device's
        timer opens [A]; when it opens [A], or 0 where it was open when the runs were listed."""
        self._places = np.empty(runs.which.size, np.uint32 if runs.which.size < 2**32 else np.int64)
        length = order.end_seconds - order.start_seconds
        self._edges = _bucket(
            runs.start, order.start_seconds, length, end_window - order.window, self._places
        )
        self._moved = np.empty(0, np.uint8)
        """Devices whose timers were started since the runs were listed; see `bits_of`."""

    def covers(self, window: int) -> bool:
        """Whether a window lies in the period."""
        return self.first_window <= window < self.end_window

    def note(self, moved: NDArray[np.uint8]) -> None:
        """Hears whose timers were started since it was last told; see `bits_of`."""
        if moved.size:
            self._moved = moved | self._moved if self._moved.size else moved.copy()

    def enter(self, order: CheckInOrder, reopen: DeviceMap, moved: NDArray[np.uint8]) -> None:
        """Brings `active` and `opens` to a window.

        Windows come in order; the present one may be entered again. moved: of the devices whose
        timers were started since the window before and not told to `draw_again`. The timers of the
        others are not looked up again: most of the time would go there.
        """
        places = self._places[:0]
        if order.window == self._next_window:
            place = order.window - self.first_window
            places = self._places[self._edges[place] : self._edges[place + 1]]
            self._next_window += 1
        size = self.active.which.size + places.size
        which, start, end, opens = (
            np.empty(size, np.uint32),
            np.empty(size),
            np.empty(size),
            np.empty(size, np.uint32),
        )
        kept = _enter(
            self.active,
            self.opens,
            self._runs,
            places,
            order.start_seconds,
            reopen.table,
            moved,
            self._moved,
            which,
            start,
            end,
            opens,
        )
        self.active, self.opens = Runs(which[:kept], start[:kept], end[:kept]), opens[:kept]


@njit(cache=True, nogil=True)
def _bucket(starts, first_start, window_seconds, window_count, out_places):
    """Counting sort by window, stable: fills the places [R]; the buckets' edges."""
    edges = np.zeros(window_count + 1, np.int64)
    bucket = np.empty(starts.size, np.int32)
    for position in range(starts.size):
        bucket[position] = min(
            window_count - 1, max(0, int((starts[position] - first_start) // window_seconds))
        )
        edges[bucket[position] + 1] += 1
    edges = np.cumsum(edges)
    cursor = edges[:-1].copy()
    for position in range(starts.size):
        out_places[cursor[bucket[position]]] = position
        cursor[bucket[position]] += 1
    return edges


@njit(cache=True, nogil=True)
def _enter(
    active,
    active_opens,
    listed,
    places,
    window_start,
    table,
    moved,
    moved_since,
    out_which,
    out_start,
    out_end,
    out_opens,
):
    """Fills out_* [A + P] with the runs that matter, of the active ones and those newly seen; how
    many."""
    dense, keys, values = table
    kept = 0
    which, start, end = active
    for run in range(which.size):
        if end[run] > window_start:
            opens = active_opens[run]
            if moved.size and is_in(moved, which[run]):
                opens = value_of(dense, keys, values, which[run])
            out_which[kept], out_start[kept], out_end[kept], out_opens[kept] = (
                which[run],
                start[run],
                end[run],
                opens,
            )
            kept += opens < end[run]
    which, start, end = listed
    for run in places:
        if end[run] > window_start:
            opens = np.uint32(0)
            if moved_since.size and is_in(moved_since, which[run]):
                opens = value_of(dense, keys, values, which[run])
            out_which[kept], out_start[kept], out_end[kept], out_opens[kept] = (
                which[run],
                start[run],
                end[run],
                opens,
            )
            kept += opens < end[run]
    return kept


def enumerate_check_ins(
    runs: Runs, opens: NDArray[np.uint32], key: Key, first_device: int, order: CheckInOrder
) -> tuple[Stretches, NDArray[np.int64]]:
    """The stretch of each run in the window, and its first check-in; the places of those with one,
    in order of (time, device)."""
    size = runs.which.size
    stretches = Stretches(runs.which, np.empty(size), np.empty(size), runs.end)
    places = np.empty(size, np.int64)
    total = _draw_first(
        runs.start,
        opens,
        stretches.which,
        stretches.begin,
        stretches.time,
        stretches.end,
        key,
        first_device,
        order.window,
        *_seconds_of(order),
        places,
    )
    return stretches, stretches.in_order(places[:total], order.start_seconds, order.end_seconds)


def draw_again(
    stretches: Stretches,
    runs: Runs,
    opens: NDArray[np.uint32],
    reopen: DeviceMap,
    key: Key,
    first_device: int,
    order: CheckInOrder,
    moved: NDArray[np.uint8],
) -> tuple[NDArray[np.bool_], bool]:
    """Draws first check-ins anew, in place, where a timer opens later than was known; which they
    were [A], and whether one of them has a check-in. Brings `opens` up to date.

    moved: see `bits_of`; of the devices whose timers have been started since.
    """
    return _draw_again(
        runs.start,
        opens,
        stretches.which,
        stretches.begin,
        stretches.time,
        stretches.end,
        reopen.table,
        key,
        first_device,
        order.window,
        *_seconds_of(order),
        moved,
    )


def _seconds_of(order: CheckInOrder) -> tuple[float, float, float, float]:
    mean_gap = 3600.0 / order.checkins_per_hour if order.checkins_per_hour > 0.0 else np.inf
    return order.start_seconds, order.end_seconds, order.ask_until_seconds, mean_gap


@njit(inline="always")
def is_in(bits, index):
    """Whether a device's bit is set; there must be bits."""
    return bits[index >> 3] >> (index & 7) & 1 != 0


@njit(forceinline=True)
def _first_check_in(begin, end, key, device, window, window_start, window_end, ask_until, mean_gap):
    """The first check-in of a stretch, infinity for none: one draw at (device, window, where the
    stretch starts)."""
    until = min(end, ask_until)
    if begin < until:
        address = int((begin - window_start) / (window_end - window_start) * _ADDRESSES)
        word, _, _, _ = draw(key, device, window, address)
        if (
            uniform(word) > 1.0 - (until - begin) / mean_gap
        ):  # else too late, since exp(-x) > 1 - x: most logarithms are spared
            arrival = begin + exponential(word) * mean_gap
            if arrival < until:
                return arrival
    return np.inf


@njit(cache=True, nogil=True)
def _draw_first(
    start,
    opens,
    which,
    begin,
    time,
    end,
    key,
    first_device,
    window,
    window_start,
    window_end,
    ask_until,
    mean_gap,
    places,
):
    total = 0
    for run in range(which.size):
        begin[run] = max(start[run], window_start, np.float64(opens[run]))
        time[run] = _first_check_in(
            begin[run],
            end[run],
            key,
            first_device + which[run],
            window,
            window_start,
            window_end,
            ask_until,
            mean_gap,
        )
        places[total] = run
        total += time[run] < np.inf
    return total


@njit(cache=True, nogil=True)
def _draw_again(
    start,
    opens,
    which,
    begin,
    time,
    end,
    table,
    key,
    first_device,
    window,
    window_start,
    window_end,
    ask_until,
    mean_gap,
    moved,
):
    dense, keys, values = table
    is_new = np.zeros(which.size, np.bool_)
    has_new = False
    for run in range(which.size if moved.size else 0):
        if not is_in(moved, which[run]):
            continue
        opens[run] = value_of(dense, keys, values, which[run])
        stretch = max(start[run], window_start, np.float64(opens[run]))
        if stretch <= begin[run]:
            continue
        begin[run], is_new[run] = stretch, True
        time[run] = _first_check_in(
            stretch,
            end[run],
            key,
            first_device + which[run],
            window,
            window_start,
            window_end,
            ask_until,
            mean_gap,
        )
        if time[run] < np.inf:
            has_new = True
    return is_new, has_new


def bits_of(indices: NDArray[np.int64], devices: int) -> NDArray[np.uint8]:
    """A bit per device of a shard, set for some; nothing at all for none."""
    if not indices.size:
        return np.empty(0, np.uint8)
    bits = np.zeros(devices // 8 + 1, np.uint8)
    np.bitwise_or.at(bits, indices >> 3, (1 << (indices & 7)).astype(np.uint8))
    return bits


def draw_candidates(
    model: DeviceModel,
    presence: Presence,
    key: Key,
    first_device: int,
    end_device: int,
    order: CheckInOrder,
) -> tuple[NDArray[np.uint32], NDArray[np.float64]]:
    """Candidates (device of the shard, time) [C] of every block at its whole rate, on devices that
    the task can use.

    Only on devices that have joined before the window's end, which are the first of each block.
    """
    seconds = order.ask_until_seconds - order.start_seconds
    blocks = np.arange(first_device, end_device, BLOCK_DEVICES)
    sizes = np.minimum(end_device - blocks, BLOCK_DEVICES)
    if presence.seconds_per_join < np.inf:
        joined = joined_before(presence, order.ask_until_seconds)
        sizes = np.array(
            [
                joined_in_block(presence.order, block // BLOCK_DEVICES, joined)
                for block in blocks.tolist()
            ],
            np.int64,
        )
    expected = int(sizes.sum()) * order.checkins_per_hour / 3600.0 * seconds
    capacity = int(expected + 10.0 * np.sqrt(expected) + 100.0)
    while True:
        index, time = np.empty(capacity, np.uint32), np.empty(capacity)
        total = _candidates(
            model,
            key,
            first_device,
            blocks,
            sizes,
            order.window,
            order.start_seconds,
            order.ask_until_seconds,
            order.checkins_per_hour / 3600.0,
            index,
            time,
        )
        if total <= capacity:
            return index[:total], time[:total]
        capacity = total


@njit(cache=True, nogil=True)
def _candidates(
    model,
    key,
    first_device,
    blocks,
    sizes,
    window,
    window_start,
    ask_until,
    rate,
    out_index,
    out_time,
):
    total = 0
    if rate == 0.0:
        return total
    for place in range(blocks.size):
        block, size = blocks[place], sizes[place]
        if size == 0:
            continue
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


def first_of_each_run(
    which: NDArray[np.uint32], time: NDArray[np.float64], end: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Places, in order, of the first check-ins: of several of a device in one run, the earliest."""
    order = np.lexsort((time, which))
    device, run = which[order], end[order]
    again = np.zeros(order.size, np.bool_)
    again[1:] = (device[1:] == device[:-1]) & (run[1:] == run[:-1])
    return np.sort(order[~again])


@njit(cache=True, nogil=True)
def count_at(runs: Runs, reopen, last_rounds, time: float, held_back: int):
    """How many runs hold `time`; of them, those whose device's timer is open; of these, those whose
    last round + 1 is at most held_back; and of the first, those of devices that may not take part
    again."""
    index, start, end = runs
    dense, keys, values = reopen
    last_dense, last_keys, last_values = last_rounds
    eligible, is_open, is_free, is_spent = 0, 0, 0, 0
    for run in range(index.size):
        if start[run] <= time < end[run]:
            eligible += 1
            opens = value_of(dense, keys, values, index[run])
            is_spent += opens == NEVER
            if opens <= time:
                is_open += 1
                is_free += value_of(last_dense, last_keys, last_values, index[run]) <= held_back
    return eligible, is_open, is_free, is_spent
