"""Steps of SGD of text models of one recurrent layer, compiled whole: the fast twin of
`TextModel.losses` and its gradients.

Devices take their steps one after the other, so that a core's cache holds a step's numbers, and
products add the gradients of weights to the weights: no gradient exists. A device's bits depend on
no other device.

Shape suffixes: G devices, B texts, T words, N = T B places in order of time, V words that are
predicted, E numbers of an embedding, H units of the cell.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.base.compiled import njit
from .blas import add_outer, multiply, multiply_turned, sgemm_address
from .exponentials import exp
from .recurrence import step, step_back

_LANES = 16
_LINE = 16
"""Numbers in a line of the cache."""


class Layers(NamedTuple):
    """Parameters of G devices. A model without a bias has one of no numbers [G, 0]; one that
    predicts by its embedding has an output of no words [G, 0, E]."""

    embedding: Tensor
    """[G, words, E]."""
    inputs: Tensor
    """Weights from embeddings to gates, [G, E, gates H]; see `recur`."""
    gate_bias: Tensor
    """[G, gates H]."""
    recurrent: Tensor
    """Weights from states to gates, [G, H or E, gates H]."""
    projection: Tensor
    """[G, H, E]; inside the recurrence if gates are coupled, and after it if not."""
    projection_bias: Tensor
    """[G, E] or [G, 0]."""
    output: Tensor
    """[G, V, E] or [G, 0, E]."""
    output_bias: Tensor
    """[G, V] or [G, 0]."""


class Descent:
    """Takes steps of text models. `padding` is a token that is not predicted; None for none."""

    def __init__(self, padding: int | None) -> None:
        self._padding = -1 if padding is None else padding
        self._sgemm = sgemm_address()
        self._scratch = torch.empty(0)

    def take(self, layers: Layers, tokens: Tensor, rate: float) -> Tensor:
        """Takes a step of SGD in place on texts [G, B, T + 1]. Returns the losses [G] before it."""
        devices, batch, length = tokens.shape
        places = (length - 1) * batch
        words = max(layers.output.shape[1], layers.output_bias.shape[1])
        words = words or layers.embedding.shape[1]
        _, units, width = layers.projection.shape
        gates = layers.inputs.shape[2]
        of_place = words + 2 * gates + 5 * width + 4 * units
        of_text = gates + 2 * units
        needed = of_place * places + of_text * batch + max(words, gates, width) + 15 * _LINE
        # Kept, because new pages cost as much as a step; and torch's memory begins at a cache line,
        # on which the last bits of products may depend.
        if self._scratch.numel() < needed:
            self._scratch = torch.empty(needed)
        losses = torch.empty(devices)
        _descend(
            self._sgemm,
            tuple(part.numpy() for part in layers),
            tokens.contiguous().numpy(),
            (words, self._padding, np.float32(rate)),
            self._scratch.numpy(),
            losses.numpy(),
        )
        return losses


@njit(cache=True, nogil=True, error_model="numpy")
def _descend(sgemm, layers, tokens, setting, scratch, losses):
    """See `Descent.take`; the setting is (V, padding, learning rate)."""
    embedding, inputs, gate_bias, recurrent = layers[:4]
    projection, projection_bias, output, output_bias = layers[4:]
    words, padding, rate = setting
    batch, steps = tokens.shape[1], tokens.shape[2] - 1
    units, width = projection.shape[1], projection.shape[2]
    gates_width = inputs.shape[2]
    places = steps * batch
    is_coupled = gates_width == 3 * units
    at, read = _part(scratch, 0, places, width)
    at, flat_gates = _part(scratch, at, places, gates_width)
    at, flat_cells = _part(scratch, at, places + batch, units)
    at, flat_tanhs = _part(scratch, at, places, units)
    at, outputs = _part(scratch, at, places, units)
    at, states = _part(scratch, at, places, width)
    at, added = _part(scratch, at, batch, gates_width)
    at, seen = _part(scratch, at, places, width)
    at, scores = _part(scratch, at, places, words)
    at, seen_slopes = _part(scratch, at, places, width)
    at, state_slopes = _part(scratch, at, places, width)
    at, output_slopes = _part(scratch, at, places, units)
    at, cell_slope = _part(scratch, at, batch, units)
    at, flat_slopes = _part(scratch, at, places, gates_width)
    widest = max(words, gates_width, width)
    totals = scratch[at : at + widest]
    # A step reads the arrays of a group, here of one device.
    gates = flat_gates.reshape(1, steps, batch, gates_width)
    slopes = flat_slopes.reshape(1, steps, batch, gates_width)
    cells = flat_cells.reshape(1, steps + 1, batch, units)
    tanhs = flat_tanhs.reshape(1, steps, batch, units)
    output_at = outputs.reshape(1, steps, batch, units)
    added_at = added.reshape(1, batch, gates_width)
    cell_slope_at = cell_slope.reshape(1, batch, units)
    for device in range(tokens.shape[0]):
        own = tokens[device]
        table, weights, back = embedding[device], inputs[device], recurrent[device]
        project = projection[device]
        decode = output[device] if output.shape[1] else table[:words]
        for t in range(steps):
            for text in range(batch):
                read[t * batch + text] = table[own[text, t]]
        multiply(sgemm, read, weights, flat_gates)
        cells[0, 0] = 0.0
        added[:] = 0.0
        for t in range(steps):
            first, end = t * batch, (t + 1) * batch
            if t > 0:
                before = states if is_coupled else outputs
                multiply(sgemm, before[first - batch : first], back, added)
            step(added_at, gate_bias[device : device + 1], gates, cells, tanhs, output_at, t)
            if is_coupled:
                multiply(sgemm, outputs[first:end], project, states[first:end])
        if not is_coupled:
            multiply(sgemm, outputs, project, states)
            _add_to_rows(states, projection_bias[device])
        count = _gather(own, padding, states, seen)
        losses[device] = 0.0
        if count == 0:
            continue
        some, some_scores = seen[:count], scores[:count]
        multiply_turned(sgemm, some, decode, some_scores)
        losses[device] = _slopes_of_words(some_scores, own, padding, output_bias[device])
        multiply(sgemm, some_scores, decode, seen_slopes[:count])
        add_outer(sgemm, some_scores, some, -rate, decode)
        if output_bias.shape[1]:
            _descend_bias(some_scores, rate, output_bias[device], totals)
        _scatter(own, padding, seen_slopes, state_slopes)
        if not is_coupled:
            _descend_bias(state_slopes, rate, projection_bias[device], totals)
            multiply_turned(sgemm, state_slopes, project, output_slopes)
            add_outer(sgemm, outputs, state_slopes, -rate, project)
        cell_slope[:] = 0.0
        for t in range(steps - 1, -1, -1):
            first, end = t * batch, (t + 1) * batch
            if t + 1 < steps:
                into = state_slopes if is_coupled else output_slopes
                multiply_turned(sgemm, flat_slopes[end : end + batch], back, into[first:end], 1.0)
            if is_coupled:
                multiply_turned(sgemm, state_slopes[first:end], project, output_slopes[first:end])
            of_output = output_slopes[first:end].reshape(1, batch, units)
            step_back(gates, cells, tanhs, of_output, cell_slope_at, slopes, t)
        multiply_turned(sgemm, flat_slopes, weights, seen_slopes)
        add_outer(sgemm, read, flat_slopes, -rate, weights)
        _descend_bias(flat_slopes, rate, gate_bias[device], totals)
        if steps > 1:
            before = states if is_coupled else outputs
            add_outer(sgemm, before[: places - batch], flat_slopes[batch:], -rate, back)
        if is_coupled:
            add_outer(sgemm, outputs, state_slopes, -rate, project)
        for t in range(steps):
            for text in range(batch):
                row, slope = table[own[text, t]], seen_slopes[t * batch + text]
                for place in range(width):
                    row[place] -= rate * slope[place]


@njit(inline="always")
def _part(scratch, at, rows, columns):
    """Returns the place after a matrix [rows, columns] in the scratch, and the matrix, which begins
    at a cache line."""
    size = rows * columns
    return at + (size + _LINE - 1) // _LINE * _LINE, scratch[at : at + size].reshape(rows, columns)


@njit(cache=True, nogil=True, error_model="numpy")
def _add_to_rows(rows, bias):
    for row in rows:
        for place in range(bias.size):
            row[place] += bias[place]


@njit(cache=True, nogil=True, error_model="numpy")
def _descend_bias(slopes, rate, bias, totals):
    # Summed first: many small numbers would each be rounded to the bias.
    totals[: bias.size] = 0.0
    for row in slopes:
        for place in range(bias.size):
            totals[place] += row[place]
    for place in range(bias.size):
        bias[place] -= rate * totals[place]


@njit(cache=True, nogil=True, error_model="numpy")
def _gather(tokens, padding, states, seen):
    """Writes the states before the words that are predicted to `seen`. Returns their number."""
    count = 0
    batch = tokens.shape[0]
    for place in range(states.shape[0]):
        if tokens[place % batch, place // batch + 1] != padding:
            seen[count] = states[place]
            count += 1
    return count


@njit(cache=True, nogil=True, error_model="numpy")
def _scatter(tokens, padding, seen, states):
    """Writes the rows of `seen` to the places in `states` that `_gather` read; zeros between."""
    count = 0
    batch = tokens.shape[0]
    for place in range(states.shape[0]):
        if tokens[place % batch, place // batch + 1] != padding:
            states[place] = seen[count]
            count += 1
        else:
            states[place] = 0.0


@njit(cache=True, nogil=True, error_model="numpy")
def _slopes_of_words(scores, tokens, padding, bias):
    """Turns logits [words, V] without bias into the slopes of their mean cross-entropy, and
    returns the mean (nats)."""
    nats, one = 0.0, scores.dtype.type(1.0)
    batch, count = tokens.shape[0], scores.shape[0]
    share = one / scores.dtype.type(count)
    lanes = np.empty(_LANES, scores.dtype)
    row_index = 0
    for place in range(batch * (tokens.shape[1] - 1)):
        target = tokens[place % batch, place // batch + 1]
        if target == padding:
            continue
        row = scores[row_index]
        row_index += 1
        for word in range(bias.size):
            row[word] += bias[word]
        greatest, own = _greatest(row, lanes), row[target]
        for word in range(row.size):
            row[word] = exp(row[word] - greatest)
        total = _sum(row, lanes)
        # `exp` has the derivative softmax - (1 at the target).
        scale = share / total
        for word in range(row.size):
            row[word] *= scale
        row[target] -= share
        nats += np.log(total) + greatest - own
    return nats / count


@njit(cache=True, nogil=True, error_model="numpy")
def _greatest(row, lanes):
    lanes[:] = row[0]
    whole = row.size // _LANES * _LANES
    for first in range(0, whole, _LANES):
        for lane in range(_LANES):
            value = row[first + lane]
            lanes[lane] = lanes[lane] if lanes[lane] >= value else value
    greatest = lanes[0]
    for lane in range(1, _LANES):
        greatest = greatest if greatest >= lanes[lane] else lanes[lane]
    for place in range(whole, row.size):
        greatest = greatest if greatest >= row[place] else row[place]
    return greatest


@njit(cache=True, nogil=True, error_model="numpy")
def _sum(row, lanes):
    lanes[:] = 0.0
    whole = row.size // _LANES * _LANES
    for first in range(0, whole, _LANES):
        for lane in range(_LANES):
            lanes[lane] += row[first + lane]
    total = row.dtype.type(0.0)
    for lane in range(_LANES):
        total += lanes[lane]
    for place in range(whole, row.size):
        total += row[place]
    return total
