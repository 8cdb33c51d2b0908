"""Optimizers of local steps. They are made for a group of devices and a round, and devices leave.

Shape suffix: A devices that still take steps; their parameters and gradients are [A, *shape].
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from fedray.runtime.devices import own_draws, seed_draws
from fedray.scenario.python_file import PROBED_STEPS, OptimizerFile
from fedray.scenario.training import CustomOptimizer, FedAvg
from ..tasks.layout import Named, Shapes

SeedOf = Callable[[int, int], int]
"""Returns the seed of the draws of the device at a place, in its step of a number."""


class Steps(Protocol):
    """Optimizer of the local steps of a group, from a learning rate."""

    def take(self, parameters: Named, gradients: Named) -> None:
        """Takes a step of parameters in place: the tensors that it was made with, unless it has no
        state."""
        ...

    def keep_first(self, devices: int) -> None:
        """Drops the state of all devices but the first."""
        ...

    def decay(self, factor: float) -> None:
        """Multiplies the learning rate."""
        ...


class PlainSteps:
    """SGD without momentum, which has no state. See Steps.

    A step is a single call; torch's optimizers would take longer than a small model.
    """

    def __init__(self, table: FedAvg, parameters: Named, learning_rate: float) -> None:
        del parameters
        self._decay = table.weight_decay
        self.rate = learning_rate

    def take(self, parameters: Named, gradients: Named) -> None:
        parts = list(parameters.values())
        torch._foreach_add_(  # pyright: ignore[reportPrivateImportUsage]
            parts, self._with_decay(parts, gradients), alpha=-self.rate
        )

    def taken_from(self, start: Named, gradients: Named) -> Named:
        """Returns the parameters after a first step from [1, *shape], which stay as they are."""
        parts = list(start.values())
        moved = torch._foreach_add(  # pyright: ignore[reportPrivateImportUsage]
            parts, self._with_decay(parts, gradients), alpha=-self.rate
        )
        return dict(zip(start, moved, strict=True))

    def keep_first(self, devices: int) -> None:
        del devices  # nothing is kept of a device

    def decay(self, factor: float) -> None:
        self.rate *= factor

    def _with_decay(self, parts: list[Tensor], gradients: Named) -> list[Tensor]:
        slopes = list(gradients.values())
        if not self._decay:
            return slopes
        added = torch._foreach_add(  # pyright: ignore[reportPrivateImportUsage]
            slopes, parts, alpha=self._decay
        )
        return list(added)


class GroupSteps:
    """An optimizer of torch that treats every coordinate separately, so that one serves all devices
    of a group. See Steps."""

    def __init__(self, table: FedAvg, parameters: Named, learning_rate: float) -> None:
        self._optimizer = optimizer_of(table, list(parameters.values()), learning_rate)

    def take(self, parameters: Named, gradients: Named) -> None:
        for part, gradient in zip(parameters.values(), gradients.values(), strict=True):
            part.grad = gradient
        self._optimizer.step()

    def keep_first(self, devices: int) -> None:
        # The optimizer knows a parameter by its tensor, which therefore stays.
        for state in self._optimizer.state.values():
            for name, value in state.items():
                # Adam's number of steps is the same for all devices.
                if value.dim():
                    state[name] = value[:devices]

    def decay(self, factor: float) -> None:
        _decay(self._optimizer, factor)


class CustomSteps:
    """A user's optimizer for each device, since no device may see the gradient of another: an
    update then depends on one device's data only. See Steps.

    Args:
        file: the user's file.
        parameters: parameters of the devices, [A, *shape] by name.
        learning_rate: learning rate of the first step.
        seed_of: seed of torch's draws in a step, so that they do not depend on the group.
    """

    def __init__(
        self, file: OptimizerFile, parameters: Named, learning_rate: float, seed_of: SeedOf
    ) -> None:
        self._file = file
        self._seed_of = seed_of
        self._taken = 0
        parts = list(parameters.values())
        self._torch_device = parts[0].device
        self._rows = [[part[place] for part in parts] for place in range(len(parts[0]))]
        self._memory = [[row.view_as(row) for row in rows] for rows in self._rows]
        with own_draws(self._torch_device):
            self._optimizers = [self._made(place, learning_rate) for place in range(len(parts[0]))]

    def _made(self, place: int, learning_rate: float) -> Any:
        seed_draws(self._torch_device, self._seed_of(place, 0))
        return self._file.made(self._rows[place], learning_rate)

    def take(self, parameters: Named, gradients: Named) -> None:
        del parameters
        self._taken += 1
        with own_draws(self._torch_device):
            for place, optimizer in enumerate(self._optimizers):
                rows = self._rows[place]
                for row, gradient in zip(rows, gradients.values(), strict=True):
                    # A gradient may be one number seen at all places, which cannot be changed.
                    row.grad = gradient[place].contiguous()
                seed_draws(self._torch_device, self._seed_of(place, self._taken))
                self._file.step(optimizer)
                self._take_back(rows, self._memory[place])

    def _take_back(self, rows: list[Tensor], memory: list[Tensor]) -> None:
        """Copies parameters that the optimizer has replaced to their memory."""
        for row, own in zip(rows, memory, strict=True):
            if row.data_ptr() != own.data_ptr():
                own.copy_(row)
                row.data = own

    def keep_first(self, devices: int) -> None:
        del self._optimizers[devices:]

    def decay(self, factor: float) -> None:
        for optimizer in self._optimizers:
            if any("lr" not in group for group in optimizer.param_groups):
                raise self._file.refused(
                    "its param_groups have no 'lr', which training.client.step_decay multiplies",
                    "leave step_decay out, or name the learning rate 'lr'",
                )
            _decay(optimizer, factor)


def _decay(optimizer: torch.optim.Optimizer, factor: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] *= factor


def optimizer_of(
    table: FedAvg, parameters: list[Tensor], learning_rate: float
) -> torch.optim.Optimizer:
    """Returns the table's optimizer of torch."""
    if table.optimizer == "adam":
        return torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=table.weight_decay)
    return torch.optim.SGD(
        parameters,
        lr=learning_rate,
        momentum=table.momentum,
        nesterov=table.nesterov,
        weight_decay=table.weight_decay,
    )


