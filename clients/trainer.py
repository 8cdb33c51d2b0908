"""The trainer: local training, clipping, the exact sum of what the devices send, and evaluation.

It trains any devices, and what it gives for an order depends on no other order. Torch works on one
thread here: the trainers of the pool are the parallelism.
"""

import dataclasses
import time
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fedray.clients.clipping import Clipped, Clipper
from fedray.clients.data.factory import source_of
from fedray.clients.data.source import DamagedExamples, ExampleSource
from fedray.clients.evaluation import device_sums, evaluate
from fedray.clients.tasks.factory import task_of
from fedray.clients.tasks.initial import start_of
from fedray.clients.tasks.layout import Shapes, size_of
from fedray.clients.waiting import WaitingUpdates
from fedray.clients.work.factory import work_of
from fedray.clients.work.work import DeviceWork, WorkOrder, WorkResult
from fedray.encoding.factory import encoding_of
from fedray.encoding.tables import FIXED_POINT_BITS
from fedray.scenario import Scenario
from fedray.scenario.clipping import Clip
from fedray.scenario.weighting import MeanWeighting
from fedray.wire.messages import (
    DeviceMeasures,
    Evaluation,
    TaskDescription,
    TrainOrder,
    TrainReport,
)

LONG_ENOUGH = 2.0
"""Seconds of measuring, after which a device's time is known well enough."""


class Holders(Protocol):
    """Who holds how many examples: what of a source of examples sums depend on."""

    def examples_on(self, device_ids: NDArray[np.uint64]) -> NDArray[np.int64]:
        """How many examples devices [G] have, [G]; a device may have none."""
        ...


class GroupTrainer:
    """Trains groups of devices: their work, what clipping and weights make of it, and the exact sum
    of what they send. Plain Python.

    Args:
        scenario: says how updates are clipped, weighted and encoded.
        shapes: of the model's parameters by name, in order.
        source: says who holds how many examples.
        work: what the devices compute.
    """

    def __init__(
        self, scenario: Scenario, shapes: Shapes, source: Holders, work: DeviceWork
    ) -> None:
        self._scenario = scenario
        self._source = source
        self._work = work
        self._clipper = Clipper(scenario.privacy, shapes)
        dimension = size_of(shapes)
        encoding = encoding_of(scenario.privacy.encoding, scenario.sum_setting(dimension))
        self._waiting = WaitingUpdates(encoding, dimension)

    def train(
        self, order: TrainOrder, parameters: NDArray[np.float32]
    ) -> tuple[TrainReport, NDArray[np.int64]]:
        """Trains the groups of an order from parameters [D].

        Returns:
            What became of the devices; and the sum [P] of their encoded updates.
        """
        _use_one_thread()
        clip = order.clip or self._clipper.first
        start_D = torch.tensor(parameters)
        self._waiting.begin(order.round_index, clip.norm)
        groups = [self._train_group(order, group, start_D, clip) for group in order.groups]
        return TrainReport.of(order.round_index, groups), self._waiting.finish()

    def _train_group(
        self,
        order: TrainOrder,
        device_ids: NDArray[np.uint64],
        start_D: torch.Tensor,
        clip: Clip,
    ) -> TrainReport:
        """Trains one group, and adds what its devices send to the sum."""
        asked = device_ids
        held = self._source.examples_on(device_ids)
        weights = self._weights(held)
        device_ids, held = device_ids[held > 0], held[held > 0]
        without_examples = asked.size - device_ids.size
        result, damaged = None, 0
        # Each turn leaves out the devices whose data turned out to be damaged.
        while device_ids.size and result is None:
            try:
                room = self._waiting.room(device_ids.size)
                result = self._work.compute(
                    WorkOrder(order.round_index, device_ids, held, start_D, room)
                )
            except DamagedExamples as error:
                is_whole = _are_whole(device_ids, error)
                damaged += int((~is_whole).sum())
                device_ids, held = device_ids[is_whole], held[is_whole]
        # They take part in the sum all the same: an encoding may have them send a zero, or noise.
        without_update = np.setdiff1d(asked, device_ids, assume_unique=True)
        self._waiting.add_without_update(without_update)
        counts = {"devices": asked.size, "without_examples": without_examples, "damaged": damaged}
        if weights is not None:
            # A whole number, like every sum of a report, so that it does not depend on groups and
            # their order.
            counts["weight_sum"] = sum(round(each * 2.0**FIXED_POINT_BITS) for each in weights)
        if result is None:
            return TrainReport(round_index=order.round_index, **counts)
        return self._add(order, device_ids, result, clip, self._weights(held), counts)

    def _weights(self, held: NDArray[np.int64]) -> NDArray[np.float64] | None:
        """What updates of devices [G] with so many examples count; None where all count the
        same."""
        weighting = self._scenario.training.weighting
        if isinstance(weighting, MeanWeighting):
            return None
        if weighting.example_cap is None:
            return np.ones(held.size)
        return np.minimum(held / weighting.example_cap, 1.0)

    def _add(
        self,
        order: TrainOrder,
        device_ids: NDArray[np.uint64],
        result: WorkResult,
        clip: Clip,
        weights: NDArray[np.float64] | None,
        counts: dict[str, int],
    ) -> TrainReport:
        group = self._clipper.clip(result.updates.numpy(), clip)
        # No weight is above 1, so none makes a clipped update longer.
        factors = group.factors if order.weight == 1.0 else group.factors * order.weight
        if weights is not None:
            factors = factors * weights
        self._waiting.add(device_ids, factors)
        # Updates that were too long, or diverged, are zero in the sum and tell nothing of it.
        is_counted = (group.done == Clipped.KEPT) | (group.done == Clipped.SHORTENED)
        is_counting = clip.counted_norm is not None
        # No comparison with a NaN holds, so an update that is not finite counts as long.
        short = int((group.norms <= (clip.counted_norm or 0.0)).sum()) if is_counting else 0
        losses = result.losses.numpy()[is_counted]
        # A loss may be infinite although the update is finite.
        losses = losses[np.isfinite(losses)]
        return TrainReport(
            round_index=order.round_index,
            loss_sum=sum(round(loss * 2.0**FIXED_POINT_BITS) for loss in losses.tolist()),
            trained=int(is_counted.sum()),
            examples=int(result.examples[is_counted].sum()),
            clipped=int((group.done == Clipped.SHORTENED).sum()),
            zeroed=int((group.done == Clipped.ZEROED).sum()),
            short=short,
            long=device_ids.size - short if is_counting else 0,
            not_finite=int((group.done == Clipped.NOT_FINITE).sum()),
            **counts,
        )


