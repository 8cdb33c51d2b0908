"""Multinomial logistic regression: a convex loss, strongly convex (in the weights) with l2."""

import math

from torch import Tensor

from fedray.scenario.tasks import LogisticTask
from ..data.source import Fields
from .classification import Classifier, classes_of
from .initial import Parameter, zeros
from .layers import dense
from .task import Batch, Parameters


class Logistic(Classifier):
    """A linear classifier. Inputs of any shape are flattened; the model starts at zero.

    The training loss adds l2 / 2 * |weights|^2; biases are not regularised. The metric `loss` does
    not add it.
    """

    def __init__(self, table: LogisticTask, seed: int, fields: Fields) -> None:
        shape, classes = classes_of(table.kind, fields)
        self._l2 = table.l2
        inputs = math.prod(shape)
        parameters = {
            "weight": Parameter((inputs, classes), zeros),
            "bias": Parameter((classes,), zeros),
        }
        super().__init__(parameters, seed)

    def scores(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        return dense(inputs.flatten(2), parameters["weight"], parameters["bias"])

    def losses(self, parameters: Parameters, batch: Batch) -> Tensor:
        losses = super().losses(parameters, batch)
        if self._l2 == 0.0:
            return losses
        squared_norms = parameters["weight"].square().sum(dim=(1, 2))
        return losses + 0.5 * self._l2 * squared_norms
