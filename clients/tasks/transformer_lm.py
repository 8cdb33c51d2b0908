"""A next-word transformer: pfl-research's model for Stack Overflow, after the field guide of
Wang et al. 2021, appendix B.2.

Embeddings times sqrt(E) plus sinusoids of the position (Vaswani et al. 2017, section 3.5), blocks
of causal attention and a feed-forward layer with the norm after each, and the transposed embedding
as the output layer. Dropout is left out: a loss is a function of parameters and examples. With the
default table and 10,000 tokens it has 1,962,528 parameters.

Shape suffixes: G devices, B texts, T words, E numbers of an embedding.
"""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedray.scenario.tasks import TransformerLmTask
from ..data.source import Fields
from .initial import (
    Parameter,
    by_fan_in,
    constant,
    dense_parameters,
    glorot,
    uniform,
    zeros,
)
from .layers import dense, embedded
from .task import Parameters
from .text import TextModel, tokens_of

EMBEDDING_BOUND = 0.05
LONGEST_WAVE = 10_000.0


class TransformerLm(TextModel):
    """A text model of causal attention.

    Padding needs no mask: it ends a text, and attention only looks back. Initial values are
    pfl-research's: embeddings uniform within 0.05; query, key and value weights Glorot's with zero
    biases; other weights and the feed-forward biases uniform within 1 / sqrt(fan-in).
    """

    def __init__(self, table: TransformerLmTask, seed: int, fields: Fields) -> None:
        tokens = tokens_of(table.kind, fields)
        width = table.embedding
        self._layers = table.layers
        self._heads = table.heads
        longest_text = tokens.shape[0] - 1
        self._positions = torch.from_numpy(_sinusoids(longest_text, width))
        parameters = {"embedding": Parameter((tokens.values, width), uniform(EMBEDDING_BOUND))}
        for layer in range(table.layers):
            of_layer = _layer_parameters(width, table.feedforward)
            for name, parameter in of_layer.items():
                parameters[f"layer_{layer}.{name}"] = parameter
        super().__init__(tokens, parameters, seed)

    def states(self, parameters: Parameters, tokens: Tensor) -> Tensor:
        inputs = embedded(parameters["embedding"], tokens)
        words, width = inputs.shape[2:]
        positions = self._positions.to(inputs)[:words]
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
        return parameters["embedding"], None

    def _block(self, own: Parameters, states: Tensor) -> Tensor:
        """Applies one layer to states [G, B, T, E]."""

        def layer(name: str, rows: Tensor) -> Tensor:
            return dense(rows, own[name], own[f"{name}_bias"])

        def normed(name: str, rows: Tensor) -> Tensor:
            whitened = functional.layer_norm(rows, rows.shape[2:])
            scale = own[name][:, None, :]
            shift = own[f"{name}_bias"][:, None, :]
            return torch.addcmul(shift, whitened, scale)

        _, _, words, width = states.shape
        # Dense layers treat words independently, so texts and words form one axis.
        rows = states.flatten(1, 2)
        # One product gives queries, keys and values of all heads.
        attended = layer("attend", rows)
        by_head = attended.view(-1, words, 3, self._heads, width // self._heads)
        # Attention wants heads before words.
        query, key, value = by_head.permute(2, 0, 3, 1, 4).unbind()
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        heads_joined = mixed.transpose(1, 2).reshape(rows.shape)
        # The norm follows each sum, as in Vaswani et al. 2017.
        rows = normed("attend_norm", rows + layer("mix", heads_joined))
        inner = torch.relu_(layer("expand", rows))
        rows = normed("contract_norm", rows + layer("contract", inner))
        return rows.view(states.shape)


def _layer_parameters(width: int, inner: int) -> dict[str, Parameter]:
    """Returns the parameters of one layer, in the order of the draws and of the flat vector."""
    ones = Parameter((width,), constant(1.0))
    shift = Parameter((width,), zeros)
    expand = by_fan_in(width)
    contract = by_fan_in(inner)
    return {
        **dense_parameters("attend", width, 3 * width, glorot(width, 3 * width), zeros),
        **dense_parameters("mix", width, width, by_fan_in(width), zeros),
        "attend_norm": ones,
        "attend_norm_bias": shift,
        **dense_parameters("expand", width, inner, expand, expand),
        **dense_parameters("contract", inner, width, contract, contract),
        "contract_norm": ones,
        "contract_norm_bias": shift,
    }


def _sinusoids(length: int, width: int) -> np.ndarray:
    """Returns [length, width]: sines at even places, cosines at odd ones."""
    slowing = -math.log(LONGEST_WAVE) / width
    rates = np.exp(np.arange(0, width, 2) * slowing)
    angles = np.arange(length)[:, None] * rates
    pairs = np.stack([np.sin(angles), np.cos(angles)], axis=2)
    return pairs.reshape(length, width)