class LocalTrainer(GroupTrainer):
    """Trains any devices of a scenario. Plain Python."""

    def __init__(self, scenario: Scenario) -> None:
        scenario_source = source_of(scenario)
        self._task = task_of(scenario, scenario_source.fields)
        # A task of the user's own may bring its data.
        self._examples: ExampleSource = getattr(self._task, "source", None) or scenario_source
        work = work_of(scenario, self._task, self._examples)
        super().__init__(scenario, self._task.shapes, self._examples, work)

    def initial_parameters(self) -> NDArray[np.float32]:
        """Returns the parameters [D] of `training.initial`, or else of the task."""
        return start_of(self._scenario, self._task)

    def describe(self) -> TaskDescription:
        """What is trained."""
        task = self._task
        return TaskDescription(dict(task.shapes), tuple(task.metrics), dict(self._examples.optimum))

    def evaluate(self, parameters: NDArray[np.float32]) -> Evaluation:
        """The task's metrics of parameters [D] on held-out data."""
        _use_one_thread()
        return evaluate(self._task, self._examples, self._scenario.training, parameters)

    def measure_devices(
        self, parameters: NDArray[np.float32], device_ids: NDArray[np.uint64], most_examples: int
    ) -> DeviceMeasures:
        """Each device's own metrics of parameters [D], on its first examples.

        Args:
            parameters: of the model, [D].
            device_ids: devices [G].
            most_examples: used of each device.
        """
        counts = np.minimum(self._examples.examples_on(device_ids), most_examples)
        device_ids, counts = device_ids[counts > 0], counts[counts > 0]
        # As in training, damaged devices are left out until the others can be read.
        while True:
            try:
                sums = device_sums(self._task, self._examples, device_ids, counts, parameters)
            except DamagedExamples as error:
                is_whole = _are_whole(device_ids, error)
                device_ids, counts = device_ids[is_whole], counts[is_whole]
                continue
            return DeviceMeasures(device_ids, counts, sums)

    def seconds_per_device(
        self, order: TrainOrder, parameters: NDArray[np.float32], devices_at_once: int
    ) -> float:
        """How long a device of the order takes, in groups of that size: the least of a few passes,
        of which the first compiles and reads the data."""
        cohort = np.concatenate(order.groups)
        groups = np.split(cohort, range(devices_at_once, cohort.size, devices_at_once))
        # Enough devices for a mean, whatever the size of the groups: sixteen, or one group.
        timed = dataclasses.replace(order, groups=groups[: max(1, 16 // devices_at_once)])
        seconds: list[float] = []
        while len(seconds) < 2 or (len(seconds) < 4 and sum(seconds) < LONG_ENOUGH):
            start = time.perf_counter()
            self.train(timed, parameters)
            seconds.append(time.perf_counter() - start)
        return min(seconds) / sum(group.size for group in timed.groups)


def _are_whole(device_ids: NDArray[np.uint64], error: DamagedExamples) -> NDArray[np.bool_]:
    """Which of some devices an error does not name. Raises the error if it names none of them:
    trying again without the others would not end."""
    is_whole = ~np.isin(device_ids, np.array(list(error.problems), np.uint64))
    if is_whole.all():
        raise error
    return is_whole


def _use_one_thread() -> None:
    # Before every order: an aggregator in this process starts numba's threads, and numba then gives
    # torch as many. Measured: small models then took eight times the CPU time on a busy machine.
    torch.set_num_threads(1)
