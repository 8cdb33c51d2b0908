"""Fully connected layers of rectified linear units.

With the default hidden layers of 200 units on inputs of 784 numbers and 10 classes this is the
"2NN" of McMahan et al. 2017, section 3, with its 199,210 parameters.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor

from fedray.scenario.tasks import MlpTask
from ..data.source import Fields
from .classification import Classifier, classes_of
from .initial import Parameter, glorot, zeros
from .layers import dense
from .task import Parameters


class Mlp(Classifier):
    """A classifier of fully connected layers. Inputs of any shape are flattened.

    Weights start as Glorot's, biases at zero, as in TensorFlow Federated.
    """

    def __init__(self, table: MlpTask, seed: int, fields: Fields) -> None:
        shape, classes = classes_of(table.kind, fields)
        widths = (math.prod(shape), *table.hidden, classes)
        self._layers = len(widths) - 1
        parameters: dict[str, Parameter] = {}
        for layer, (rows, columns) in enumerate(pairwise(widths)):
            parameters[f"weight_{layer}"] = Parameter((rows, columns), glorot(rows, columns))
            parameters[f"bias_{layer}"] = Parameter((columns,), zeros)
        super().__init__(parameters, seed)

    def scores(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        units = inputs.flatten(2)
        for layer in range(self._layers):
            if layer > 0:
                # In place only after the first layer: the inputs belong to the caller.
                units = torch.relu_(units)
            units = dense(units, parameters[f"weight_{layer}"], parameters[f"bias_{layer}"])
        return units
