"""What work is: what a selected device computes on its examples."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True)
class WorkOrder:
    """Asks for the work of a group of devices. Shapes: G devices, D parameters.

    round_index: the round in which they take part.
    device_ids: [G] uint64.
    held: how many examples each of them has, [G] int64, at least 1.
    start: the round's parameters [D], float32.
    out: where the updates are to be written, [G, D] float32; None: to memory of their own.
    """

    round_index: int
    device_ids: NDArray[np.uint64]
    held: NDArray[np.int64]
    start: Tensor
    out: Tensor | None = None

    def room(self) -> Tensor:
        """Memory [G, D] for the updates, whatever is in it."""
        if self.out is not None:
            return self.out
        return self.start.new_empty(self.device_ids.size, self.start.numel())


@dataclass(frozen=True, slots=True)
class WorkResult:
    """What the devices of a group computed.

    updates: [G, D] float32: what each would send, before clipping. It is the order's `out` if it
        has one.
    losses: [G] float64: each one's mean loss on the first examples that it used, before it
        trained.
    examples: [G] int64: how many different examples each has used.
    """

    updates: Tensor
    losses: Tensor
    examples: NDArray[np.int64]


class DeviceWork(Protocol):
    """One kind of work, built from a scenario.

    The result of a device is a function of the scenario, the round, the device and the parameters.
    The rest of its group may change last bits.
    """

    def compute(self, order: WorkOrder) -> WorkResult:
        """The work of the group of an `order`.

        Raises:
            DamagedExamples: the data of some of its devices cannot be read.
        """
        ...
