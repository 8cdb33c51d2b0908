"""Recurrent next-word models, as keyboards use them.

Parameters at a vocabulary of 10,000 tokens and an embedding of 96, as in the literature:

* the default, a CIFG-LSTM of 670 units with a recurrent projection to the embedding, and separate
  input and output embeddings (Gboard's models of 2.4 M, Xu et al. 2023): 2,382,250;
* the same, `tied` (Hard et al. 2018, 1.4 M): 1,412,250;
* `tied`, `cell = "lstm"`, `hidden = 256` (McMahan et al. 2018, 1.35 M): 1,346,144;
* `cell = "lstm"` at 10,004 tokens (Stack Overflow in TensorFlow Federated): 4,050,748.

The character model of Shakespeare (Reddi et al. 2021) has two layers of 256 LSTM units, an
embedding of 8 and no projection: 820,522 at 90 characters.
"""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedray.scenario.tasks import KeyboardLstmTask
from ..data.source import Fields
from .descent import Layers
from .initial import Parameter, glorot, orthogonal, uniform, zeros
from .layers import dense, embedded
from .recurrence import recur
from .task import Parameters
from .text import TextModel, tokens_of

EMBEDDING_BOUND = 0.05


class KeyboardLstm(TextModel):
    """A text model with recurrent layers between an embedding and an output layer.

    Initial values are as in TensorFlow Federated: embeddings uniform within 0.05, other weights
    Glorot's, recurrent weights orthogonal, biases zero except the forget gate's, which is 1.
    """

    def __init__(self, table: KeyboardLstmTask, seed: int, fields: Fields) -> None:
        tokens = tokens_of(table.kind, fields)
        self._is_coupled = table.cell == "cifg"
        self._is_tied = table.tied
        self._is_unit = table.unit_embeddings
        self._is_projected = table.projected
        words = tokens.values
        embedding = table.embedding
        hidden = table.hidden
        gates = (3 if self._is_coupled else 4) * hidden
        # A CIFG-LSTM projects to the embedding inside the recurrence, an LSTM after it.
        state = embedding if self._is_coupled else hidden

        def gate_bias(generator: np.random.Generator, shape: tuple[int, ...]) -> NDArray:
            bias = np.zeros(shape)
            # The forget gate is the last before the candidate.
            bias[-2 * hidden : -hidden] = 1.0
            return bias

        parameters = {"embedding": Parameter((words, embedding), uniform(EMBEDDING_BOUND))}
        # The first layer has the names of models of one layer.
        self._suffixes = ("", *(f"_{layer}" for layer in range(2, table.layers + 1)))
        read = embedding
        for suffix in self._suffixes:
            parameters[f"input{suffix}"] = Parameter((read, gates), glorot(read, gates))
            parameters[f"recurrent{suffix}"] = Parameter((state, gates), orthogonal)
            parameters[f"gate_bias{suffix}"] = Parameter((gates,), gate_bias)
            # A CIFG-LSTM has a projection in every layer, an LSTM one after the last.
            if self._is_coupled or (table.projected and suffix == self._suffixes[-1]):
                name = f"projection{suffix if self._is_coupled else ''}"
                parameters[name] = Parameter((hidden, embedding), glorot(hidden, embedding))
            read = state
        if not self._is_coupled and table.projected:
            parameters["projection_bias"] = Parameter((embedding,), zeros)
        if not self._is_tied:
            read = embedding if table.projected else hidden
            parameters["output"] = Parameter((words, read), glorot(read, words))
            parameters["output_bias"] = Parameter((words,), zeros)
        super().__init__(tokens, parameters, seed, table.top, table.head)

    def _embedding(self, parameters: Parameters) -> Tensor:
        """Returns the embeddings [G, V, E]."""
        embedding = parameters["embedding"]
        return functional.normalize(embedding, dim=2) if self._is_unit else embedding

    @property
    def descends(self) -> bool:
        return len(self._suffixes) == 1 and self._is_projected and not self._is_unit

    def layers(self, parameters: Parameters) -> Layers:
        embedding = parameters["embedding"]
        none = embedding[:, :0]
        return Layers(
            embedding=embedding,
            inputs=parameters["input"],
            gate_bias=parameters["gate_bias"],
            recurrent=parameters["recurrent"],
            projection=parameters["projection"],
            projection_bias=parameters.get("projection_bias", none[..., 0]),
            output=parameters.get("output", none),
            output_bias=parameters.get("output_bias", none[..., 0]),
        )

    def states(self, parameters: Parameters, tokens: Tensor) -> Tensor:
        devices, batch, steps = tokens.shape
        # Steps precede texts, so that one step of the recurrence reads contiguous memory.
        by_step = tokens.transpose(1, 2)
        states = embedded(self._embedding(parameters), by_step)
        for suffix in self._suffixes:
            states = recur(
                states,
                parameters[f"input{suffix}"],
                parameters[f"gate_bias{suffix}"],
                parameters[f"recurrent{suffix}"],
                parameters[f"projection{suffix}"] if self._is_coupled else None,
            )
        if not self._is_coupled and self._is_projected:
            projection, bias = parameters["projection"], parameters["projection_bias"]
            flat = dense(states.flatten(1, 2), projection, bias)
            states = flat.view(devices, steps, batch, -1)
        return states.transpose(1, 2)

    def output(self, parameters: Parameters) -> tuple[Tensor, Tensor | None]:
        if self._is_tied:
            return self._embedding(parameters), None
        return parameters["output"], parameters["output_bias"]
