"""Canary devices, whose known updates an experiment looks for in released models
(fedray/studies/canary.py).

There are three kinds of devices, by id. The first have a canary each, and full weight; their
updates are several clip norms long, each in coordinates of its own. The next `silent` have full
weight too, and their updates are zero. All others hold no examples.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fedray.base.arrays import BoolArray
from fedray.scenario import Scenario
from fedray.scenario.clipping import Clip
from .data.source import Ids, Integers
from .tasks.task import Vector
from .trainer import GroupTrainer
from .work.work import WorkOrder, WorkResult

MOST_LENGTHS = 10.0
"""Length of a canary's update in clip norms, unless such updates would count as zero."""
HELD = 1 << 40
"""Examples of a canary: more than any weighting needs for full weight."""


@dataclass
class Canaries:
    """Devices of an experiment, with the examples that each holds and the update that each
    sends."""

    has_canary: BoolArray
    """Coordinates of a layer that have a canary; all others are silent, [m]."""
    silent: int
    """Number of devices that hold examples and send zero."""
    layer_norms: Sequence[float]
    """Clip norm of each layer of the model, in order; a single one without layers."""
    clip: Clip
    """Clipping of the next round, which is set before it is trained."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {f"layer{place}": (self.has_canary.size,) for place in range(len(self.layer_norms))}

    def examples_on(self, device_ids: Ids) -> Integers:
        return np.where(device_ids < self.has_canary.sum() + self.silent, HELD, 0)

    def compute(self, order: WorkOrder) -> WorkResult:
        """Returns updates with one coordinate per layer, in proportion to the layer's clip norm.

        See fedray.clients.work.work.DeviceWork.
        """
        updates = order.room().zero_()
        # The silent devices of the group keep their rows of zeros.
        columns = np.flatnonzero(self.has_canary)
        rows = np.flatnonzero(order.device_ids < columns.size)
        own = columns[order.device_ids[rows].astype(np.int64)]
        whole = math.hypot(*self.layer_norms)
        length = self._lengths() * self.clip.norm
        for layer, norm in enumerate(self.layer_norms):
            updates[rows, own + layer * self.has_canary.size] = length * norm / whole
        losses = torch.zeros(order.device_ids.size, dtype=torch.float64)
        return WorkResult(updates, losses, order.held)

    def _lengths(self) -> float:
        """Returns the length of an update in clip norms, above 1 to test clipping as well."""
        zeroed_above = self.clip.zero_above / self.clip.norm
        # Half-way between 1 and `zeroed_above`, an update is shortened, not zeroed.
        return min(MOST_LENGTHS, (1.0 + zeroed_above) / 2.0)


class CanaryTrainer(GroupTrainer):
    """The real trainer's groups, clipping, weights and encoding, applied to canaries."""

    def __init__(self, scenario: Scenario, canaries: Canaries) -> None:
        super().__init__(scenario, canaries.shapes, canaries, canaries)
        self._canaries = canaries

    def initial_parameters(self) -> Vector:
        """Returns zeros [D]."""
        layers = self._canaries.shapes.values()
        return np.zeros(sum(map(math.prod, layers)), np.float32)
