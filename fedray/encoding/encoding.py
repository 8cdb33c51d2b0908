"""Encodings: both ends of the way from clipped updates to their sum."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ClippedUpdates:
    """Updates of a group of devices in a round, before encoding. Shapes: G devices, D parameters.

    round_index: the round.
    device_ids: [G] uint64. With the round they are the address of a device's draws.
    values: [G, D] float32, before clipping.
    factors: [G] float64; factors[g] * values[g] is no longer than the clip norm. 0 for a device
        whose update cannot be used, such as one with a NaN: it sends zero.
    """

    round_index: int
    device_ids: NDArray[np.uint64]
    values: NDArray[np.float32]
    factors: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SumSetting:
    """Settings that an encoding depends on beside its table.

    dimension: parameters D of the model.
    devices: most devices in a sum; the scenario's report goal.
    sampled: devices of the sum that train here.
    noise_multiplier: z.
    seed: seed of the training.
    """

    dimension: int
    devices: int
    sampled: int
    noise_multiplier: float
    seed: int


class Encoding(Protocol):
    """One kind of encoding, for models of D parameters: encodes a clipped update on a device, adds
    sums, and decodes a sum on the server.

    A sum is an array [P] of integers. The addition of a device is a function of the seed, the
    round, the device and its update, and sums are exact. So they do not depend on how devices are
    grouped. A device that takes part without a usable update adds the encoding of zero. The clip
    norm is an argument of both ends, because it may differ between rounds.
    """

    adds_noise: bool
    """Whether devices add the round's noise to their updates; the server then adds none."""

    def zero_sum(self) -> NDArray[np.int64]:
        """Returns the empty sum [P]."""
        ...

    def encode_into(
        self, total_P: NDArray[np.int64], updates: ClippedUpdates, clip_norm: float
    ) -> None:
        """Adds the encoded updates of a group of devices to a sum, in place.

        Args:
            total_P: the sum.
            updates: updates of the devices, with their factors.
            clip_norm: clip norm of the round.
        """
        ...

    def encode_zeros_into(
        self, total_P: NDArray[np.int64], device_ids: NDArray[np.uint64], round_index: int
    ) -> None:
        """Adds the messages of devices that take part without an update to a sum, in place.

        Args:
            total_P: the sum.
            device_ids: the devices.
            round_index: the round.
        """
        ...

    def add(self, total_P: NDArray[np.int64], other_P: NDArray[np.int64]) -> None:
        """Adds a sum of other devices to `total_P`, in place."""
        ...

    def decode(
        self, total_P: NDArray[np.int64], clip_norm: float, round_index: int
    ) -> NDArray[np.float32]:
        """Returns the sum [D] of clipped updates from a sum of encoded ones.

        Args:
            total_P: sum of all devices of the round.
            clip_norm: clip norm of the round.
            round_index: the round.
        """
        ...

    def contribution_norm(self, clip_norm: float) -> float:
        """The longest that what one device adds to the decoded sum can be (L2).

        It is the sensitivity of a round's sum, so the noise is measured by it.

        Args:
            clip_norm: the longest that the device's clipped update can be.
        """
        ...

    @property
    def bits_per_parameter(self) -> float:
        """Bits that a device sends per parameter of the model."""
        ...
