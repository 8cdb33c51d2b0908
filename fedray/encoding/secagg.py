"""Secure aggregation: integers modulo M (Xu et al. 2023, Algorithm 2).

Notation: d parameters, padded to a power of two; C the clip norm; S steps in a clip norm (the
table's `scale`; the paper has s = S / C); m devices at most in a sum; Cinfl the largest norm of an
encoded update.

A device scales its clipped update by S / C, rotates it (fedray/encoding/rotation.py), clips each
coordinate to Cinf = ceil(min(S, 2 S ln(d) / sqrt(d))), and rounds each to a whole number at random,
without bias. It repeats the rounding of all coordinates until

    |x|^2 <= S^2 + d / 4 + sqrt(2 ln(1 / alpha)) (S + sqrt(d) / 2),   alpha = exp(-1/2),

which holds with a probability of at least 1 - alpha (Kairouz, Liu and Steinke 2021, Theorem 1). So
no device contributes more than Cinfl = C / S times the square root of the right side. This is the
sensitivity of the sum, and noise is relative to it.

A device sends x modulo M. The server adds these numbers modulo M, and decodes each residue to its
representative of least absolute value. The paper adds Cinf to every coordinate on the device and
subtracts m Cinf on the server, which cancel; without them nothing depends on the number of devices.
A device that takes part without a usable update sends zeros. Since M >= 2 Cinf m + 1, no sum of m
devices wraps.

Error: a decoded sum of m devices is within m sqrt(d) C / S of the sum of their clipped updates
(L2), unless a coordinate was clipped, which happens to a device with a probability of at most
2 d exp(-2 ln(d)^2), and never for d <= 64.
"""

import math

import numpy as np

from fedray.base.arrays import Float32Array, Float64Array, Int64Array, Numbers, UInt64Array
from fedray.base.compiled import njit
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
"""Most bits of the modulus, for which the sum of two residues fits an int64."""
MOST_INFLATION = 2.0
"""Largest inflated norm in clip norms. With a coarser scale noise, which grows with that norm, and
rounding would dominate."""
_MOST_TRIES = 1000
"""Most attempts to round. All fail with a probability of exp(-500) if the update was clipped."""


