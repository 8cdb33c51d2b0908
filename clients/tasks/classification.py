"""Classifiers: the fields of their data, cross-entropy and accuracy."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedray.wire.messages import Metric
from ..data.source import Field, Fields
from .initial import DrawnModel
from .task import Batch, Measures, Parameters, misfit


def classes_of(kind: str, fields: Fields) -> tuple[tuple[int, ...], int]:
    """Returns the shape of the field `inputs` and the number of classes in the field `targets`.

    Raises:
        ScenarioError: the inputs are not real numbers, or the targets are not single class numbers.
    """
    match fields.get("inputs"), fields.get("targets"):
        case Field(kind="real") as inputs, Field(kind="whole", shape=()) as targets:
            if inputs.shape and 0 not in inputs.shape:
                return inputs.shape, targets.values
    needed = "data with real `inputs`, and `targets` that are one class number each"
    raise misfit(kind, needed, fields)


class Classifier(DrawnModel, ABC):
    """A task whose scores are logits of classes, and whose loss is the mean cross-entropy.

    See fedray.clients.tasks.task.Task.
    """

    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("loss", "nats per example", "lower"),
        Metric("accuracy", "share of examples", "higher"),
    )

    @abstractmethod
    def scores(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Returns the logits [G, B, classes] of the inputs [G, B, *shape]."""

    def losses(self, parameters: Parameters, batch: Batch) -> Tensor:
        scores = self.scores(parameters, batch["inputs"])
        nats = nats_of(scores, batch["targets"])
        return nats.mean(dim=1)

    def measure(self, parameters: Parameters, batch: Batch) -> Measures:
        targets = batch["targets"]
        scores = self.scores(parameters, batch["inputs"])
        nats = nats_of(scores, targets)
        is_found = scores.argmax(dim=2) == targets
        weights = torch.ones_like(nats)
        return {
            "loss": (nats, weights),
            "accuracy": (is_found.to(nats.dtype), weights),
        }


def nats_of(scores: Tensor, targets: Tensor) -> Tensor:
    """Returns the cross-entropies [G, B] of scores [G, B, classes]."""
    # Every example has its own loss, so devices and examples may form one axis.
    flat_scores = scores.flatten(0, 1)
    nats = functional.cross_entropy(flat_scores, targets.flatten(), reduction="none")
    return nats.view_as(targets)
