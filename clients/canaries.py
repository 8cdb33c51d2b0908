"""Canary devices: what they send is known, so that an experiment can look for it in what is
released (fedray/studies/canary.py).

There are three kinds of devices, by id. The first `canaries` hold more examples than any weight
asks for, and their updates are several clip norms long, each in coordinates of its own. The next
`silent` hold as many, and their updates are zero. All others hold nothing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedray.clients.trainer import GroupTrainer
from fedray.clients.work.work import WorkOrder, WorkResult
from fedray.scenario import Scenario
from fedray.scenario.clipping import Clip

MOST_LENGTHS = 10.0
"""Clip norms of a canary's update; fewer where such updates would count as zero."""
HELD = 1 << 40
"""Examples of a canary: more than any number at which a device counts fully."""


@dataclass
class Canaries:
    """The devices of an experiment: who holds examples, and what each sends.

    A layer has twice as many coordinates as there are canaries; the second half of them is silent.

    canaries: how many devices have a canary.
    silent: how many hold examples, and send zero.
    layer_norms: the clip norm of each of the model's layers, in order; of updates that are clipped
        whole, one.
    clip: how updates of the next round are clipped, which is told before it is trained.
    """

    canaries: int
    silent: int
    layer_norms: Sequence[float]
    clip: Clip

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The layers of the model."""
        return {f"layer{place}": (2 * self.canaries,) for place in range(len(self.layer_norms))}

    def examples_on(self, device_ids: NDArray[np.uint64]) -> NDArray[np.int64]:
        """See fedray.clients.trainer.Holders."""
        return np.where(device_ids < self.canaries + self.silent, HELD, 0)

    def compute(self, order: WorkOrder) -> WorkResult:
        """See fedray.clients.work.work.DeviceWork: a canary's update is zero but for one
        coordinate of each layer, there in proportion to the layer's clip norm."""
        updates = order.room()
        updates.zero_()
        # The silent devices of the group keep their rows of zeros.
        rows = np.flatnonzero(order.device_ids < self.canaries)
        own = order.device_ids[rows].astype(np.int64)
        whole = math.hypot(*self.layer_norms)
        length = self._lengths() * self.clip.norm
        for layer, norm in enumerate(self.layer_norms):
            # Of the 2 canaries coordinates of a layer, a canary has the one with its own number.
            updates[rows, own + 2 * layer * self.canaries] = length * norm / whole
        losses = torch.zeros(order.device_ids.size, dtype=torch.float64)
        return WorkResult(updates, losses, order.held)

    def _lengths(self) -> float:
        """Clip norms of an update: too long, so that the clipping is tested as well."""
        zeroed_above = self.clip.zero_above / self.clip.norm
        # What lies half-way between 1 and the length that counts as zero is shortened, not zeroed.
        return min(MOST_LENGTHS, (1.0 + zeroed_above) / 2.0)


class CanaryTrainer(GroupTrainer):
    """The real trainer's groups, clipping, weights and encoding, with canaries for devices.

    Args:
        scenario: says how updates are clipped, weighted and encoded.
        canaries: the devices.
    """

    def __init__(self, scenario: Scenario, canaries: Canaries) -> None:
        super().__init__(scenario, canaries.shapes, canaries, canaries)
        self._canaries = canaries

    def initial_parameters(self) -> NDArray[np.float32]:
        """Zeros [D]."""
        layers = self._canaries.shapes.values()
        return np.zeros(sum(map(math.prod, layers)), np.float32)
