"""Gradients of a group of devices."""

import torch
from torch import Tensor

from fedray.base.errors import ScenarioError
from .layout import Named
from .task import Batch, Parameters, Task


def gradients_of(task: Task, parameters: Parameters, batch: Batch) -> tuple[Tensor, Named]:
    """Returns the loss [G] and the gradients [G, *shape] of each device.

    A parameter on which no loss depends has gradient zero. The parameters are not changed.

    Raises:
        ScenarioError: the losses cannot be differentiated.
    """
    leaves = {name: part.detach().requires_grad_() for name, part in parameters.items()}
    losses = task.losses(leaves, batch)
    # Devices share no parameter, so the gradient of the sum holds the gradient of each device.
    total = losses.sum()
    try:
        gradients = torch.autograd.grad(
            total, list(leaves.values()), allow_unused=True, materialize_grads=True
        )
    except RuntimeError as error:
        raise ScenarioError(
            f"training.task: its losses have no gradients ({error}); compute them from the "
            "parameters by differentiable operations"
        ) from None
    return losses.detach(), dict(zip(leaves, gradients, strict=True))
