"""A transformer of the next word: pfl-research's model for Stack Overflow, after the field guide of
Wang et al. 2021, appendix B.2.

Embeddings times sqrt(E) plus sinusoids of the position (Vaswani et al. 2017, section 3.5), blocks
of causal attention and a feed-forward layer with the norm after each, and the transposed embedding
as the output layer. It is here without dropout: a loss is a function of parameters and examples.
With the default table and 10,000 tokens it has 1,962,528 parameters.

Shape suffixes: G devices, B texts, T words, E numbers of an embedding.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from clients.data.source import Field
from clients.tasks.initial import Draw, Parameter, constant, glorot, uniform
from clients.tasks.task import Parameters
from clients.tasks.text import TextModel, embedded, tokens_of
from fedray.scenario import TransformerLmTask

EMBEDDING_BOUND = 0.05
LONGEST_WAVE = 10_000.0


class TransformerLm(TextModel):
    """See TextModel.

    No mask of padding is needed: it comes last in a text, and attention only looks back. The
    initial values are pfl-research's: embeddings uniform within 0.05, query, key and value Glorot's
    with biases of zero, other weights and the feed-forward biases uniform within 1 / sqrt(fan-in).

    Args:
        table: says the widths.
        seed: of the initial parameters.
        fields: of the data.
    """

    def __init__(self, table: TransformerLmTask, seed: int, fields: Mapping[str, Field]) -> None:
        tokens = tokens_of(table.kind, fields)
        width, inner = table.embedding, table.feedforward
        self._layers, self._heads = table.layers, table.heads
        self._positions = torch.from_numpy(_sinusoids(tokens.shape[0] - 1, width))
        parameters = {"embedding": Parameter((tokens.values, width), uniform(EMBEDDING_BOUND))}
        for layer in range(table.layers):
            of_layer = {
                **_dense("attend", width, 3 * width, glorot(width, 3 * width), constant(0.0)),
                **_dense("mix", width, width, _by_fan_in(width), constant(0.0)),
                **_norm("attend_norm", width),
                **_dense("expand", width, inner, _by_fan_in(width), _by_fan_in(width)),
                **_dense("contract", inner, width, _by_fan_in(inner), _by_fan_in(inner)),
                **_norm("contract_norm", width),
            }
            parameters |= {f"layer_{layer}.{name}": each for name, each in of_layer.items()}
        super().__init__(tokens, parameters, seed)

    def states(self, parameters: Parameters, tokens: Tensor) -> Tensor:
        """See TextModel."""
        inputs = embedded(parameters["embedding"], tokens)
        positions = self._positions[: tokens.shape[2]].to(inputs.dtype)
        states = inputs * math.sqrt(inputs.shape[3]) + positions
        for layer in range(self._layers):
            prefix = f"layer_{layer}."
            own = {
                name.removeprefix(prefix): part
                for name, part in parameters.items()
                if name.startswith(prefix)
            }
            states = self._block(own, states)
        return states

    def output(self, parameters: Parameters) -> tuple[Tensor, None]:
        """See TextModel."""
        return parameters["embedding"], None

    def _block(self, own: Parameters, states: Tensor) -> Tensor:
        """One layer on states [G, B, T, E]."""
        shape = states.shape
        rows = states.flatten(1, 2)
        heads = (-1, shape[2], 3, self._heads, shape[3] // self._heads)
        split = _applied(own, "attend", rows).view(heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind()
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        seen = _applied(own, "mix", mixed.transpose(1, 2).reshape(rows.shape))
        rows = _normed(own, "attend_norm", rows + seen)
        inner = torch.relu_(_applied(own, "expand", rows))
        rows = _normed(own, "contract_norm", rows + _applied(own, "contract", inner))
        return rows.view(shape)


def _sinusoids(length: int, width: int) -> np.ndarray:
    """[length, width]: sines at even places, cosines at odd ones."""
    rates = np.exp(np.arange(0, width, 2) * (-math.log(LONGEST_WAVE) / width))
    angles = np.arange(length)[:, None] * rates
    return np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(length, width)


def _by_fan_in(fan_in: int) -> Draw:
    return uniform(1.0 / math.sqrt(fan_in))


def _dense(name: str, rows: int, columns: int, weight: Draw, bias: Draw) -> dict[str, Parameter]:
    return {name: Parameter((rows, columns), weight), f"{name}_bias": Parameter((columns,), bias)}


def _norm(name: str, width: int) -> dict[str, Parameter]:
    scale, shift = Parameter((width,), constant(1.0)), Parameter((width,), constant(0.0))
    return {name: scale, f"{name}_bias": shift}


def _applied(own: Parameters, name: str, rows: Tensor) -> Tensor:
    return torch.baddbmm(own[f"{name}_bias"][:, None, :], rows, own[name])


def _normed(own: Parameters, name: str, rows: Tensor) -> Tensor:
    normed = functional.layer_norm(rows, rows.shape[2:])
    return torch.addcmul(own[f"{name}_bias"][:, None, :], normed, own[name][:, None, :])
