"""The recurrence of LSTMs, with gradients by hand.

Torch's own layers know one model only. Written in torch's operations, autograd would add a gradient
of the recurrent weights at every step; here all steps are one product at the end. What a step does
beside its product is compiled, because it is little: calls of torch took as long as the products.

Shape suffixes: G devices, T steps, B sequences, H units of the cell, R of the state that recurs.
"""

from typing import Any

import torch
from numba import njit
from torch import Tensor
from torch.autograd.function import once_differentiable

LARGE = 1 << 17
"""Recurrent weights of a device from which on the devices of a group take their steps one after the
other. These weights, half a MiB, are read at every step, and a cache holds those of one device. On
two cores with 2 MiB of cache each, 16 devices with 256 units then take 0.7 times as long; with 128
units, in turn, they would take 1.2 times as long."""


def recur(inputs: Tensor, recurrent: Tensor, projection: Tensor | None) -> Tensor:
    """States [G, T, B, R] of LSTMs that begin at zero. They can be differentiated once.

    Args:
        inputs: what inputs and biases add to the gates, [G, T, B, gates H]. With four gates these
            are output, input, forget gate and candidate (Gers et al. 2000). With three they are
            output, forget gate and candidate: the input gate is one minus the forget gate (Greff et
            al. 2017).
        recurrent: what the last state adds to them, [G, R, gates H].
        projection: [G, H, R], or None. The state is output gate * tanh(cell), multiplied by the
            projection if there is one (Sak et al. 2014). Without one R is H.
    """
    devices = len(recurrent)
    if devices == 1 or recurrent[0].numel() < LARGE:
        return _Recurrence.apply(inputs, recurrent, projection)
    projections = [None] * devices if projection is None else projection.split(1)
    own = zip(inputs.split(1), recurrent.split(1), projections, strict=True)
    states = [_Recurrence.apply(*each) for each in own]
    return torch.cat(states)


class _Recurrence(torch.autograd.Function):
    """The recurrence of `recur`, and its gradients by backpropagation through time."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, recurrent: Tensor, projection: Tensor | None) -> Tensor:
        """The states of `recur`; keeps what `backward` needs."""
        devices, steps, batch, _ = inputs.shape
        units = recurrent.shape[1] if projection is None else projection.shape[1]
        gates = inputs.detach().clone()
        # The cells have one entry more than there are steps: step t reads cell t and writes t + 1.
        cells = gates.new_empty(devices, steps + 1, batch, units)
        cells[:, 0] = 0.0
        tanhs, outputs = gates.new_empty(2, devices, steps, batch, units).unbind()
        states = outputs
        if projection is not None:
            states = gates.new_empty(devices, steps, batch, projection.shape[2])
        # Views of all steps at once: one at a time they take as long as a small model's products.
        # All gates but the candidate, which lie together, are opened by one sigmoid.
        opening = gates[..., :-units].unbind(1)
        candidate = gates[..., -units:].unbind(1)
        now = gates.unbind(1)
        cell = cells.unbind(1)
        tanh = tanhs.unbind(1)
        state = states.unbind(1)
        output = outputs.unbind(1) if projection is not None else state
        of_gates, of_cells = gates.numpy(), cells.numpy()
        of_tanhs, of_outputs = tanhs.numpy(), outputs.numpy()
        for t in range(steps):
            if t > 0:
                now[t].baddbmm_(state[t - 1], recurrent)
            opening[t].sigmoid_()
            candidate[t].tanh_()
            _next_cell(of_gates, of_cells, t)
            torch.tanh(cell[t + 1], out=tanh[t])
            _output(of_gates, of_tanhs, of_outputs, t)
            if projection is not None:
                state[t].copy_(torch.bmm(output[t], projection))
        ctx.save_for_backward(gates, recurrent, projection, cells, tanhs, outputs, states)
        return states

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Gradients of inputs, recurrent weights and projection.

        Args:
            ctx: has what `forward` kept.
            gradient: of the states, [G, T, B, R].
        """
        gates, recurrent, projection, cells, tanhs, outputs, states = ctx.saved_tensors
        # Copies, because a product with a transposed matrix takes twice as long at every step.
        back = recurrent.transpose(1, 2).contiguous()
        unproject = None if projection is None else projection.transpose(1, 2).contiguous()
        slopes = torch.empty_like(gates)
        state_slopes = gradient.clone(memory_format=torch.contiguous_format)
        # Those of the outputs are those of the states, unless a step has to compute them.
        output_slopes = state_slopes
        if unproject is not None:
            output_slopes = gates.new_empty(len(gates), 1, *outputs.shape[2:])
        cell_slope = torch.zeros_like(cells[:, 0])
        slope = slopes.unbind(1)
        state_slope = state_slopes.unbind(1)
        read = gates.numpy(), cells.numpy(), tanhs.numpy(), output_slopes.numpy()
        written = cell_slope.numpy(), slopes.numpy()
        steps = len(slope)
        for t in reversed(range(steps)):
            # What the state of this step added to the gates of the next one.
            if t + 1 < steps:
                state_slope[t].baddbmm_(slope[t + 1], back)
            place = t
            if unproject is not None:
                place = 0
                torch.bmm(state_slope[t], unproject, out=output_slopes[:, 0])
            _step_back(*read, *written, t, place)
        # The state of step t meets the recurrent weights at step t + 1.
        recurrent_slope = _product_over_steps(states[:, :-1], slopes[:, 1:])
        projection_slope = None
        if projection is not None:
            projection_slope = _product_over_steps(outputs, state_slopes)
        return slopes, recurrent_slope, projection_slope


