"""Encodings in torch, for updates on a GPU: the integers of the compiled code, bit for bit.

Shapes: G devices, D parameters, P coordinates.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedray.base.arrays import Float64Array
from fedray.base.rng import Key
from fedray.encoding.encoding import ClippedUpdates
from fedray.runtime import devices

_AT_ONCE = 1 << 24
"""Largest number of coordinates in float64 at once, unless one update has more."""
_LOW_32 = 0xFFFFFFFF


class RotatedRounding(NamedTuple):
    """Constants of a secure aggregation; `SecAggEncoding` documents each."""

    scale: int
    largest: int
    largest_square: int
    modulus: int
    key: Key
    most_tries: int


def add_steps(total_P: Tensor, updates: ClippedUpdates, steps_per_unit: float) -> None:
    """Adds updates as whole steps, rounded towards zero; see fedray/encoding/fixed_point.py."""
    scales_G = updates.factors * steps_per_unit
    for rows in _chunks(*updates.values.shape):
        total_P += _scaled(updates.values[rows], scales_G[rows]).long().sum(dim=0)


def add_rounded(
    rounding: RotatedRounding,
    total_P: Tensor,
    updates: ClippedUpdates,
    clip_norm: float,
    signs: Float64Array,
) -> tuple[int, int | None]:
    """Adds updates that are rotated with these signs and randomly rounded; see
    fedray/encoding/secagg.py.

    Returns:
        Number of clipped coordinates, and a device whose update is too long, or None.
    """
    signs_P = devices.like(signs, total_P)
    clipped = total_P.new_zeros(())
    scales_G = updates.factors * rounding.scale
    for divisor in (clip_norm, total_P.numel() ** 0.5):
        # Torch would multiply by the inverse of a number, which has other last bits.
        scales_G = scales_G / torch.full_like(scales_G, divisor)
    for rows in _chunks(len(updates.values), total_P.numel()):
        scaled_GD = _scaled(updates.values[rows], scales_G[rows])
        padding = (0, total_P.numel() - scaled_GD.shape[1])
        rotated_GP = torch.nn.functional.pad(scaled_GD, padding).mul_(signs_P)
        _walsh_hadamard(rotated_GP)
        clipped += (rotated_GP.abs() > rounding.largest).sum()
        rotated_GP.clamp_(-rounding.largest, rounding.largest)
        ids_G = devices.like(updates.device_ids[rows].astype(np.int64), total_P)
        steps_GP, is_long = _short(rounding, rotated_GP, ids_G, updates.round_index)
        if is_long.any():
            return 0, int(updates.device_ids[rows][is_long][0])
        total_P += steps_GP.sum(dim=0)
    total_P %= rounding.modulus
    return int(devices.on_host(clipped)), None


def _short(
    rounding: RotatedRounding, rotated_GP: Tensor, ids_G: Tensor, round_index: int
) -> tuple[Tensor, NDArray]:
    """Returns each device's first rounding that is within the bound of its length, and whether a
    device has none."""
    steps_GP = torch.zeros_like(rotated_GP, dtype=torch.int64)
    is_long_G = torch.ones_like(ids_G, dtype=torch.bool)
    for attempt in range(rounding.most_tries):
        tried_GP = _rounded(rotated_GP, ids_G, attempt, round_index, rounding.key)
        # The sum of whole squares may overflow, but only far above the bound.
        is_near_G = tried_GP.double().square().sum(dim=1) < 1.5 * rounding.largest_square
        fits_G = is_near_G & (tried_GP.square().sum(dim=1) <= rounding.largest_square)
        steps_GP = torch.where((fits_G & is_long_G)[:, None], tried_GP, steps_GP)
        is_long_G &= ~fits_G
        if not devices.on_host(is_long_G).any():
            break
    return steps_GP, devices.on_host(is_long_G)


def _rounded(rotated_GP: Tensor, ids_G: Tensor, attempt: int, round_index: int, key: Key) -> Tensor:
    below_GP = rotated_GP.floor()
    blocks = torch.arange(rotated_GP.shape[1] // 4, device=rotated_GP.device)
    # The attempt is in the upper 16 of the 64 bits of a device's address.
    high_G1 = (ids_G >> 32 | attempt << 16)[:, None]
    words = _philox((ids_G & _LOW_32)[:, None], high_G1, round_index, blocks, key)
    uniforms_GP = (torch.stack(words, dim=-1).view(rotated_GP.shape) + 0.5) * 2.0**-32
    return below_GP.long() + (uniforms_GP < rotated_GP - below_GP)


def _philox(c0: Any, c1: Any, c2: Any, c3: Any, key: Key) -> list[Tensor]:
    """Philox4x32-10 of fedray/base/rng.py. Words are in int64, whose products wrap around."""
    k0, k1 = int(key.low), int(key.high)
    for _ in range(10):
        product_0, product_1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = (product_1 >> 32 & _LOW_32) ^ c1 ^ k0, product_1 & _LOW_32
        c2, c3 = (product_0 >> 32 & _LOW_32) ^ c3 ^ k1, product_0 & _LOW_32
        k0, k1 = (k0 + 0x9E3779B9) & _LOW_32, (k1 + 0xBB67AE85) & _LOW_32
    return torch.broadcast_tensors(c0, c1, c2, c3)


def _chunks(size: int, coordinates: int) -> Iterator[slice]:
    at_once = max(1, _AT_ONCE // coordinates)
    return (slice(first, first + at_once) for first in range(0, size, at_once))


def _scaled(values_GD: Tensor, scales_G: Tensor) -> Tensor:
    # With a scale of 0 the values may be NaN.
    scaled_GD = values_GD.double().mul_(scales_G[:, None])
    return scaled_GD.masked_fill_((scales_G == 0.0)[:, None], 0.0)


def _walsh_hadamard(values_GP: Tensor) -> None:
    # The order of additions is that of fedray/encoding/rotation.py.
    half = 1
    while half < values_GP.shape[1]:
        low, high = values_GP.view(len(values_GP), -1, 2, half).unbind(dim=2)
        difference = low - high
        low += high
        high.copy_(difference)
        half *= 2
