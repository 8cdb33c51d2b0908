"""Secure aggregation: integers modulo M (Xu et al. 2023, Algorithm 2).

Notation: d parameters, padded to a power of two; C the clip norm; S steps in a clip norm (the
table's `scale`; the paper has s = S / C); m devices at most in a sum; Cinfl the longest encoded
update.

A device scales its clipped update by S / C, rotates it (fedray/encoding/rotation.py), clips each
coordinate to Cinf = ceil(min(S, 2 S ln(d) / sqrt(d))), and rounds each to a whole number at random,
without bias. It rounds all coordinates again until

    |x|^2 <= S^2 + d / 4 + sqrt(2 ln(1 / alpha)) (S + sqrt(d) / 2),   alpha = exp(-1/2),

which holds with a probability of at least 1 - alpha (Kairouz, Liu and Steinke 2021, Theorem 1). So
no device contributes more than Cinfl = C / S times the square root of the right side. That is the
sensitivity of the sum, and the unit of the noise.

The message is x modulo M. The server adds these numbers modulo M, and reads each coordinate as the
number of least size in its class. The paper adds Cinf to every coordinate on the device and
subtracts m Cinf on the server, which cancel; without them nothing depends on the number of devices.
A device that takes part without a usable update sends zeros. Since M >= 2 Cinf m + 1, no sum of m
devices wraps.

Error: a decoded sum of m devices is within m sqrt(d) C / S of the sum of their clipped updates
(L2), unless a coordinate was clipped. That happens to a device with a probability of at most 2 d
exp(-2 ln(d)^2), and never for d <= 64.
"""

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedray.base.errors import ScenarioError
from fedray.base.rng import Stream, draw, stream_key, uniform
from fedray.encoding.encoding import ClippedUpdates, SumSetting
from fedray.encoding.norms import (
    inflation,
    largest_coordinate,
    largest_square,
    padded,
    rounding_square,
)
from fedray.encoding.rotation import signs_of, walsh_hadamard
from fedray.encoding.tables import ModularTable

MOST_BITS = 62
"""Most bits of the modulus: two residues then add up within an int64."""
MOST_INFLATION = 2.0
"""A scale at which the inflated norm is more than this many clip norms is refused: noise grows with
that norm, and the message is mostly rounding."""
_MOST_TRIES = 1000
"""Most attempts at rounding. All fail with a probability of exp(-500), unless an update was not
clipped."""


class SecAggEncoding:
    """Sums modulo M.

    Args:
        table: table of the scenario.
        setting: other settings that an encoding depends on.

    modulus: M.
    largest: Cinf, the largest coordinate that a device sends, in steps.

    Raises:
        ScenarioError: the scale is too small, or the modulus has no room for the sums.
    """

    adds_noise = False

    def __init__(self, table: ModularTable, setting: SumSetting) -> None:
        self._setting, self._scale = setting, table.scale
        self._coordinates = padded(setting.dimension)
        self._rounding_key = stream_key(setting.seed, Stream.ROUNDING)
        self._check_scale()
        self.largest = largest_coordinate(table.scale, self._coordinates)
        # Sums lie from minus to plus the largest one, and each needs a residue of its own.
        self.modulus = _modulus(table, 2 * self._largest_sum() + 1, setting.devices)

    @property
    def bits_per_parameter(self) -> float:
        """See `Encoding`. Padding counts."""
        bits = (self.modulus - 1).bit_length()
        return bits * self._coordinates / self._setting.dimension

    def zero_sum(self) -> NDArray[np.int64]:
        """See `Encoding`."""
        return np.zeros(self._coordinates, np.int64)

    def encode_into(
        self, total_P: NDArray[np.int64], updates: ClippedUpdates, clip_norm: float
    ) -> None:
        """See `Encoding`.

        Raises:
            ValueError: if an update is longer than the clip norm in spite of its factor.
        """
        signs_P = signs_of(self._setting.seed, updates.round_index, self._coordinates)
        for device_id, value_D, factor in zip(
            updates.device_ids.tolist(), updates.values, updates.factors.tolist(), strict=True
        ):
            steps_P = np.zeros(self._coordinates, np.int64)
            if factor > 0.0:  # else the values may be NaN
                self._round(
                    steps_P, value_D, factor, clip_norm, signs_P, device_id, updates.round_index
                )
            # A device without a usable update sends all the same: zeros, or noise where devices add
            # it.
            self._send(total_P, steps_P, device_id, updates.round_index)

    def encode_zeros_into(
        self, total_P: NDArray[np.int64], device_ids: NDArray[np.uint64], round_index: int
    ) -> None:
        """See `Encoding`. Zero is rounded to zero."""

    def add(self, total_P: NDArray[np.int64], other_P: NDArray[np.int64]) -> None:
        """See `Encoding`."""
        # Both are residues below 2^62, so that their sum fits before it is reduced.
        total_P += other_P
        total_P %= self.modulus

    def decode(
        self, total_P: NDArray[np.int64], clip_norm: float, round_index: int
    ) -> NDArray[np.float32]:
        """See `Encoding`."""
        signs_P = signs_of(self._setting.seed, round_index, self._coordinates)
        # Two transforms multiply by P together; each end takes off its root.
        units_per_step = clip_norm / self._scale / math.sqrt(self._coordinates)
        sum_P = _centred(total_P, self.modulus)
        walsh_hadamard(sum_P)
        decoded_P = sum_P * signs_P * units_per_step
        # The padding stood for zeros, and is dropped.
        return decoded_P[: self._setting.dimension].astype(np.float32)

    def contribution_norm(self, clip_norm: float) -> float:
        """The inflated norm Cinfl."""
        return clip_norm * inflation(self._scale, self._coordinates)

    def _largest_sum(self) -> int:
        """The largest coordinate of a sum, in steps."""
        return self.largest * self._setting.devices

    def _send(
        self,
        total_P: NDArray[np.int64],
        steps_P: NDArray[np.int64],
        device_id: int,
        round_index: int,
    ) -> None:
        """Adds the message of a device to a sum."""
        _add_modulo(total_P, steps_P, self.modulus)

    def _round(
        self,
        steps_P: NDArray[np.int64],
        value_D: NDArray[np.float32],
        factor: float,
        clip_norm: float,
        signs_P: NDArray[np.float64],
        device_id: int,
        round_index: int,
    ) -> None:
        """Writes an update's rotated and rounded steps."""
        # The transform is not normalised, so that is done here.
        multiplier = factor * self._scale / clip_norm / math.sqrt(self._coordinates)
        rotated_P = _rotated(value_D, multiplier, signs_P)
        # The rotation spreads an update so evenly that this hardly ever changes a coordinate.
        np.clip(rotated_P, -self.largest, self.largest, out=rotated_P)
        most = largest_square(self._scale, self._coordinates)
        if not _round(rotated_P, steps_P, self._rounding_key, device_id, round_index, most):
            raise ValueError(
                f"the update of device {device_id} in round {round_index} is longer than "
                f"clip_norm={clip_norm:g} in spite of its factor; clip it first"
            )

    def _check_scale(self) -> None:
        factor = inflation(self._scale, self._coordinates)
        if factor <= MOST_INFLATION:
            return
        # The least S with S^2 + S + rest <= (MOST_INFLATION S)^2.
        rest, share = rounding_square(self._coordinates), MOST_INFLATION**2 - 1
        least = math.ceil((1 + math.sqrt(1 + 4 * share * rest)) / (2 * share))
        raise ScenarioError.of(
            "privacy.encoding.scale",
            self._scale,
            f"is too coarse: rounding {self._setting.dimension:,} parameters may make an update "
            f"{factor:.3g} times as long as the clip norm; the most is {MOST_INFLATION:g} times",
            f"take a scale of at least {least:,}",
        )


