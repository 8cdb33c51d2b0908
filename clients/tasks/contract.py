"""What every task must do, as checks that a test runs: one of your own too.

    @pytest.mark.parametrize("check", CHECKS)
    def test_my_task_keeps_the_contract(check):
        check(task)

A check is given what makes the task, `task(seed)`, and raises AssertionError.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from clients.tasks.task import Task

MakeTask = Callable[[int], Task]
DEVICES = np.array([0, 1, 7, 65_536, 2**40 - 1], np.uint64)
SEED, EXAMPLES, BATCH = 3, 6, 4
TOLERANCE = 1e-5
"""Relative, of a loss in another group: sums of float32 are rounded in another order."""


def check_shapes_lay_out_the_parameters(make: MakeTask) -> None:
    """The flat vector has as many numbers as the shapes, all of them finite."""
    task = _made(make)
    parameters = task.initial_parameters()
    assert parameters.dtype == np.float32
    assert parameters.shape == (sum(math.prod(shape) for shape in task.shapes.values()),)
    assert np.isfinite(parameters).all()


def check_a_task_is_a_function_of_its_seed(make: MakeTask) -> None:
    """Two tasks of one seed have the same parameters, examples and evaluation, bit for bit."""
    one, other = _made(make), _made(make)
    # The other has been used before, in another order.
    other.evaluate(_copies(other, 1))
    other.device_examples(DEVICES[::-1].copy(), 2)
    assert (one.initial_parameters() == other.initial_parameters()).all()
    assert torch.equal(one.device_examples(DEVICES, 3), other.device_examples(DEVICES, 3))
    assert one.evaluate(_copies(one, 1)) == other.evaluate(_copies(other, 1))


def check_examples_belong_to_the_device(make: MakeTask) -> None:
    """A device has the same examples in any company; fewer of them are the first of more."""
    task = _made(make)
    whole = task.device_examples(DEVICES, EXAMPLES)
    assert whole.shape[:2] == (DEVICES.size, EXAMPLES)
    backwards = task.device_examples(DEVICES[::-1].copy(), EXAMPLES)
    assert torch.equal(backwards.flip(0), whole)
    for place in range(DEVICES.size):
        alone = task.device_examples(DEVICES[place : place + 1], BATCH)
        assert torch.equal(alone[0], whole[place, :BATCH])


def check_losses_do_not_depend_on_the_group(make: MakeTask) -> None:
    """A device has the loss and the gradients that it has alone, but for rounding."""
    task = _made(make)
    batch = task.device_examples(DEVICES, BATCH)
    losses, gradients = _losses_and_gradients(task, batch)
    assert losses.shape == (DEVICES.size,)
    assert torch.isfinite(losses).all()
    for place in range(DEVICES.size):
        loss, gradient = _losses_and_gradients(task, batch[place : place + 1])
        torch.testing.assert_close(loss[0], losses[place], rtol=TOLERANCE, atol=TOLERANCE)
        for name in task.shapes:
            torch.testing.assert_close(
                gradient[name][0], gradients[name][place], rtol=TOLERANCE, atol=TOLERANCE
            )


def check_evaluation_is_finite(make: MakeTask) -> None:
    """Loss and accuracy of the initial model are numbers, the same whenever they are asked for."""
    task = _made(make)
    evaluation = task.evaluate(_copies(task, 1))
    assert math.isfinite(evaluation.loss)
    assert math.isfinite(evaluation.accuracy)
    assert task.evaluate(_copies(task, 1)) == evaluation


CHECKS = (
    check_shapes_lay_out_the_parameters,
    check_a_task_is_a_function_of_its_seed,
    check_examples_belong_to_the_device,
    check_losses_do_not_depend_on_the_group,
    check_evaluation_is_finite,
)


def _made(make: MakeTask) -> Task:
    """A task, made as trainers make it: with torch's own generator seeded."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return make(SEED)


def _copies(task: Task, devices: int) -> dict[str, Tensor]:
    """The initial parameters by name, [G, *shape], once for each device."""
    flat = torch.from_numpy(task.initial_parameters())
    parts = flat.split([math.prod(shape) for shape in task.shapes.values()])
    return {
        name: part.reshape(1, *shape).repeat(devices, *(1 for _ in shape))
        for (name, shape), part in zip(task.shapes.items(), parts, strict=True)
    }


def _losses_and_gradients(task: Task, batch: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Losses [G] of a batch [G, B, ...] at the initial parameters, and gradients by name."""
    leaves = {name: part.requires_grad_() for name, part in _copies(task, len(batch)).items()}
    losses = task.losses(leaves, batch)
    gradients = torch.autograd.grad(
        losses.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True
    )
    return losses.detach(), dict(zip(leaves, gradients, strict=True))
