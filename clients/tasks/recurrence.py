"""The recurrence of LSTMs, with gradients by hand.

Torch's own layers take a single model. In torch's operations, autograd would add a gradient of the
recurrent weights at every step; here all steps are one product at the end. The elementwise part of
a step is compiled, because calls of torch took as long as the products.

Shape suffixes: G devices, T steps, B sequences, E inputs, H units of the cell, R of the state that
recurs.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedray.base.compiled import njit
from .exponentials import sigmoid, tanh
from .layers import dense

LARGE = 1 << 17
"""Number of recurrent weights from which the devices of a group run one after the other.

These weights, half a MiB, are read at every step, and a cache holds those of one device. On two
cores with 2 MiB of cache each, 16 devices in turn take 0.7 times as long with 256 units, and 1.2
times as long with 128."""


def recur(
    inputs: Tensor, weights: Tensor, biases: Tensor, recurrent: Tensor, projection: Tensor | None
) -> Tensor:
    """Returns the states [G, T, B, R] of LSTMs that start at zero, differentiable once.

    Args:
        inputs: numbers that each step reads, [G, T, B, E].
        weights: weights from the inputs to the gates, [G, E, gates H]. Four gates are output,
            input, forget gate and candidate (Gers et al. 2000). Three are output, forget gate and
            candidate: the input gate is one minus the forget gate (Greff et al. 2017).
        biases: biases of the gates, [G, gates H].
        recurrent: weights from the last state to the gates, [G, R, gates H].
        projection: weights [G, H, R] that multiply output gate * tanh(cell) (Sak et al. 2014); None
            if that product is the state, so that R is H.
    """
    parts = inputs, weights, biases, recurrent
    if not inputs.is_cpu:
        return recur_step_by_step(*parts, projection)
    devices = len(recurrent)
    if devices == 1 or recurrent[0].numel() < LARGE:
        return _Recurrence.apply(*parts, projection)
    projections = [None] * devices if projection is None else projection.split(1)
    own = zip(*(part.split(1) for part in parts), projections, strict=True)
    return torch.cat([_Recurrence.apply(*each) for each in own])


def recur_step_by_step(
    inputs: Tensor, weights: Tensor, biases: Tensor, recurrent: Tensor, projection: Tensor | None
) -> Tensor:
    """Returns the states of `recur` by its definition; slow, readable, and for every device."""
    cells = recurrent if projection is None else projection
    units = cells.shape[1]
    devices, steps, batch, _ = inputs.shape
    state = inputs.new_zeros(devices, batch, recurrent.shape[1])
    cell = inputs.new_zeros(devices, batch, units)
    states: list[Tensor] = []
    shares = dense(inputs.flatten(1, 2), weights, biases).view(devices, steps, batch, -1)
    for share in shares.unbind(1):
        gates = share + torch.bmm(state, recurrent)
        emit, *admit, keep, candidate = gates.split(units, dim=2)
        kept = keep.sigmoid()
        admitted = admit[0].sigmoid() if admit else 1.0 - kept
        cell = kept * cell + admitted * candidate.tanh()
        output = emit.sigmoid() * cell.tanh()
        state = output if projection is None else torch.bmm(output, projection)
        states.append(state)
    return torch.stack(states, dim=1)


class _Recurrence(torch.autograd.Function):
    """The recurrence of `recur`, and its gradients by backpropagation through time.

    Products write to contiguous memory: otherwise torch multiplies device by device.
    """

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weights: Tensor,
        biases: Tensor,
        recurrent: Tensor,
        projection: Tensor | None,
    ) -> Tensor:
        devices, steps, batch, _ = inputs.shape
        units = recurrent.shape[1] if projection is None else projection.shape[1]
        gates = torch.bmm(inputs.flatten(1, 2), weights).view(devices, steps, batch, -1)
        # There is one more cell than steps: step t reads cell t and writes t + 1.
        cells = gates.new_empty(devices, steps + 1, batch, units)
        cells[:, 0] = 0.0
        tanhs, outputs = gates.new_empty(2, devices, steps, batch, units).unbind()
        states = outputs
        if projection is not None:
            states = gates.new_empty(devices, steps, batch, projection.shape[2])
        from_state = torch.zeros_like(gates[:, 0], memory_format=torch.contiguous_format)
        added, bias = from_state.numpy(), biases.detach().contiguous().numpy()
        written = gates.numpy(), cells.numpy(), tanhs.numpy(), outputs.numpy()
        # Views of all steps at once: made at each step, they take as long as a small model's
        # products.
        state, output = states.unbind(1), outputs.unbind(1)
        for t in range(steps):
            if t > 0:
                torch.bmm(state[t - 1], recurrent, out=from_state)
            step(added, bias, *written, t)
            if projection is not None:
                state[t].copy_(torch.bmm(output[t], projection))
        ctx.save_for_backward(
            inputs, weights, recurrent, projection, gates, cells, tanhs, outputs, states
        )
        return states

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor | None, ...]:
        inputs, weights, recurrent, projection, gates, cells, tanhs, outputs, states = (
            ctx.saved_tensors
        )
        slopes = torch.empty_like(gates)
        state_slopes = torch.empty_like(states)
        output_slope, cell_slope = torch.zeros_like(cells[:, :2]).transpose(0, 1).contiguous()
        from_next = torch.zeros_like(states[:, 0], memory_format=torch.contiguous_format)
        read = gates.numpy(), cells.numpy(), tanhs.numpy(), output_slope.numpy()
        written = cell_slope.numpy(), slopes.numpy()
        back = recurrent.transpose(1, 2)
        unproject = None if projection is None else projection.transpose(1, 2)
        slope, state_slope, own = slopes.unbind(1), state_slopes.unbind(1), gradient.unbind(1)
        steps = len(slope)
        for t in reversed(range(steps)):
            # The state of this step also entered the gates of the next one.
            if t + 1 < steps:
                torch.bmm(slope[t + 1], back, out=from_next)
            if unproject is None:
                torch.add(own[t], from_next, out=output_slope)
            else:
                torch.add(own[t], from_next, out=state_slope[t])
                torch.bmm(state_slope[t], unproject, out=output_slope)
            step_back(*read, *written, t)
        flat = slopes.flatten(1, 2)
        return (
            torch.bmm(flat, weights.transpose(1, 2)).view_as(inputs),
            _product_over_steps(inputs, slopes),
            flat.sum(dim=1),
            # The state of step t meets the recurrent weights at step t + 1.
            _product_over_steps(states[:, :-1], slopes[:, 1:]),
            None if unproject is None else _product_over_steps(outputs, state_slopes),
        )


@njit(cache=True, nogil=True, error_model="numpy")
def step(added, biases, gates, cells, tanhs, outputs, t):
    """Opens the gates of step t, after it has added the state's share [G, B, gates H] and the
    biases; writes cell t + 1 of cells [G, T + 1, B, H]: input gate * candidate + forget gate * cell
    t; and writes the outputs [G, T, B, H] of step t: output gate * tanh(cell)."""
    units = tanhs.shape[3]
    opening = gates.shape[3] - units
    is_coupled = gates.shape[3] == 3 * units
    one = gates.dtype.type(1.0)
    for device in range(gates.shape[0]):
        bias = biases[device]
        for row in range(gates.shape[2]):
            gate = gates[device, t, row]
            share = added[device, row]
            # Each loop has one result, so that the compiler can vectorise it.
            for place in range(opening):
                gate[place] = sigmoid(gate[place] + bias[place] + share[place])
            keep = gate[-2 * units : -units]
            candidate = gate[-units:]
            own_bias, own_share = bias[-units:], share[-units:]
            for unit in range(units):
                candidate[unit] = tanh(candidate[unit] + own_bias[unit] + own_share[unit])
            before = cells[device, t, row]
            after = cells[device, t + 1, row]
            admit = gate[units : 2 * units]
            for unit in range(units):
                # Coupled: the input gate is one minus the forget gate.
                share_in = one - keep[unit] if is_coupled else admit[unit]
                after[unit] = share_in * candidate[unit] + keep[unit] * before[unit]
            own = tanhs[device, t, row]
            output = outputs[device, t, row]
            for unit in range(units):
                own[unit] = tanh(after[unit])
            for unit in range(units):
                output[unit] = gate[unit] * own[unit]


@njit(cache=True, nogil=True)
def step_back(gates, cells, tanhs, output_slope, cell_slope, slopes, t):
    """Writes the gradient of the loss with respect to the gates of step t before activation.

    The derivative of a sigmoid s is s (1 - s), that of a tanh t is 1 - t^2.
    """
    units = tanhs.shape[3]
    is_coupled = gates.shape[3] == 3 * units
    zero, one = gates.dtype.type(0.0), gates.dtype.type(1.0)
    for device in range(gates.shape[0]):
        for row in range(gates.shape[2]):
            gate = gates[device, t, row]
            emit = gate[:units]
            keep = gate[-2 * units : -units]
            candidate = gate[-units:]
            slope = slopes[device, t, row]
            by_emit = slope[:units]
            by_keep = slope[-2 * units : -units]
            by_candidate = slope[-units:]
            before = cells[device, t, row]
            tanh = tanhs[device, t, row]
            by_output = output_slope[device, row]
            by_cell = cell_slope[device, row]
            for unit in range(units):
                tanh_slope = one - tanh[unit] * tanh[unit]
                by_cell[unit] += by_output[unit] * emit[unit] * tanh_slope
            for unit in range(units):
                by_emit[unit] = by_output[unit] * tanh[unit] * emit[unit] * (one - emit[unit])
            admit = gate[units : 2 * units]
            for unit in range(units):
                instead = candidate[unit] if is_coupled else zero
                by_gate = by_cell[unit] * (before[unit] - instead)
                by_keep[unit] = by_gate * keep[unit] * (one - keep[unit])
            for unit in range(units):
                share_in = one - keep[unit] if is_coupled else admit[unit]
                tanh_slope = one - candidate[unit] * candidate[unit]
                by_candidate[unit] = by_cell[unit] * share_in * tanh_slope
            if not is_coupled:
                by_admit = slope[units : 2 * units]
                for unit in range(units):
                    by_gate = by_cell[unit] * candidate[unit]
                    by_admit[unit] = by_gate * admit[unit] * (one - admit[unit])
            # The forget gate carried the cell of the step before.
            for unit in range(units):
                by_cell[unit] *= keep[unit]


def _product_over_steps(left: Tensor, right: Tensor) -> Tensor:
    """Sums outer products of [G, T, B, left] and [G, T, B, right] over T and B."""
    left_columns = left.flatten(1, 2).transpose(1, 2)
    return torch.bmm(left_columns, right.flatten(1, 2))
