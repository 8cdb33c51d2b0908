"""Clipping, and exact sums: a clipped update as whole steps of clip_norm / 2^40, so that sums do
not depend on their order."""

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedray.messages import FIXED_POINT_BITS

_MARGIN = 1.0 - 2.0**-24
"""Clipped updates end this much below the clip norm, so that rounding cannot exceed it.

The norm is a float64 sum of D squares, off by at most D 2^-53 of itself: less than the margin up to
D = 2^29."""


def sum_of_clipped(
    updates: NDArray[np.float32], clip_norm: float
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Clips updates to an L2 norm and adds them up, exactly.

    Each coordinate of each clipped update is rounded towards zero, so that no norm grows. An update
    that is not finite counts as zero: a device whose training diverged contributes nothing, which
    is clipping too.

    Args:
        updates: [G, D].
        clip_norm: updates that are longer are scaled down to it.

    Returns:
        The sum [D], in whole steps of clip_norm / 2^40, and which updates were longer [G].
    """
    return _sum_of_clipped(updates, clip_norm, 2.0**FIXED_POINT_BITS / clip_norm)


@njit(cache=True)
def _sum_of_clipped(updates, clip_norm, steps_per_unit):
    devices, dimension = updates.shape
    total = np.zeros(dimension, np.int64)
    is_longer = np.zeros(devices, np.bool_)
    for device in range(devices):
        square = 0.0
        for coordinate in range(dimension):
            square += np.float64(updates[device, coordinate]) ** 2
        norm = math.sqrt(square)
        # Also true where the norm is no number.
        is_longer[device] = not norm <= clip_norm * _MARGIN
        if not math.isfinite(norm):
            continue
        scale = steps_per_unit * (clip_norm * _MARGIN / norm if is_longer[device] else 1.0)
        for coordinate in range(dimension):
            # The conversion to an integer rounds towards zero.
            total[coordinate] += np.int64(np.float64(updates[device, coordinate]) * scale)
    return total, is_longer