def _modulus(table: ModularTable, least: int, devices: int) -> int:
    """M, as the table says or the least that has room. Raises ScenarioError."""
    if least > 1 << MOST_BITS:
        raise ScenarioError.of(
            "privacy.encoding.scale",
            table.scale,
            f"is too fine: sums of {devices:,} devices need a modulus of {least:,}; the most is "
            f"2^{MOST_BITS}",
            "take a smaller scale",
        )
    if table.modulus_bits is None:
        return least
    if least > 1 << table.modulus_bits:
        raise ScenarioError.of(
            "privacy.encoding.modulus_bits",
            table.modulus_bits,
            f"is too small: sums of {devices:,} devices with scale={table.scale} need "
            f"{(least - 1).bit_length()} bits, else they wrap",
            "raise it, leave it out, or take a smaller scale",
        )
    return 1 << table.modulus_bits


@njit(cache=True)
def _rotated(value, multiplier, signs):
    rotated = np.zeros(signs.size)
    for coordinate in range(value.size):
        rotated[coordinate] = np.float64(value[coordinate]) * multiplier * signs[coordinate]
    walsh_hadamard(rotated)
    return rotated


@njit(cache=True)
def _round(rotated, steps, key, device_id, round_index, largest_square):
    """Rounds at random until the squared length is within its bound; False if it never is."""
    words = np.empty(4, np.uint64)
    for attempt in range(_MOST_TRIES):
        # Device ids are below 2^48, so that no two attempts share an address.
        address = np.uint64(device_id) | (np.uint64(attempt) << np.uint64(48))
        square = 0
        for coordinate in range(rotated.size):
            place = coordinate % 4
            if place == 0:
                words[0], words[1], words[2], words[3] = draw(
                    key, address, round_index, coordinate // 4
                )
            below = math.floor(rotated[coordinate])
            # Rounded up with the probability of its fraction, so that the message is unbiased.
            is_up = uniform(words[place]) < rotated[coordinate] - below
            steps[coordinate] = np.int64(below) + (1 if is_up else 0)
            square += steps[coordinate] ** 2
            # This attempt has failed, whatever the other coordinates are rounded to.
            if square > largest_square:
                break
        if square <= largest_square:
            return True
    return False


@njit(cache=True)
def _add_modulo(total, steps, modulus):
    for coordinate in range(total.size):
        total[coordinate] = (total[coordinate] + steps[coordinate]) % modulus


@njit(cache=True)
def _centred(total, modulus):
    """The numbers of least size that residues stand for, as floats."""
    numbers = np.empty(total.size)
    for coordinate in range(total.size):
        residue = total[coordinate]
        numbers[coordinate] = residue if residue <= modulus // 2 else residue - modulus
    return numbers
