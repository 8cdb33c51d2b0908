"""Fixed point: a clipped update as whole steps of clip_norm / 2^40, so that sums do not depend on
their order.

The server sees the exact sum, as if it were trusted with every update. Rounding towards zero makes
no update longer, so the clip norm bounds a device's contribution.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedray.encoding.encoding import ClippedUpdates, SumSetting
from fedray.encoding.tables import FIXED_POINT_BITS, FixedPoint

_CHUNK = 4096
"""Coordinates of a sum that stay in a core's cache while all devices add to them."""


class FixedPointEncoding:
    """Sums of whole steps in int64, which has room for 2^22 devices.

    Args:
        dimension: parameters D of the model.
    """

    bits_per_parameter = 64.0
    adds_noise = False

    def __init__(self, dimension: int) -> None:
        self._dimension = dimension

    @classmethod
    def of(cls, table: FixedPoint, setting: SumSetting) -> "FixedPointEncoding":
        """The encoding of a `table`, which has no keys, in a `setting`."""
        del table
        return cls(setting.dimension)

    def zero_sum(self) -> NDArray[np.int64]:
        """See `Encoding`."""
        return np.zeros(self._dimension, np.int64)

    def encode_into(
        self, total_P: NDArray[np.int64], updates: ClippedUpdates, clip_norm: float
    ) -> None:
        """See `Encoding`. Each coordinate of each update is rounded towards zero."""
        _encode_into(total_P, updates.values, updates.factors, _steps_per_unit(clip_norm))

    def encode_zeros_into(
        self, total_P: NDArray[np.int64], device_ids: NDArray[np.uint64], round_index: int
    ) -> None:
        """See `Encoding`. They add nothing."""

    def add(self, total_P: NDArray[np.int64], other_P: NDArray[np.int64]) -> None:
        """See `Encoding`."""
        total_P += other_P

    def decode(
        self, total_P: NDArray[np.int64], clip_norm: float, round_index: int
    ) -> NDArray[np.float32]:
        """See `Encoding`. The sum is rounded once, to float32."""
        decoded_D = np.empty(total_P.size, np.float32)
        # The division is by a power of two, and therefore exact.
        _decode(total_P, decoded_D, clip_norm / 2.0**FIXED_POINT_BITS)
        return decoded_D

    def contribution_norm(self, clip_norm: float) -> float:
        """The clip norm."""
        return clip_norm


def _steps_per_unit(clip_norm: float) -> float:
    return 2.0**FIXED_POINT_BITS / clip_norm


@njit(cache=True)
def _encode_into(total, values, factors, steps_per_unit):
    devices, dimension = values.shape
    for first in range(0, dimension, _CHUNK):
        chunk = total[first : first + _CHUNK]
        for device in range(devices):
            if factors[device] == 0.0:  # the values may be NaN
                continue
            # Factor and unit are one number, so that a coordinate is scaled in one product.
            scale = steps_per_unit * factors[device]
            own = values[device][first : first + _CHUNK]
            for place in range(chunk.size):
                # The conversion rounds towards zero.
                chunk[place] += np.int64(np.float64(own[place]) * scale)


@njit(cache=True)
def _decode(total, decoded, step):
    # A loop, because float64 of the whole vector would take twice its memory.
    for coordinate in range(total.size):
        decoded[coordinate] = np.float32(np.float64(total[coordinate]) * step)
