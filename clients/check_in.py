"""Check-ins of a window: the first one of each eligible interval of a device whose timer is open;
by enumeration or by thinning.

An eligible device with an open timer checks in as a Poisson process whose rate the server sets per
window. The process has no memory: what comes after a check-in is drawn when it is needed, from the
time at which the device is free (server/rounds/selection.py). So a shard lists, for each interval,
one check-in and no more: the first one within the window, after the timer opens.

* *Enumeration* draws the first check-in of every interval that is listed for the period.
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

from fedray.base.blocks import BLOCK_DEVICES
from fedray.base.rng import Key, address_within, draw, exponential, uniform
from fedray.clients.availability.intervals import Intervals
from fedray.clients.device_map import DeviceMap, value_of
from fedray.clients.population import (
    DeviceModel,
    Presence,
    is_usable,
    joined_before,
    joined_in_block,
)
from fedray.wire.messages import CheckInOrder, Window

_DIGIT_BITS = 11
_DIGITS = 1 << _DIGIT_BITS
"""Counters of a pass of `by_bits`, which stay in the fastest cache."""


class CheckInProcess(NamedTuple):
    """How the devices of a shard check in within a window.

    key: of the draws, which is another one for each sampler.
    first_device: of the shard.
    window: its times and rate, seconds since start.
    mean_gap_seconds: between two check-ins of a device; infinity where none are asked to come.
    """

    key: Key
    first_device: int
    window: Window
    mean_gap_seconds: float

    @classmethod
    def of(cls, window: Window, key: Key, first_device: int) -> "CheckInProcess":
        """The process of a shard in a window.

        Args:
            window: its times and rate.
            key: of the sampler's draws.
            first_device: of the shard.
        """
        rate = window.check_ins_per_hour
        mean_gap_seconds = 3600.0 / rate if rate > 0.0 else np.inf
        return cls(key, first_device, window, mean_gap_seconds)


class FirstCheckIns(NamedTuple):
    """The first check-in of intervals [A] of a shard's devices in a window.

    local: whose interval it is.
    begin_times: from when on it is drawn: when the interval and the window have started, and the
        timer, as far as it was known, is open.
    times: when the device checks in; infinity for not in the window.
    end_times: when the interval ends.
    """

    local: NDArray[np.uint32]
    begin_times: NDArray[np.float64]
    times: NDArray[np.float64]
    end_times: NDArray[np.float64]

    def take(self, chosen: NDArray[np.int64]) -> "FirstCheckIns":
        """Some of the check-ins.

        Args:
            chosen: their positions.
        """
        return FirstCheckIns(
            self.local[chosen],
            self.begin_times[chosen],
            self.times[chosen],
            self.end_times[chosen],
        )

    def in_order(self, entries: NDArray[np.int64], window: Window) -> NDArray[np.int64]:
        """Some of the check-ins in order of (time, device).

        Args:
            entries: positions of check-ins that lie in the window.
            window: which they lie in.

        Returns:
            The same positions, sorted.
        """
        times = self.times[entries]
        local = self.local[entries]
        # Sorted by 2^-32 of the window first, which is much faster than by float64 times and leaves
        # hardly anything to put right.
        steps_per_second = 2.0**32 / (window.end_time - window.start_time)
        steps = ((times - window.start_time) * steps_per_second).astype(np.uint64)
        # A time just before the window's end may be rounded up to it.
        keys = np.minimum(steps, np.uint64(2**32 - 1)).astype(np.uint32)
        order = by_bits(keys, 32)
        _put_right(order, times, local)
        return entries[order]


@njit(cache=True, nogil=True)
def by_bits(keys: NDArray[np.uint32], bits: int) -> NDArray[np.int64]:
    """The stable order of numbers: a counting sort by 11 bits after 11 bits, from the lowest on.

    Args:
        keys: [K], fewer than 2^32.
        bits: of which more than these are 0.

    Returns:
        Positions [K].
    """
    size = keys.size
    # Two pairs of arrays change places after every digit: one is read, the other is written.
    sorted_keys, places = keys.copy(), np.arange(size).astype(np.uint32)
    other_keys, other_places = np.empty(size, np.uint32), np.empty(size, np.uint32)
    for shift in range(0, bits, _DIGIT_BITS):
        begin = np.zeros(_DIGITS + 1, np.int64)
        for key in sorted_keys:
            # Counts lie one place further on, so that their running sum says where each digit
            # begins.
            begin[((key >> shift) & (_DIGITS - 1)) + 1] += 1
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
def _put_right(order, times, local):
    """Insertion sort by (time, device) of what is nearly in order."""
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
    """Intervals [A] of a shard's devices, and when the devices' timers open.

    local, start_times, end_times: see `fedray.clients.availability.intervals.Intervals`.
    open_times: whole seconds; 0 where the timer was open when the intervals were listed.
    """

    local: NDArray[np.uint32]
    start_times: NDArray[np.float64]
    end_times: NDArray[np.float64]
    open_times: NDArray[np.uint32]

    @classmethod
    def room(cls, size: int) -> "OpenIntervals":
        """Arrays for `size` intervals, without values."""
        return cls(
            local=np.empty(size, np.uint32),
            start_times=np.empty(size),
            end_times=np.empty(size),
            open_times=np.empty(size, np.uint32),
        )

    def first(self, size: int) -> "OpenIntervals":
        """The first `size` intervals, as views."""
        return OpenIntervals(
            self.local[:size],
            self.start_times[:size],
            self.end_times[:size],
            self.open_times[:size],
        )


class ListedIntervals:
    """The intervals of one shard within a period of windows, in buckets by the window in which they
    are first seen; and, of those seen, the ones that may still matter.

    first_window, end_window: the period, [first_window, end_window).
    active: what matters from the present window on: not over, and not over before their device's
        timer opens.
    """

    def __init__(self, intervals: Intervals, order: CheckInOrder, end_window: int) -> None:
        """Sorts intervals into buckets.

        Args:
            intervals: each from when its device's timer opens.
            order: for the period's first window; all windows are as long.
            end_window: the period's end.
        """
        window = order.window
        self.first_window = window.number
        self.end_window = end_window
        self.active = OpenIntervals.room(0)
        self._intervals = intervals
        self._next_window = window.number
        size = intervals.local.size
        # Four bytes for each of the intervals of a day, of which a large shard has millions.
        kind = np.uint32 if size < 2**32 else np.int64
        self._entries = np.empty(size, kind)
        self._edges = _bucket(
            intervals.start_times,
            window.start_time,
            window.end_time - window.start_time,
            end_window - window.number,
            self._entries,
        )
        self._moved = np.empty(0, np.uint8)
        """Devices whose timers were started since the intervals were listed; see `bits_of`."""

    def covers(self, window: int) -> bool:
        """Whether a window, by its number, lies in the period."""
        return self.first_window <= window < self.end_window

    def note(self, moved: NDArray[np.uint8]) -> None:
        """Hears whose timers were started since it was last told.

        Args:
            moved: see `bits_of`.
        """
        if not moved.size:
            return
        if self._moved.size:
            self._moved = moved | self._moved
        else:
            # A copy, because the caller's bits may change.
            self._moved = moved.copy()

    def enter(self, window: Window, timers: DeviceMap, moved: NDArray[np.uint8]) -> None:
        """Brings `active` to a window.

        Windows come in order; the present one may be entered again.

        Args:
            window: which one.
            timers: when each device's timer opens.
            moved: of the devices whose timers were started since the window before and not told to
                `draw_again`; see `bits_of`. The timers of the others are not looked up again: most
                of the time would go there.
        """
        newly_seen = self._entries[:0]
        # A window that is entered again has had its new intervals already.
        if window.number == self._next_window:
            bucket = window.number - self.first_window
            begin, end = self._edges[bucket], self._edges[bucket + 1]
            newly_seen = self._entries[begin:end]
            self._next_window += 1
        capacity = self.active.local.size + newly_seen.size
        room = OpenIntervals.room(capacity)
        kept = _keep_active(self.active, window.start_time, timers.table, moved, room)
        # New intervals heed every timer that was started since the listing, active ones those since
        # the last window.
        kept = _keep_new(
            self._intervals, newly_seen, window.start_time, timers.table, self._moved, kept, room
        )
        self.active = room.first(kept)


@njit(cache=True, nogil=True)
def _bucket(start_times, first_start, window_seconds, window_count, out_entries):
    """Counting sort by window, stable: fills the entries [I]; the buckets' edges."""
    edges = np.zeros(window_count + 1, np.int64)
    bucket = np.empty(start_times.size, np.int32)
    for entry in range(start_times.size):
        # What began before the period is seen in its first window.
        window = int((start_times[entry] - first_start) // window_seconds)
        bucket[entry] = min(window_count - 1, max(0, window))
        edges[bucket[entry] + 1] += 1
    edges = np.cumsum(edges)
    cursor = edges[:-1].copy()
    for entry in range(start_times.size):
        out_entries[cursor[bucket[entry]]] = entry
        cursor[bucket[entry]] += 1
    return edges


@njit(cache=True, nogil=True)
def _keep_active(active, window_start, timers, moved, room):
    """Fills the room with the active intervals that still matter; how many."""
    # Arrays are taken out of their tuples once: compiled code counts references anew wherever it
    # reaches into a tuple.
    dense, keys, values = timers
    local, start_times, end_times, open_times = active
    out_local, out_start, out_end, out_open = room
    kept = 0
    for entry in range(local.size):
        if end_times[entry] > window_start:
            opens = open_times[entry]
            if moved.size and is_in(moved, local[entry]):
                opens = value_of(dense, keys, values, local[entry])
            # It is written in any case, and overwritten by the next one where it is not kept.
            out_local[kept] = local[entry]
            out_start[kept] = start_times[entry]
            out_end[kept] = end_times[entry]
            out_open[kept] = opens
            kept += opens < end_times[entry]
    return kept


@njit(cache=True, nogil=True)
def _keep_new(intervals, entries, window_start, timers, moved, kept, room):
    """Adds those of the newly seen intervals that matter to `kept` others; how many there are."""
    dense, keys, values = timers
    local, start_times, end_times = intervals
    out_local, out_start, out_end, out_open = room
    for entry in entries:
        if end_times[entry] > window_start:
            # The interval was listed from when its device's timer opens, unless that moved since.
            opens = np.uint32(0)
            if moved.size and is_in(moved, local[entry]):
                opens = value_of(dense, keys, values, local[entry])
            out_local[kept] = local[entry]
            out_start[kept] = start_times[entry]
            out_end[kept] = end_times[entry]
            out_open[kept] = opens
            kept += opens < end_times[entry]
    return kept


def enumerate_check_ins(
    active: OpenIntervals,
    process: CheckInProcess,
) -> tuple[FirstCheckIns, NDArray[np.int64]]:
    """Draws the first check-in of intervals in a window.

    Args:
        active: [A] intervals.
        process: in the window.

    Returns:
        The check-ins [A], and the positions of those that lie in the window, in order of (time,
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
    moved: NDArray[np.uint8],
) -> tuple[NDArray[np.bool_], bool]:
    """Draws first check-ins anew, in place, where a timer opens later than was known.

    Args:
        first: [A]; what `enumerate_check_ins` gave.
        active: [A]; of the same intervals; its open times are brought up to date.
        process: in the same window.
        timers: when each device's timer opens.
        moved: of the devices whose timers were started since; see `bits_of`.

    Returns:
        Which were drawn anew [A], and whether one of them lies in the window.
    """
    return _draw_again(first, active, process, timers.table, moved)


@njit(inline="always")
def is_in(bits, local):
    """Whether the bit of a device is set, by its position local; there must be bits."""
    return bits[local >> 3] >> (local & 7) & 1 != 0


@njit(forceinline=True)
def _first_time(process, local, begin, end):
    """The first check-in from `begin` on, infinity for none: one draw at (device, window, begin),
    which is no other interval's, since intervals are apart."""
    window = process.window
    until = min(end, window.ask_until_time)
    if begin < until:
        address = address_within(begin, window.start_time, window.end_time)
        device = process.first_device + local
        word, _, _, _ = draw(process.key, device, window.number, address)
        # Else it is too late, since exp(-x) > 1 - x: most logarithms are spared.
        if uniform(word) > 1.0 - (until - begin) / process.mean_gap_seconds:
            time = begin + exponential(word) * process.mean_gap_seconds
            if time < until:
                return time
    return np.inf


@njit(cache=True, nogil=True)
def _draw_first(active, process, first, entries):
    """Fills the begin times and times of all, and the entries of those in the window; how many."""
    local, start_times, end_times, open_times = active
    _, begin_times, times, _ = first
    total = 0
    for entry in range(local.size):
        begin = max(start_times[entry], process.window.start_time, np.float64(open_times[entry]))
        begin_times[entry] = begin
        times[entry] = _first_time(process, local[entry], begin, end_times[entry])
        # It is written in any case: to count is faster than a branch that cannot be foretold.
        entries[total] = entry
        total += times[entry] < np.inf
    return total


@njit(cache=True, nogil=True)
def _draw_again(first, active, process, timers, moved):
    dense, keys, values = timers
    local, start_times, end_times, open_times = active
    _, begin_times, times, _ = first
    is_new = np.zeros(local.size, np.bool_)
    has_new = False
    if moved.size == 0:
        return is_new, has_new
    for entry in range(local.size):
        # Few devices were moved: one bit of each is read, and no timer is looked up for the others.
        if not is_in(moved, local[entry]):
            continue
        open_times[entry] = value_of(dense, keys, values, local[entry])
        begin = max(start_times[entry], process.window.start_time, np.float64(open_times[entry]))
        # The process has no memory: what was drawn from a moment on stays good until the timer
        # opens later than that.
        if begin <= begin_times[entry]:
            continue
        begin_times[entry], is_new[entry] = begin, True
        times[entry] = _first_time(process, local[entry], begin, end_times[entry])
        if times[entry] < np.inf:
            has_new = True
    return is_new, has_new


def bits_of(local: NDArray[np.int64], devices: int) -> NDArray[np.uint8]:
    """A set of a shard's devices as a bit for each; nothing at all for the empty set.

    Args:
        local: positions in the shard; repeats are allowed.
        devices: of the shard.

    Returns:
        Bytes: the device at a position has the bit `position & 7` of byte `position >> 3`.
    """
    if not local.size:
        return np.empty(0, np.uint8)
    bits = np.zeros(devices // 8 + 1, np.uint8)
    own_bits = (1 << (local & 7)).astype(np.uint8)
    # `at`, because several devices share a byte.
    np.bitwise_or.at(bits, local >> 3, own_bits)
    return bits


def draw_candidates(
    model: DeviceModel,
    presence: Presence,
    process: CheckInProcess,
    end_device: int,
) -> tuple[NDArray[np.uint32], NDArray[np.float64]]:
    """Draws candidates for check-ins: of every block at the rate of all of its devices together.

    Args:
        model: of the devices.
        presence: of the devices; only those are drawn that may have joined before the window's end,
            which are the first of each block.
        process: in the window.
        end_device: of the shard.

    Returns:
        (local, times) [C]: candidates on usable devices, by their positions in the
        shard.
    """
    window = process.window
    blocks = np.arange(process.first_device, end_device, BLOCK_DEVICES)
    sizes = np.minimum(end_device - blocks, BLOCK_DEVICES)
    if presence.has_joins:
        joined = joined_before(presence, window.ask_until_time)
        numbers = (blocks // BLOCK_DEVICES).tolist()
        in_blocks = [joined_in_block(presence.order, number, joined) for number in numbers]
        sizes = np.array(in_blocks, np.int64)
    devices = int(sizes.sum())
    hours = (window.ask_until_time - window.start_time) / 3600.0
    expected = devices * window.check_ins_per_hour * hours
    # Ten deviations above what is expected, so that hardly ever a second call is needed.
    capacity = int(expected + 10.0 * np.sqrt(expected) + 100.0)
    # A second turn has enough room, and draws the same again, because draws are addressed.
    while True:
        local, times = np.empty(capacity, np.uint32), np.empty(capacity)
        total = _candidates(model, process, blocks, sizes, local, times)
        if total <= capacity:
            return local[:total], times[:total]
        capacity = total


@njit(cache=True, nogil=True)
def _candidates(model, process, blocks, sizes, out_local, out_times):
    """Fills out_* as far as there is room; how many candidates there are."""
    window = process.window
    rate = window.check_ins_per_hour / 3600.0
    total = 0
    if rate == 0.0:
        return total
    for chosen in range(blocks.size):
        block, size = blocks[chosen], sizes[chosen]
        if size == 0:
            continue
        # Devices that check in independently at one rate are, together, one process at the sum of
        # their rates, each of whose arrivals belongs to any of them alike.
        mean_gap = 1.0 / (rate * size)
        time = window.start_time
        arrival = 0
        while True:
            # Two words an arrival: a draw has those of two.
            w0, w1, w2, w3 = draw(process.key, block, window.number, arrival // 2)
            for gap_word, device_word in ((w0, w1), (w2, w3)):
                time += exponential(gap_word) * mean_gap
                if time >= window.ask_until_time:
                    break
                # The upper half of the product is uniform below the size.
                place = (device_word * np.uint64(size)) >> np.uint64(32)
                device = block + np.int64(place)
                # It counts before the device is tested: no address may depend on who is usable.
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


def first_of_each_interval(first: FirstCheckIns) -> NDArray[np.int64]:
    """Positions, rising, of the earliest check-in of each interval.

    Args:
        first: of candidates, of which several may lie in one interval.
    """
    order = np.lexsort((first.times, first.local))
    device = first.local[order]
    # Intervals of a device are apart, so their ends tell them apart.
    interval = first.end_times[order]
    is_same_device = device[1:] == device[:-1]
    is_same_interval = interval[1:] == interval[:-1]
    is_again = np.zeros(order.size, np.bool_)
    is_again[1:] = is_same_device & is_same_interval
    # Callers rely on the order of the check-ins, which is that of time.
    return np.sort(order[~is_again])
