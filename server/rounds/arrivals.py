"""Check-ins of a window in order of time, hash tables of devices, and slots of devices that wait or
work until a time: everything that the compiled loops of selection and of buffers share.

The shards list the first check-in of each eligible interval. The next one is drawn here, from the
time at which the device could be taken.
"""

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fedray.base.arrays import (
    BoolArray,
    Float32Array,
    Float64Array,
    Int32Array,
    Int64Array,
    UInt32Array,
    UInt64Array,
)
from fedray.base.compiled import njit
from fedray.base.rng import address_within, draw, exponential
from fedray.wire.messages import CheckIns

EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)
"""Device id of an unused entry."""
_HASH = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)


class Arrivals(NamedTuple):
    """Check-ins of a window: the list of first ones [A], and a heap, by time, of the next ones of
    its rows.

    The other columns are as in `fedray.wire.messages.CheckIns`: [A, T] from fixed_seconds on, for T
    tasks, or [0, T] for an unused column.
    """

    device_ids: UInt64Array
    times: Float64Array
    interval_ends: Float64Array
    fixed_seconds: Float32Array
    training_seconds: Float32Array
    upload_seconds: Float32Array
    last_rounds: Int32Array
    timer_seconds: Float64Array
    contributions: UInt32Array
    open_times: Float64Array
    counts: Int64Array
    """[rows of the list that have come, entries of the heap]. An array, because compiled code
    changes it, and a tuple's own numbers are fixed."""
    next_times: Float64Array
    """[A]; times of the heap. A row has at most one entry, because its device only checks in again
    after its last check-in was processed."""
    next_rows: Int64Array
    """[A]; rows of the heap's entries."""

    @classmethod
    def of(cls, check_ins: CheckIns, tasks: int = 1) -> Self:
        """Returns a list of which no row has come yet, of devices that `tasks` tasks share."""
        size = check_ins.device_ids.size
        return cls(
            device_ids=check_ins.device_ids,
            times=check_ins.times,
            interval_ends=check_ins.interval_ends,
            **{name: getattr(check_ins, name).reshape(-1, tasks) for name in cls._fields[3:10]},
            counts=np.zeros(2, np.int64),
            next_times=np.empty(size),
            next_rows=np.empty(size, np.int64),
        )


class Slots(NamedTuple):
    """Devices that wait or work until a time: records in slots, and a heap of the slots by time."""

    counts: Int64Array
    """[free slots, entries of the heap]; `push` expects the second at this place."""
    times: Float64Array
    """[S]; times of the heap."""
    places: Int64Array
    """[S]; slots of the heap."""
    free: Int64Array
    """[S]; unused slots."""
    records: NDArray[np.void]
    """[S]."""

    @classmethod
    def of(
        cls, size: int, kind: np.dtype, records: NDArray[np.void] | None = None, by: str = ""
    ) -> Self:
        """Returns slots for `size` devices.

        Args:
            size: number of slots.
            kind: dtype of a record.
            records: devices that have slots already; None for no devices.
            by: field of a record with the time until which its device has the slot.
        """
        slots = cls(
            counts=np.array([size, 0]),
            times=np.zeros(size),
            places=np.zeros(size, np.int64),
            free=np.arange(size)[::-1].copy(),
            records=np.zeros(size, kind),
        )
        if records is not None:
            # A sorted list is a heap, and the last free slots are the first of all slots.
            ordered = records[np.lexsort((records["device_id"], records[by]))]
            used = ordered.size
            slots.records[:used], slots.times[:used] = ordered, ordered[by]
            slots.places[:used] = np.arange(used)
            slots.counts[:] = size - used, used
        return slots

    @property
    def used(self) -> Int64Array:
        """Slots of all devices that have one, in any order."""
        return self.places[: self.counts[1]]

    def take(self, is_taken: BoolArray) -> Int64Array:
        """Frees the slots of some devices, and returns these slots. Their records stay until the
        slots are used again.

        Args:
            is_taken: [slots of `used`]; whether to free each.
        """
        freed, stays = self.used[is_taken], np.flatnonzero(~is_taken)
        # A sorted list is a heap.
        order = stays[np.argsort(self.times[stays], kind="stable")]
        places = self.places[order]
        self.times[: order.size], self.places[: order.size] = self.times[order], places
        free, now_free = self.counts[0], self.counts[0] + freed.size
        self.free[free:now_free] = freed
        self.counts[:] = now_free, order.size
        return freed


