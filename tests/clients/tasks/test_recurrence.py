"""The recurrence against torch's own LSTM and against autograd."""

import pytest
import torch

from fedray.clients.tasks import recurrence
from fedray.clients.tasks.recurrence import recur

DEVICES, STEPS, BATCH, UNITS, STATE = 3, 5, 2, 4, 3


def _normal(*shape: int) -> torch.Tensor:
    draws = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=draws, dtype=torch.float64).requires_grad_()


@pytest.mark.compiles
def test_with_four_gates_it_is_torchs_lstm_for_each_device() -> None:
    inputs, recurrent = (
        _normal(DEVICES, STEPS, BATCH, 4 * UNITS),
        _normal(DEVICES, UNITS, 4 * UNITS),
    )
    states = recur(inputs, recurrent, None)
    gradients = torch.autograd.grad(states.square().sum(), [inputs, recurrent])
    for device in range(DEVICES):
        layer = torch.nn.LSTM(4 * UNITS, UNITS, bias=False, dtype=torch.float64)
        # Torch has input, forget gate, candidate, and the output gate last.
        order = torch.arange(4 * UNITS).view(4, UNITS)[[1, 2, 3, 0]].flatten()
        with torch.no_grad():
            layer.weight_ih_l0.copy_(torch.eye(4 * UNITS)[order])
            layer.weight_hh_l0.copy_(recurrent[device].T[order])
        own = inputs[device].detach().clone().requires_grad_()
        expected, _ = layer(own)
        torch.testing.assert_close(states[device], expected)
        expected.square().sum().backward()
        torch.testing.assert_close(gradients[0][device], own.grad)
        assert layer.weight_hh_l0.grad is not None
        torch.testing.assert_close(gradients[1][device].T[order], layer.weight_hh_l0.grad)


def _coupled(inputs: torch.Tensor, recurrent: torch.Tensor, projection: torch.Tensor):
    """The definition: forget gate f, input gate 1 - f, a state that is projected before it recurs."""
    state, cell, states = inputs.new_zeros(DEVICES, BATCH, STATE), inputs.new_zeros(()), []
    for now in inputs.unbind(1):
        emit, keep, candidate = (now + state @ recurrent).split(UNITS, dim=2)
        keep = keep.sigmoid()
        cell = keep * cell + (1 - keep) * candidate.tanh()
        state = (emit.sigmoid() * cell.tanh()) @ projection
        states.append(state)
    return torch.stack(states, dim=1)


def test_with_three_gates_and_a_projection_it_is_its_definition() -> None:
    parts = [
        _normal(DEVICES, STEPS, BATCH, 3 * UNITS),
        _normal(DEVICES, STATE, 3 * UNITS),
        _normal(DEVICES, UNITS, STATE),
    ]
    states, expected = recur(*parts), _coupled(*parts)
    torch.testing.assert_close(states, expected)
    weights = _normal(*states.shape).detach()
    gradients = torch.autograd.grad((states * weights).sum(), parts)
    for mine, theirs in zip(
        gradients, torch.autograd.grad((expected * weights).sum(), parts), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("gates", [3, 4])
@pytest.mark.parametrize("is_projected", [False, True])
def test_its_gradients_are_slopes_for_every_cell(gates: int, is_projected: bool) -> None:
    state = STATE if is_projected else UNITS
    parts = [_normal(2, STEPS, BATCH, gates * UNITS), _normal(2, state, gates * UNITS)]
    projection = _normal(2, UNITS, STATE) if is_projected else None
    assert torch.autograd.gradcheck(recur, (*parts, projection))


@pytest.mark.parametrize("is_projected", [False, True])
def test_devices_in_turn_have_the_states_and_gradients_of_a_batch(
    is_projected: bool, monkeypatch
) -> None:
    state = STATE if is_projected else UNITS
    parts = [_normal(DEVICES, STEPS, BATCH, 4 * UNITS), _normal(DEVICES, state, 4 * UNITS)]
    projection = _normal(DEVICES, UNITS, STATE) if is_projected else None
    leaves = [*parts, projection] if projection is not None else parts

    def results():
        states = recur(*parts, projection)
        return states, torch.autograd.grad(states.square().sum(), leaves)

    together = results()
    monkeypatch.setattr(recurrence, "LARGE", 1)
    torch.testing.assert_close(results(), together)
