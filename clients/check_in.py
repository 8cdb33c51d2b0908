"""Check-ins of a window: the first one of each eligible interval of a device with an open timer, by
enumeration or by thinning.

An eligible device with an open timer checks in as a Poisson process whose rate the server sets per
window. The process has no memory: later check-ins are drawn when they are needed, from the time at
which the device is free (server/rounds/selection.py). So a shard lists only one check-in for each
interval: the first one within the window, after the timer opens.

* *Enumeration* draws the first check-in of every interval that is listed for the period; its cost
  is per device and day.
* *Thinning* draws candidates (device, time) over a block of devices at its whole rate and keeps
  eligible devices with an open timer; its cost is per candidate, whatever the population's size.

Both draw the same process (tests/statistical/test_samplers_agree.py); the order chooses one.
"""

import itertools
from typing import NamedTuple

import numpy as np

from fedray.base.arrays import BoolArray, Float64Array, Int64Array, UInt8Array, UInt32Array
from fedray.base.blocks import BLOCK_DEVICES
from fedray.base.compiled import njit
from fedray.base.rng import Key, address_within, draw, exponential, uniform
from fedray.wire.messages import CheckInOrder, Window
from .availability.intervals import Intervals
from .device_map import DeviceMap, value_of
from .population import (
    DeviceModel,
    Presence,
    is_usable,
    joined_before,
    joined_in_block,
)

_DIGIT_BITS = 11
_DIGITS = 1 << _DIGIT_BITS
"""Counters of a pass of `by_bits`; few enough for the fastest cache."""


class CheckInProcess(NamedTuple):
    """Process of a shard's check-ins within a window."""

    key: Key
    """Key of the draws, which differs between samplers."""
    first_device: int
    """First device of the shard."""
    window: Window
    """Times and rate."""
    mean_gap_seconds: float
    """Mean time between two check-ins of a device; infinity at rate 0."""

    @classmethod
    def of(cls, window: Window, key: Key, first_device: int) -> "CheckInProcess":
        """Compiles the process of a shard in a window."""
        rate = window.check_ins_per_hour
        mean_gap_seconds = 3600.0 / rate if rate > 0.0 else np.inf
        return cls(key, first_device, window, mean_gap_seconds)


class FirstCheckIns(NamedTuple):
    """First check-ins of intervals [A] of a shard's devices in a window."""

    local: UInt32Array
    """Positions of the devices in the shard."""
    begin_times: Float64Array
    """Times from which the check-ins are drawn: interval and window have started, and the timer, as
    far as it was known, is open."""
    times: Float64Array
    """Check-in times; infinity for a check-in after the window."""
    end_times: Float64Array
    """Ends of the intervals."""

    def take(self, chosen: Int64Array) -> "FirstCheckIns":
        """Returns the check-ins at positions."""
        return FirstCheckIns._make(column[chosen] for column in self)

    def in_order(self, entries: Int64Array, window: Window) -> Int64Array:
        """Sorts positions of check-ins in the window by (time, device)."""
        times = self.times[entries]
        local = self.local[entries]
        # A sort by steps of 2^-32 of the window is much faster than one by float64 times, and
        # leaves hardly anything to correct.
        steps_per_second = 2.0**32 / (window.end_time - window.start_time)
        elapsed = times - window.start_time
        steps = (elapsed * steps_per_second).astype(np.uint64)
        # A time just before the window's end may round up to it.
        last_step = np.uint64(2**32 - 1)
        keys = np.minimum(steps, last_step).astype(np.uint32)
        order = by_bits(keys, 32)
        _correct(order, times, local)
        return entries[order]