def table_of(
    entries: int,
    kind: np.dtype,
    old: NDArray[np.void] | None = None,
    stays: BoolArray | None = None,
) -> NDArray[np.void]:
    """Returns a hash table of devices with room for some entries.

    Args:
        entries: largest number of devices that it will have.
        kind: dtype of an entry; it has a field `device_id`.
        old: records to copy, a table or a list of entries; None for none.
        stays: [records of old]; whether to copy each record; None for all.
    """
    # A third to two thirds full: a larger table would be searched faster, but less of it would fit
    # the cache.
    size = 1 << max(6, (3 * entries // 2).bit_length())
    table = np.zeros(size, kind)
    table["device_id"] = EMPTY
    # No round has the number -1.
    for name in {"last_round", "accepted_round"} & set(kind.names or ()):
        table[name] = -1
    if old is not None:
        _carry_over(old, table, np.ones(old.size, np.bool_) if stays is None else stays)
    return table


def columns_of(records: NDArray[np.void]) -> dict[str, NDArray]:
    """Returns copies of the fields of records, by name, for a checkpoint."""
    return {name: records[name].copy() for name in records.dtype.names or ()}


def entries_of(columns: dict[str, NDArray], kind: np.dtype) -> NDArray[np.void]:
    """Returns the records of columns; the inverse of `columns_of`.

    Args:
        columns: columns by field.
        kind: type of a record; it has a field `device_id`.
    """
    records = np.zeros(columns["device_id"].size, kind)
    for name in kind.names or ():
        records[name] = columns[name]
    return records


@njit(inline="always")
def find(table, device):
    """Returns the device's slot in the table, or the empty slot for it.

    Args:
        table: result of `table_of`.
        device: id of the device.
    """
    # Multiplicative hashing by 2^64 over the golden ratio (Knuth 1998, section 6.4).
    mask = np.uint64(table.size - 1)
    slot = ((device * _HASH) >> _HALF) & mask
    while table[slot].device_id != EMPTY and table[slot].device_id != device:
        slot = (slot + np.uint64(1)) & mask
    return slot


@njit(cache=True, nogil=True)
def _carry_over(old, new, stays):
    for slot in range(old.size):
        if stays[slot]:
            place = find(new, old[slot].device_id)
            new[place] = old[slot]


@njit(forceinline=True)
def next_time(return_key, window, device, end, free_time):
    """Returns the next check-in of a device after it is free; infinity if it does not come in time.

    Args:
        return_key: key of the draws.
        window: the present window.
        device: id of the device.
        end: end of its interval, seconds since start.
        free_time: time from which it may be taken, seconds since start.
    """
    until = min(end, window.ask_until_time)
    if free_time >= until or window.check_ins_per_hour == 0.0:
        return np.inf
    address = address_within(free_time, window.start_time, window.end_time)
    word, _, _, _ = draw(return_key, device, window.number, address)
    gap_seconds = exponential(word) * (3600.0 / window.check_ins_per_hour)
    # At least a millisecond later, so that the next draw has another address.
    time = free_time + max(1e-3, gap_seconds)
    return time if time < until else np.inf


@njit(forceinline=True)
def push(counts, times, rows, time, row, records=None):
    """Adds an entry to a heap in place; the entry with the earliest time is first.

    Args:
        counts: array whose second number is the number of the heap's entries.
        times: times of the entries.
        rows: rows of the entries, or slots.
        time: seconds since start.
        row: the new entry's row.
        records: records by row, whose device ids order equal times; None to leave equal times
            unordered.
    """
    # The entry rises from the last place until its parent comes no later.
    slot = counts[1]
    counts[1] += 1
    while slot > 0:
        parent = (slot - 1) // 2
        if not _comes_before(time, row, times[parent], rows[parent], records):
            break
        times[slot], rows[slot] = times[parent], rows[parent]
        slot = parent
    times[slot], rows[slot] = time, row


@njit(forceinline=True)
def pop(counts, times, rows, records=None):
    """Removes the earliest entry of a heap without returning it: read times[0] and rows[0] first.
    The arguments are as in `push`."""
    counts[1] -= 1
    count = counts[1]
    # The last entry fills the hole at the top, and sinks until no child comes before it.
    time, row = times[count], rows[count]
    slot = 0
    while True:
        child = 2 * slot + 1
        if child >= count:
            break
        other = child + 1
        if other < count and _comes_before(
            times[other], rows[other], times[child], rows[child], records
        ):
            child = other
        if not _comes_before(times[child], rows[child], time, row, records):
            break
        times[slot], rows[slot] = times[child], rows[child]
        slot = child
    times[slot], rows[slot] = time, row


@njit(forceinline=True)
def _comes_before(time, row, other_time, other_row, records):
    if records is None:
        return time < other_time
    if time != other_time:
        return time < other_time
    return records[row].device_id < records[other_row].device_id


@njit(forceinline=True)
def pop_slot(counts, times, places, free, records=None):
    """Frees the slot with the earliest time; the arguments are columns of `Slots`."""
    free[counts[0]] = places[0]
    counts[0] += 1
    pop(counts, times, places, records)
