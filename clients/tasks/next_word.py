"""Next-word prediction: a small LSTM for the synthetic language of clients/data/language.py."""

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedray.base.errors import ScenarioError
from fedray.base.rng import Stream, stream_generator
from fedray.clients.data.source import Field
from fedray.clients.tasks.recurrence import recur
from fedray.clients.tasks.task import Batch, Parameters
from fedray.scenario.tasks import NextWordTask
from fedray.wire.messages import Metric

EMBEDDING, HIDDEN = 32, 48
WORDS = 400

SHAPES = {
    "embedding": (WORDS + 1, EMBEDDING),
    "input": (EMBEDDING, 4 * HIDDEN),
    "recurrent": (HIDDEN, 4 * HIDDEN),
    "gate_bias": (4 * HIDDEN,),
    "projection": (HIDDEN, EMBEDDING),
    "word_bias": (WORDS,),
}


class NextWord:
    """A small LSTM that predicts the next word; see fedray.clients.tasks.task.Task.

    The last token of the vocabulary stands before the first word, and is never predicted.

    Args:
        table: says that it is this task.
        seed: of the initial parameters.
        fields: of the data.

    Raises:
        ScenarioError: the data is another than the synthetic language.
    """

    shapes: ClassVar[Mapping[str, tuple[int, ...]]] = SHAPES
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("loss", "nats per word", "lower"),
        Metric("accuracy", "share of words", "higher"),
    )

    def __init__(self, table: NextWordTask, seed: int, fields: Mapping[str, Field]) -> None:
        tokens = fields.get("tokens")
        if tokens is None or tokens.values != WORDS + 1:
            raise ScenarioError(
                "training.task='next_word' is for data.kind='language'; take keyboard_lstm or "
                "transformer_lm for other text"
            )
        self._seed = seed

    def initial_parameters(self) -> NDArray[np.float32]:
        """The flat initial values [D], a function of the seed.

        Weights are uniform within 1 / sqrt(fan-in). Biases are zero but for the forget gate's,
        which is 1, so that the cell remembers from the start.
        """
        generator = stream_generator(self._seed, Stream.MODEL)
        parts: list[NDArray[np.float64]] = []
        for name, shape in SHAPES.items():
            if name.endswith("bias"):
                part = np.zeros(shape)
                if name == "gate_bias":
                    # The gates lie as `recur` has them: output, input, forget, candidate.
                    part[2 * HIDDEN : 3 * HIDDEN] = 1.0
            else:
                fan_in = EMBEDDING if name == "embedding" else shape[0]
                part = generator.uniform(-1.0, 1.0, shape) / math.sqrt(fan_in)
            parts.append(part.ravel())
        return np.concatenate(parts).astype(np.float32)

    def losses(self, parameters: Parameters, batch: Batch) -> Tensor:
        """Mean cross-entropy of each device's words, in nats, [G].

        Args:
            parameters: each device's own.
            batch: has the field `tokens` [G, B, L].
        """
        nats, _ = _nats_and_logits(parameters, batch["tokens"])
        return nats.mean(dim=(1, 2))

    def measure(self, parameters: Parameters, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """Nats and words found of each sentence, with its number of words as the weight.

        Args:
            parameters: each device's own.
            batch: has the field `tokens` [G, B, L].

        Returns:
            (numerators, weights), [G, B] both, by the name of the metric.
        """
        tokens = batch["tokens"]
        nats, logits = _nats_and_logits(parameters, tokens)
        likeliest = logits.argmax(dim=1).view_as(nats)
        is_found = likeliest == tokens.transpose(1, 2)[:, 1:]
        words = float(nats.shape[1])
        weights = torch.full(tokens.shape[:2], words)
        return {
            "loss": (nats.sum(dim=1), weights),
            "accuracy": (is_found.sum(dim=1), weights),
        }


def _nats_and_logits(parameters: Parameters, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropies and logits of tokens [G, B, L], in which T = L - 1 words are predicted.

    Steps come before sentences, so that what a step of the recurrence reads lies together.

    Returns:
        [G, T, B] and [G * T * B, WORDS].
    """
    by_step = tokens.transpose(1, 2)
    logits = _logits(parameters, by_step[:, :-1]).view(-1, WORDS)
    targets = by_step[:, 1:].reshape(-1)
    nats = functional.cross_entropy(logits, targets, reduction="none")
    return nats.view(by_step[:, 1:].shape), logits


def _logits(parameters: Parameters, tokens: Tensor) -> Tensor:
    """[G, T * B, WORDS] for tokens [G, T, B]: each device has its own LSTM, so every product is
    batched over devices."""
    devices = len(tokens)
    table = parameters["embedding"]
    # The tables of all devices are rows of one, so that the group is a single look-up.
    first_rows = torch.arange(devices) * (WORDS + 1)
    rows = tokens + first_rows[:, None, None]
    inputs = functional.embedding(rows.reshape(devices, -1), table.reshape(-1, EMBEDDING))
    gate_bias = parameters["gate_bias"][:, None, :]
    gates = torch.baddbmm(gate_bias, inputs, parameters["input"])
    states = recur(gates.view(*tokens.shape, -1), parameters["recurrent"], None)
    # The embedding is the output layer too, but for START, which is never predicted.
    words = table[:, :WORDS].transpose(1, 2)
    word_bias = parameters["word_bias"][:, None, :]
    projected = torch.bmm(states.view(devices, -1, HIDDEN), parameters["projection"])
    return torch.baddbmm(word_bias, projected, words)
