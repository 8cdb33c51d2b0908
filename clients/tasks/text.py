"""What the models of text have in common: their data, embeddings, cross-entropy and metrics.

The data has one field `tokens` [length + 1]: the inputs are all but the last, the targets all but
the first. Padding comes last in a text, so no word is predicted from it; as a target it has weight
zero in the loss and in every metric.

Shape suffixes: G devices, B texts, T words, V tokens of the vocabulary, E numbers of an embedding.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from clients.data.source import Field
from clients.tasks.classification import described
from clients.tasks.initial import Parameter, drawn, shapes_of
from clients.tasks.task import Batch, Parameters
from fedray.errors import ScenarioError
from fedray.messages import Metric

SCORES_AT_ONCE = 1 << 23
"""Most logits that a measurement holds: 32 MiB of float32."""


def tokens_of(kind: str, fields: Mapping[str, Field]) -> Field:
    """The field `tokens` of the data.

    Args:
        kind: of the task, for messages.
        fields: of the data.

    Raises:
        ScenarioError: the data is no text.
    """
    tokens = fields.get("tokens")
    is_text = tokens is not None and tokens.kind == "whole" and len(tokens.shape) == 1
    if tokens is None or not is_text or tokens.shape[0] < 2:
        raise ScenarioError(
            f"training.task.kind={kind!r} needs text: whole `tokens` [length + 1]; the data has "
            f"{described(fields)}; take other data or another task"
        )
    return tokens


class TextModel(ABC):
    """A model of the next word; see clients.tasks.task.Task.

    The loss is the mean cross-entropy of a device's words: of all targets but padding. A batch
    without a word has loss zero. Of the metrics, the loss, its exponential and the accuracy are
    over all words, the unknown word and an end of text included. `in_vocabulary_accuracy` leaves
    out the unknown word (pfl-research's "accuracy wo unk", TensorFlow Federated's
    "accuracy_no_oov"): never right where a keyboard would have nothing to suggest.

    Args:
        tokens: the field of the data.
        parameters: of the model.
        seed: of their initial values.
    """

    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("loss", "nats per word", "lower"),
        Metric("perplexity", "", "lower", is_exponential=True),
        Metric("accuracy", "share of words", "higher"),
        Metric("in_vocabulary_accuracy", "share of words in the vocabulary", "higher"),
    )

    def __init__(self, tokens: Field, parameters: Mapping[str, Parameter], seed: int) -> None:
        self._tokens, self._parameters, self._seed = tokens, parameters, seed
        self.shapes = shapes_of(parameters)

    def initial_parameters(self) -> NDArray[np.float32]:
        """[D], a function of the seed."""
        return drawn(self._parameters, self._seed)

    @abstractmethod
    def states(self, parameters: Parameters, tokens: Tensor) -> Tensor:
        """What the output layer is given, [G, B, T, E], for tokens [G, B, T]."""

    @abstractmethod
    def output(self, parameters: Parameters) -> tuple[Tensor, Tensor | None]:
        """The output layer: weights [G, V, E], and biases [G, V] if it has any."""

    def losses(self, parameters: Parameters, batch: Batch) -> Tensor:
        """Mean cross-entropy of each device's words (nats), [G]."""
        states, targets = self._before_output(parameters, batch)
        words = self._is_word(targets)
        counts = words.sum(dim=1).clamp(min=1)
        if len(states) == 1 and self._tokens.padding is not None:
            # A third of real text is padding, and the output layer is most of the work.
            states, targets, words = (part[words][None] for part in (states, targets, words))
        weights, biases = self.output(parameters)
        nats = _OutputLoss.apply(states, weights, biases, targets)
        return (nats * words).sum(dim=1) / counts

    def measure(self, parameters: Parameters, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """See Task."""
        states, targets = self._before_output(parameters, batch)
        weights, biases = self.output(parameters)
        at_once = max(1, SCORES_AT_ONCE // (weights.shape[0] * weights.shape[1]))
        nats, is_found = [], []
        for some, theirs in zip(states.split(at_once, 1), targets.split(at_once, 1), strict=True):
            scores = _scores(some, weights, biases)
            flat = functional.cross_entropy(
                scores.flatten(0, 1), theirs.flatten(), reduction="none"
            )
            nats.append(flat.view_as(theirs))
            is_found.append(scores.argmax(dim=2) == theirs)
        shape = batch["tokens"][:, :, 1:].shape
        words = self._is_word(targets)
        known = words if self._tokens.unknown is None else words & (targets != self._tokens.unknown)
        found = torch.cat(is_found, dim=1)
        total_nats = (torch.cat(nats, dim=1) * words).view(shape).sum(dim=2)

        def per_text(marks: Tensor) -> Tensor:
            return marks.view(shape).sum(dim=2)

        return {
            "loss": (total_nats, per_text(words)),
            "perplexity": (total_nats, per_text(words)),
            "accuracy": (per_text(found & words), per_text(words)),
            "in_vocabulary_accuracy": (per_text(found & known), per_text(known)),
        }

    def _before_output(self, parameters: Parameters, batch: Batch) -> tuple[Tensor, Tensor]:
        """States [G, B T, E] and targets [G, B T]."""
        tokens = batch["tokens"]
        states = self.states(parameters, tokens[:, :, :-1])
        return states.flatten(1, 2), tokens[:, :, 1:].flatten(1)

    def _is_word(self, targets: Tensor) -> Tensor:
        if self._tokens.padding is None:
            return torch.ones_like(targets, dtype=torch.bool)
        return targets != self._tokens.padding


def embedded(table: Tensor, tokens: Tensor) -> Tensor:
    """Each device's own embeddings [G, ..., E] of its tokens [G, ...], from tables [G, V, E]."""
    devices, words, width = table.shape
    offsets = torch.arange(devices, device=tokens.device) * words
    rows = tokens + offsets.view(-1, *(1,) * (tokens.dim() - 1))
    return functional.embedding(rows, table.reshape(-1, width))


class _OutputLoss(torch.autograd.Function):
    """Cross-entropies [G, N] (nats) of states [G, N, E] under weights [G, V, E] and biases [G, V]
    or None, for targets [G, N].

    Its own gradient, because the logits of a large vocabulary are most of the memory: here they are
    made once, and turned in place into exponentials and then into their own gradients.
    """

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weights: Tensor, biases: Tensor | None, targets: Tensor
    ) -> Tensor:
        """See the class."""
        scores = _scores(states, weights, biases)
        own = scores.gather(2, targets[..., None])[..., 0]
        greatest = scores.amax(dim=2)
        exponentials = scores.sub_(greatest[..., None]).exp_()
        sums = exponentials.sum(dim=2)
        if any(ctx.needs_input_grad):
            ctx.exponentials, ctx.has_biases = exponentials, biases is not None
            ctx.save_for_backward(states, weights, targets, sums)
        return sums.log() + greatest - own

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None, None]:
        """Gradients of states, weights and biases."""
        states, weights, targets, sums = ctx.saved_tensors
        slopes = ctx.exponentials.mul_((gradient / sums)[..., None])
        del ctx.exponentials  # they are overwritten: a second backward pass would be wrong
        slopes.scatter_add_(2, targets[..., None], -gradient[..., None])
        biases_slope = None
        if ctx.has_biases:  # a product with ones, which is faster than a sum over rows
            biases_slope = torch.bmm(torch.ones_like(states[:, None, :, 0]), slopes)[:, 0]
        weights_slope = torch.bmm(slopes.transpose(1, 2), states)
        return torch.bmm(slopes, weights), weights_slope, biases_slope, None


def _scores(states: Tensor, weights: Tensor, biases: Tensor | None) -> Tensor:
    """Logits [G, N, V]."""
    scores = torch.bmm(states, weights.transpose(1, 2))
    # Added in place: `baddbmm` first copies the biases to every row, which takes longer.
    return scores if biases is None else scores.add_(biases[:, None, :])
