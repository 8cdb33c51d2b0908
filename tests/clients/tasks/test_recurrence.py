"""The recurrence against torch's own LSTM and against autograd."""

import numpy as np
import pytest
import torch

from fedray.base.compiled import njit
from fedray.clients.tasks import exponentials, recurrence
from fedray.clients.tasks.recurrence import recur, recur_step_by_step

DEVICES, STEPS, BATCH, INPUTS, UNITS, STATE = 3, 5, 2, 6, 4, 3


def _normal(*shape: int) -> torch.Tensor:
    draws = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=draws, dtype=torch.float64).requires_grad_()


def _parts(gates: int, is_projected: bool, devices: int = DEVICES) -> list[torch.Tensor | None]:
    """Inputs, weights, biases, recurrent weights, and the projection or None."""
    state = STATE if is_projected else UNITS
    return [
        _normal(devices, STEPS, BATCH, INPUTS),
        _normal(devices, INPUTS, gates * UNITS),
        _normal(devices, gates * UNITS),
        _normal(devices, state, gates * UNITS),
        _normal(devices, UNITS, STATE) if is_projected else None,
    ]


def _gradients(total: torch.Tensor, parts: list[torch.Tensor | None]) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(total, [part for part in parts if part is not None])


@pytest.mark.compiles
def test_with_four_gates_it_is_torchs_lstm_for_each_device() -> None:
    parts = inputs, weights, biases, recurrent, _ = _parts(4, False)
    states = recur(*parts)
    gradients = _gradients(states.square().sum(), parts)
    for device in range(DEVICES):
        layer = torch.nn.LSTM(INPUTS, UNITS, dtype=torch.float64)
        # Torch has input, forget gate, candidate, and the output gate last.
        order = torch.arange(4 * UNITS).view(4, UNITS)[[1, 2, 3, 0]].flatten()
        with torch.no_grad():
            layer.weight_ih_l0.copy_(weights[device].T[order])
            layer.weight_hh_l0.copy_(recurrent[device].T[order])
            layer.bias_ih_l0.copy_(biases[device][order])
            layer.bias_hh_l0.zero_()
        own = inputs[device].detach().clone().requires_grad_()
        expected, _ = layer(own)
        torch.testing.assert_close(states[device], expected)
        expected.square().sum().backward()
        of_device = [gradient[device] for gradient in gradients]
        torch.testing.assert_close(of_device[0], own.grad)
        torch.testing.assert_close(of_device[1].T[order], layer.weight_ih_l0.grad)
        torch.testing.assert_close(of_device[2][order], layer.bias_ih_l0.grad)
        torch.testing.assert_close(of_device[3].T[order], layer.weight_hh_l0.grad)


@pytest.mark.compiles
@pytest.mark.parametrize("gates", [3, 4])
@pytest.mark.parametrize("is_projected", [False, True])
def test_the_compiled_recurrence_is_its_definition(gates: int, is_projected: bool) -> None:
    parts = _parts(gates, is_projected)
    states = recur(*parts)
    expected = recur_step_by_step(*parts)
    torch.testing.assert_close(states, expected)
    weights = _normal(*states.shape).detach()
    mine, theirs = (_gradients((each * weights).sum(), parts) for each in (states, expected))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.compiles
@pytest.mark.parametrize("gates", [3, 4])
def test_in_float32_it_errs_by_a_few_roundings(gates: int) -> None:
    exact = _parts(gates, False)
    parts = [None if part is None else part.detach().float() for part in exact]
    states, expected = recur(*parts), recur_step_by_step(*exact)
    torch.testing.assert_close(states.double(), expected, atol=2e-6, rtol=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("gates", [3, 4])
@pytest.mark.parametrize("is_projected", [False, True])
def test_its_gradients_are_slopes_for_every_cell(gates: int, is_projected: bool) -> None:
    assert torch.autograd.gradcheck(recur, tuple(_parts(gates, is_projected, devices=2)))


@pytest.mark.parametrize("is_projected", [False, True])
def test_devices_in_turn_have_the_states_and_gradients_of_a_batch(
    is_projected: bool, monkeypatch
) -> None:
    parts = _parts(4, is_projected)

    def results():
        states = recur(*parts)
        return states, _gradients(states.square().sum(), parts)

    together = results()
    monkeypatch.setattr(recurrence, "LARGE", 1)
    torch.testing.assert_close(results(), together)


@njit
def _each(function, values, results):
    for place in range(values.size):
        results[place] = function(values[place])


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("mine", "exact"),
    [
        (exponentials.exp, np.exp),
        (exponentials.sigmoid, lambda x: 1.0 / (1.0 + np.exp(-x))),
        (exponentials.tanh, np.tanh),
    ],
)
@pytest.mark.parametrize(("kind", "bound"), [(np.float32, 4 * 2.0**-24), (np.float64, 2e-15)])
def test_exponentials_are_exact_to_a_few_roundings(mine, exact, kind, bound: float) -> None:
    near = np.linspace(-20.0, 20.0, 100_001)
    values = np.concatenate([near, near * 1e-6, 4.0 * near]).astype(kind)
    results = np.empty_like(values)
    _each(mine, values, results)
    expected = exact(values.astype(np.float64))
    # Far below 1, float64 takes e^x from e^x - 1.
    size = np.abs(expected) + (1e-30 if kind is np.float32 else 1.0)
    error = np.abs(results - expected) / size
    assert error.max() < bound
    ends = np.array([np.nan, np.inf, -np.inf], kind)
    _each(mine, ends, results[:3])
    assert np.isnan(results[0])
    assert np.isclose(exact(ends[2]), results[2], atol=1e-37)
