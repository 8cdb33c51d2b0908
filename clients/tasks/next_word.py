"""Next-word prediction: a small LSTM on a seeded synthetic language. Text is generated when asked
for; nothing is stored.

The language: 400 words, 8 topics. A topic ranks the words in an order of its own, with Zipf
frequencies. After a word, its one successor follows with probability 0.55 (the grammar, common to
all devices); otherwise the next word comes from the sentence's topic. A device mixes topics by
Dirichlet(0.3), so devices differ. The first of the eight words has no predecessor, so the best
accuracy is about one half (0.55 x 7 / 8 and what the topics give away).
"""

import math
from typing import ClassVar

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from clients.tasks.task import FIRST_HELD_OUT
from fedray.messages import Evaluation
from fedray.rng import Stream, draw, gamma, stream_generator, stream_key, uniform

WORDS = 400
TOPICS = 8
LENGTH = 8
SUCCESSOR_PROBABILITY = 0.55
TOPIC_CONCENTRATION = 0.3
START = WORDS
"""The token before the first word."""
EMBEDDING, HIDDEN = 32, 48
HELD_OUT_DEVICES, HELD_OUT_SENTENCES = 128, 4

SHAPES = {
    "embedding": (WORDS + 1, EMBEDDING),
    "input": (EMBEDDING, 4 * HIDDEN),
    "recurrent": (HIDDEN, 4 * HIDDEN),
    "gate_bias": (4 * HIDDEN,),
    "projection": (HIDDEN, EMBEDDING),
    "word_bias": (WORDS,),
}


class NextWord:
    """The task for one seed."""

    shapes: ClassVar[dict[str, tuple[int, ...]]] = SHAPES

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._text_key = stream_key(seed, Stream.TEXT)
        generator = stream_generator(seed, Stream.LANGUAGE)
        self._ranked = np.stack([generator.permutation(WORDS) for _ in range(TOPICS)]).astype(
            np.int64
        )
        self._successor = generator.permutation(WORDS).astype(np.int64)
        frequency = 1.0 / np.arange(1, WORDS + 1)
        self._zipf_edges = np.cumsum(frequency / frequency.sum())
        self._held_out: Tensor | None = None

    def initial_parameters(self) -> NDArray[np.float32]:
        """[D]: uniform within 1 / sqrt(fan-in), biases zero but for the forget gate's, which is
        1."""
        generator = stream_generator(self._seed, Stream.MODEL)
        parts = []
        for name, shape in SHAPES.items():
            if name.endswith("bias"):
                part = np.zeros(shape)
                if name == "gate_bias":
                    part[HIDDEN : 2 * HIDDEN] = 1.0
            else:
                fan_in = EMBEDDING if name == "embedding" else shape[0]
                part = generator.uniform(-1.0, 1.0, shape) / math.sqrt(fan_in)
            parts.append(part.ravel())
        return np.concatenate(parts).astype(np.float32)

    def device_examples(self, device_ids: NDArray[np.uint64], count: int) -> Tensor:
        """Sentences [G, count, LENGTH + 1] of word ids, the START token first."""
        return torch.from_numpy(
            _sentences(
                self._text_key, device_ids, count, self._ranked, self._successor, self._zipf_edges
            )
        )

    def losses(self, parameters: dict[str, Tensor], batch: Tensor) -> Tensor:
        """Mean cross-entropy (nats per word) [G] of sentences [G, B, LENGTH + 1]."""
        logits = _logits(parameters, batch[:, :, :-1])
        targets = batch[:, :, 1:].reshape(-1)
        nats = functional.cross_entropy(logits.view(-1, WORDS), targets, reduction="none")
        return nats.view(batch.shape[0], -1).mean(dim=1)

    def evaluate(self, parameters: dict[str, Tensor]) -> Evaluation:
        """On sentences of 128 devices that are in no population."""
        if self._held_out is None:
            ids = FIRST_HELD_OUT + np.arange(HELD_OUT_DEVICES, dtype=np.uint64)
            self._held_out = self.device_examples(ids, HELD_OUT_SENTENCES).view(1, -1, LENGTH + 1)
        with torch.no_grad():
            logits = _logits(parameters, self._held_out[:, :, :-1]).view(-1, WORDS)
            targets = self._held_out[:, :, 1:].reshape(-1)
            loss = functional.cross_entropy(logits, targets)
            accuracy = (logits.argmax(dim=1) == targets).double().mean()
        return Evaluation(float(loss), float(accuracy))


def _logits(parameters: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """[G, B * T, WORDS] for tokens [G, B, T]: each device has its own LSTM, so every product is
    batched over devices."""
    devices, batch, steps = tokens.shape
    table = parameters["embedding"]
    rows = tokens + (torch.arange(devices) * (WORDS + 1))[:, None, None]
    inputs = functional.embedding(
        rows.transpose(1, 2).reshape(devices, -1), table.reshape(-1, EMBEDDING)
    )
    gates = torch.baddbmm(parameters["gate_bias"][:, None, :], inputs, parameters["input"]).view(
        devices, steps, batch, -1
    )
    hidden = inputs.new_zeros(devices, batch, HIDDEN)
    cell = inputs.new_zeros(devices, batch, HIDDEN)
    states = []
    for gate in gates.unbind(dim=1):
        opening, candidate = torch.baddbmm(gate, hidden, parameters["recurrent"]).split(
            [3 * HIDDEN, HIDDEN], dim=2
        )
        admit, keep, emit = torch.sigmoid(opening).split(HIDDEN, dim=2)
        cell = keep * cell + admit * torch.tanh(candidate)
        hidden = emit * torch.tanh(cell)
        states.append(hidden)
    outputs = torch.stack(states, dim=2).reshape(devices, batch * steps, HIDDEN)
    words = table[:, :WORDS].transpose(1, 2)
    return torch.baddbmm(
        parameters["word_bias"][:, None, :], torch.bmm(outputs, parameters["projection"]), words
    )


@njit(cache=True)
def _sentences(key, device_ids, count, ranked, successor, zipf_edges):
    """Addresses: (device, 0, b) for the topic mixture, (device, 1 + sentence, position) for the
    words."""
    tokens = np.empty((device_ids.size, count, LENGTH + 1), np.int64)
    mixture = np.empty(TOPICS)
    for row in range(device_ids.size):
        device = device_ids[row]
        for topic in range(TOPICS):
            mixture[topic] = gamma(TOPIC_CONCENTRATION, key, device, 0, 1000 * topic)
        edges = np.cumsum(mixture / mixture.sum())
        for sentence in range(count):
            tokens[row, sentence, 0] = START
            w0, _, _, _ = draw(key, device, 1 + sentence, 0)
            topic = min(TOPICS - 1, np.searchsorted(edges, uniform(w0)))
            for position in range(1, LENGTH + 1):
                w0, w1, _, _ = draw(key, device, 1 + sentence, position)
                if position > 1 and uniform(w0) < SUCCESSOR_PROBABILITY:
                    word = successor[tokens[row, sentence, position - 1]]
                else:
                    word = ranked[topic, min(WORDS - 1, np.searchsorted(zipf_edges, uniform(w1)))]
                tokens[row, sentence, position] = word
    return tokens
