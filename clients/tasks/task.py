"""What a task is: a model whose parameters are one flat vector, a loss, and metrics with units."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from fedray.wire.messages import Metric

if TYPE_CHECKING:
    from torch import Tensor

Parameters = Mapping[str, "Tensor"]
"""Parameters by name, [G, *shape] each: those of G devices."""
Batch = Mapping[str, "Tensor"]
"""Fields of examples by name, [G, B, *shape] each; see fedray.clients.data.source.Field."""


class Task(Protocol):
    """One task, built for a training's seed and for the fields of its data.

    Shapes: G devices, B examples, D parameters in all. The model's parameters are named tensors;
    their shapes, in order, lay out the flat vector [D] that is averaged.

    A task is a pure function of what it was built from: every trainer has one of its own, and all
    of them must give the same. `fedray.clients.tasks.contract` has the checks that every task
    must pass.

    shapes: of every parameter by its name.
    metrics: what `measure` gives.
    """

    shapes: Mapping[str, tuple[int, ...]]
    metrics: tuple[Metric, ...]

    def initial_parameters(self) -> NDArray[np.float32]:
        """The flat parameters [D] that training begins with, a function of the seed alone."""
        ...

    def losses(self, parameters: "Parameters", batch: "Batch") -> "Tensor":
        """Mean loss of each device's own parameters on its own examples.

        It is differentiable in the parameters. A device's loss depends on no other device.

        Args:
            parameters: [G, *shape] by name.
            batch: [G, B, ...] by field.

        Returns:
            Losses [G].
        """
        ...

    def measure(
        self,
        parameters: "Parameters",
        batch: "Batch",
    ) -> dict[str, tuple["Tensor", "Tensor"]]:
        """Numerator and weight of every metric for each example.

        A metric's value on some examples is the sum of their numerators over that of their weights.

        Args:
            parameters: [G, *shape] by name.
            batch: [G, B, ...] by field.

        Returns:
            (numerators, weights), [G, B] both, by the name of the metric.
        """
        ...
