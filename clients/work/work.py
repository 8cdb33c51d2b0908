"""The protocol of work: what a selected device computes on its examples."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ..data.source import Ids, Integers


@dataclass(frozen=True, slots=True)
class WorkOrder:
    """Request for the work of a group of devices. Shapes: G devices, D parameters."""

    round_index: int
    """Round in which they take part."""
    device_ids: Ids
    """Devices [G], uint64."""
    held: Integers
    """Examples of each device, [G] int64, at least 1."""
    start: Tensor
    """Parameters of the round, [D] float32."""
    out: Tensor | None = None
    """Memory for the updates, [G, D] float32; None to allocate it."""

    def room(self) -> Tensor:
        """Returns memory [G, D] for the updates, with arbitrary content."""
        if self.out is not None:
            return self.out
        return self.start.new_empty(self.device_ids.size, self.start.numel())


@dataclass(frozen=True, slots=True)
class WorkResult:
    """Results of a group of devices."""

    updates: Tensor
    """Update of each device before clipping, [G, D] float32, in the order's `out` if any."""
    losses: Tensor
    """Mean loss of each device on its first batch before it trained, [G] float64."""
    examples: Integers
    """Number of different examples that each device used, [G] int64."""


class DeviceWork(Protocol):
    """One kind of work, built from a scenario.

    The result of a device is a function of the scenario, the round, the device and the parameters.
    The other devices of its group may change only its last bits.
    """

    def compute(self, order: WorkOrder) -> WorkResult:
        """Returns the results of a group of devices.

        Raises:
            DamagedExamples: the data of some devices cannot be read.
            ScenarioError: the losses of a user's task have no gradients.
        """
        ...
