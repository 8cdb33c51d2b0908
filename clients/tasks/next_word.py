"""Next-word prediction: a small LSTM for the synthetic language of clients/data/language.py."""

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedray.clients.data.source import Field
from fedray.clients.tasks.task import Batch, Parameters
from fedray.errors import ScenarioError
from fedray.messages import Metric
from fedray.rng import Stream, stream_generator
from fedray.scenario.tasks import NextWordTask

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
                    # The gates lie in this order: input, forget, output, candidate.
                    part[HIDDEN : 2 * HIDDEN] = 1.0
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
        devices = nats.shape[0]
        return nats.view(devices, -1).mean(dim=1)

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
        is_found = likeliest == tokens[:, :, 1:]
        words = float(nats.shape[2])
        weights = torch.full(tokens.shape[:2], words)
        return {
            "loss": (nats.sum(dim=2), weights),
            "accuracy": (is_found.sum(dim=2), weights),
        }


def _nats_and_logits(parameters: Parameters, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropies [G, B, L - 1] and logits [G * B * (L - 1), WORDS] of tokens [G, B, L]."""
    logits = _logits(parameters, tokens[:, :, :-1]).view(-1, WORDS)
    targets = tokens[:, :, 1:].reshape(-1)
    nats = functional.cross_entropy(logits, targets, reduction="none")
    return nats.view(*tokens.shape[:2], -1), logits


def _logits(parameters: Parameters, tokens: Tensor) -> Tensor:
    """[G, B * T, WORDS] for tokens [G, B, T]: each device has its own LSTM, so every product is
    batched over devices."""
    devices, batch, steps = tokens.shape
    table = parameters["embedding"]
    # The tables of all devices are rows of one, so that the group is a single look-up.
    first_rows = torch.arange(devices) * (WORDS + 1)
    rows = tokens + first_rows[:, None, None]
    # Steps come before sentences, so that what one step of the recurrence reads lies together.
    by_step = rows.transpose(1, 2).reshape(devices, -1)
    inputs = functional.embedding(by_step, table.reshape(-1, EMBEDDING))
    gate_bias = parameters["gate_bias"][:, None, :]
    flat_gates = torch.baddbmm(gate_bias, inputs, parameters["input"])
    gates = flat_gates.view(devices, steps, batch, -1)
    hidden = inputs.new_zeros(devices, batch, HIDDEN)
    cell = inputs.new_zeros(devices, batch, HIDDEN)
    states: list[Tensor] = []
    for of_inputs in gates.unbind(dim=1):
        gate = torch.baddbmm(of_inputs, hidden, parameters["recurrent"])
        opening, candidate = gate.split([3 * HIDDEN, HIDDEN], dim=2)
        admit, keep, emit = torch.sigmoid(opening).split(HIDDEN, dim=2)
        cell = keep * cell + admit * torch.tanh(candidate)
        hidden = emit * torch.tanh(cell)
        states.append(hidden)
    outputs = torch.stack(states, dim=2).reshape(devices, batch * steps, HIDDEN)
    # The embedding is the output layer too, but for START, which is never predicted.
    words = table[:, :WORDS].transpose(1, 2)
    word_bias = parameters["word_bias"][:, None, :]
    projected = torch.bmm(outputs, parameters["projection"])
    return torch.baddbmm(word_bias, projected, words)
