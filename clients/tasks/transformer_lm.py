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

from fedray.clients.data.source import Field
from fedray.clients.tasks.initial import Draw, Parameter, constant, glorot, uniform
from fedray.clients.tasks.task import Parameters
from fedray.clients.tasks.text import TextModel, embedded, tokens_of
from fedray.scenario.tasks import TransformerLmTask

EMBEDDING_BOUND = 0.05
LONGEST_WAVE = 10_000.0


class TransformerLm(TextModel):
    """A text model of causal attention.

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
        width = table.embedding
        self._layers = table.layers
        self._heads = table.heads
        longest_text = tokens.shape[0] - 1
        self._positions = torch.from_numpy(_sinusoids(longest_text, width))
        vocabulary = tokens.values
        parameters = {"embedding": Parameter((vocabulary, width), uniform(EMBEDDING_BOUND))}
        for layer in range(table.layers):
            of_layer = _layer_parameters(width, table.feedforward)
            for name, parameter in of_layer.items():
                parameters[f"layer_{layer}.{name}"] = parameter
        super().__init__(tokens, parameters, seed)

    def states(self, parameters: Parameters, tokens: Tensor) -> Tensor:
        """What the last layer gives, [G, B, T, E], by the `parameters` for `tokens` [G, B, T]."""
        inputs = embedded(parameters["embedding"], tokens)
        words, width = inputs.shape[2:]
        positions = self._positions[:words].to(inputs.dtype)
        states = inputs * math.sqrt(width) + positions
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
        """The embedding among the `parameters`, which is the output layer too; no biases."""
        return parameters["embedding"], None

    def _block(self, own: Parameters, states: Tensor) -> Tensor:
        """One layer on states [G, B, T, E]."""
        _, _, words, width = states.shape
        # Dense layers treat each word alone, so texts and words are one axis.
        rows = states.flatten(1, 2)
        # One product gives queries, keys and values of all heads.
        attended = _applied(own, "attend", rows)
        by_head = attended.view(-1, words, 3, self._heads, width // self._heads)
        # The three parts come first, to be taken apart, then heads before words, for the attention.
        query, key, value = by_head.permute(2, 0, 3, 1, 4).unbind()
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        heads_joined = mixed.transpose(1, 2).reshape(rows.shape)
        seen = _applied(own, "mix", heads_joined)
        # The norm follows each part and what it is added to, as in Vaswani et al. 2017.
        rows = _normed(own, "attend_norm", rows + seen)
        inner = torch.relu_(_applied(own, "expand", rows))
        contracted = _applied(own, "contract", inner)
        rows = _normed(own, "contract_norm", rows + contracted)
        return rows.view(states.shape)


def _layer_parameters(width: int, inner: int) -> dict[str, Parameter]:
    """The parameters of one layer. Their order is that of the draws and of the flat vector."""
    attend_weight = glorot(width, 3 * width)
    mix_weight = _by_fan_in(width)
    expand = _by_fan_in(width)
    contract = _by_fan_in(inner)
    return {
        **_dense("attend", width, 3 * width, attend_weight, constant(0.0)),
        **_dense("mix", width, width, mix_weight, constant(0.0)),
        **_norm("attend_norm", width),
        **_dense("expand", width, inner, expand, expand),
        **_dense("contract", inner, width, contract, contract),
        **_norm("contract_norm", width),
    }


def _sinusoids(length: int, width: int) -> np.ndarray:
    """[length, width]: sines at even places, cosines at odd ones."""
    slowing = -math.log(LONGEST_WAVE) / width
    rates = np.exp(np.arange(0, width, 2) * slowing)
    angles = np.arange(length)[:, None] * rates
    pairs = np.stack([np.sin(angles), np.cos(angles)], axis=2)
    return pairs.reshape(length, width)


def _by_fan_in(fan_in: int) -> Draw:
    return uniform(1.0 / math.sqrt(fan_in))


def _dense(name: str, rows: int, columns: int, weight: Draw, bias: Draw) -> dict[str, Parameter]:
    return {
        name: Parameter((rows, columns), weight),
        f"{name}_bias": Parameter((columns,), bias),
    }


def _norm(name: str, width: int) -> dict[str, Parameter]:
    return {
        name: Parameter((width,), constant(1.0)),
        f"{name}_bias": Parameter((width,), constant(0.0)),
    }


def _applied(own: Parameters, name: str, rows: Tensor) -> Tensor:
    """A dense layer of each device on its rows [G, B T, ...]."""
    bias = own[f"{name}_bias"][:, None, :]
    return torch.baddbmm(bias, rows, own[name])


def _normed(own: Parameters, name: str, rows: Tensor) -> Tensor:
    """A layer norm of each device on its rows [G, B T, E]."""
    normed = functional.layer_norm(rows, rows.shape[2:])
    scale = own[name][:, None, :]
    shift = own[f"{name}_bias"][:, None, :]
    return torch.addcmul(shift, normed, scale)
