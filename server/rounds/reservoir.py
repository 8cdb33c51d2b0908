"""Reservoir sampling: a round draws its devices from the waiting ones."""

import numpy as np

from fedray.base.arrays import BoolArray, UInt64Array
from fedray.base.rng import Key, long_words


def drawn_cohort(key: Key, device_ids: UInt64Array, attempt: int, size: int) -> BoolArray:
    """Draws `size` devices without replacement; all sets of that size are equally likely.

    The drawn devices are those with the smallest random words at the addresses (device, attempt).

    Args:
        key: key of the draws.
        device_ids: [W]; waiting devices.
        attempt: number of the attempt, abandoned ones included.
        size: number of devices to draw; at most W.

    Returns:
        Whether each device is drawn, [W].
    """
    # A bottom-k sample: the k smallest of independent uniform words are a uniform sample without
    # replacement.
    # Equal words of 64 bits hardly ever occur; the id decides then.
    order = np.lexsort((device_ids, long_words(key, device_ids, attempt)))
    is_drawn = np.zeros(device_ids.size, np.bool_)
    is_drawn[order[:size]] = True
    return is_drawn
