"""The random rotation of a round: random signs, then the normalised Walsh-Hadamard transform.

It spreads an update evenly: each of d coordinates is larger than t norm / sqrt(d) with a
probability of at most 2 exp(-t^2 / 2) (Suresh, Yu, Kumar and McMahan 2017, section 3).
"""

import numpy as np

from fedray.base.arrays import Float64Array
from fedray.base.compiled import njit
from fedray.base.rng import Key, Stream, draw, stream_key


def signs_of(seed: int, round_index: int, coordinates: int) -> Float64Array:
    """Returns the signs of a round, 1 or -1, [coordinates]."""
    return _signs(stream_key(seed, Stream.ROTATION), round_index, coordinates)


@njit(cache=True)
def _signs(key: Key, round_index: int, coordinates: int):
    signs = np.empty(coordinates)
    words = np.empty(4, np.uint64)
    for coordinate in range(coordinates):
        # A draw has 128 bits: one per sign.
        place = coordinate % 128
        if place == 0:
            words[0], words[1], words[2], words[3] = draw(key, 0, round_index, coordinate // 128)
        bit = (words[place // 32] >> np.uint64(place % 32)) & np.uint64(1)
        signs[coordinate] = 1.0 - 2.0 * np.float64(bit)
    return signs


@njit(cache=True)
def walsh_hadamard(values):
    """Transforms values [P] in place, unnormalised: applying it twice multiplies by P."""
    half = 1
    while half < values.size:
        # Each pass adds and subtracts pairs that are half a block apart; then blocks double.
        for start in range(0, values.size, 2 * half):
            for place in range(start, start + half):
                low, high = values[place], values[place + half]
                values[place] = low + high
                values[place + half] = low - high
        half *= 2
