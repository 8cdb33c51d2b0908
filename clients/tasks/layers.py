"""Layers of a group: each of the G devices applies weights of its own."""

import torch
from torch import Tensor
from torch.nn import functional


def dense(rows: Tensor, weights: Tensor, biases: Tensor) -> Tensor:
    """Returns rows [G, N, in] times weights [G, in, out], plus biases [G, out]."""
    return torch.baddbmm(biases[:, None, :], rows, weights)


def embedded(table: Tensor, tokens: Tensor) -> Tensor:
    """Looks up each device's own embeddings of its tokens.

    Args:
        table: embeddings of the devices, [G, V, E].
        tokens: numbers below V, [G, ...].

    Returns:
        Embeddings [G, ..., E].
    """
    devices, words, width = table.shape
    # The tables become the rows of a single one, so that the group needs one look-up.
    first_rows = torch.arange(devices, device=tokens.device) * words
    ones = (1,) * (tokens.dim() - 1)
    rows = tokens + first_rows.view(-1, *ones)
    return functional.embedding(rows, table.reshape(-1, width))