@njit(cache=True, nogil=True)
def by_bits(keys: UInt32Array, bits: int) -> Int64Array:
    """Returns the stable order [K] of numbers [K] below 2^bits: a counting sort by 11 bits at a
    time, from the lowest."""
    size = keys.size
    # Two pairs of arrays swap after every digit: one is read, the other is written.
    sorted_keys = keys.copy()
    places = np.arange(size).astype(np.uint32)
    other_keys = np.empty(size, np.uint32)
    other_places = np.empty(size, np.uint32)
    for shift in range(0, bits, _DIGIT_BITS):
        begin = np.zeros(_DIGITS + 1, np.int64)
        for key in sorted_keys:
            # Counts are one place further, so that their running sum is the begin of each digit.
            digit = (key >> shift) & (_DIGITS - 1)
            begin[digit + 1] += 1
        begin = np.cumsum(begin)
        for place in range(size):
            digit = (sorted_keys[place] >> shift) & (_DIGITS - 1)
            other_keys[begin[digit]] = sorted_keys[place]
            other_places[begin[digit]] = places[place]
            begin[digit] += 1
        sorted_keys, other_keys = other_keys, sorted_keys
        places, other_places = other_places, places
    return places.astype(np.int64)


@njit(cache=True, nogil=True)
def _correct(order, times, local):
    """Sorts a nearly sorted order by (time, device), by insertion."""
    for position in range(1, order.size):
        mine = order[position]
        slot = position
        while slot > 0:
            other = order[slot - 1]
            is_earlier = times[other] < times[mine]
            is_tied = times[other] == times[mine]
            if is_earlier or (is_tied and local[other] <= local[mine]):
                break
            order[slot] = other
            slot -= 1
        order[slot] = mine


class OpenIntervals(NamedTuple):
    """Intervals [A] of a shard's devices, with the open times of the devices' timers."""

    local: UInt32Array
    """See `fedray.clients.availability.intervals.Intervals`."""
    start_times: Float64Array
    """See `fedray.clients.availability.intervals.Intervals`."""
    end_times: Float64Array
    """See `fedray.clients.availability.intervals.Intervals`."""
    open_times: UInt32Array
    """Whole seconds; 0 if the timer was open when the intervals were listed."""

    @classmethod
    def room(cls, size: int) -> "OpenIntervals":
        """Allocates `size` intervals, without values."""
        return cls(
            local=np.empty(size, np.uint32),
            start_times=np.empty(size),
            end_times=np.empty(size),
            open_times=np.empty(size, np.uint32),
        )

    def first(self, size: int) -> "OpenIntervals":
        """Returns the first `size` intervals, as views."""
        return OpenIntervals._make(column[:size] for column in self)


