"""Local training: gradient steps on a device's own examples, from the round's parameters.

A group of devices trains as one batch of independent models with parameters of their own. Every
tensor is where the parameters of the round are: on the CPU or on another device of torch.
Shape suffixes: G devices, D parameters.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedray.base.rng import Stream, stream_key, stream_seed
from fedray.runtime.devices import own_draws, seed_draws
from fedray.scenario.training import FedAvg, FedProx, FedSGD
from ..data.source import DamagedExamples, ExampleSource, Integers
from ..tasks.gradients import gradients_of
from ..tasks.layout import Named, named, repeated, tensors
from ..tasks.task import Task
from .caps import usable_examples
from .orders import example_orders
from .steps import (
    CustomSteps,
    GroupSteps,
    PlainSteps,
    Steps,
    check_apart,
    custom_file,
    is_plain,
    shortened,
)
from .work import WorkOrder, WorkResult

MOST_EXAMPLES_HELD = 8192
"""Largest number of a group's examples in memory at once, so that long epochs need no more than a
few steps."""
_LOOKED_AT = 16, 4096
"""Numbers of devices among which one with examples shows how the task trains: few first."""
_Table = TypeVar("_Table", FedAvg, FedSGD)
_MakeSteps = Callable[[Named], Steps]
_Descend = Callable[[Named, Named, float], Tensor]
_SeedDevices = Callable[[Sequence[int]], None]


class _Work(Generic[_Table]):
    """Base of both kinds of work.

    Args:
        table: table of the work.
        task: model.
        source: source of the examples.
        seed: seed of the order in which examples are used.
        rounds: number of rounds, for the schedule of the learning rate.
    """

    def __init__(
        self, table: _Table, task: Task, source: ExampleSource, seed: int, rounds: int = 1
    ) -> None:
        self._table = table
        self._task = task
        self._source = source
        self._seed = seed
        self._rounds = rounds
        self._key = stream_key(seed, Stream.EXAMPLE_ORDER)
        choose = getattr(task, "choose", None)
        if choose is not None and (examples := _first_examples(source)):
            choose(examples)
        self._is_alone = bool(getattr(task, "alone", ""))
        # A task that draws for devices together takes a seed for each.
        self._seed_devices: _SeedDevices | None = (
            getattr(task, "seed_devices", None) if getattr(task, "draws", False) else None
        )

    def compute(self, order: WorkOrder) -> WorkResult:
        if self._seed_devices:
            try:
                return self._compute(order)
            finally:
                # Losses that are computed later belong to other steps.
                self._seed_devices(())
        if not self._is_alone:
            return self._compute(order)
        # One by one, so that no bit depends on the group.
        updates_GD = order.room()
        results: list[WorkResult] = []
        with own_draws(order.start.device):
            for place in range(len(updates_GD)):
                one = slice(place, place + 1)
                device_ids, held, out = order.device_ids[one], order.held[one], updates_GD[one]
                # A module may change its parameters in a call.
                start = order.start.clone()
                results.append(
                    self._compute(WorkOrder(order.round_index, device_ids, held, start, out))
                )
        return WorkResult(
            updates=updates_GD,
            losses=torch.cat([each.losses for each in results]),
            examples=np.concatenate([each.examples for each in results]),
        )

    def _compute(self, order: WorkOrder) -> WorkResult:
        raise NotImplementedError

    def _begin_step(self, order: WorkOrder, step: int) -> None:
        """Seeds the draws of the devices of an order in a step."""
        if not (self._is_alone or self._seed_devices):
            return
        seeds = [
            stream_seed(self._seed, Stream.LOCAL_STEP, device_id, order.round_index, step)
            for device_id in order.device_ids.tolist()
        ]
        if self._seed_devices:
            self._seed_devices(seeds)
        else:
            seed_draws(order.start.device, seeds[0])

    def _usable(self, order: WorkOrder) -> Integers:
        return usable_examples(self._table, self._source, order.device_ids, order.held)

    def _start(self, order: WorkOrder) -> Named:
        return named(order.start[None, :], self._task.shapes)

    def _read(self, order: WorkOrder, devices: slice, positions: Integers) -> Named:
        examples = self._source.examples(order.device_ids[devices], positions)
        return tensors(examples, order.start.device)


class LocalTraining(_Work[FedAvg]):
    """FedAvg and FedProx; see fedray.clients.work.work.DeviceWork.

    An update is a device's parameters after its last step, minus the parameters of the round.
    Devices take their steps together, so that a step is one product for the whole group. A device
    leaves the group after its last step, so that every step that is computed is needed.
    """

    def __init__(
        self, table: FedAvg, task: Task, source: ExampleSource, seed: int, rounds: int = 1
    ) -> None:
        super().__init__(table, task, source, seed, rounds)
        self._file = custom_file(table)
        if self._file is not None:
            check_apart(self._file, task.shapes, table.learning_rate)
        # New pages would cost as much as a copy of the parameters.
        self._kept: Named = {}

    def _compute(self, order: WorkOrder) -> WorkResult:
        usable_G = self._usable(order)
        steps_G = self._steps(usable_G)
        # The devices with the most steps come first. Devices that still train are then the first
        # rows, and a view of these rows drops the others without a copy.
        by_steps = np.argsort(-steps_G, kind="stable")
        ordered = replace(order, device_ids=order.device_ids[by_steps])
        models = _Models(
            self._table,
            self._task,
            self._start(order),
            steps_G.size,
            self._steps_for(ordered),
            self._kept,
        )
        losses_G = order.start.new_zeros(steps_G.size)
        places = torch.from_numpy(by_steps).to(losses_G.device)
        batches = self._batches(ordered, usable_G[by_steps], steps_G[by_steps])
        for step, batch in enumerate(batches):
            active = len(next(iter(batch.values())))
            self._begin_step(replace(ordered, device_ids=ordered.device_ids[:active]), step)
            losses = models.step(batch)
            # The loss before any step is that of the model of the round. Later ones show how well a
            # device fits its own data.
            if step == 0:
                losses_G[places] = losses
        updates_GD = order.room()
        models.write_updates(named(updates_GD, self._task.shapes), by_steps)
        return WorkResult(
            updates=updates_GD,
            losses=losses_G.double(),
            examples=np.minimum(usable_G, steps_G * self._table.batch_size),
        )

    def _steps_for(self, order: WorkOrder) -> _MakeSteps:
        """Returns a function that makes the optimizer of an order's devices."""
        table, index, device_ids = self._table, order.round_index, order.device_ids.tolist()
        rate = table.learning_rate * table.schedule.factor(index, self._rounds)

        def seed_of(place: int, step: int) -> int:
            return stream_seed(self._seed, Stream.OPTIMIZER_STEP, device_ids[place], index, step)

        def made(parameters: Named) -> Steps:
            if self._file is not None:
                return CustomSteps(self._file, parameters, rate, seed_of)
            return (PlainSteps if is_plain(table) else GroupSteps)(table, parameters, rate)

        return made

    def _steps(self, usable_G: Integers) -> Integers:
        if self._table.epochs is None:
            return np.full(usable_G.size, self._table.local_steps)
        steps = self._table.epochs * usable_G / self._table.batch_size
        return np.ceil(steps).astype(np.int64)

    def _batches(self, order: WorkOrder, usable_G: Integers, steps_G: Integers) -> Iterator[Named]:
        """Yields the batch of each step, [A, B, ...] by field, for the A devices that take it.

        steps_G: steps of each device, in descending order.
        """
        size = self._table.batch_size
        first_step = 0
        positions = example_orders(
            self._key, order.round_index, order.device_ids, usable_G, int(steps_G[0]) * size
        )
        while first_step < steps_G[0]:
            active = int(np.count_nonzero(steps_G > first_step))
            # Every read has a fixed cost, so one read serves several steps. It ends when the next
            # device finishes, so that nothing is read in vain.
            steps_at_once = max(1, MOST_EXAMPLES_HELD // (active * size))
            end_step = min(first_step + steps_at_once, int(steps_G[active - 1]))
            window = positions[:active, first_step * size : end_step * size]
            examples = self._read(order, slice(active), window)
            for first in range(0, window.shape[1], size):
                yield {name: part[:, first : first + size] for name, part in examples.items()}
            first_step = end_step


class _Models:
    """Models of a group while it trains, a row for each device.

    Args:
        table: table of the work.
        task: model.
        start: parameters of the round, [1, *shape] by name.
        devices: number of devices, G.
        make_steps: function that makes the optimizer of parameters [G, *shape] by name.
        kept: memory of the parameters of an earlier group.
    """

    def __init__(
        self,
        table: FedAvg,
        task: Task,
        start: Named,
        devices: int,
        make_steps: _MakeSteps,
        kept: Named,
    ) -> None:
        self._table = table
        self._task = task
        self._start = start
        # A compiled step changes parameters in place, and needs no gradient.
        self._descend: _Descend | None = None
        if getattr(task, "descends", False) and _has_plain_steps(table, start):
            self._descend = getattr(task, "descend", None)
        # No copy is needed if the first step makes one anyway: a copy of a large model takes as
        # long as a step.
        is_copied = devices > 1 or self._descend is not None or not is_plain(table)
        self._all = repeated(start, devices, kept) if is_copied else start
        self._training = {name: part[:] for name, part in self._all.items()}
        self._steps = make_steps(self._training)

    def step(self, batch: Named) -> Tensor:
        """Takes a step of the first A devices on batches [A, B, ...], and returns their losses [A].

        A may only fall from step to step.
        """
        self._keep_first(len(next(iter(batch.values()))))
        if self._descend is not None and isinstance(self._steps, PlainSteps):
            losses = self._descend(self._training, batch, self._steps.rate)
        else:
            losses = self._step(batch)
        if self._table.step_decay < 1.0:
            self._steps.decay(self._table.step_decay)
        return losses

    def _step(self, batch: Named) -> Tensor:
        losses, gradients = gradients_of(self._task, self._training, batch)
        if isinstance(self._table, FedProx):
            _add_proximal(gradients, self._training, self._start, self._table.proximal)
        if self._table.gradient_norm is not None:
            gradients = shortened(gradients, self._table.gradient_norm)
        if self._all is self._start and isinstance(self._steps, PlainSteps):
            self._all = self._steps.taken_from(self._start, gradients)
            self._training = {name: part[:] for name, part in self._all.items()}
        else:
            self._steps.take(self._training, gradients)
        return losses

    def write_updates(self, updates: Named, places: Integers) -> None:
        """Writes the update of row i to row places[i] of `updates`."""
        is_in_order = bool((places[:-1] < places[1:]).all())
        rows = torch.from_numpy(np.argsort(places))
        for name, update in updates.items():
            trained = self._all[name]
            if not is_in_order:
                trained = trained[rows.to(trained.device)]
            # Written in place: joining the differences first would pass them through memory twice.
            torch.sub(trained, self._start[name], out=update)

    def _keep_first(self, devices: int) -> None:
        """Drops all devices but the first. Their parameters stay as they are."""
        parts = list(self._training.values())
        if devices == len(parts[0]):
            return
        for part in parts:
            # An optimizer knows a parameter by its tensor, which therefore stays.
            part.data = part[:devices]
        self._steps.keep_first(devices)


class OneGradient(_Work[FedSGD]):
    """FedSGD: one gradient of all of a device's examples; see fedray.clients.work.work.DeviceWork.

    Devices hold different numbers of examples, so they are computed one by one.
    """

    def _compute(self, order: WorkOrder) -> WorkResult:
        used_G = self._usable(order)
        start = self._start(order)
        # The shares of windows are subtracted, so the memory must start at zero.
        updates_GD = order.room().zero_()
        losses_G = order.start.new_zeros(used_G.size, dtype=torch.float64)
        for place, used in enumerate(used_G.tolist()):
            one = slice(place, place + 1)
            device_ids = order.device_ids[one]
            positions = example_orders(self._key, order.round_index, device_ids, used_G[one], used)
            # The mean over all examples is the mean of the windows, weighted by their sizes.
            for first in range(0, used, MOST_EXAMPLES_HELD):
                window = positions[:, first : first + MOST_EXAMPLES_HELD]
                examples = self._read(order, one, window)
                self._begin_step(replace(order, device_ids=device_ids), first)
                losses_1, gradients = gradients_of(self._task, start, examples)
                share = window.shape[1] / used
                flat_D = torch.cat([part.reshape(-1) for part in gradients.values()])
                updates_GD[place].sub_(flat_D, alpha=self._table.learning_rate * share)
                losses_G[place].add_(losses_1[0].double(), alpha=share)
        return WorkResult(updates=updates_GD, losses=losses_G, examples=used_G)


def _has_plain_steps(table: FedAvg, start: Named) -> bool:
    """Returns whether a step only subtracts gradients times the learning rate, on a CPU."""
    is_changed = table.weight_decay or table.gradient_norm or getattr(table, "proximal", 0.0)
    return is_plain(table) and not is_changed and all(part.is_cpu for part in start.values())


def _first_examples(source: ExampleSource) -> Named | None:
    """Returns four examples of the first device that has any, [1, 4, ...] by field; None if the
    first devices have none. A device with fewer repeats its last."""
    for count in _LOOKED_AT:
        device_ids = np.arange(count, dtype=np.uint64)
        held = source.examples_on(device_ids)
        for place in np.flatnonzero(held):
            with suppress(DamagedExamples):
                positions = np.minimum(np.arange(4), held[place] - 1)[None]
                examples = source.examples(device_ids[place : place + 1], positions)
                return tensors(examples)
    return None


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
