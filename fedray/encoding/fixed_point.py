"""Fixed point: updates as whole steps of clip_norm / 2^40, whose sums do not depend on their order.

The server sees the exact sum, as a server trusted with all updates would. Rounding towards zero
makes no update longer, so a device contributes at most the clip norm.
"""

import numpy as np

from fedray.base.arrays import Float32Array, Int64Array, Numbers, UInt64Array
from fedray.base.compiled import njit
from fedray.encoding.encoding import ClippedUpdates, SumSetting
from fedray.encoding.tables import FIXED_POINT_BITS, FixedPoint

_CHUNK = 4096
"""Coordinates of a sum per step, few enough for a core's cache."""


class FixedPointEncoding:
    """Sums of whole steps in int64, which holds 2^22 devices.

    Args:
        dimension: D, number of parameters of the model.
    """

    bits_per_parameter = 64.0
    adds_noise = False

    def __init__(self, dimension: int) -> None:
        self._dimension = dimension

    @classmethod
    def of(cls, table: FixedPoint, setting: SumSetting) -> "FixedPointEncoding":
        """Makes the encoding of a table, which has no keys."""
        del table
        return cls(setting.dimension)

    def zero_sum(self) -> Int64Array:
        return np.zeros(self._dimension, np.int64)

    def encode_into(self, total_P: Numbers, updates: ClippedUpdates, clip_norm: float) -> int:
        if isinstance(total_P, np.ndarray):
            _encode_into(total_P, updates.values, updates.factors, _steps_per_unit(clip_norm))
            return 0
        # Loads torch, which only a sum in torch needs.
        from fedray.encoding.tensors import add_steps

        add_steps(total_P, updates, _steps_per_unit(clip_norm))
        return 0

    def encode_zeros_into(
        self, total_P: Numbers, device_ids: UInt64Array, round_index: int
    ) -> None:
        """Adds nothing."""

    def add(self, total_P: Int64Array, other_P: Int64Array) -> None:
        total_P += other_P

    def decode(self, total_P: Int64Array, clip_norm: float, round_index: int) -> Float32Array:
        """Returns the sum, rounded once, to float32."""
        decoded_D = np.empty(total_P.size, np.float32)
        # Exact, because the divisor is a power of two.
        _decode(total_P, decoded_D, clip_norm / 2.0**FIXED_POINT_BITS)
        return decoded_D

    def contribution_norm(self, clip_norm: float) -> float:
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
            # One factor, so that scaling takes one product per coordinate.
            scale = steps_per_unit * factors[device]
            own = values[device][first : first + _CHUNK]
            for place in range(chunk.size):
                # The conversion rounds towards zero.
                chunk[place] += np.int64(np.float64(own[place]) * scale)


@njit(cache=True)
def _decode(total, decoded, step):
    # A loop, because the whole vector in float64 would take twice its memory.
    for coordinate in range(total.size):
        decoded[coordinate] = np.float32(np.float64(total[coordinate]) * step)