class SecAggEncoding:
    """Sums modulo M.

    Raises:
        ScenarioError: the scale is too small, or the modulus is too small for the sums.
    """

    adds_noise = False

    def __init__(self, table: ModularTable, setting: SumSetting) -> None:
        self._setting = setting
        self.seed = setting.seed
        self.scale = table.scale
        self._coordinates = padded(setting.dimension)
        self.rounding_key = stream_key(setting.seed, Stream.ROUNDING)
        self._check_scale(table)
        self.largest_square = largest_square(table.scale, self._coordinates)
        """Largest squared length of a rounded update, in steps."""
        self.largest = largest_coordinate(table.scale, self._coordinates)
        """Cinf, the largest coordinate that a device sends, in steps."""
        # Sums of both signs need distinct residues.
        self.modulus = _modulus(table, 2 * self._largest_sum() + 1, setting.devices)
        """M."""

    @property
    def bits_per_parameter(self) -> float:
        bits = (self.modulus - 1).bit_length()
        # Padded coordinates are sent, too.
        return bits * self._coordinates / self._setting.dimension

    def zero_sum(self) -> Int64Array:
        return np.zeros(self._coordinates, np.int64)

    def encode_into(self, total_P: Numbers, updates: ClippedUpdates, clip_norm: float) -> int:
        signs_P = self._signs(updates.round_index)
        if not isinstance(total_P, np.ndarray):
            # Loads torch, which only a sum in torch needs.
            from fedray.encoding.tensors import RotatedRounding, add_rounded

            rounding = RotatedRounding(
                self.scale,
                self.largest,
                self.largest_square,
                self.modulus,
                self.rounding_key,
                _MOST_TRIES,
            )
            updates_P = total_P[: self._coordinates]
            clipped, too_long = add_rounded(rounding, updates_P, updates, clip_norm, signs_P)
            if too_long is not None:
                raise self._too_long(too_long, updates.round_index, clip_norm)
            return clipped
        clipped = 0
        for device_id, value_D, factor in zip(
            updates.device_ids.tolist(), updates.values, updates.factors.tolist(), strict=True
        ):
            steps_P = np.zeros(self._coordinates, np.int64)
            # With factor 0 the values may be NaN, and the device sends zeros, or noise.
            if factor > 0.0:
                clipped += self._round(
                    steps_P, value_D, factor, clip_norm, signs_P, device_id, updates.round_index
                )
            self._send(total_P, steps_P, device_id, updates.round_index)
        return clipped

    def encode_zeros_into(
        self, total_P: Numbers, device_ids: UInt64Array, round_index: int
    ) -> None:
        """Adds nothing, because zero is encoded as zero."""

    def add(self, total_P: Int64Array, other_P: Int64Array) -> None:
        # Both are residues below 2^62, so their sum fits an int64.
        total_P += other_P
        total_P %= self.modulus

    def decode(self, total_P: Int64Array, clip_norm: float, round_index: int) -> Float32Array:
        return self._unrotated(total_P, clip_norm / self.scale, round_index).astype(np.float32)

    def contribution_norm(self, clip_norm: float) -> float:
        """Returns the inflated norm Cinfl."""
        return clip_norm * inflation(self.scale, self._coordinates)

    def _unrotated(self, total_P: Int64Array, unit: float, round_index: int) -> Float64Array:
        """Returns the sum [D] before its rotation; `unit` is the value of a step."""
        # Two transforms together multiply by P; each end divides by its root.
        units_per_step = unit / math.sqrt(self._coordinates)
        sum_P = _centred(total_P, self.modulus)
        walsh_hadamard(sum_P)
        unrotated_P = sum_P * self._signs(round_index) * units_per_step
        return unrotated_P[: self._setting.dimension]

    def _signs(self, round_index: int) -> Float64Array:
        """Returns the signs [P] of the round's rotation."""
        return signs_of(self.seed, round_index, self._coordinates)

    def _largest_sum(self) -> int:
        """Returns the largest coordinate of a sum, in steps."""
        return self.largest * self._setting.devices

    def _send(
        self,
        total_P: Int64Array,
        steps_P: Int64Array,
        device_id: int,
        round_index: int,
    ) -> None:
        _add_modulo(total_P, steps_P, self.modulus)

    def _round(
        self,
        steps_P: Int64Array,
        value_D: Float32Array,
        factor: float,
        clip_norm: float,
        signs_P: Float64Array,
        device_id: int,
        round_index: int,
    ) -> int:
        """Writes the rotated and rounded steps of an update to `steps_P`. Returns the number of
        clipped coordinates."""
        # The root normalises the transform.
        multiplier = factor * self.scale / clip_norm / math.sqrt(self._coordinates)
        rotated_P = _rotated(value_D, multiplier, signs_P)
        # The rotation spreads an update so evenly that this hardly ever changes a coordinate.
        clipped = _clip(rotated_P, self.largest)
        most = self.largest_square
        if not _round(rotated_P, steps_P, self.rounding_key, device_id, round_index, most):
            raise self._too_long(device_id, round_index, clip_norm)
        return clipped

    def _too_long(self, device_id: int, round_index: int, clip_norm: float) -> ValueError:
        """Returns the error of an update that is longer than the clip norm."""
        return ValueError(
            f"the update of device {device_id} in round {round_index} is longer than "
            f"clip_norm={clip_norm:g} despite its factor; clip it first"
        )

    def _check_scale(self, table: ModularTable) -> None:
        factor = inflation(self.scale, self._coordinates)
        if factor <= MOST_INFLATION:
            return
        # The least S with S^2 + S + rest <= (MOST_INFLATION S)^2.
        rest, share = rounding_square(self._coordinates), MOST_INFLATION**2 - 1
        least = math.ceil((1 + math.sqrt(1 + 4 * share * rest)) / (2 * share))
        raise ScenarioError.of(
            f"{table.place}.scale",
            self.scale,
            f"is too coarse: rounding {self._setting.dimension:,} parameters may make an update "
            f"{factor:.3g} times as long as the clip norm, more than {MOST_INFLATION:g} times",
            f"take a scale of at least {least:,}",
        )


def _modulus(table: ModularTable, least: int, devices: int) -> int:
    """Returns M: the table's, or `least`. Raises ScenarioError."""
    if least > 1 << MOST_BITS:
        raise ScenarioError.of(
            f"{table.place}.scale",
            table.scale,
            f"is too fine: sums of {devices:,} devices need a modulus of {least:,}; the most is "
            f"2^{MOST_BITS}",
            "take a smaller scale",
        )
    if table.modulus_bits is None:
        return least
    if least > 1 << table.modulus_bits:
        raise ScenarioError.of(
            f"{table.place}.modulus_bits",
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
def _clip(rotated, largest):
    """Clips coordinates in place. Returns how many changed."""
    clipped = 0
    for coordinate in range(rotated.size):
        if abs(rotated[coordinate]) > largest:
            rotated[coordinate] = math.copysign(largest, rotated[coordinate])
            clipped += 1
    return clipped


@njit(cache=True)
def _round(rotated, steps, key, device_id, round_index, largest_square):
    """Rounds at random until the squared length is within its bound. Returns False on failure."""
    words = np.empty(4, np.uint64)
    for attempt in range(_MOST_TRIES):
        # Device ids are below 2^48, so no two attempts share an address.
        address = np.uint64(device_id) | (np.uint64(attempt) << np.uint64(48))
        square = 0
        for coordinate in range(rotated.size):
            place = coordinate % 4
            if place == 0:
                words[0], words[1], words[2], words[3] = draw(
                    key, address, round_index, coordinate // 4
                )
            below = math.floor(rotated[coordinate])
            # Rounding up with the probability of the fraction has no bias.
            is_up = uniform(words[place]) < rotated[coordinate] - below
            steps[coordinate] = np.int64(below) + (1 if is_up else 0)
            square += steps[coordinate] ** 2
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
    """Returns the representatives of least absolute value of residues, as floats."""
    numbers = np.empty(total.size)
    for coordinate in range(total.size):
        residue = total[coordinate]
        numbers[coordinate] = residue if residue <= modulus // 2 else residue - modulus
    return numbers
