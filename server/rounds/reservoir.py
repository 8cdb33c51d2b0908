"""Reservoir sampling: a round draws its devices among those that wait."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedray.base.rng import Key, draw


def drawn_cohort(
    key: Key, device_ids: NDArray[np.uint64], attempt: int, size: int
) -> NDArray[np.bool_]:
    """Draws devices without replacement, all sets of the size equally likely: those with the least
    draws at the addresses (device, attempt).

    Args:
        key: key of the draws.
        device_ids: [W]; waiting devices.
        attempt: number of the attempt, abandoned ones included.
        size: number of devices to draw; at most W.

    Returns:
        Whether each is drawn [W].
    """
    # Equal draws of 64 bits hardly ever occur; the id decides then.
    order = np.lexsort((device_ids, _draws(key, device_ids, attempt)))
    is_drawn = np.zeros(device_ids.size, np.bool_)
    is_drawn[order[:size]] = True
    return is_drawn


@njit(cache=True)
def _draws(key, device_ids, attempt):
    words = np.empty(device_ids.size, np.uint64)
    for asked in range(device_ids.size):
        w0, w1, _, _ = draw(key, device_ids[asked], attempt, 0)
        words[asked] = (w0 << np.uint64(32)) | w1
    return words
