"""Clipping: by which factor each device's update is scaled down before it is encoded."""

import math
from enum import IntEnum

import numpy as np
from numba import njit
from numpy.typing import NDArray

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


def clip_factors(
    updates_GD: NDArray[np.float32], clip_norm: float
) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
    """By which factor each update [G, D] is to be scaled, so that its L2 norm is at most clip_norm.

    An update that is not finite counts as zero: a device whose training diverged contributes
    nothing.

    Returns:
        The factors [G], from 0 to 1; and what that does to each update [G], as `Clipped`.
    """
    return _clip_factors(updates_GD, clip_norm)


@njit(cache=True)
def _clip_factors(updates, clip_norm):
    devices, dimension = updates.shape
    factors, done = np.ones(devices), np.zeros(devices, np.int8)
    for device in range(devices):
        square = 0.0
        for coordinate in range(dimension):
            square += np.float64(updates[device, coordinate]) ** 2
        norm = math.sqrt(square)
        if not math.isfinite(norm):
            factors[device], done[device] = 0.0, 2
        elif not norm <= clip_norm * _MARGIN:
            factors[device], done[device] = clip_norm * _MARGIN / norm, 1
    return factors, done
