"""The recurrence of LSTMs, with gradients by hand.

Torch's own layers know one model only. Written in torch's operations, autograd would add a gradient
of the recurrent weights at every step; here all steps are one product at the end.

Shape suffixes: G devices, T steps, B sequences, H units of the cell, R of the state that recurs.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
tanh_backward = torch.ops.aten.tanh_backward.grad_input


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
    """See recur."""

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
        kinds = gates.split(units, dim=3)
        emit, *admit, keep, candidate = (part.unbind(1) for part in kinds)
        # All gates but the candidate, which lie together, are opened by one sigmoid.
        opening = gates[..., :-units].unbind(1)
        now = gates.unbind(1)
        cell = cells.unbind(1)
        tanh = tanhs.unbind(1)
        output = outputs.unbind(1)
        # Without a projection these are the outputs themselves, so that they need no copy.
        state = states.unbind(1)
        for t in range(steps):
            if t > 0:
                now[t].baddbmm_(state[t - 1], recurrent)
            opening[t].sigmoid_()
            candidate[t].tanh_()
            if admit:
                # cell' = admit * candidate + keep * cell
                torch.mul(admit[0][t], candidate[t], out=cell[t + 1])
                cell[t + 1].addcmul_(keep[t], cell[t])
            else:
                # cell' = (1 - keep) * candidate + keep * cell
                torch.lerp(candidate[t], cell[t], keep[t], out=cell[t + 1])
            torch.tanh(cell[t + 1], out=tanh[t])
            torch.mul(emit[t], tanh[t], out=output[t])
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
        units = cells.shape[3]
        # Copies, because a product with a transposed matrix takes twice as long at every step.
        back = recurrent.transpose(1, 2).contiguous()
        unproject = None if projection is None else projection.transpose(1, 2).contiguous()
        # By the chain rule, slopes are first those of cell and output by the gates, then of the
        # loss: the first need no recurrence.
        slopes = _slopes_by_gates(gates, cells[:, :-1], tanhs)
        by_cell = torch.empty_like(tanhs)
        tanh_backward(gates[..., :units], tanhs, grad_input=by_cell)
        state_slopes = gradient.clone()
        cell_slope = torch.zeros_like(cells[:, 0])
        keep_gates = gates[..., -2 * units : -units]
        slope = slopes.unbind(1)
        state_slope = state_slopes.unbind(1)
        output_by_cell = by_cell.unbind(1)
        keep = keep_gates.unbind(1)
        # Views: what is multiplied in these is multiplied in `slopes`.
        for_output = slopes[..., :units].unbind(1)
        for_cell = slopes[..., units:].unflatten(3, (-1, units)).unbind(1)
        steps = len(slope)
        for t in reversed(range(steps)):
            if t + 1 < steps:
                state_slope[t].baddbmm_(slope[t + 1], back)
            own = state_slope[t]
            if unproject is not None:
                own = torch.bmm(own, unproject)
            cell_slope.addcmul_(own, output_by_cell[t])
            for_output[t].mul_(own)
            for_cell[t].mul_(cell_slope[:, :, None])
            cell_slope.mul_(keep[t])
        # The state of step t meets the recurrent weights at step t + 1.
        recurrent_slope = _product_over_steps(states[:, :-1], slopes[:, 1:])
        projection_slope = None
        if projection is not None:
            projection_slope = _product_over_steps(outputs, state_slopes)
        return slopes, recurrent_slope, projection_slope


def _slopes_by_gates(gates: Tensor, before: Tensor, tanhs: Tensor) -> Tensor:
    """Slopes of the output by the output gate, and of the cell by the other gates, before their
    sigmoids and tanhs, in the layout of the gates."""
    units = tanhs.shape[3]
    emit, *admit, keep, candidate = gates.split(units, dim=3)
    slopes = torch.empty_like(gates)
    by_emit, *by_admit, by_keep, by_candidate = slopes.split(units, dim=3)
    sigmoid_backward(tanhs, emit, grad_input=by_emit)
    if admit:
        sigmoid_backward(candidate, admit[0], grad_input=by_admit[0])
        sigmoid_backward(before, keep, grad_input=by_keep)
        tanh_backward(admit[0], candidate, grad_input=by_candidate)
    else:
        sigmoid_backward(before - candidate, keep, grad_input=by_keep)
        tanh_backward(1.0 - keep, candidate, grad_input=by_candidate)
    return slopes


def _product_over_steps(left: Tensor, right: Tensor) -> Tensor:
    """[G, left, right]: sums over T and B of outer products of [G, T, B, left] and [G, T, B,
    right]."""
    return torch.bmm(left.flatten(1, 2).transpose(1, 2), right.flatten(1, 2))
