"""Local training: gradient steps on a device's own examples, from the round's parameters.

A group of devices is trained as one batch of independent models, each with parameters of its own.
Shape suffixes: G devices, D parameters.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedray.base.rng import Stream, stream_key
from fedray.clients.data.source import ExampleSource
from fedray.clients.tasks.gradients import gradients_of
from fedray.clients.tasks.layout import named, repeated, tensors
from fedray.clients.tasks.task import Task
from fedray.clients.work.caps import usable_examples
from fedray.clients.work.orders import example_orders
from fedray.clients.work.work import WorkOrder, WorkResult
from fedray.scenario.training import FedAvg, FedProx, FedSGD

MOST_EXAMPLES_HELD = 8192
"""A group has at most so many examples in memory at once, those of a few steps, so that long epochs
need no more."""


class LocalTraining:
    """FedAvg and FedProx; see fedray.clients.work.work.DeviceWork.

    Args:
        table: what the devices do.
        task: the model.
        source: the examples.
        seed: of the order in which examples are used.
    """

    def __init__(self, table: FedAvg, task: Task, source: ExampleSource, seed: int) -> None:
        self._table = table
        self._task = task
        self._source = source
        self._key = stream_key(seed, Stream.EXAMPLE_ORDER)
        self._proximal = table.proximal if isinstance(table, FedProx) else 0.0

    def compute(self, order: WorkOrder) -> WorkResult:
        """Trains every device of an `order` from the round's parameters.

        A device's update is its parameters after its last step less those of the round.

        Raises:
            DamagedExamples: the data of some devices cannot be read.
            ScenarioError: the losses of the user's task have no gradients.
        """
        table = self._table
        usable_G = usable_examples(table, self._source, order.device_ids, order.held)
        steps_G = self._steps(usable_G)
        most_steps = int(steps_G.max())
        batch = table.batch_size
        positions = example_orders(
            self._key, order.round_index, order.device_ids, usable_G, most_steps * batch
        )
        devices = len(order.device_ids)
        start = named(order.start[None, :], self._task.shapes)
        # The first step of plain SGD makes parameters of their own for a device that is alone; a
        # copy of a large model takes as long as a step. A group shares no memory from the start,
        # because tasks may look at its parameters as one tensor.
        is_copy_needed = devices > 1 or not _is_plain(table)
        parameters = repeated(start, devices) if is_copy_needed else start
        # Plain SGD is a single call; torch's optimisers would take longer than a small model.
        optimizer = _optimizer(table, list(parameters.values()))
        # Examples are read for a few steps at once, because every read has a fixed cost.
        steps_at_once = max(1, MOST_EXAMPLES_HELD // (devices * batch))
        first_losses_G = torch.zeros(devices)
        examples: dict[str, Tensor] = {}
        # Devices take their steps together, so that a step is one product for the whole group.
        for step in range(most_steps):
            step_in_window = step % steps_at_once
            if step_in_window == 0:
                window = positions[:, step * batch : (step + steps_at_once) * batch]
                examples = tensors(self._source.examples(order.device_ids, window))
            first = step_in_window * batch
            here = {name: part[:, first : first + batch] for name, part in examples.items()}
            losses_G, gradients = gradients_of(self._task, parameters, here)
            if step == 0:
                first_losses_G = losses_G
            if self._proximal:
                # FedProx adds proximal / 2 * |w - w_round|^2 to the loss (Li et al. 2020,
                # equation 2); this is its gradient.
                for name, gradient in gradients.items():
                    away = parameters[name] - start[name]
                    gradient.add_(away, alpha=self._proximal)
            if parameters is start:
                parameters = _first_step(table, start, gradients)
                continue
            # Some devices have fewer steps than others, and stay as they are from then on.
            is_training_G = torch.from_numpy(steps_G > step)
            _take_step(table, parameters, gradients, optimizer, is_training_G)
        updates_GD = order.room()
        # Each difference is written to its place: joined first, they pass through memory twice.
        for name, update in named(updates_GD, self._task.shapes).items():
            torch.sub(parameters[name], start[name], out=update)
        return WorkResult(
            updates=updates_GD,
            losses=first_losses_G.double(),
            examples=np.minimum(usable_G, steps_G * batch),
        )

    def _steps(self, usable_G: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many steps each device takes: as many as the table says, or enough for its epochs."""
        if self._table.epochs is None:
            return np.full(usable_G.size, self._table.local_steps)
        steps = self._table.epochs * usable_G / self._table.batch_size
        return np.ceil(steps).astype(np.int64)


