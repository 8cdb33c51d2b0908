"""Protocol of a task: a model with a flat parameter vector, a loss, and metrics with units."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from fedray.base.errors import ScenarioError
from fedray.wire.messages import Metric
from ..data.source import Fields

if TYPE_CHECKING:
    from torch import Tensor

Vector = NDArray[np.float32]
"""Flat parameters, [D]."""
Parameters = Mapping[str, "Tensor"]
"""Parameters of G devices by name, [G, *shape] each."""
Batch = Mapping[str, "Tensor"]
"""Fields of examples by name, [G, B, *shape] each; see fedray.clients.data.source.Field."""
Measures = dict[str, tuple["Tensor", "Tensor"]]
"""Numerators and weights of the examples, both [G, B], by the name of the metric."""


class Task(Protocol):
    """A task, built from the seed of a training and the fields of its data.

    Shapes: G devices, B examples, D parameters in total. The model's parameters are named tensors;
    their shapes, in order, lay out the flat vector [D] that is averaged.

    A task is a pure function of its seed and fields: every trainer builds one, and all must agree.
    `fedray.check_task` checks a task.
    """

    shapes: Mapping[str, tuple[int, ...]]
    """Shape of each parameter by its name."""
    metrics: tuple[Metric, ...]
    """Metrics that `measure` returns."""

    def initial_parameters(self) -> Vector:
        """Returns the flat parameters [D] at which training starts, a function of the seed."""
        ...

    def losses(self, parameters: "Parameters", batch: "Batch") -> "Tensor":
        """Returns the mean loss [G] of each device's parameters on its own examples.

        It is differentiable in the parameters. A device's loss depends on no other device.
        """
        ...

    def measure(self, parameters: "Parameters", batch: "Batch") -> "Measures":
        """Returns numerator and weight of every metric for each example.

        The value of a metric is the sum of the numerators over the sum of the weights.
        """
        ...


def misfit(kind: str, needed: str, fields: Fields) -> ScenarioError:
    """Returns the error of a task whose data lacks the fields that the task needs."""
    found = [f"{field.kind} `{name}` {list(field.shape)}" for name, field in fields.items()]
    rule = f"needs {needed}; the data has {', '.join(found)}"
    return ScenarioError.of("training.task.kind", kind, rule, "choose other data or another task")
