"""Clipping, and exact sums: a clipped update as whole steps of clip_norm / 2^40, so that sums do
not depend on their order."""

import math
from enum import IntEnum

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedray.messages import FIXED_POINT_BITS

_MARGIN = 1.0 - 2.0**-24
"""Clipped updates end this much below the clip norm, so that rounding cannot exceed it.

The norm is a float64 sum of D squares, off by at most D 2^-53 of itself: less than the margin up to
D = 2^29."""


class Clipped(IntEnum):
    """What clipping did to an update."""

    KEPT = 0
    """It was no longer than the clip norm."""
    SHORTENED = 1
    """It was scaled down to the clip norm."""
    NOT_FINITE = 2
    """It has a NaN or an infinity, and counts as zero."""


def add_clipped(
    total_D: NDArray[np.int64], updates_GD: NDArray[np.float32], clip_norm: float
) -> NDArray[np.int8]:
    """Adds updates [G, D] to a sum [D] in place, each scaled down to L2 norm clip_norm where it is
    longer.

    The sum is in whole steps of clip_norm / 2^40, each coordinate of each update rounded towards
    zero, so that no norm grows. An update that is not finite counts as zero: a device whose
    training diverged contributes nothing.

    Returns:
        What was done to each update [G], as `Clipped`.
    """
    return _add_clipped(total_D, updates_GD, clip_norm, 2.0**FIXED_POINT_BITS / clip_norm)


@njit(cache=True)
def _add_clipped(total, updates, clip_norm, steps_per_unit):
    devices, dimension = updates.shape
    done = np.zeros(devices, np.int8)
    for device in range(devices):
        square = 0.0
        for place in range(dimension):
            square += np.float64(updates[device, place]) ** 2
        norm = math.sqrt(square)
        if not math.isfinite(norm):
            done[device] = 2
            continue
        is_longer = not norm <= clip_norm * _MARGIN
        done[device] = 1 if is_longer else 0
        scale = steps_per_unit * (clip_norm * _MARGIN / norm if is_longer else 1.0)
        for place in range(dimension):
            # The conversion rounds towards zero.
            total[place] += np.int64(np.float64(updates[device, place]) * scale)
    return done