class ListedIntervals:
    """Intervals of one shard within a period of windows, in buckets by the window in which they are
    first seen. A bucket's memory is free once its window has come.

    Args:
        order: order for the period's first window; all windows have the same length.
        end_window: end of the period.

    first_window, end_window: the period, [first_window, end_window).
    active: intervals seen so far that may still matter in the present window or later: they end
        after its start and after their device's timer opens. The next window reuses the memory.
    """

    def __init__(self, order: CheckInOrder, end_window: int) -> None:
        self.first_window = order.window.number
        self.end_window = end_window
        self.active = OpenIntervals.room(0)
        self._room = self.active
        self._first = order.window
        self._next_window = self.first_window
        self._buckets: list[list[Intervals]] = [[] for _ in range(self.first_window, end_window)]
        # Bits of the devices whose timers were started since the intervals were listed.
        self._moved = np.empty(0, np.uint8)

    def add(self, intervals: Intervals) -> None:
        """Adds intervals of the next devices, each from the time at which its device's timer
        opens."""
        window = self._first
        order, edges = _bucket(
            intervals.start_times,
            window.start_time,
            window.end_time - window.start_time,
            len(self._buckets),
        )
        for bucket, (begin, end) in zip(
            self._buckets, itertools.pairwise(edges.tolist()), strict=True
        ):
            # Copies, because views would keep the memory of all windows.
            if begin < end:
                bucket.append(intervals.take(order[begin:end]))

    def covers(self, window: int) -> bool:
        """Whether the period contains a window, by its number."""
        return self.first_window <= window < self.end_window

    def note(self, moved: UInt8Array) -> None:
        """Notes the devices whose timers were started since the last call, as bits; see
        `bits_of`."""
        if not moved.size:
            return
        if self._moved.size:
            self._moved = moved | self._moved
        else:
            # A copy, because the caller's bits may change.
            self._moved = moved.copy()

    def enter(self, window: Window, timers: DeviceMap, moved: UInt8Array) -> None:
        """Updates `active` for a window. Windows come in order; the present one may come again.

        Args:
            window: the window.
            timers: open time of each device's timer.
            moved: bits of the devices whose timers were started since the window before, except the
                devices passed to `draw_again`. Looking up the other timers would take most of the
                time.
        """
        start = window.start_time
        kept = _keep(self.active, start, timers.table, moved, self._room, np.int64(0))
        # A window that comes again has no new intervals.
        if window.number == self._next_window:
            bucket = self._buckets[window.number - self.first_window]
            self._next_window += 1
            self._make_room(kept, sum(each.local.size for each in bucket))
            for each in bucket:
                # They were listed from their devices' open times, unless those moved since.
                new = OpenIntervals(*each, np.zeros(each.local.size, np.uint32))
                kept = _keep(new, start, timers.table, self._moved, self._room, kept)
            bucket.clear()
        self.active = self._room.first(kept)

    def _make_room(self, kept: int, more: int) -> None:
        if kept + more > self._room.local.size:
            # A quarter more, so that few windows need another room.
            grown = OpenIntervals.room((kept + more) * 5 // 4)
            for column, wider in zip(self._room, grown, strict=True):
                wider[:kept] = column[:kept]
            self._room = grown


@njit(cache=True, nogil=True)
def _bucket(start_times, first_start, window_seconds, window_count):
    """Returns the order of intervals [I] by window, by a stable counting sort, and the edges of the
    windows in it."""
    edges = np.zeros(window_count + 1, np.int64)
    bucket = np.empty(start_times.size, np.int32)
    for entry in range(start_times.size):
        # Intervals that began before the period are seen in its first window.
        window = int((start_times[entry] - first_start) // window_seconds)
        bucket[entry] = min(window_count - 1, max(0, window))
        edges[bucket[entry] + 1] += 1
    edges = np.cumsum(edges)
    cursor = edges[:-1].copy()
    order = np.empty(start_times.size, np.int64)
    for entry in range(start_times.size):
        order[cursor[bucket[entry]]] = entry
        cursor[bucket[entry]] += 1
    return order, edges


@njit(cache=True, nogil=True)
def _keep(intervals, window_start, timers, moved, room, kept):
    """Writes the intervals that still matter after the first `kept` rows of `room`, whose own first
    rows they may be; returns how many rows it then has."""
    # Arrays are taken out of tuples once: compiled code counts references wherever it reaches into
    # a tuple.
    dense, keys, values = timers
    local, start_times, end_times, open_times = intervals
    out_local, out_start, out_end, out_open = room
    for entry in range(local.size):
        if end_times[entry] > window_start:
            open_time = open_times[entry]
            if moved.size and is_in(moved, local[entry]):
                open_time = value_of(dense, keys, values, local[entry])
            # The row is written in any case, and overwritten by the next one if it is not kept.
            out_local[kept] = local[entry]
            out_start[kept] = start_times[entry]
            out_end[kept] = end_times[entry]
            out_open[kept] = open_time
            kept += open_time < end_times[entry]
    return kept


def enumerate_check_ins(
    active: OpenIntervals,
    process: CheckInProcess,
) -> tuple[FirstCheckIns, Int64Array]:
    """Draws the first check-ins of intervals [A] in a window.

    Returns:
        Check-ins [A], and the positions of the check-ins in the window, in order of (time,
        device).
    """
    size = active.local.size
    first = FirstCheckIns(
        local=active.local,
        begin_times=np.empty(size),
        times=np.empty(size),
        end_times=active.end_times,
    )
    entries = np.empty(size, np.int64)
    total = _draw_first(active, process, first, entries)
    in_window = first.in_order(entries[:total], process.window)
    return first, in_window


def draw_again(
    first: FirstCheckIns,
    active: OpenIntervals,
    process: CheckInProcess,
    timers: DeviceMap,
    moved: UInt8Array,
) -> tuple[BoolArray, bool]:
    """Draws first check-ins again, in place, if a timer opens later than was known.

    Args:
        first: [A]; result of `enumerate_check_ins`.
        active: [A]; the same intervals, whose open times are updated.
        process: process in the same window.
        timers: open time of each device's timer.
        moved: bits of the devices whose timers were started since; see `bits_of`.

    Returns:
        Mask [A] of the check-ins drawn again, and whether any of them lies in the window.
    """
    return _draw_again(first, active, process, timers.table, moved)


@njit(inline="always")
def is_in(bits, local):
    """Whether the bit of a device is set, by its position; `bits` must not be empty."""
    return bits[local >> 3] >> (local & 7) & 1 != 0


@njit(forceinline=True)
def _first_time(process, local, begin, end):
    """Returns the first check-in from `begin`, or infinity."""
    # One draw at (device, window, begin). No other interval has this address, since intervals are
    # apart.
    window = process.window
    until = min(end, window.ask_until_time)
    if begin < until:
        address = address_within(begin, window.start_time, window.end_time)
        device = process.first_device + local
        word = draw(process.key, device, window.number, address)[0]
        # Otherwise it is too late, since exp(-x) > 1 - x: this saves most logarithms.
        if uniform(word) > 1.0 - (until - begin) / process.mean_gap_seconds:
            time = begin + exponential(word) * process.mean_gap_seconds
            if time < until:
                return time
    return np.inf


@njit(inline="always")
def _begin_time(start_time, window_start, open_time):
    return max(start_time, window_start, np.float64(open_time))


@njit(cache=True, nogil=True)
def _draw_first(active, process, first, entries):
    """Fills all times, and the entries of the check-ins in the window; returns their number."""
    local, start_times, end_times, open_times = active
    _, begin_times, times, _ = first
    window_start = process.window.start_time
    total = 0
    for entry in range(local.size):
        begin = _begin_time(start_times[entry], window_start, open_times[entry])
        begin_times[entry] = begin
        times[entry] = _first_time(process, local[entry], begin, end_times[entry])
        # The row is written in any case: counting is faster than an unpredictable branch.
        entries[total] = entry
        total += times[entry] < np.inf
    return total


@njit(cache=True, nogil=True)
def _draw_again(first, active, process, timers, moved):
    dense, keys, values = timers
    local, start_times, end_times, open_times = active
    _, begin_times, times, _ = first
    window_start = process.window.start_time
    is_new = np.zeros(local.size, np.bool_)
    has_new = False
    if moved.size == 0:
        return is_new, has_new
    for entry in range(local.size):
        # Few devices were moved, so a bit is read before a timer is looked up.
        if not is_in(moved, local[entry]):
            continue
        open_times[entry] = value_of(dense, keys, values, local[entry])
        begin = _begin_time(start_times[entry], window_start, open_times[entry])
        # The process has no memory: a draw stays valid unless the timer opens after its begin.
        if begin <= begin_times[entry]:
            continue
        begin_times[entry] = begin
        is_new[entry] = True
        times[entry] = _first_time(process, local[entry], begin, end_times[entry])
        if times[entry] < np.inf:
            has_new = True
    return is_new, has_new


def bits_of(local: Int64Array, devices: int) -> UInt8Array:
    """Encodes a set of positions in a shard of `devices` as bits; the empty set as no bytes.

    Returns:
        Bytes: the device at a position has the bit `position & 7` of byte `position >> 3`.
    """
    if not local.size:
        return np.empty(0, np.uint8)
    bits = np.zeros(devices // 8 + 1, np.uint8)
    places = local & 7
    own_bits = (1 << places).astype(np.uint8)
    # `at`, because several devices share a byte.
    np.bitwise_or.at(bits, local >> 3, own_bits)
    return bits


def draw_candidates(
    model: DeviceModel,
    presence: Presence,
    process: CheckInProcess,
    end_device: int,
) -> tuple[UInt32Array, Float64Array]:
    """Draws candidates for check-ins in each block of a shard, at the rate of all its devices.

    Args:
        model: attributes of the devices.
        presence: presence of the devices; only the first devices of each block, which may have
            joined before the window's end, are drawn.
        process: process in the window.
        end_device: end of the shard.

    Returns:
        (positions in the shard, times) [C] of candidates on usable devices.
    """
    # Thinning (Lewis and Shedler 1979): candidates at the rate of all devices at all times, of
    # which those on an eligible device with an open timer are kept. What is left of each device is
    # a Poisson process of its own, independent of the others.
    window = process.window
    blocks = np.arange(process.first_device, end_device, BLOCK_DEVICES)
    sizes = np.minimum(end_device - blocks, BLOCK_DEVICES)
    if presence.has_joins:
        joined = joined_before(presence, window.ask_until_time)
        numbers = (blocks // BLOCK_DEVICES).tolist()
        order = presence.order
        in_blocks = [joined_in_block(order, number, joined) for number in numbers]
        sizes = np.array(in_blocks, np.int64)
    devices = int(sizes.sum())
    hours = (window.ask_until_time - window.start_time) / 3600.0
    expected = devices * window.check_ins_per_hour * hours
    # Ten deviations above the mean, so that a second turn is hardly ever needed.
    deviation = np.sqrt(expected)
    capacity = int(expected + 10.0 * deviation + 100.0)
    # A second turn has enough room and draws the same, because draws are addressed.
    while True:
        local = np.empty(capacity, np.uint32)
        times = np.empty(capacity)
        total = _candidates(model, process, blocks, sizes, local, times)
        if total <= capacity:
            return local[:total], times[:total]
        capacity = total


@njit(cache=True, nogil=True)
def _candidates(model, process, blocks, sizes, out_local, out_times):
    """Fills out_* as far as there is room; returns the number of candidates, also beyond it."""
    window = process.window
    rate = window.check_ins_per_hour / 3600.0
    total = 0
    if rate == 0.0:
        return total
    for chosen in range(blocks.size):
        block = blocks[chosen]
        size = sizes[chosen]
        if size == 0:
            continue
        # Independent processes of one rate are together a process at the sum of the rates, each of
        # whose arrivals belongs to any of the devices with the same probability.
        mean_gap = 1.0 / (rate * size)
        time = window.start_time
        arrival = 0
        while True:
            # An arrival takes two words, so a draw serves two.
            w0, w1, w2, w3 = draw(process.key, block, window.number, arrival // 2)
            for gap_word, device_word in ((w0, w1), (w2, w3)):
                time += exponential(gap_word) * mean_gap
                if time >= window.ask_until_time:
                    break
                # The upper half of the product is uniform below the size.
                place = (device_word * np.uint64(size)) >> np.uint64(32)
                device = block + np.int64(place)
                # Counted before the device is tested: addresses must not depend on usability.
                arrival += 1
                if not is_usable(model, device):
                    continue
                if total < out_local.size:
                    out_local[total] = device - process.first_device
                    out_times[total] = time
                total += 1
            if time >= window.ask_until_time:
                break
    return total


def first_of_each_interval(first: FirstCheckIns) -> Int64Array:
    """Returns the positions, rising, of the earliest of the candidates in each interval."""
    order = np.lexsort((first.times, first.local))
    device = first.local[order]
    # Intervals of a device are apart, so their ends differ.
    interval = first.end_times[order]
    is_same_device = device[1:] == device[:-1]
    is_same_interval = interval[1:] == interval[:-1]
    is_again = np.zeros(order.size, np.bool_)
    is_again[1:] = is_same_device & is_same_interval
    # Callers rely on the order of the check-ins, which is by time.
    return np.sort(order[~is_again])
