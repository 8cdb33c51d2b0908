"""The mean of the data: a loss whose optimum, and whose path under any optimiser, is known.

The training loss of an example x is 0.5 * sum_j c_j (w_j - x_j)^2, with curvatures c. Its gradient
is c (w - x), so the optimum over devices is the weighted mean of their means, whatever the
curvatures. Gradient descent at rate r multiplies the distance to a device's mean by 1 - r c_j per
step. The metric `loss` is 0.5 |w - x|^2, without curvatures: its optimum is the data's.
"""

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedray.scenario.tasks import QuadraticTask
from fedray.wire.messages import Metric
from ..data.source import Field, Fields
from .initial import DrawnModel, Parameter, zeros
from .task import Batch, Measures, Parameters, misfit


class Quadratic(DrawnModel):
    """A task whose model is one vector `w`, which starts at zero.

    See fedray.clients.tasks.task.Task.

    Raises:
        ScenarioError: the data has no field `inputs` of real vectors.
    """

    metrics: ClassVar[tuple[Metric, ...]] = (Metric("loss", "", "lower"),)

    def __init__(self, table: QuadraticTask, seed: int, fields: Fields) -> None:
        match fields.get("inputs"):
            case Field(kind="real", shape=(dimension,)):
                super().__init__({"w": Parameter((dimension,), zeros)}, seed)
            case _:
                raise misfit(table.kind, "data with real `inputs` [dimension]", fields)
        # A list that is shorter than the dimension repeats from its start.
        curvatures = np.resize(table.curvatures, dimension)
        # Roots, because they scale the distance before it is squared.
        self._roots = torch.from_numpy(np.sqrt(curvatures))

    def losses(self, parameters: Parameters, batch: Batch) -> Tensor:
        away = parameters["w"][:, None, :] - batch["inputs"]
        scaled = away * self._roots.to(away)
        losses = 0.5 * scaled.square().sum(dim=2)
        return losses.mean(dim=1)

    def measure(self, parameters: Parameters, batch: Batch) -> Measures:
        away = parameters["w"][:, None, :] - batch["inputs"]
        losses = 0.5 * away.square().sum(dim=2)
        return {"loss": (losses, torch.ones_like(losses))}
