"""The mean of the data: a loss whose optimum, and whose path under any optimiser, is known.

The training loss of an example x is 0.5 * sum_j c_j (w_j - x_j)^2, with curvatures c. Its gradient
is c (w - x), so the optimum over devices is the mean of their means, each weighted as it counts,
whatever the curvatures. Gradient descent at rate r multiplies the distance to a device's mean by
1 - r c_j a step. The metric `loss` is 0.5 |w - x|^2, without curvatures: its optimum is the data's.
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedray.base.errors import ScenarioError
from fedray.clients.data.source import Field
from fedray.clients.tasks.classification import described
from fedray.clients.tasks.task import Batch, Parameters
from fedray.scenario.tasks import QuadraticTask
from fedray.wire.messages import Metric


class Quadratic:
    """A task whose model is one vector `w`, which begins at zero.

    See fedray.clients.tasks.task.Task.

    Args:
        table: says the curvatures.
        seed: is not used, because nothing is drawn.
        fields: of the data.

    Raises:
        ScenarioError: the data has no field `inputs` of real vectors.
    """

    metrics: ClassVar[tuple[Metric, ...]] = (Metric("loss", "", "lower"),)

    def __init__(self, table: QuadraticTask, seed: int, fields: Mapping[str, Field]) -> None:
        inputs = fields.get("inputs")
        if inputs is None or inputs.kind != "real" or len(inputs.shape) != 1:
            raise ScenarioError.of(
                "training.task.kind",
                table.kind,
                f"needs data with real `inputs` [dimension]; the data has {described(fields)}",
                "take data.kind='points'",
            )
        (dimension,) = inputs.shape
        self.shapes: Mapping[str, tuple[int, ...]] = {"w": (dimension,)}
        # Where there are fewer than dimensions, they repeat from the first one on.
        curvatures = np.resize(table.curvatures, dimension)
        # Roots, because they scale the distance before it is squared.
        self._roots = torch.from_numpy(np.sqrt(curvatures))

    def initial_parameters(self) -> NDArray[np.float32]:
        """The initial model: zeros [D]."""
        return np.zeros(self.shapes["w"], np.float32)

    def losses(self, parameters: Parameters, batch: Batch) -> Tensor:
        """Mean of 0.5 * sum_j c_j (w_j - x_j)^2 over each device's examples, [G].

        Args:
            parameters: each device's own `w` [G, D].
            batch: has the field `inputs` [G, B, D], the points x.
        """
        away = parameters["w"][:, None, :] - batch["inputs"]
        scaled = away * self._roots.to(away.dtype)
        losses = 0.5 * scaled.square().sum(dim=2)
        return losses.mean(dim=1)

    def measure(self, parameters: Parameters, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """The loss 0.5 |w - x|^2 of each example, without curvatures, with weight 1.

        Args:
            parameters: each device's own `w` [G, D].
            batch: has the field `inputs` [G, B, D], the points x.

        Returns:
            (numerators, weights), [G, B] both, of the one metric `loss`.
        """
        away = parameters["w"][:, None, :] - batch["inputs"]
        losses = 0.5 * away.square().sum(dim=2)
        return {"loss": (losses, torch.ones_like(losses))}
