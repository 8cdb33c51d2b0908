"""Text models: the field of their data, cross-entropy and metrics.

The data has one field `tokens` [length + 1]: the inputs are all but the last token, the targets all
but the first. Padding ends a text, so no word is predicted from it; as a target it has weight zero
in the loss and in every metric.

Shape suffixes: G devices, B texts, T words, V tokens of the vocabulary, E numbers of an embedding.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from fedray.base.compiled import njit
from fedray.base.errors import ScenarioError
from fedray.wire.messages import Metric
from ..data.source import Field, Fields
from .descent import Descent, Layers
from .exponentials import exp
from .initial import DrawnModel, Parameter
from .task import Batch, Measures, Parameters, misfit

SCORES_AT_ONCE = 1 << 23
"""Largest number of logits in memory during a measurement: 32 MiB of float32."""


def tokens_of(kind: str, fields: Fields) -> Field:
    """Returns the field `tokens`: integers of shape [length + 1], at least two.

    Raises:
        ScenarioError: the data is not text.
    """
    tokens = fields.get("tokens")
    if tokens is None or not tokens.is_text or tokens.shape[0] < 2:
        raise misfit(kind, "text, a field `tokens` of whole numbers [length + 1]", fields)
    return tokens


class TextModel(DrawnModel, ABC):
    """A next-word model; see fedray.clients.tasks.task.Task.

    The loss is the mean cross-entropy of a device's words: of all targets except padding. A batch
    without words has loss zero. Loss, perplexity and accuracy count all words, including the
    unknown word and the end of a text. `in_vocabulary_accuracy` leaves out the unknown word
    (pfl-research's "accuracy wo unk", TensorFlow Federated's "accuracy_no_oov"): a keyboard has
    nothing to suggest there.

    Args:
        tokens: field of the text.
        parameters: parameters of the model by name.
        seed: seed of the training.
        top: numbers k of predictions, each with a metric of the words that are among the k best.
        head: number of most frequent words, which have metrics of their own; None for none.

    Raises:
        ScenarioError: the vocabulary is too small for `top` or `head`.
    """

    def __init__(
        self,
        tokens: Field,
        parameters: Mapping[str, Parameter],
        seed: int,
        top: Sequence[int] = (),
        head: int | None = None,
    ) -> None:
        super().__init__(parameters, seed)
        self._tokens, self._top = tokens, tuple(top)
        self._descent = Descent(tokens.padding)
        self._head = None if head is None else _head_of(tokens, head)
        self._most = max(self._top, default=1)
        if self._most > tokens.values:
            raise ScenarioError(
                f"training.task.top={self._most}: the data has {tokens.values} {tokens.unit}s to "
                "predict; lower it"
            )
        unit = tokens.unit
        self.metrics: tuple[Metric, ...] = (
            Metric("loss", f"nats per {unit}", "lower"),
            Metric("perplexity", "", "lower", is_exponential=True),
            Metric("accuracy", f"share of {unit}s", "higher"),
            Metric("in_vocabulary_accuracy", f"share of {unit}s in the vocabulary", "higher"),
            *(Metric(f"top_{k}_accuracy", f"share of {unit}s", "higher") for k in self._top),
        )
        if head is not None:
            of_head = f"share of the {head} most frequent {unit}s"
            names = ("head_accuracy", *(f"head_top_{k}_accuracy" for k in self._top))
            self.metrics += (
                *(Metric(name, of_head, "higher") for name in names),
                # A model that predicts only frequent words has learned little.
                Metric("head_predictions", "share of the predictions", "lower"),
            )

    @abstractmethod
    def states(self, parameters: Parameters, tokens: Tensor) -> Tensor:
        """Returns the inputs [G, B, T, E] of the output layer.

        The state of a word depends only on the tokens [G, B, T] up to it.
        """

    descends = False
    """Whether `descend` takes steps of this model, on the CPU."""

    def layers(self, parameters: Parameters) -> Layers:
        """Returns the parameters [G, *shape] of a model that descends."""
        raise NotImplementedError

    def descend(self, parameters: Parameters, batch: Batch, rate: float) -> Tensor:
        """Takes a step of SGD of each device in place, as the gradients of `losses` would up to
        rounding. Returns the losses [G] before it."""
        return self._descent.take(self.layers(parameters), batch["tokens"], rate)

    @abstractmethod
    def output(self, parameters: Parameters) -> tuple[Tensor, Tensor | None]:
        """Returns weights [G, V, E] and biases [G, V] (or None) of the output layer."""

    def losses(self, parameters: Parameters, batch: Batch) -> Tensor:
        states, targets = self._before_output(parameters, batch)
        weights, biases = self.output(parameters)
        if self._tokens.padding is None:
            return _OutputLoss.apply(states, weights, biases, targets).mean(dim=1)
        is_word = self._is_word(targets)
        # A batch of only padding has loss zero, not 0 / 0.
        counts = is_word.sum(dim=1).clamp(min=1)
        if len(states) == 1 and states.is_cpu:
            # A third of real text is padding, and the output layer is most of the work. Another
            # device would have to wait until the number of words is known.
            states = states[is_word][None]
            targets = targets[is_word][None]
            is_word = is_word[is_word][None]
        nats = _OutputLoss.apply(states, weights, biases, targets)
        return (nats * is_word).sum(dim=1) / counts

    def measure(self, parameters: Parameters, batch: Batch) -> Measures:
        states, targets = self._before_output(parameters, batch)
        weights, biases = self.output(parameters)
        devices, vocabulary, _ = weights.shape
        # The logits of all words may not fit into memory, so only some exist at a time.
        at_once = max(1, SCORES_AT_ONCE // (devices * vocabulary))
        nats_parts: list[Tensor] = []
        found_parts: list[Tensor] = []
        ranks_parts: list[Tensor] = []
        heads_parts: list[Tensor] = []
        parts = zip(states.split(at_once, 1), targets.split(at_once, 1), strict=True)
        for some_states, some_targets in parts:
            scores = _scores(some_states, weights, biases)
            flat_nats = functional.cross_entropy(
                scores.flatten(0, 1), some_targets.flatten(), reduction="none"
            )
            nats_parts.append(flat_nats.view_as(some_targets))
            found_parts.append(scores.argmax(dim=2) == some_targets)
            if self._top or self._head is not None:
                best = scores.topk(self._most, dim=2).indices
                # The rank of a word that is not among them is the number of those before it.
                is_after = (best == some_targets[..., None]).cumsum(dim=2)
                ranks_parts.append((is_after == 0).sum(dim=2))
                heads_parts.append(self._is_head(best).sum(dim=2))
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
        measures = {
            "loss": (text_nats, words),
            # `Metric.is_exponential` turns the same ratio into a perplexity.
            "perplexity": (text_nats, words),
            "accuracy": (per_text(is_found & is_word), words),
            "in_vocabulary_accuracy": (per_text(is_found & is_known), per_text(is_known)),
        }
        if not ranks_parts:
            return measures
        ranks = torch.cat(ranks_parts, dim=1)
        for k in self._top:
            measures[f"top_{k}_accuracy"] = per_text((ranks < k) & is_word), words
        if self._head is not None:
            is_head = self._is_head(targets) & is_word
            heads = per_text(is_head)
            measures["head_accuracy"] = per_text(is_found & is_head), heads
            for k in self._top:
                measures[f"head_top_{k}_accuracy"] = per_text((ranks < k) & is_head), heads
            predicted = torch.cat(heads_parts, dim=1) * is_word
            measures["head_predictions"] = per_text(predicted), self._most * words
        return measures

    def _before_output(self, parameters: Parameters, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns states [G, B T, E] and targets [G, B T]."""
        tokens = batch["tokens"]
        states = self.states(parameters, tokens[:, :, :-1])
        targets = tokens[:, :, 1:]
        return states.flatten(1, 2), targets.flatten(1)

    def _is_head(self, tokens: Tensor) -> Tensor:
        first, end = self._head or (0, 0)
        return (tokens >= first) & (tokens < end)

    def _is_word(self, targets: Tensor) -> Tensor:
        if self._tokens.padding is None:
            return torch.ones_like(targets, dtype=torch.bool)
        return targets != self._tokens.padding