@njit(cache=True, nogil=True)
def _next_cell(gates, cells, t):
    """Writes cell t + 1 of cells [G, T + 1, B, H], by the open gates [G, T, B, gates H] of step t:
    input gate * candidate + forget gate * cell t."""
    units = cells.shape[3]
    is_coupled = gates.shape[3] == 3 * units
    one = gates.dtype.type(1.0)
    for device in range(gates.shape[0]):
        for row in range(gates.shape[2]):
            gate = gates[device, t, row]
            keep, candidate = gate[-2 * units : -units], gate[-units:]
            before, after = cells[device, t, row], cells[device, t + 1, row]
            # The input gate is one minus the forget gate, so there is no gate of its own to read.
            if is_coupled:
                for unit in range(units):
                    admitted = (one - keep[unit]) * candidate[unit]
                    after[unit] = admitted + keep[unit] * before[unit]
            else:
                admit = gate[units : 2 * units]
                for unit in range(units):
                    admitted = admit[unit] * candidate[unit]
                    after[unit] = admitted + keep[unit] * before[unit]


@njit(cache=True, nogil=True)
def _output(gates, tanhs, outputs, t):
    """Writes the outputs of step t, [G, T, B, H]: output gate * tanh(cell)."""
    units = tanhs.shape[3]
    for device in range(gates.shape[0]):
        for row in range(gates.shape[2]):
            emit, tanh = gates[device, t, row][:units], tanhs[device, t, row]
            output = outputs[device, t, row]
            for unit in range(units):
                output[unit] = emit[unit] * tanh[unit]


@njit(cache=True, nogil=True)
def _step_back(gates, cells, tanhs, output_slopes, cell_slope, slopes, t, place):
    """Writes the slopes of the loss by what the gates of step t are given, before their sigmoids
    and tanhs.

    A sigmoid s has the slope s (1 - s), a tanh t has 1 - t^2.

    Args:
        gates, cells, tanhs: of the forward pass.
        output_slopes: of the loss by outputs, [G, .., B, H]; those of step t are at `place`.
        cell_slope: of the loss by the cell after step t, [G, B, H], as far as later steps are
            concerned; is made that by the cell before step t.
        slopes: are written, [G, T, B, gates H], in the layout of the gates.
        t: the step.
        place: of its output slopes.
    """
    units = tanhs.shape[3]
    is_coupled = gates.shape[3] == 3 * units
    one = gates.dtype.type(1.0)
    for device in range(gates.shape[0]):
        for row in range(gates.shape[2]):
            gate, slope = gates[device, t, row], slopes[device, t, row]
            emit, keep, candidate = gate[:units], gate[-2 * units : -units], gate[-units:]
            by_emit, by_keep = slope[:units], slope[-2 * units : -units]
            by_candidate = slope[-units:]
            before, tanh = cells[device, t, row], tanhs[device, t, row]
            by_output, by_cell = output_slopes[device, place, row], cell_slope[device, row]
            # Loops of one result each, because a compiler makes vector code of these.
            for unit in range(units):
                by_cell[unit] += by_output[unit] * emit[unit] * (one - tanh[unit] * tanh[unit])
            for unit in range(units):
                by_emit[unit] = by_output[unit] * tanh[unit] * emit[unit] * (one - emit[unit])
            if is_coupled:
                for unit in range(units):
                    by_gate = by_cell[unit] * (before[unit] - candidate[unit])
                    by_keep[unit] = by_gate * keep[unit] * (one - keep[unit])
                for unit in range(units):
                    by_gate = by_cell[unit] * (one - keep[unit])
                    by_candidate[unit] = by_gate * (one - candidate[unit] * candidate[unit])
            else:
                admit, by_admit = gate[units : 2 * units], slope[units : 2 * units]
                for unit in range(units):
                    by_gate = by_cell[unit] * candidate[unit]
                    by_admit[unit] = by_gate * admit[unit] * (one - admit[unit])
                for unit in range(units):
                    by_gate = by_cell[unit] * before[unit]
                    by_keep[unit] = by_gate * keep[unit] * (one - keep[unit])
                for unit in range(units):
                    by_gate = by_cell[unit] * admit[unit]
                    by_candidate[unit] = by_gate * (one - candidate[unit] * candidate[unit])
            # The cell of the step before is kept by the forget gate.
            for unit in range(units):
                by_cell[unit] *= keep[unit]


def _product_over_steps(left: Tensor, right: Tensor) -> Tensor:
    """[G, left, right]: sums over T and B of outer products of [G, T, B, left] and [G, T, B,
    right]."""
    left_rows = left.flatten(1, 2)
    right_rows = right.flatten(1, 2)
    return torch.bmm(left_rows.transpose(1, 2), right_rows)
