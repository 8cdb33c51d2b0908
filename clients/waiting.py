"""Updates that wait until a few groups can be added to the sum together.

The sum of a large model fits in no cache: every addition passes all of it through memory twice.
Together, the updates of 7 devices with 2.4 M parameters take 0.6 times as long as one by one. The
result is the same, because the sum is exact.
"""

import numpy as np
import torch
from torch import Tensor

from fedray.base.arrays import Int64Array, Numbers, UInt64Array
from fedray.encoding.encoding import ClippedUpdates, Encoding
from fedray.runtime import devices

MOST_WAITING = 8
"""Largest number of devices whose updates wait, unless a single group has more."""
MOST_BYTES_WAITING = 1 << 26
"""Largest size of these updates, bytes, unless a single group is larger."""


class WaitingUpdates:
    """Adds the updates of a round's groups to a sum, a few groups at a time.

    Shapes: G devices of a group, D parameters, P integers of the encoded sum.

    Args:
        encoding: encoding of the sum.
        dimension: number of parameters, D.
        device: device of the updates and of their sum.
    """

    def __init__(self, encoding: Encoding, dimension: int, device: torch.device) -> None:
        self._encoding = encoding
        self._few = max(1, min(MOST_WAITING, MOST_BYTES_WAITING // (4 * dimension)))
        # Later rounds reuse this memory, because new pages cost as much as the sum.
        self._rows = torch.empty(0, dimension, device=device)
        self.begin(0, 1.0)

    def begin(self, round_index: int, clip_norm: float) -> None:
        """Starts the sum of a round, and drops any other."""
        self._round_index = round_index
        self._clip_norm = clip_norm
        self._total_P = devices.like(self._encoding.zero_sum(), devices.native(self._rows))
        self._clipped = 0
        self._nothing_waits()

    def room(self, size: int) -> Tensor:
        """Returns memory [G, D] for the updates of the next group, with arbitrary content."""
        if self._filled + size > len(self._rows):
            self._flush()
        # Memory grows for a group that is larger than usual, and keeps its size.
        if size > len(self._rows):
            self._rows = self._rows.new_empty(max(size, self._few), self._rows.shape[1])
        return self._rows[self._filled : self._filled + size]

    def add(self, device_ids: UInt64Array, factors: Numbers) -> None:
        """Adds the group whose updates are in the last `room`.

        Args:
            device_ids: devices of the group, [G].
            factors: factors that scale the updates down, [G]; see `ClippedUpdates`.
        """
        self._device_ids.append(device_ids)
        self._factors.append(factors)
        self._filled += device_ids.size

    def add_without_update(self, device_ids: UInt64Array) -> None:
        """Adds devices that have no update to send."""
        self._encoding.encode_zeros_into(self._total_P, device_ids, self._round_index)

    def finish(self) -> tuple[Int64Array, int]:
        """Returns the encoded sum [P] of all groups since `begin`, and the number of coordinates
        that encoding clipped."""
        self._flush()
        return devices.on_host(self._total_P), self._clipped

    def _flush(self) -> None:
        if not self._filled:
            return
        updates = ClippedUpdates(
            self._round_index,
            np.concatenate(self._device_ids),
            devices.native(self._rows[: self._filled]),
            devices.library_of(self._factors[0]).concatenate(self._factors),
        )
        self._clipped += self._encoding.encode_into(self._total_P, updates, self._clip_norm)
        self._nothing_waits()

    def _nothing_waits(self) -> None:
        self._device_ids: list[UInt64Array] = []
        self._factors: list[Numbers] = []
        self._filled = 0
