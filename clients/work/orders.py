"""The order in which a device goes through its examples: drawn anew for every participation."""

import numpy as np
from numba import njit

from fedray.base.rng import draw, uniform


@njit(cache=True)
def example_orders(key, round_index, device_ids, held, count):
    """Positions [G, count] of examples: each device's own in a random order, round and round.

    The first held[g] positions are a permutation of 0 .. held[g] - 1, uniform among all, or the
    first `count` of one; then they repeat. The draw is addressed by (device, round, swap).

    Args:
        key: of the stream.
        round_index: the round.
        device_ids: [G] uint64.
        held: how many examples of each device may be used, [G], at least 1.
        count: how many positions are wanted.
    """
    positions = np.empty((device_ids.size, count), np.int64)
    for row in range(device_ids.size):
        many = held[row]
        ours = np.arange(many)
        # Fisher and Yates, as far as positions are wanted.
        for place in range(min(count, many)):
            word, _, _, _ = draw(key, device_ids[row], round_index, place)
            left = many - place
            steps = min(left - 1, np.int64(uniform(word) * left))
            other = place + steps
            ours[place], ours[other] = ours[other], ours[place]
        for place in range(count):
            positions[row, place] = ours[place % many]
    return positions
