"""Multinomial logistic regression: a convex loss, strongly convex with l2 (in the weights)."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fedray.clients.data.source import Field
from fedray.clients.tasks.classification import Classifier, classes_of
from fedray.clients.tasks.initial import Parameter, constant
from fedray.clients.tasks.task import Batch, Parameters
from fedray.scenario.tasks import LogisticTask


class Logistic(Classifier):
    """A linear classifier. Inputs of any shape are flattened; the model begins at zero.

    The training loss has the term l2 / 2 * |weights|^2 in addition. The metric `loss` does not.

    Args:
        table: says l2.
        seed: is not used, because nothing is drawn.
        fields: of the data.
    """

    def __init__(self, table: LogisticTask, seed: int, fields: Mapping[str, Field]) -> None:
        shape, classes = classes_of(table.kind, fields)
        self._l2 = table.l2
        dimension = math.prod(shape)
        parameters = {
            "weight": Parameter((dimension, classes), constant(0.0)),
            "bias": Parameter((classes,), constant(0.0)),
        }
        super().__init__(parameters, seed)

    def scores(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """The logits [G, B, classes] of `inputs` [G, B, *shape], by each device's `parameters`."""
        bias = parameters["bias"][:, None, :]
        flat = inputs.flatten(2)
        return torch.baddbmm(bias, flat, parameters["weight"])

    def losses(self, parameters: Parameters, batch: Batch) -> Tensor:
        """Mean cross-entropy and l2 / 2 * |weights|^2, [G].

        Args:
            parameters: each device's own. The biases are not regularised.
            batch: has the fields `inputs` and `targets`.
        """
        losses = super().losses(parameters, batch)
        if self._l2 == 0.0:
            return losses
        squared_norms = parameters["weight"].square().sum(dim=(1, 2))
        return losses + 0.5 * self._l2 * squared_norms
