"""Next-word prediction: a small LSTM for the synthetic language of clients/data/language.py."""

import math
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedray.base.errors import ScenarioError
from fedray.scenario.tasks import NextWordTask
from fedray.wire.messages import Metric
from ..data.language import WORDS
from ..data.source import Fields
from .initial import Draw, DrawnModel, Parameter, zeros
from .layers import dense, embedded
from .recurrence import recur
from .task import Batch, Measures, Parameters
from .text import OutputLoss

EMBEDDING, HIDDEN = 32, 48


def _within(fan_in: int) -> Draw:
    """Returns a draw that is uniform within 1 / sqrt(fan_in); its last bits differ from
    `by_fan_in`."""
    return lambda generator, shape: generator.uniform(-1.0, 1.0, shape) / math.sqrt(fan_in)


def _gate_bias(generator: np.random.Generator, shape: tuple[int, ...]) -> NDArray:
    bias = np.zeros(shape)
    # Gates lie in the order of `recur`: output, input, forget, candidate. With 1 in the forget
    # gate, the cell remembers from the start.
    bias[2 * HIDDEN : 3 * HIDDEN] = 1.0
    return bias


_PARAMETERS = {
    "embedding": Parameter((WORDS + 1, EMBEDDING), _within(EMBEDDING)),
    "input": Parameter((EMBEDDING, 4 * HIDDEN), _within(EMBEDDING)),
    "recurrent": Parameter((HIDDEN, 4 * HIDDEN), _within(HIDDEN)),
    "gate_bias": Parameter((4 * HIDDEN,), _gate_bias),
    "projection": Parameter((HIDDEN, EMBEDDING), _within(HIDDEN)),
    "word_bias": Parameter((WORDS,), zeros),
}


class NextWord(DrawnModel):
    """A small LSTM that predicts the next word; see fedray.clients.tasks.task.Task.

    The last token of the vocabulary precedes the first word, and is never predicted. Initial
    weights are uniform within 1 / sqrt(fan-in).

    Raises:
        ScenarioError: the data is not the synthetic language.
    """

    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("loss", "nats per word", "lower"),
        Metric("accuracy", "share of words", "higher"),
    )

    def __init__(self, table: NextWordTask, seed: int, fields: Fields) -> None:
        tokens = fields.get("tokens")
        if tokens is None or tokens.values != WORDS + 1:
            raise ScenarioError(
                "training.task='next_word' needs data.kind='language'; choose keyboard_lstm or "
                "transformer_lm for other text"
            )
        super().__init__(_PARAMETERS, seed)

    def losses(self, parameters: Parameters, batch: Batch) -> Tensor:
        inputs, targets = _by_step(batch["tokens"])
        projected, words, biases = _before_logits(parameters, inputs)
        nats = OutputLoss.apply(projected, words, biases, targets.flatten(1))
        return nats.mean(dim=1)

    def measure(self, parameters: Parameters, batch: Batch) -> Measures:
        tokens = batch["tokens"]
        inputs, targets = _by_step(tokens)
        projected, table, biases = _before_logits(parameters, inputs)
        logits = dense(projected, table.transpose(1, 2), biases).flatten(0, 1)
        nats = functional.cross_entropy(logits, targets.flatten(), reduction="none")
        nats = nats.view(targets.shape)
        is_found = logits.argmax(dim=1).view_as(targets) == targets
        words = float(nats.shape[1])
        weights = torch.full(tokens.shape[:2], words, device=tokens.device)
        return {
            "loss": (nats.sum(dim=1), weights),
            "accuracy": (is_found.sum(dim=1), weights),
        }


def _by_step(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Returns inputs and targets [G, T, B] of tokens [G, B, T + 1]."""
    # Steps precede sentences, so that one step of the recurrence reads contiguous memory.
    by_step = tokens.transpose(1, 2)
    return by_step[:, :-1], by_step[:, 1:]


def _before_logits(parameters: Parameters, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the states [G, T B, E] before the output layer, and its weights and biases."""
    table = parameters["embedding"]
    weights, biases = parameters["input"], parameters["gate_bias"]
    states = recur(embedded(table, tokens), weights, biases, parameters["recurrent"], None)
    projected = torch.bmm(states.flatten(1, 2), parameters["projection"])
    # The embedding is the output layer too, without START, which is never predicted.
    return projected, table[:, :WORDS], parameters["word_bias"]
