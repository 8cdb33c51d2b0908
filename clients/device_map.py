"""Map from the devices of a shard to numbers, 0 for most: a hash table, or 4 bytes per device once
that is smaller."""

from typing import NamedTuple

import numpy as np

from fedray.base.arrays import Int64Array, UInt32Array
from fedray.base.compiled import njit

_EMPTY = np.uint32(0xFFFFFFFF)


class DeviceTable(NamedTuple):
    """Arrays of a `DeviceMap`, for compiled code."""

    dense: UInt32Array
    """[N]; value of each device of the shard, or empty."""
    keys: UInt32Array
    """[2^m]; devices by open addressing, at most half full; a single empty slot if dense."""
    values: UInt32Array
    """[2^m]; value of each slot's device; a single empty slot if dense."""


class DeviceMap:
    """Number, 0 to 2^32 - 1, of every device of a shard; at first 0. Numbers only grow.

    Args:
        devices: number of devices, less than 2^32 - 1.

    table: the arrays, which are replaced as the map grows.
    """

    def __init__(self, devices: int) -> None:
        self._devices = devices
        self._entries = 0
        self.table = _sparse(64)

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return sum(array.nbytes for array in self.table)

    @property
    def is_dense(self) -> bool:
        """Whether every device has its 4 bytes."""
        return bool(self.table.dense.size)

    def raise_to(self, local: Int64Array, values: UInt32Array) -> None:
        """Raises the numbers of devices at positions [S] to at least `values` [S]."""
        # Devices with an entry are counted again, because only `_raise` finds them.
        most_entries = self._entries + local.size
        # With more than four slots per entry, rehashing is rare and searches are short.
        wanted = 1 << (4 * most_entries).bit_length()
        if not self.is_dense and wanted > self.table.keys.size:
            # While rehashing, the old table exists beside the new one: 12 bytes per slot, three
            # words of the dense form.
            is_smaller = 3 * wanted < self._devices
            grown = _sparse(wanted) if is_smaller else _dense(self._devices)
            is_used = self.table.keys != _EMPTY
            used = self.table.keys[is_used].astype(np.int64)
            _raise(grown, used, self.table.values[is_used])
            self.table = grown
        self._entries += _raise(self.table, local, values)

    def get(self, local: Int64Array) -> UInt32Array:
        """Returns the numbers [S] of devices at positions [S]."""
        return _get(self.table, local)


def _sparse(slots: int) -> DeviceTable:
    return DeviceTable(
        dense=np.empty(0, np.uint32),
        keys=np.full(slots, _EMPTY),
        values=np.zeros(slots, np.uint32),
    )


def _dense(devices: int) -> DeviceTable:
    return DeviceTable(
        dense=np.zeros(devices, np.uint32),
        keys=np.full(1, _EMPTY),
        values=np.zeros(1, np.uint32),
    )


@njit(inline="always")
def _slot(keys, local):
    # No hash function: participants are random already, and devices visited in order have their
    # slots in order.
    mask = np.uint64(keys.size - 1)
    slot = np.uint64(local) & mask
    while keys[slot] != _EMPTY and keys[slot] != np.uint32(local):
        slot = (slot + np.uint64(1)) & mask
    return slot


@njit(inline="always")
def value_of(dense, keys, values, local):
    """Returns the number of the device at a position, from the arrays of a `DeviceTable`.

    Hot loops take the arrays out of the table once, since compiled code counts references wherever
    it reaches into a tuple.
    """
    if dense.size:
        return dense[local]
    return values[_slot(keys, local)]


@njit(cache=True, nogil=True)
def _raise(table, local, new_values):
    """Raises numbers in place; returns the number of new entries."""
    dense, keys, values = table
    added = 0
    for asked in range(local.size):
        device = local[asked]
        value = new_values[asked]
        if dense.size:
            dense[device] = max(dense[device], value)
        # A device without an entry has 0, so 0 needs no slot.
        elif value > 0:
            # `raise_to` has made the table large enough, so an empty slot always exists.
            slot = _slot(keys, device)
            added += keys[slot] == _EMPTY
            keys[slot] = np.uint32(device)
            values[slot] = max(values[slot], value)
    return added


@njit(cache=True, nogil=True)
def _get(table, local):
    dense, keys, values = table
    out = np.empty(local.size, np.uint32)
    for asked in range(local.size):
        out[asked] = value_of(dense, keys, values, local[asked])
    return out