def is_plain(table: FedAvg) -> bool:
    """Returns whether steps are SGD without momentum, which has no state."""
    return table.optimizer == "sgd" and not table.momentum


def custom_file(table: FedAvg) -> OptimizerFile | None:
    """Returns the user's file of a table's optimizer, if it has one. Raises ScenarioError."""
    return OptimizerFile(table.optimizer) if isinstance(table.optimizer, CustomOptimizer) else None


def check_apart(file: OptimizerFile, shapes: Shapes, learning_rate: float) -> None:
    """Raises ScenarioError if steps of a device leave something to the next one: the update of a
    device would then depend on data of others, and no sensitivity would hold.

    Args:
        file: the user's optimizer.
        shapes: shape of each parameter.
        learning_rate: learning rate of the steps.
    """
    firsts: list[list[Tensor]] = []
    for _ in range(2):
        parameters = {name: torch.zeros(1, *shape) for name, shape in shapes.items()}
        gradients = {name: torch.ones_like(part) for name, part in parameters.items()}
        with file.unchanged():
            steps = CustomSteps(file, parameters, learning_rate, lambda _, step: step)
            steps.take(parameters, gradients)
            # A step may give NaN, which would not equal itself.
            firsts.append([part.nan_to_num() for part in parameters.values()])
            for _ in range(PROBED_STEPS):
                steps.take(parameters, gradients)
    if not all(map(torch.equal, *firsts)):
        raise file.refused(
            "a device's first step has another result after the steps of another device, whose "
            "data it would reveal",
            "keep what changes in `state`, and draw with torch",
        )


def shortened(gradients: Named, most_norm: float) -> Named:
    """Returns gradients of which no device's norm over all parameters exceeds `most_norm`, as
    `torch.nn.utils.clip_grad_norm_` scales them."""
    parts = [part.reshape(len(part), -1) for part in gradients.values()]
    norms = torch.stack([torch.linalg.vector_norm(part, dim=1) for part in parts])
    factors_A = (most_norm / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1.0)
    return {
        name: part * factors_A.view(-1, *[1] * (part.dim() - 1)) for name, part in gradients.items()
    }
