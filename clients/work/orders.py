"""The order in which a device uses its examples, drawn for every participation."""

import numpy as np

from fedray.base.compiled import njit
from fedray.base.rng import draw, uniform


@njit(cache=True)
def example_orders(key, round_index, device_ids, held, count):
    """Returns positions [G, count] of examples, in a random order for each device.

    The first held[g] positions are a uniform permutation of 0 .. held[g] - 1 (or its start), and
    then repeat. Addresses of the draws are (device, round, swap).

    Args:
        key: key of the stream.
        round_index: index of the round.
        device_ids: devices [G], uint64.
        held: usable examples of each device, [G], at least 1.
        count: positions per device.
    """
    positions = np.empty((device_ids.size, count), np.int64)
    for row in range(device_ids.size):
        usable = held[row]
        own = np.arange(usable)
        # Fisher-Yates, which may stop once there are enough positions.
        for place in range(min(count, usable)):
            word, _, _, _ = draw(key, device_ids[row], round_index, place)
            left = usable - place
            steps = min(left - 1, np.int64(uniform(word) * left))
            other = place + steps
            own[place], own[other] = own[other], own[place]
        for place in range(count):
            positions[row, place] = own[place % usable]
    return positions
