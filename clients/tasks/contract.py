"""What every task must do, as checks that a test runs: one of your own too.

    @pytest.mark.parametrize("check", CHECKS)
    def test_my_task_keeps_the_contract(check):
        check(lambda seed: (task(seed), source))

A check is given what makes a task for a seed, and examples for it, and raises AssertionError.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedray.clients.data.source import ExampleSource
from fedray.clients.tasks.layout import named, repeated, size_of, tensors
from fedray.clients.tasks.task import Task

MakeTask = Callable[[int], tuple[Task, ExampleSource]]
DEVICES = np.array([0, 1, 7, 65_536, 2**40 - 1], np.uint64)
SEED, BATCH = 3, 4
TOLERANCE = 1e-5
"""Relative, of a loss in another group: sums of float32 are rounded in another order."""


def check_shapes_lay_out_the_parameters(make: MakeTask) -> None:
    """The flat vector has as many numbers as the shapes, all of them finite.

    Args:
        make: gives a task and its examples for a seed.
    """
    task, _ = _made(make)
    parameters = task.initial_parameters()
    assert parameters.dtype == np.float32
    assert parameters.shape == (size_of(task.shapes),)
    assert np.isfinite(parameters).all()


def check_a_task_is_a_function_of_its_seed(make: MakeTask) -> None:
    """Two tasks of one seed have the same parameters and figures, bit for bit.

    Args:
        make: gives a task and its examples for a seed.
    """
    one, source = _made(make)
    other, _ = _made(make)
    # A task that remembers something of an earlier call would differ from one that is new.
    one_device = _batch(source, DEVICES[:1])
    other.measure(_start(other), one_device)
    assert (one.initial_parameters() == other.initial_parameters()).all()
    batch = _batch(source, DEVICES)
    start = _start(one, DEVICES.size)
    assert torch.equal(one.losses(start, batch), other.losses(start, batch))
    measured = one.measure(start, batch)
    measured_again = other.measure(start, batch)
    for mine, theirs in zip(measured.values(), measured_again.values(), strict=True):
        numerators, weights = mine
        other_numerators, other_weights = theirs
        assert torch.equal(numerators, other_numerators)
        assert torch.equal(weights, other_weights)


def check_losses_do_not_depend_on_the_group(make: MakeTask) -> None:
    """A device has the loss and the gradients that it has alone, but for rounding.

    Args:
        make: gives a task and its examples for a seed.
    """
    task, source = _made(make)
    batch = _batch(source, DEVICES)
    start = _start(task, DEVICES.size)
    losses, gradients = _losses_and_gradients(task, start, batch)
    assert losses.shape == (DEVICES.size,)
    assert torch.isfinite(losses).all()
    for g in range(DEVICES.size):
        own = {name: part[g : g + 1] for name, part in batch.items()}
        loss, gradient = _losses_and_gradients(task, _start(task), own)
        _assert_close(loss[0], losses[g])
        for name in task.shapes:
            _assert_close(gradient[name][0], gradients[name][g])


def check_gradients_are_slopes(make: MakeTask) -> None:
    """The gradient times a direction is the slope of the loss in it (by central differences).

    The task is called in float64, since in float32 the difference of two losses is mostly rounding.

    Args:
        make: gives a task and its examples for a seed.
    """
    task, source = _made(make)
    batch = {
        name: part.double() if part.is_floating_point() else part
        for name, part in _batch(source, DEVICES[:2]).items()
    }
    start = {name: part.double() for name, part in _start(task, 2).items()}
    _, gradients = _losses_and_gradients(task, start, batch)
    draws = torch.Generator().manual_seed(SEED)
    # It is small beside the curvature of a loss, and large beside the rounding of float64.
    step = 1e-6
    for name, part in start.items():
        direction = torch.randn(part.shape, generator=draws, dtype=torch.float64)
        ahead = {**start, name: part + step * direction}
        behind = {**start, name: part - step * direction}
        with torch.no_grad():
            above = task.losses(ahead, batch).sum()
            below = task.losses(behind, batch).sum()
        slope = (above - below) / (2 * step)
        along_gradient = (gradients[name] * direction).sum()
        torch.testing.assert_close(along_gradient, slope, rtol=1e-4, atol=1e-7, msg=name)


def check_measures_are_finite(make: MakeTask) -> None:
    """Every metric has a numerator and a weight for each example of each device.

    Args:
        make: gives a task and its examples for a seed.
    """
    task, source = _made(make)
    batch = _batch(source, DEVICES)
    start = _start(task, DEVICES.size)
    with torch.no_grad():
        measured = task.measure(start, batch)
    assert set(measured) == {metric.name for metric in task.metrics}
    for numerators, weights in measured.values():
        assert numerators.shape == weights.shape == (DEVICES.size, BATCH)
        assert torch.isfinite(numerators).all()
        assert (weights >= 0).all()


CHECKS = (
    check_shapes_lay_out_the_parameters,
    check_a_task_is_a_function_of_its_seed,
    check_losses_do_not_depend_on_the_group,
    check_gradients_are_slopes,
    check_measures_are_finite,
)


def _made(make: MakeTask) -> tuple[Task, ExampleSource]:
    """A task, made as trainers make it: with torch's own generator seeded."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return make(SEED)


def _batch(source: ExampleSource, device_ids: np.ndarray) -> dict[str, Tensor]:
    """BATCH examples of each device."""
    counts = source.examples_on(device_ids)
    assert (counts > 0).all()
    # A device with fewer examples repeats them.
    positions = np.arange(BATCH)[None, :] % counts[:, None]
    return tensors(source.examples(device_ids, positions))


def _start(task: Task, devices: int = 1) -> dict[str, Tensor]:
    """The initial parameters by name, [G, *shape], once for each device."""
    flat = torch.from_numpy(task.initial_parameters())
    of_one = named(flat[None, :], task.shapes)
    return repeated(of_one, devices)


def _assert_close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=TOLERANCE, atol=TOLERANCE)


def _losses_and_gradients(
    task: Task,
    parameters: dict[str, Tensor],
    batch: dict[str, Tensor],
) -> tuple[Tensor, dict[str, Tensor]]:
    """Losses [G] of a batch, and gradients by name."""
    leaves = {name: part.clone().requires_grad_() for name, part in parameters.items()}
    losses = task.losses(leaves, batch)
    gradients = torch.autograd.grad(
        losses.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True
    )
    return losses.detach(), dict(zip(leaves, gradients, strict=True))
