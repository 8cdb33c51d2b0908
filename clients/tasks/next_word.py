"""Next-word prediction: a small LSTM for the synthetic language of clients/data/language.py."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedray.base.errors import ScenarioError
from fedray.scenario.tasks import NextWordTask
from ..data.language import WORDS
from ..data.source import Fields
from .descent import Layers
from .initial import Draw, Parameter, zeros
from .layers import embedded
from .recurrence import recur
from .task import Batch, Measures, Parameters
from .text import TextModel

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


class NextWord(TextModel):
    """A small LSTM that predicts the next word; see fedray.clients.tasks.task.Task.

    The last token of the vocabulary precedes the first word, and is never predicted. Initial
    weights are uniform within 1 / sqrt(fan-in).

    Raises:
        ScenarioError: the data is not the synthetic language.
    """

    def __init__(self, table: NextWordTask, seed: int, fields: Fields) -> None:
        tokens = fields.get("tokens")
        if tokens is None or tokens.values != WORDS + 1:
            raise ScenarioError(
                "training.task='next_word' needs data.kind='language'; set that, or choose "
                "keyboard_lstm for other text, and logistic, mlp or image_cnn for classes"
            )
        super().__init__(tokens, _PARAMETERS, seed)
        self.metrics = tuple(each for each in self.metrics if each.name in ("loss", "accuracy"))

    def measure(self, parameters: Parameters, batch: Batch) -> Measures:
        every = super().measure(parameters, batch)
        return {metric.name: every[metric.name] for metric in self.metrics}

    descends = True

    def layers(self, parameters: Parameters) -> Layers:
        embedding = parameters["embedding"]
        return Layers(
            embedding=embedding,
            inputs=parameters["input"],
            gate_bias=parameters["gate_bias"],
            recurrent=parameters["recurrent"],
            projection=parameters["projection"],
            projection_bias=embedding[:, :0, 0],
            output=embedding[:, :0],
            output_bias=parameters["word_bias"],
        )

    def states(self, parameters: Parameters, tokens: Tensor) -> Tensor:
        # Steps precede sentences, so that one step of the recurrence reads contiguous memory.
        inputs = embedded(parameters["embedding"], tokens.transpose(1, 2))
        weights, biases = parameters["input"], parameters["gate_bias"]
        states = recur(inputs, weights, biases, parameters["recurrent"], None)
        projected = torch.bmm(states.flatten(1, 2), parameters["projection"])
        return projected.view(*inputs.shape[:3], -1).transpose(1, 2)

    def output(self, parameters: Parameters) -> tuple[Tensor, Tensor]:
        # The embedding is the output layer too, without START, which is never predicted.
        return parameters["embedding"][:, :WORDS], parameters["word_bias"]
