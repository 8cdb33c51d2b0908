"""Gradients of a group of devices."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedray.base.errors import ScenarioError
from fedray.runtime.devices import is_about_the_device
from .layout import Named
from .task import Batch, Parameters, Task


def gradients_of(task: Task, parameters: Parameters, batch: Batch) -> tuple[Tensor, Named]:
    """Returns the loss [G] and the gradients [G, *shape] of each device.

    A parameter on which no loss depends has gradient zero. The parameters are not changed.

    Raises:
        ScenarioError: the losses cannot be differentiated.
    """
    # A second pass through autograd would take half as long as a small module.
    own = getattr(task, "gradients", None)
    if own is not None and (given := own(parameters, batch)) is not None:
        return given
    leaves = {name: part.detach().requires_grad_() for name, part in parameters.items()}
    losses = task.losses(leaves, batch)
    # Devices share no parameter, so the gradient of the sum holds the gradient of each device.
    gradients = slopes_of(losses.sum(), list(leaves.values()))
    return losses.detach(), dict(zip(leaves, gradients, strict=True))


def slopes_of(loss: Tensor, leaves: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Returns the gradient of a loss by each leaf; see `gradients_of`."""
    try:
        return torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    except RuntimeError as error:
        if is_about_the_device(error):
            raise
        raise ScenarioError(
            f"training.task: its losses have no gradients ({error}); compute them from the "
            "parameters by differentiable operations"
        ) from None
