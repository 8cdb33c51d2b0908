"""Protocol of encodings: both ends of the path from clipped updates to their sum."""

from dataclasses import dataclass
from typing import Protocol

from fedray.base.arrays import Float32Array, Int64Array, Numbers, UInt64Array


@dataclass(frozen=True, slots=True)
class ClippedUpdates:
    """Updates of a group of devices in a round, before encoding. Shapes: G devices, D
    parameters."""

    round_index: int
    """The round."""
    device_ids: UInt64Array
    """Ids [G]; together with the round, the address of all draws of a device."""
    values: Numbers
    """Updates [G, D] float32 before clipping."""
    factors: Numbers
    """Clip factors [G] float64: factors[g] * values[g] is no longer than the clip norm. A device
    with an unusable update, such as one with a NaN, has 0 and sends zero."""


@dataclass(frozen=True, slots=True)
class SumSetting:
    """Parameters of an encoding that are not in its table."""

    dimension: int
    """D, number of parameters of the model."""
    devices: int
    """Largest number of devices in a sum: the report goal of the scenario."""
    sampled: int
    """Number of these devices that train in this simulation."""
    noise_multiplier: float
    """z."""
    seed: int
    """Seed of the training."""
    coefficients: tuple[int, ...] = (1,)
    """Whole coefficients c_0, c_1, ... of C; (1,) for the identity, and if the server adds the
    noise."""


class Encoding(Protocol):
    """An encoding for models of D parameters: the encoding of clipped updates, their addition, and
    the decoding of a sum.

    A sum is an array [P] of integers, or a tensor on a trainer's GPU. The term of a device is a
    function of the seed, the round, the device and its update, and sums are exact, so they do not
    depend on the grouping of devices or on the type of the sum.
    A device that takes part without a usable update adds the encoding of zero.

    The clip norm is an argument of both ends, because it may differ between rounds.
    """

    adds_noise: bool
    """Whether devices add the noise of the round instead of the server."""

    def zero_sum(self) -> Int64Array:
        """Returns the empty sum [P]."""
        ...

    def encode_into(self, total_P: Numbers, updates: ClippedUpdates, clip_norm: float) -> int:
        """Adds the encoded updates of a group of devices to the sum `total_P`, in place.

        Returns:
            Number of coordinates that were clipped, because encoding has less room for them.

        Raises:
            ValueError: an update is longer than `clip_norm` despite its factor, for encodings that
                check it.
        """
        ...

    def encode_zeros_into(
        self, total_P: Numbers, device_ids: UInt64Array, round_index: int
    ) -> None:
        """Adds the encoded zeros of devices without an update to the sum `total_P`, in place."""
        ...

    def add(self, total_P: Int64Array, other_P: Int64Array) -> None:
        """Adds a sum of other devices to `total_P`, in place."""
        ...

    def decode(self, total_P: Int64Array, clip_norm: float, round_index: int) -> Float32Array:
        """Returns the sum [D] of clipped updates, decoded from the sum `total_P` of all devices of
        the round."""
        ...

    def contribution_norm(self, clip_norm: float) -> float:
        """Returns the largest L2 norm of one device's contribution to the decoded sum.

        It is the sensitivity of a round's sum, so noise is relative to it.
        """
        ...

    @property
    def bits_per_parameter(self) -> float:
        """Bits that a device sends per parameter of the model."""
        ...
