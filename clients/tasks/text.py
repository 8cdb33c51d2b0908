"""What the models of text have in common: their data, embeddings, cross-entropy and metrics.

The data has one field `tokens` [length + 1]: the inputs are all but the last, the targets all but
the first. Padding comes last in a text, so no word is predicted from it; as a target it has weight
zero in the loss and in every metric.

Shape suffixes: G devices, B texts, T words, V tokens of the vocabulary, E numbers of an embedding.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from fedray.base.errors import ScenarioError
from fedray.clients.data.source import Field
from fedray.clients.tasks.classification import described
from fedray.clients.tasks.initial import Parameter, drawn, shapes_of
from fedray.clients.tasks.task import Batch, Parameters
from fedray.wire.messages import Metric

SCORES_AT_ONCE = 1 << 23
"""Most logits that a measurement holds: 32 MiB of float32."""


def tokens_of(kind: str, fields: Mapping[str, Field]) -> Field:
    """The field `tokens` of the data, after a check that it is text.

    Args:
        kind: of the task, for messages.
        fields: of the data, by name.

    Returns:
        A field of whole numbers of shape [length + 1], at least two of them.

    Raises:
        ScenarioError: the data is no text.
    """
    tokens = fields.get("tokens")
    is_text = tokens is not None and tokens.kind == "whole" and len(tokens.shape) == 1
    if tokens is None or not is_text or tokens.shape[0] < 2:
        raise ScenarioError.of(
            "training.task.kind",
            kind,
            f"needs text: whole `tokens` [length + 1]; the data has {described(fields)}",
            "take other data or another task",
        )
    return tokens


class TextModel(ABC):
    """A model of the next word; see fedray.clients.tasks.task.Task.

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

    def __init__(self, tokens: Field, parameters: Mapping[str, Parameter], seed: int) -> None:
        self._tokens = tokens
        self._parameters = parameters
        self._seed = seed
        self.shapes = shapes_of(parameters)
        unit = tokens.unit
        self.metrics: tuple[Metric, ...] = (
            Metric("loss", f"nats per {unit}", "lower"),
            Metric("perplexity", "", "lower", is_exponential=True),
            Metric("accuracy", f"share of {unit}s", "higher"),
            Metric("in_vocabulary_accuracy", f"share of {unit}s in the vocabulary", "higher"),
        )

    def initial_parameters(self) -> NDArray[np.float32]:
        """The flat initial values [D], a function of the seed alone."""
        return drawn(self._parameters, self._seed)

    @abstractmethod
    def states(self, parameters: Parameters, tokens: Tensor) -> Tensor:
        """What the output layer is given for every word.

        Args:
            parameters: of G devices, by name.
            tokens: inputs [G, B, T], each text without its last token.

        Returns:
            States [G, B, T, E]. The state of a word depends on the tokens up to it alone.
        """

    @abstractmethod
    def output(self, parameters: Parameters) -> tuple[Tensor, Tensor | None]:
        """The output layer among the `parameters`: weights [G, V, E], and biases [G, V] if any."""

    def losses(self, parameters: Parameters, batch: Batch) -> Tensor:
        """Mean cross-entropy of each device's words, in nats, [G].

        Args:
            parameters: each device's own.
            batch: has the field `tokens` [G, B, length + 1].
        """
        states, targets = self._before_output(parameters, batch)
        is_word = self._is_word(targets)
        # A batch of padding alone has loss zero, not 0 / 0.
        counts = is_word.sum(dim=1).clamp(min=1)
        if len(states) == 1 and self._tokens.padding is not None:
            # A third of real text is padding, and the output layer is most of the work.
            states = states[is_word][None]
            targets = targets[is_word][None]
            is_word = is_word[is_word][None]
        weights, biases = self.output(parameters)
        nats = _OutputLoss.apply(states, weights, biases, targets)
        return (nats * is_word).sum(dim=1) / counts

    def measure(self, parameters: Parameters, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """Sums over each text: of nats, of words found, and of words.

        Args:
            parameters: each device's own.
            batch: has the field `tokens` [G, B, length + 1].

        Returns:
            (numerators, weights), [G, B] both, by the name of the metric.
        """
        states, targets = self._before_output(parameters, batch)
        weights, biases = self.output(parameters)
        devices, vocabulary, _ = weights.shape
        # The logits of a large vocabulary do not fit for all words, so some are made at a time.
        at_once = max(1, SCORES_AT_ONCE // (devices * vocabulary))
        nats_parts: list[Tensor] = []
        found_parts: list[Tensor] = []
        parts = zip(states.split(at_once, 1), targets.split(at_once, 1), strict=True)
        for some_states, some_targets in parts:
            scores = _scores(some_states, weights, biases)
            flat_nats = functional.cross_entropy(
                scores.flatten(0, 1), some_targets.flatten(), reduction="none"
            )
            nats_parts.append(flat_nats.view_as(some_targets))
            found_parts.append(scores.argmax(dim=2) == some_targets)
        is_found = torch.cat(found_parts, dim=1)
        is_word = self._is_word(targets)
        is_known = is_word
        if self._tokens.unknown is not None:
            is_known = is_word & (targets != self._tokens.unknown)
        nats = torch.cat(nats_parts, dim=1) * is_word
        shape = batch["tokens"][:, :, 1:].shape

        def per_text(of_words: Tensor) -> Tensor:
            return of_words.view(shape).sum(dim=2)

        text_nats = per_text(nats)
        words = per_text(is_word)
        return {
            "loss": (text_nats, words),
            # Its value is the exponential of this ratio, which the metric itself says.
            "perplexity": (text_nats, words),
            "accuracy": (per_text(is_found & is_word), words),
            "in_vocabulary_accuracy": (per_text(is_found & is_known), per_text(is_known)),
        }

    def _before_output(self, parameters: Parameters, batch: Batch) -> tuple[Tensor, Tensor]:
        """States [G, B T, E] and targets [G, B T]."""
        tokens = batch["tokens"]
        inputs = tokens[:, :, :-1]
        targets = tokens[:, :, 1:]
        states = self.states(parameters, inputs)
        return states.flatten(1, 2), targets.flatten(1)

    def _is_word(self, targets: Tensor) -> Tensor:
        """Which targets are no padding."""
        if self._tokens.padding is None:
            return torch.ones_like(targets, dtype=torch.bool)
        return targets != self._tokens.padding


def embedded(table: Tensor, tokens: Tensor) -> Tensor:
    """Each device's own embeddings of its tokens.

    Args:
        table: the devices' embeddings [G, V, E].
        tokens: [G, ...], each below V.

    Returns:
        [G, ..., E].
    """
    devices, words, width = table.shape
    # The tables of all devices are rows of one, so that the group is a single look-up.
    first_rows = torch.arange(devices, device=tokens.device) * words
    ones = (1,) * (tokens.dim() - 1)
    rows = tokens + first_rows.view(-1, *ones)
    return functional.embedding(rows, table.reshape(-1, width))


class _OutputLoss(torch.autograd.Function):
    """Cross-entropies [G, N] (nats) of states [G, N, E] under weights [G, V, E] and biases [G, V]
    or None, for targets [G, N].

    Its own gradient, because the logits of a large vocabulary are most of the memory: here they are
    made once, and turned in place into exponentials and then into their own gradients.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weights: Tensor,
        biases: Tensor | None,
        targets: Tensor,
    ) -> Tensor:
        """The cross-entropies; the class says of what."""
        scores = _scores(states, weights, biases)
        own = scores.gather(2, targets[..., None])[..., 0]
        # The logarithm of a sum of exponentials, which cannot overflow once the greatest score is
        # taken off.
        greatest = scores.amax(dim=2)
        exponentials = scores.sub_(greatest[..., None]).exp_()
        sums = exponentials.sum(dim=2)
        if any(ctx.needs_input_grad):
            ctx.exponentials = exponentials
            ctx.has_biases = biases is not None
            ctx.save_for_backward(states, weights, targets, sums)
        return sums.log() + greatest - own

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None, None]:
        """Gradients of states, weights and biases, given the `gradient` [G, N] of the output."""
        states, weights, targets, sums = ctx.saved_tensors
        # By its logits, a cross-entropy has the slope softmax - (1 at the target, 0 elsewhere).
        slopes = ctx.exponentials.mul_((gradient / sums)[..., None])
        # They are overwritten: a second backward pass would be wrong.
        del ctx.exponentials
        slopes.scatter_add_(2, targets[..., None], -gradient[..., None])
        biases_slope = None
        if ctx.has_biases:
            # A product with ones is faster than a sum over rows.
            ones = torch.ones_like(states[:, None, :, 0])
            biases_slope = torch.bmm(ones, slopes)[:, 0]
        weights_slope = torch.bmm(slopes.transpose(1, 2), states)
        states_slope = torch.bmm(slopes, weights)
        return states_slope, weights_slope, biases_slope, None


def _scores(states: Tensor, weights: Tensor, biases: Tensor | None) -> Tensor:
    """Logits [G, N, V]."""
    scores = torch.bmm(states, weights.transpose(1, 2))
    # Added in place: `baddbmm` first copies the biases to every row, which takes longer.
    return scores if biases is None else scores.add_(biases[:, None, :])
