"""Local training: gradient steps on a device's own examples, from the round's parameters.

A group of devices trains as one batch of independent models with parameters of their own.
Shape suffixes: G devices, D parameters.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedray.base.rng import Stream, stream_key
from fedray.clients.data.source import ExampleSource, Ids, Integers
from fedray.clients.tasks.gradients import gradients_of
from fedray.clients.tasks.layout import Named, named, repeated, tensors
from fedray.clients.tasks.task import Task
from fedray.clients.work.caps import usable_examples
from fedray.clients.work.orders import example_orders
from fedray.clients.work.work import WorkOrder, WorkResult
from fedray.scenario.pretraining import Pretraining
from fedray.scenario.training import FedAvg, FedProx, FedSGD

MOST_EXAMPLES_HELD = 8192
"""Most examples of a group in memory at once, so that long epochs need no more than a few steps."""
_Table = TypeVar("_Table", FedAvg, FedSGD)


class _Work(Generic[_Table]):
    """Base of both kinds of work.

    Args:
        table: table of the work.
        task: model.
        source: source of the examples.
        seed: seed of the order in which examples are used.
    """

    def __init__(self, table: _Table, task: Task, source: ExampleSource, seed: int) -> None:
        self._table = table
        self._task = task
        self._source = source
        self._key = stream_key(seed, Stream.EXAMPLE_ORDER)

    def _usable(self, order: WorkOrder) -> Integers:
        return usable_examples(self._table, self._source, order.device_ids, order.held)

    def _start(self, order: WorkOrder) -> Named:
        return named(order.start[None, :], self._task.shapes)

    def _read(self, device_ids: Ids, positions: Integers) -> Named:
        return tensors(self._source.examples(device_ids, positions))


class LocalTraining(_Work[FedAvg]):
    """FedAvg and FedProx; see fedray.clients.work.work.DeviceWork.

    An update is a device's parameters after its last step, minus the parameters of the round.
    """

    def compute(self, order: WorkOrder) -> WorkResult:
        table = self._table
        usable_G = self._usable(order)
        steps_G = self._steps(usable_G)
        devices = len(order.device_ids)
        start = self._start(order)
        # A single device needs no copy if the first step makes one anyway: a copy of a large model
        # takes as long as a step. Devices of a group share no memory from the start, because tasks
        # may view their parameters as one tensor.
        is_copy_needed = devices > 1 or not _is_plain(table)
        parameters = repeated(start, devices) if is_copy_needed else start
        optimizer = None if _is_plain(table) else optimizer_of(table, list(parameters.values()))
        first_losses_G = torch.zeros(devices)
        # Devices take their steps together, so that a step is one product for the whole group.
        for step, batch in enumerate(self._batches(order, usable_G, int(steps_G.max()))):
            losses_G, gradients = gradients_of(self._task, parameters, batch)
            if step == 0:
                first_losses_G = losses_G
            if isinstance(table, FedProx):
                _add_proximal(gradients, parameters, start, table.proximal)
            if parameters is start:
                parameters = _first_step(table, start, gradients)
                continue
            # Devices with fewer steps than others keep their parameters from then on.
            is_training_G = torch.from_numpy(steps_G > step)
            _take_step(table, parameters, gradients, optimizer, is_training_G)
        updates_GD = order.room()
        # Written in place: joining the differences first would pass them through memory twice.
        for name, update in named(updates_GD, self._task.shapes).items():
            torch.sub(parameters[name], start[name], out=update)
        return WorkResult(
            updates=updates_GD,
            losses=first_losses_G.double(),
            examples=np.minimum(usable_G, steps_G * table.batch_size),
        )

    def _steps(self, usable_G: Integers) -> Integers:
        if self._table.epochs is None:
            return np.full(usable_G.size, self._table.local_steps)
        steps = self._table.epochs * usable_G / self._table.batch_size
        return np.ceil(steps).astype(np.int64)

    def _batches(self, order: WorkOrder, usable_G: Integers, steps: int) -> Iterator[Named]:
        """Yields the batch of each step, [G, B, ...] by field."""
        size = self._table.batch_size
        positions = example_orders(
            self._key, order.round_index, order.device_ids, usable_G, steps * size
        )
        # Every read has a fixed cost, so one read serves several steps.
        steps_at_once = max(1, MOST_EXAMPLES_HELD // (len(order.device_ids) * size))
        for first_step in range(0, steps, steps_at_once):
            end_step = min(first_step + steps_at_once, steps)
            window = positions[:, first_step * size : end_step * size]
            examples = self._read(order.device_ids, window)
            for first in range(0, window.shape[1], size):
                yield {name: part[:, first : first + size] for name, part in examples.items()}


class OneGradient(_Work[FedSGD]):
    """FedSGD: one gradient of all of a device's examples; see fedray.clients.work.work.DeviceWork.

    Devices hold different numbers of examples, so they are computed one by one.
    """

    def compute(self, order: WorkOrder) -> WorkResult:
        used_G = self._usable(order)
        start = self._start(order)
        # The shares of windows are subtracted, so the memory must start at zero.
        updates_GD = order.room().zero_()
        losses_G = torch.zeros(used_G.size, dtype=torch.float64)
        for place, used in enumerate(used_G.tolist()):
            one = slice(place, place + 1)
            device_ids = order.device_ids[one]
            positions = example_orders(self._key, order.round_index, device_ids, used_G[one], used)
            # The mean over all examples is the mean of the windows, weighted by their sizes.
            for first in range(0, used, MOST_EXAMPLES_HELD):
                window = positions[:, first : first + MOST_EXAMPLES_HELD]
                examples = self._read(device_ids, window)
                losses_1, gradients = gradients_of(self._task, start, examples)
                share = window.shape[1] / used
                flat_D = torch.cat([part.reshape(-1) for part in gradients.values()])
                updates_GD[place].sub_(flat_D, alpha=self._table.learning_rate * share)
                losses_G[place] += share * float(losses_1[0])
        return WorkResult(updates=updates_GD, losses=losses_G, examples=used_G)


def optimizer_of(table: FedAvg | Pretraining, parameters: list[Tensor]) -> torch.optim.Optimizer:
    """Returns the table's optimiser of parameters, which treats every coordinate separately."""
    if table.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=table.learning_rate)
    return torch.optim.SGD(parameters, lr=table.learning_rate, momentum=table.momentum)


