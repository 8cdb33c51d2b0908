"""Multinomial logistic regression: a convex loss, strongly convex with l2 (in the weights)."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from clients.data.source import Field
from clients.tasks.classification import Classifier, classes_of
from clients.tasks.initial import Parameter, constant
from clients.tasks.task import Batch, Parameters
from fedray.scenario import LogisticTask


class Logistic(Classifier):
    """See Classifier. Inputs of any shape are flattened; the model begins at zero.

    The training loss has the term l2 / 2 * |weights|^2 in addition. The metric `loss` does not.

    Args:
        table: says l2.
        seed: is not used, because nothing is drawn.
        fields: of the data.
    """

    def __init__(self, table: LogisticTask, seed: int, fields: Mapping[str, Field]) -> None:
        shape, classes = classes_of(table.kind, fields)
        self._l2 = table.l2
        parameters = {
            "weight": Parameter((math.prod(shape), classes), constant(0.0)),
            "bias": Parameter((classes,), constant(0.0)),
        }
        super().__init__(parameters, seed)

    def scores(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """See Classifier."""
        bias = parameters["bias"][:, None, :]
        return torch.baddbmm(bias, inputs.flatten(2), parameters["weight"])

    def losses(self, parameters: Parameters, batch: Batch) -> Tensor:
        """Mean cross-entropy [G], and the l2 term."""
        losses = super().losses(parameters, batch)
        if self._l2 == 0.0:
            return losses
        return losses + 0.5 * self._l2 * parameters["weight"].square().sum(dim=(1, 2))
