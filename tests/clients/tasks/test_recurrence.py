"""The recurrence against torch's own LSTM and against autograd."""

import pytest
import torch

from fedray.clients.tasks import recurrence
from fedray.clients.tasks.recurrence import recur, recur_step_by_step

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


@pytest.mark.compiles
@pytest.mark.parametrize("gates", [3, 4])
@pytest.mark.parametrize("is_projected", [False, True])
def test_the_compiled_recurrence_is_its_definition(gates: int, is_projected: bool) -> None:
    state = STATE if is_projected else UNITS
    parts = [_normal(DEVICES, STEPS, BATCH, gates * UNITS), _normal(DEVICES, state, gates * UNITS)]
    if is_projected:
        parts.append(_normal(DEVICES, UNITS, STATE))
    inputs, recurrent, *projection = parts
    projected = projection[0] if projection else None
    states = recur(inputs, recurrent, projected)
    expected = recur_step_by_step(inputs, recurrent, projected)
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