def _is_plain(table: FedAvg) -> bool:
    """Whether steps are SGD without momentum, which has no state.

    They are a single call then; torch's optimisers would take longer than a small model.
    """
    return table.optimizer == "sgd" and not table.momentum


def _add_proximal(
    gradients: Named,
    parameters: Named,
    start: Named,
    proximal: float,
) -> None:
    """Adds the gradient of proximal / 2 * |w - w_round|^2 (Li et al. 2020, equation 2)."""
    if proximal:
        for name, gradient in gradients.items():
            away = parameters[name] - start[name]
            gradient.add_(away, alpha=proximal)


def _first_step(table: FedAvg, start: Named, gradients: Named) -> Named:
    """Returns the parameters after a step of plain SGD, and leaves the start unchanged."""
    parts = torch._foreach_add(  # pyright: ignore[reportPrivateImportUsage]
        list(start.values()), list(gradients.values()), alpha=-table.learning_rate
    )
    return dict(zip(start, parts, strict=True))


def _take_step(
    table: FedAvg,
    parameters: Named,
    gradients: Named,
    optimizer: torch.optim.Optimizer | None,
    is_training_G: Tensor,
) -> None:
    """Takes a step in place. Devices that have finished stay where they are."""
    parts = list(parameters.values())
    # The step moves all devices, then finished ones are restored from a copy.
    is_everyone = bool(is_training_G.all())
    before = [] if is_everyone else [part.clone() for part in parts]
    if optimizer is None:
        torch._foreach_add_(  # pyright: ignore[reportPrivateImportUsage]
            parts, list(gradients.values()), alpha=-table.learning_rate
        )
    else:
        for part, gradient in zip(parts, gradients.values(), strict=True):
            part.grad = gradient
        optimizer.step()
    for part, kept in zip(parts, before, strict=not is_everyone):
        ones = (1,) * (part.dim() - 1)
        mask = is_training_G.view(-1, *ones)
        part.copy_(torch.where(mask, part, kept))
