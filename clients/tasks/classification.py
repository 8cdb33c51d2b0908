"""What the classifiers have in common: the fields of their data, cross-entropy and accuracy."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedray.base.errors import ScenarioError
from fedray.clients.data.source import Field
from fedray.clients.tasks.initial import Parameter, drawn, shapes_of
from fedray.clients.tasks.task import Batch, Parameters
from fedray.wire.messages import Metric


def classes_of(kind: str, fields: Mapping[str, Field]) -> tuple[tuple[int, ...], int]:
    """What a classifier needs to know of its data.

    Args:
        kind: of the task, for messages.
        fields: of the data, by name.

    Returns:
        (shape, classes): the shape of the field `inputs`, and how many classes the field `targets`
        has.

    Raises:
        ScenarioError: the data has no real inputs, or its targets are no class numbers.
    """
    inputs, targets = fields.get("inputs"), fields.get("targets")
    has_inputs = inputs is not None and inputs.kind == "real"
    has_classes = targets is not None and targets.kind == "whole" and targets.shape == ()
    if inputs is None or targets is None or not (has_inputs and has_classes):
        raise ScenarioError.of(
            "training.task.kind",
            kind,
            "needs data with real `inputs`, and `targets` that are one class number each; the "
            f"data has {described(fields)}",
            "take other data or another task",
        )
    return inputs.shape, targets.values


def described(fields: Mapping[str, Field]) -> str:
    """The `fields` of data as messages show them: kind, name and shape of each."""
    told = [f"{field.kind} `{name}` {list(field.shape)}" for name, field in fields.items()]
    return ", ".join(told)


class Classifier(ABC):
    """A model whose scores are the logits of classes; see fedray.clients.tasks.task.Task.

    The loss is the mean cross-entropy.

    Args:
        parameters: of the model.
        seed: of their initial values.
    """

    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("loss", "nats per example", "lower"),
        Metric("accuracy", "share of examples", "higher"),
    )

    def __init__(self, parameters: Mapping[str, Parameter], seed: int) -> None:
        self._parameters = parameters
        self._seed = seed
        self.shapes = shapes_of(parameters)

    def initial_parameters(self) -> NDArray[np.float32]:
        """The flat initial values [D], a function of the seed alone."""
        return drawn(self._parameters, self._seed)

    @abstractmethod
    def scores(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """The logits of the classes.

        Args:
            parameters: of G devices, by name.
            inputs: of each device's own examples, [G, B, *shape].

        Returns:
            Logits [G, B, classes].
        """

    def losses(self, parameters: Parameters, batch: Batch) -> Tensor:
        """Mean cross-entropy of each device's `batch` under its own `parameters`, in nats, [G]."""
        scores = self.scores(parameters, batch["inputs"])
        nats = _nats(scores, batch["targets"])
        return nats.mean(dim=1)

    def measure(self, parameters: Parameters, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """Cross-entropy and whether the class is found, of each example, with weight 1.

        Args:
            parameters: each device's own.
            batch: has the fields `inputs` and `targets`.

        Returns:
            (numerators, weights), [G, B] both, by the name of the metric.
        """
        targets = batch["targets"]
        scores = self.scores(parameters, batch["inputs"])
        nats = _nats(scores, targets)
        likeliest = scores.argmax(dim=2)
        is_found = (likeliest == targets).to(nats.dtype)
        weights = torch.ones_like(nats)
        return {
            "loss": (nats, weights),
            "accuracy": (is_found, weights),
        }


def _nats(scores: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropies [G, B] of scores [G, B, classes]."""
    # Devices and examples are one axis here, because every example has a loss of its own.
    flat_scores = scores.flatten(0, 1)
    nats = functional.cross_entropy(flat_scores, targets.flatten(), reduction="none")
    return nats.view_as(targets)
