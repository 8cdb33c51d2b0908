"""What an encoding is: both ends of the way from clipped updates to their sum."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ClippedUpdates:
    """What a group of devices sends in a round, before it is encoded. Shapes: G devices, D
    parameters.

    round_index: the round.
    device_ids: [G] uint64. With the round they are the address of whatever a device draws.
    values: [G, D] float32, before clipping.
    factors: [G] float64; factors[g] * values[g] is no longer than the clip norm. 0 for a device
        whose update cannot be used, such as one with a NaN: it sends zero.
    """

    round_index: int
    device_ids: NDArray[np.uint64]
    values: NDArray[np.float32]
    factors: NDArray[np.float64]


class Encoding(Protocol):
    """One kind of encoding, for models of D parameters: what a device does to a clipped update, how
    sums are added, and what the server does to a sum.

    A sum is an array [P] of integers. What a device adds to it is a function of the seed, the
    round, the device and its update, and sums are exact. So they do not depend on how devices are
    grouped. A device that takes part without an update it can send adds the encoding of zero,
    which is zero in every kind.

    The clip norm is an argument of both ends, because it may differ between rounds.
    """

    def zero_sum(self) -> NDArray[np.int64]:
        """The sum [P] of nobody."""
        ...

    def encode_into(
        self, total_P: NDArray[np.int64], updates: ClippedUpdates, clip_norm: float
    ) -> None:
        """Adds the encoded updates of a group of devices to a sum, in place.

        Args:
            total_P: the sum.
            updates: of the devices, and by how much each is scaled down.
            clip_norm: of the round.
        """
        ...

    def add(self, total_P: NDArray[np.int64], other_P: NDArray[np.int64]) -> None:
        """Adds a sum of other devices to `total_P`, in place."""
        ...

    def decode(
        self, total_P: NDArray[np.int64], clip_norm: float, round_index: int
    ) -> NDArray[np.float32]:
        """The sum [D] of clipped updates that a sum of encoded ones stands for.

        Args:
            total_P: the sum of all devices of the round.
            clip_norm: of the round.
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
        """What a device sends for each parameter of the model, in bits."""
        ...
