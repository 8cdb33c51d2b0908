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
sensitivity of the sum, and noise is measured by it.

What is sent is x modulo M. The server adds these numbers modulo M, and takes each coordinate for
the number of least size that it stands for. The paper adds Cinf to every coordinate on the device
and subtracts m Cinf on the server, which cancel; without them nothing depends on how many devices
there were. A device that takes part and has no usable update sends zeros. Since M >= 2 Cinf m + 1,
no sum of m devices wraps.

Error: a decoded sum of m devices is within m sqrt(d) C / S of the sum of their clipped updates
(L2), unless a coordinate was clipped. That happens to a device with a probability of at most
2 d exp(-2 ln(d)^2), and never for d <= 64.
"""

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedray.encoding.encoding import ClippedUpdates
from fedray.encoding.rotation import padded, signs_of, walsh_hadamard
from fedray.encoding.tables import SecAgg
from fedray.errors import ScenarioError
from fedray.rng import Stream, draw, stream_key, uniform

MOST_BITS = 62
"""Of the modulus: two residues then add up within an int64."""
MOST_INFLATION = 2.0
"""A scale at which the inflated norm is more than this many clip norms is refused: noise grows with
that norm, and what is sent is mostly rounding."""
_MOST_TRIES = 1000
"""Of rounding. All of them fail with a probability of exp(-500), unless an update was not
clipped."""


class SecAggEncoding:
    """Sums modulo M.

    Args:
        table: of the scenario.
        dimension: parameters D of the model.
        devices: most devices in a sum.
        seed: of the training.

    modulus: M.
    largest: Cinf, the largest coordinate that a device sends, in steps.

    Raises:
        ScenarioError: for a scale that is too small, or a modulus without room for the sums.
    """

    def __init__(self, table: SecAgg, dimension: int, devices: int, seed: int) -> None:
        self._dimension, self._coordinates = dimension, padded(dimension)
        self._seed, self._scale = seed, table.scale
        self._rounding_key = stream_key(seed, Stream.ROUNDING)
        self._check_scale()
        self.largest = largest_coordinate(table.scale, self._coordinates)
        self.modulus = _modulus(table, 2 * self.largest * devices + 1, devices)

    @property
    def bits_per_parameter(self) -> float:
        """See `Encoding`. Padding counts."""
        bits = (self.modulus - 1).bit_length()
        return bits * self._coordinates / self._dimension

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
        signs_P = signs_of(self._seed, updates.round_index, self._coordinates)
        # Of the transform too, which is not normalised.
        steps_per_unit = self._scale / clip_norm / math.sqrt(self._coordinates)
        is_within = _encode_into(
            total_P,
            updates.values,
            updates.factors * steps_per_unit,
            updates.device_ids,
            updates.round_index,
            signs_P,
            self._rounding_key,
            self.largest,
            largest_square(self._scale, self._coordinates),
            self.modulus,
        )
        if not is_within:
            raise ValueError(
                f"an update of round {updates.round_index} is longer than clip_norm={clip_norm:g} "
                "in spite of its factor; clip it first"
            )

    def add(self, total_P: NDArray[np.int64], other_P: NDArray[np.int64]) -> None:
        """See `Encoding`."""
        total_P += other_P
        total_P %= self.modulus

    def decode(
        self, total_P: NDArray[np.int64], clip_norm: float, round_index: int
    ) -> NDArray[np.float32]:
        """See `Encoding`."""
        signs_P = signs_of(self._seed, round_index, self._coordinates)
        units_per_step = clip_norm / self._scale / math.sqrt(self._coordinates)
        sum_P = _centred(total_P, self.modulus)
        walsh_hadamard(sum_P)
        decoded_P = sum_P * signs_P * units_per_step
        return decoded_P[: self._dimension].astype(np.float32)

    def contribution_norm(self, clip_norm: float) -> float:
        """The inflated norm Cinfl."""
        return clip_norm * inflation(self._scale, self._coordinates)

    def _check_scale(self) -> None:
        factor = inflation(self._scale, self._coordinates)
        if factor <= MOST_INFLATION:
            return
        # The least S with S^2 + S + rest <= (MOST_INFLATION S)^2.
        rest, share = _rounding_square(self._coordinates), MOST_INFLATION**2 - 1
        least = math.ceil((1 + math.sqrt(1 + 4 * share * rest)) / (2 * share))
        raise ScenarioError(
            f"privacy.encoding.scale={self._scale}: rounding a model of {self._dimension:,} "
            f"parameters may make an update {factor:.3g} times as long as the clip norm, and "
            f"{MOST_INFLATION:g} times is the most; take a scale of at least {least:,}"
        )


def inflation(scale: int, coordinates: int) -> float:
    """By what the norm of an encoded update may exceed the clip norm, as a factor: Cinfl / C.

    Args:
        scale: S, steps in a clip norm.
        coordinates: d, a power of two.
    """
    return math.sqrt(1.0 + 1.0 / scale + _rounding_square(coordinates) / scale**2)


def largest_square(scale: int, coordinates: int) -> int:
    """The largest squared length of an encoded update, in steps: (S Cinfl / C)^2, rounded down.

    Args:
        scale: S, steps in a clip norm.
        coordinates: d, a power of two.
    """
    return scale**2 + scale + math.floor(_rounding_square(coordinates))


def largest_coordinate(scale: int, coordinates: int) -> int:
    """Cinf: the largest coordinate of an encoded update, in steps.

    Args:
        scale: S, steps in a clip norm.
        coordinates: d, a power of two.
    """
    return math.ceil(scale * min(1.0, 2.0 * math.log(coordinates) / math.sqrt(coordinates)))


def _rounding_square(coordinates: int) -> float:
    return coordinates / 4.0 + math.sqrt(coordinates) / 2.0


def _modulus(table: SecAgg, least: int, devices: int) -> int:
    """M, as the table says or the least that has room. Raises ScenarioError."""
    if least > 1 << MOST_BITS:
        raise ScenarioError(
            f"privacy.encoding.scale={table.scale}: sums of {devices:,} devices need a modulus of "
            f"{least:,}, and 2^{MOST_BITS} is the most; take a smaller scale"
        )
    if table.modulus_bits is None:
        return least
    if least > 1 << table.modulus_bits:
        raise ScenarioError(
            f"privacy.encoding.modulus_bits={table.modulus_bits}: sums of {devices:,} devices with "
            f"scale={table.scale} need {(least - 1).bit_length()} bits, else they wrap; raise it, "
            "leave it out, or take a smaller scale"
        )
    return 1 << table.modulus_bits


@njit(cache=True)
def _encode_into(
    total,
    values,
    steps_per_unit,
    device_ids,
    round_index,
    signs,
    rounding_key,
    largest,
    largest_square,
    modulus,
):
    """False if a device finds no rounding within the bound."""
    devices, dimension = values.shape
    rotated, steps = np.empty(total.size), np.empty(total.size, np.int64)
    for device in range(devices):
        if steps_per_unit[device] == 0.0:  # it sends zeros; the values may be NaN
            continue
        for coordinate in range(dimension):
            value = np.float64(values[device, coordinate]) * steps_per_unit[device]
            rotated[coordinate] = value * signs[coordinate]
        rotated[dimension:] = 0.0
        walsh_hadamard(rotated)
        for coordinate in range(total.size):
            rotated[coordinate] = min(max(rotated[coordinate], -largest), largest)
        address = device_ids[device]
        if not _round(rotated, steps, rounding_key, address, round_index, largest_square):
            return False
        for coordinate in range(total.size):
            total[coordinate] = (total[coordinate] + steps[coordinate]) % modulus
    return True


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
            is_up = uniform(words[place]) < rotated[coordinate] - below
            steps[coordinate] = np.int64(below) + (1 if is_up else 0)
            square += steps[coordinate] ** 2
            if square > largest_square:
                break
        if square <= largest_square:
            return True
    return False


@njit(cache=True)
def _centred(total, modulus):
    """The numbers of least size that residues stand for, as floats."""
    numbers = np.empty(total.size)
    for coordinate in range(total.size):
        residue = total[coordinate]
        numbers[coordinate] = residue if residue <= modulus // 2 else residue - modulus
    return numbers