def _head_of(tokens: Field, head: int) -> tuple[int, int]:
    """Returns the first token of the most frequent words, and the one after the last.

    Vocabularies number words by frequency after the tokens that are not words.

    Raises:
        ScenarioError: there are fewer words.
    """
    others = (tokens.padding, tokens.unknown, tokens.start, tokens.end)
    first = 1 + max((each for each in others if each is not None), default=-1)
    if first + head > tokens.values:
        raise ScenarioError(
            f"training.task.head={head}: the data numbers {tokens.values - first} {tokens.unit}s "
            "by their frequency; lower it, or leave it out"
        )
    return first, first + head


class _OutputLoss(torch.autograd.Function):
    """Cross-entropies [G, N] (nats) of states [G, N, E] under weights [G, V, E] and biases [G, V]
    or None, for targets [G, N].

    The logits of a large vocabulary take most of the memory. A gradient by hand computes them once,
    and turns them in place into exponentials and then into their own gradients.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weights: Tensor,
        biases: Tensor | None,
        targets: Tensor,
    ) -> Tensor:
        scores = _scores(states, weights, biases)
        own = scores.gather(2, targets[..., None])[..., 0]
        # Exponentials cannot overflow after the greatest score is subtracted.
        greatest = scores.amax(dim=2)
        if scores.is_cpu:
            _exponentiate(scores.numpy(), greatest.numpy())
        else:
            scores.sub_(greatest[..., None]).exp_()
        sums = scores.sum(dim=2)
        if any(ctx.needs_input_grad):
            ctx.exponentials = scores
            ctx.has_biases = biases is not None
            ctx.save_for_backward(states, weights, targets, sums)
        return sums.log() + greatest - own

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None, None]:
        states, weights, targets, sums = ctx.saved_tensors
        # The derivative of a cross-entropy by its logits is softmax - (1 at the target).
        slopes = ctx.exponentials.mul_((gradient / sums)[..., None])
        # They are overwritten, so a second backward pass would be wrong.
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


@njit(cache=True, nogil=True, error_model="numpy")
def _exponentiate(scores, greatest):
    """Turns scores [G, N, V] into exponentials of their distance to the greatest [G, N]."""
    for device in range(scores.shape[0]):
        for place in range(scores.shape[1]):
            row = scores[device, place]
            for word in range(row.size):
                row[word] = exp(row[word] - greatest[device, place])


def _scores(states: Tensor, weights: Tensor, biases: Tensor | None) -> Tensor:
    """Returns the logits [G, N, V]."""
    scores = torch.bmm(states, weights.transpose(1, 2))
    # In place: `baddbmm` would first copy the biases to every row, which takes longer.
    return scores if biases is None else scores.add_(biases[:, None, :])
