"""A number per device, 0 for most: kept for the devices that have one, or in 4 bytes for every
device once that is smaller."""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

_EMPTY = np.uint32(0xFFFFFFFF)


class _Table(NamedTuple):
    """dense [N]: a value per device, or empty. keys, values [2^m]: open addressing, at most half
    full, or one empty slot."""

    dense: NDArray[np.uint32]
    keys: NDArray[np.uint32]
    values: NDArray[np.uint32]


class DeviceMap:
    """device index (below `devices` < 2^32 - 1) -> uint32; values only grow."""

    def __init__(self, devices: int) -> None:
        self._devices, self._entries = devices, 0
        self.table = _sparse(64)

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return sum(array.nbytes for array in self.table)

    @property
    def is_dense(self) -> bool:
        """Whether every device has its 4 bytes."""
        return bool(self.table.dense.size)

    def raise_to(self, indices: NDArray[np.int64], values: NDArray[np.uint32]) -> None:
        """Raises the values of devices [S] to at least `values` [S]."""
        wanted = 1 << (4 * (self._entries + indices.size)).bit_length()
        if not self.is_dense and wanted > self.table.keys.size:
            # While it is rehashed the old table stands beside the new one: 12 bytes a slot, 3 words
            # of the dense form.
            grown = _sparse(wanted) if 3 * wanted < self._devices else _dense(self._devices)
            _copy(self.table, grown)
            self.table = grown
        self._entries += _raise(self.table, indices, values)

    def get(self, indices: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Values of devices [S]."""
        return _get(self.table, indices)


def _sparse(slots: int) -> _Table:
    return _Table(np.empty(0, np.uint32), np.full(slots, _EMPTY), np.zeros(slots, np.uint32))


def _dense(devices: int) -> _Table:
    return _Table(np.zeros(devices, np.uint32), np.full(1, _EMPTY), np.zeros(1, np.uint32))


@njit(inline="always")
def _place(keys, index):
    # No hash: who takes part is random already, and devices that are visited in order find their
    # slots in order.
    mask = np.uint64(keys.size - 1)
    place = np.uint64(index) & mask
    while keys[place] != _EMPTY and keys[place] != np.uint32(index):
        place = (place + np.uint64(1)) & mask
    return place


@njit(inline="always")
def value_of(dense, keys, values, index):
    """The value of one device, from the arrays of a table."""
    if dense.size:
        return dense[index]
    return values[_place(keys, index)]


@njit(cache=True, nogil=True)
def _raise(table, indices, new_values):
    dense, keys, values = table
    added = 0
    for row in range(indices.size):
        index = indices[row]
        if dense.size:
            dense[index] = max(dense[index], new_values[row])
        elif new_values[row] > 0:
            place = _place(keys, index)
            added += keys[place] == _EMPTY
            keys[place] = np.uint32(index)
            values[place] = max(values[place], new_values[row])
    return added


@njit(cache=True, nogil=True)
def _copy(old, new):
    _, old_keys, old_values = old
    dense, keys, values = new
    for slot in range(old_keys.size):
        if old_keys[slot] == _EMPTY:
            continue
        if dense.size:
            dense[old_keys[slot]] = old_values[slot]
        else:
            place = _place(keys, old_keys[slot])
            keys[place] = old_keys[slot]
            values[place] = old_values[slot]


@njit(cache=True, nogil=True)
def _get(table, indices):
    dense, keys, values = table
    out = np.empty(indices.size, np.uint32)
    for row in range(indices.size):
        out[row] = value_of(dense, keys, values, indices[row])
    return out