class OneGradient:
    """FedSGD: one gradient of all of a device's examples; see fedray.clients.work.work.DeviceWork.

    Devices hold different numbers of examples, so each is computed alone.

    Args:
        table: says learning rate and caps.
        task: the model.
        source: the examples.
        seed: of the order in which examples are used.
    """

    def __init__(self, table: FedSGD, task: Task, source: ExampleSource, seed: int) -> None:
        self._table = table
        self._task = task
        self._source = source
        self._key = stream_key(seed, Stream.EXAMPLE_ORDER)

    def compute(self, order: WorkOrder) -> WorkResult:
        """The gradient step of every device of an `order`, on all of its usable examples.

        Raises:
            DamagedExamples: the data of some devices cannot be read.
            ScenarioError: the losses of the user's task have no gradients.
        """
        used_G = usable_examples(self._table, self._source, order.device_ids, order.held)
        start = named(order.start[None, :], self._task.shapes)
        # The windows' parts are subtracted, so the room must not hold what was there before.
        updates_GD = order.room().zero_()
        losses_G = torch.zeros(used_G.size, dtype=torch.float64)
        for place, used in enumerate(used_G.tolist()):
            one = slice(place, place + 1)
            device_ids = order.device_ids[one]
            positions = example_orders(self._key, order.round_index, device_ids, used_G[one], used)
            # The mean over all examples is that of the windows' means, each with its share of them.
            for first in range(0, used, MOST_EXAMPLES_HELD):
                window = positions[:, first : first + MOST_EXAMPLES_HELD]
                examples = tensors(self._source.examples(device_ids, window))
                losses_1, gradients = gradients_of(self._task, start, examples)
                share = window.shape[1] / used
                flat_parts = [part.reshape(-1) for part in gradients.values()]
                flat_D = torch.cat(flat_parts)
                updates_GD[place].sub_(flat_D, alpha=self._table.learning_rate * share)
                losses_G[place] += share * float(losses_1[0])
        return WorkResult(updates=updates_GD, losses=losses_G, examples=used_G)


def _is_plain(table: FedAvg) -> bool:
    """Whether steps are those of SGD without momentum, which has no state."""
    return table.optimizer == "sgd" and not table.momentum


def _optimizer(table: FedAvg, parameters: list[Tensor]) -> torch.optim.Optimizer | None:
    """One of torch's, which treats every coordinate alone; None for plain SGD."""
    if _is_plain(table):
        return None
    if table.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=table.learning_rate)
    return torch.optim.SGD(parameters, lr=table.learning_rate, momentum=table.momentum)


def _first_step(
    table: FedAvg, start: dict[str, Tensor], gradients: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Where a step of plain SGD leads from parameters that stay as they are."""
    parts = torch._foreach_add(  # pyright: ignore[reportPrivateImportUsage]
        list(start.values()), list(gradients.values()), alpha=-table.learning_rate
    )
    return dict(zip(start, parts, strict=True))


def _take_step(
    table: FedAvg,
    parameters: dict[str, Tensor],
    gradients: dict[str, Tensor],
    optimizer: torch.optim.Optimizer | None,
    is_training_G: Tensor,
) -> None:
    """A step in place. Devices that are done stay where they are."""
    parts = list(parameters.values())
    # The step moves everybody, and those who are done are put back: a copy is needed only then.
    everyone = bool(is_training_G.all())
    before = [] if everyone else [part.clone() for part in parts]
    if optimizer is None:
        torch._foreach_add_(  # pyright: ignore[reportPrivateImportUsage]
            parts, list(gradients.values()), alpha=-table.learning_rate
        )
    else:
        for part, gradient in zip(parts, gradients.values(), strict=True):
            part.grad = gradient
        optimizer.step()
    for part, kept in zip(parts, before, strict=not everyone):
        ones = (1,) * (part.dim() - 1)
        mask = is_training_G.view(-1, *ones)
        part.copy_(torch.where(mask, part, kept))
