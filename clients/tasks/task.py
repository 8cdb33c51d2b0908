"""What a task is: a model whose parameters are one flat vector, data that devices hold, a loss, and
a held-out metric."""

from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from fedray.messages import Evaluation

if TYPE_CHECKING:
    from torch import Tensor

FIRST_HELD_OUT = np.uint64(1 << 40)
"""Ids from here on are of no device: every population stays below. Held-out data may be theirs."""


class Task(Protocol):
    """One task, built from a training's seed. Shapes: G devices, B examples, D parameters in all.

    The model's parameters are named tensors; their shapes, in order, lay out the flat vector [D]
    that is averaged.

    A task is a pure function of its seed: every trainer has one of its own, and all of them must
    give the same. `clients.tasks.contract` has the checks that every task must pass.
    """

    shapes: dict[str, tuple[int, ...]]

    def initial_parameters(self) -> NDArray[np.float32]:
        """[D], a function of the seed."""
        ...

    def device_examples(self, device_ids: NDArray[np.uint64], count: int) -> "Tensor":
        """The first `count` examples of each device, [G, count, ...]; a pure function of seed and
        device."""
        ...

    def losses(self, parameters: dict[str, "Tensor"], batch: "Tensor") -> "Tensor":
        """Mean loss [G] of each device's own parameters ([G, *shape] by name) on its own batch [G,
        B, ...]."""
        ...

    def evaluate(self, parameters: dict[str, "Tensor"]) -> Evaluation:
        """Loss and accuracy on held-out data, of one model's parameters ([1, *shape] by name)."""
        ...
