"""Encodings in torch, for trainers whose updates are on a GPU: the same integers as the compiled
code of the other files, bit for bit.

Shapes: G devices, D parameters, P coordinates.
"""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from fedray.base.arrays import Float64Array
from fedray.base.rng import Key
from fedray.encoding.encoding import ClippedUpdates
from fedray.runtime import devices
from fedray.runtime.devices import like

_AT_ONCE = 1 << 24
"""Largest number of coordinates in float64 at once, unless one update has more."""
_LOW_32 = 0xFFFFFFFF


def add_steps(total_P: Tensor, values_GD: Tensor, scales_G: Tensor) -> None:
    """Adds the updates, each times its scale and rounded towards zero."""
    for rows in _chunks(*values_GD.shape):
        total_P.add_(_scaled(values_GD[rows], scales_G[rows]).long().sum(dim=0))


def add_rounded(
    total_P: Tensor,
    updates: ClippedUpdates,
    *,
    divisors: tuple[float, float],
    scale: int,
    signs: Float64Array,
    key: Key,
    largest: int,
    largest_square: int,
    tries: int,
) -> int | None:
    """Adds rotated and randomly rounded updates; see fedray/encoding/secagg.py.

    Args:
        total_P: the sum, without a modulus.
        updates: updates on the device of the sum.
        divisors: clip norm and root of P, by which the scale of an update is divided.
        scale: steps per clip norm.
        signs: signs of the rotation, [P].
        key: key of the draws.
        largest: largest coordinate, in steps.
        largest_square: largest squared length of a rounded update.
        tries: largest number of attempts to round.

    Returns:
        Id of a device whose update is too long for its bound, or None.
    """
    signs_P = like(signs, total_P)
    scales_G = updates.factors * scale
    for divisor in divisors:
        # Torch would multiply by the inverse of a number, which has other last bits.
        scales_G = scales_G / torch.full_like(scales_G, divisor)
    for rows in _chunks(len(updates.values), signs.size):
        scaled_GD = _scaled(updates.values[rows], scales_G[rows])
        padding = (0, signs.size - scaled_GD.shape[1])
        rotated_GP = torch.nn.functional.pad(scaled_GD, padding).mul_(signs_P)
        _walsh_hadamard(rotated_GP)
        rotated_GP.clamp_(-largest, largest)
        ids_G = like(updates.device_ids[rows].astype(np.int64), total_P)
        steps_GP = torch.zeros_like(rotated_GP, dtype=torch.int64)
        is_done_G = torch.zeros_like(ids_G, dtype=torch.bool)
        for attempt in range(tries):
            tried_GP = _rounded(rotated_GP, ids_G, attempt, updates.round_index, key)
            # The exact sum of squares may overflow if it is far above the bound.
            is_near_G = _lengths(tried_GP) < 1.1 * math.sqrt(largest_square) + 1.0
            fits_G = is_near_G & (tried_GP.square().sum(dim=1) <= largest_square)
            # The first rounding that fits counts.
            steps_GP = torch.where((fits_G & ~is_done_G)[:, None], tried_GP, steps_GP)
            is_done_G |= fits_G
            if not devices.on_host(~is_done_G).any():
                break
        else:
            return int(updates.device_ids[rows][devices.on_host(is_done_G).argmin()])
        total_P.add_(steps_GP.sum(dim=0))
    return None


def _lengths(steps_GP: Tensor) -> Tensor:
    return torch.linalg.vector_norm(steps_GP.double(), dim=1)


def _chunks(devices: int, coordinates: int) -> Iterator[slice]:
    size = max(1, _AT_ONCE // coordinates)
    for first in range(0, devices, size):
        yield slice(first, first + size)


def _scaled(values_GD: Tensor, scales_G: Tensor) -> Tensor:
    """Returns the updates in float64, each times its scale; zeros for a scale of 0, since such
    values may be NaN."""
    scaled_GD = values_GD.double().mul_(scales_G[:, None])
    return scaled_GD.masked_fill_((scales_G == 0.0)[:, None], 0.0)


def _walsh_hadamard(values_GP: Tensor) -> None:
    """Transforms rows in place, with the order of additions of fedray/encoding/rotation.py."""
    half = 1
    while half < values_GP.shape[1]:
        pairs = values_GP.view(len(values_GP), -1, 2, half)
        low, high = pairs[:, :, 0], pairs[:, :, 1]
        difference = low - high
        low += high
        high.copy_(difference)
        half *= 2


def _rounded(rotated_GP: Tensor, ids_G: Tensor, attempt: int, round_index: int, key: Key) -> Tensor:
    """Returns whole numbers next to the rotated ones, by the draws of an attempt."""
    below_GP = rotated_GP.floor()
    blocks = torch.arange(rotated_GP.shape[1] // 4, device=rotated_GP.device)
    # Attempts are the upper 16 bits of a device's address.
    high_G1 = (ids_G >> 32 | attempt << 16)[:, None]
    words = _philox([(ids_G & _LOW_32)[:, None], high_G1, round_index, blocks], key)
    # A block has four words, one for each of consecutive coordinates.
    words_GP = torch.stack(words, dim=-1).view(rotated_GP.shape)
    is_up_GP = (words_GP + 0.5) * 2.0**-32 < rotated_GP - below_GP
    return below_GP.long() + is_up_GP


def _philox(counter: list, key: Key) -> list[Tensor]:
    """Philox4x32-10; see fedray/base/rng.py. Words are 32 bits in int64, whose products wrap."""
    c0, c1, c2, c3 = counter
    k0, k1 = int(key.low), int(key.high)
    for _ in range(10):
        product_0, product_1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = (product_1 >> 32 & _LOW_32) ^ c1 ^ k0, product_1 & _LOW_32
        c2, c3 = (product_0 >> 32 & _LOW_32) ^ c3 ^ k1, product_0 & _LOW_32
        k0, k1 = (k0 + 0x9E3779B9) & _LOW_32, (k1 + 0xBB67AE85) & _LOW_32
    return list(torch.broadcast_tensors(c0, c1, c2, c3))
