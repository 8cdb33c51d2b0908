"""The trainer: local training, clipping, the exact sum of the devices' updates, and evaluation.

It trains any devices, and its result for an order depends on no other order. Torch works on one
thread here: the trainers of the pool are the parallelism.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np
import torch

from fedray.base.arrays import Float64Array
from fedray.encoding.factory import encoding_of
from fedray.encoding.tables import FIXED_POINT_BITS
from fedray.runtime import devices
from fedray.scenario import Scenario
from fedray.scenario.clipping import Clip
from fedray.scenario.weighting import MeanWeighting
from fedray.trace.groups import By, GroupFunction
from fedray.wire.messages import (
    DeviceMeasures,
    EvaluationPart,
    GroupSums,
    TaskDescription,
    TrainOrder,
    TrainReport,
)
from .clipping import Clipped, ClippedGroup, Clipper
from .data.factory import source_of
from .data.planted import with_phrases
from .data.recorded import RecordedExamples
from .data.source import DamagedExamples, ExampleSource, Ids, Integers
from .evaluation import EXAMPLES_AT_ONCE, device_sums, evaluate, repeated_examples
from .groups import group_sums
from .tasks.factory import task_of
from .tasks.initial import start_of
from .tasks.layout import Shapes, named, size_of
from .tasks.task import Vector
from .waiting import WaitingUpdates
from .work.factory import work_of
from .work.work import DeviceWork, WorkOrder, WorkResult

LONG_ENOUGH = 2.0
"""Seconds of measuring, after which a device's time is known well enough."""
TOO_LARGE = (
    "a model with one example needs more memory than its GPU has; use a smaller model, or evaluate "
    "on CPUs (trainer_gpus=0)"
)
TOO_MANY = f"{EXAMPLES_AT_ONCE:,} texts need more memory than the GPU has; use trainer_gpus=0"
_T = TypeVar("_T")


class Holders(Protocol):
    """The part of an example source that sums depend on."""

    def examples_on(self, device_ids: Ids) -> Integers:
        """Returns the number of examples [G] of devices [G], which may be 0."""
        ...


class GroupTrainer:
    """Trains groups of devices: their work, clipping, weights, and the exact sum of their updates.

    Args:
        scenario: scenario that says how updates are clipped, weighted and encoded.
        shapes: shapes of the model's parameters by name, in order.
        source: source of the number of examples.
        work: work of the devices.
        device: name of the torch device of all computation, up to the sum.
    """

    def __init__(
        self,
        scenario: Scenario,
        shapes: Shapes,
        source: Holders,
        work: DeviceWork,
        device: str = "cpu",
    ) -> None:
        self._device = devices.device_of(device, "trainer_gpus")
        self._scenario = scenario
        self._source = source
        self._work = work
        self._clipper = Clipper(scenario.privacy, shapes)
        dimension = size_of(shapes)
        encoding = encoding_of(scenario.privacy.sent, scenario.sum_setting(dimension))
        self._waiting = WaitingUpdates(encoding, dimension, self._device)

    def train(self, order: TrainOrder, parameters: Vector) -> tuple[TrainReport, Integers]:
        """Trains the groups of an order from parameters [D].

        Returns:
            Report about the devices, and the sum [P] of their encoded updates.
        """
        _use_one_thread()
        clip = order.clip or self._clipper.first
        start_D = self._placed(parameters)
        self._waiting.begin(order.round_index, clip.norm)
        with devices.device_errors(
            "a group of devices needs more memory than its GPU has; set training.devices_at_once "
            "to a smaller number"
        ):
            groups = [self._train_group(order, group, start_D, clip) for group in order.groups]
        total_P, clipped = self._waiting.finish()
        of_encoding = TrainReport(round_index=order.round_index, clipped_coordinates=clipped)
        return TrainReport.of(order.round_index, [*groups, of_encoding]), total_P

    def _placed(self, parameters: Vector) -> torch.Tensor:
        return devices.placed(parameters, self._device)

    def _train_group(
        self, order: TrainOrder, asked: Ids, start_D: torch.Tensor, clip: Clip
    ) -> TrainReport:
        held = self._source.examples_on(asked)
        has_examples = held > 0

        def computed(device_ids: Ids, held: Integers) -> WorkResult | None:
            if not device_ids.size:
                return None
            room = self._waiting.room(device_ids.size)
            return self._work.compute(WorkOrder(order.round_index, device_ids, held, start_D, room))

        result, device_ids, whole_held = _of_whole_devices(
            computed, asked[has_examples], held[has_examples]
        )
        # Devices without an update take part in the sum too: under some encodings they send a zero
        # or noise.
        without_update = np.setdiff1d(asked, device_ids, assume_unique=True)
        self._waiting.add_without_update(without_update)
        with_examples = int(has_examples.sum())
        counts = {
            "devices": asked.size,
            "without_examples": asked.size - with_examples,
            "damaged": with_examples - device_ids.size,
        }
        weights = self._weights(held)
        if weights is not None:
            # An integer, like every sum of a report, so that groups and their order do not matter.
            counts["weight_sum"] = _fixed_point_sum(weights)
        if result is None:
            return TrainReport(round_index=order.round_index, **counts)
        group = self._clipper.clip(devices.native(result.updates), clip)
        # No weight is above 1, so a weight never makes a clipped update longer.
        factors = group.factors if order.weight == 1.0 else group.factors * order.weight
        weights = self._weights(whole_held)
        if weights is not None:
            factors = factors * devices.like(weights, factors)
        self._waiting.add(device_ids, factors)
        return _report(order.round_index, result, group, clip, counts)

    def _weights(self, held: Integers) -> Float64Array | None:
        """Returns the weights of devices with these numbers of examples; None if all are equal."""
        weighting = self._scenario.training.weighting
        if isinstance(weighting, MeanWeighting):
            return None
        if weighting.example_cap is None:
            return np.ones(held.size)
        return np.minimum(held / weighting.example_cap, 1.0)


class LocalTrainer(GroupTrainer):
    """Trains any devices of a scenario, on a torch device.

    Raises InputError if the device is a GPU that torch does not see.
    """

    def __init__(self, scenario: Scenario, device: str = "cpu") -> None:
        scenario_source = source_of(scenario)
        self._task = task_of(scenario, scenario_source.fields)
        # A user's task may bring its own data.
        own: ExampleSource = getattr(self._task, "source", None) or scenario_source
        self._examples = with_phrases(scenario, own)
        self._recorded = own if isinstance(own, RecordedExamples) else None
        work = work_of(scenario, self._task, self._examples)
        super().__init__(scenario, self._task.shapes, self._examples, work, device)

    def initial_parameters(self) -> Vector:
        """Returns the parameters [D] of `training.initial`, or else of the task."""
        return start_of(self._scenario, self._task)

    def describe(self) -> TaskDescription:
        """Returns what the task trains, and how."""
        shapes, metrics = dict(self._task.shapes), tuple(self._task.metrics)
        kind = devices.kind_of_device(self._device)
        one_by_one = "devices train one at a time, which takes longer with a small model: "
        alone, uneven = (getattr(self._task, name, "") for name in ("alone", "uneven"))
        of_data = repeated_examples(self._examples, self._scenario.training)
        notes = tuple(filter(None, (alone and one_by_one + alone, uneven, of_data)))
        recorded, optimum = self._recorded, dict(self._examples.optimum)
        people = {} if recorded is None else recorded.people(self._scenario)
        words = () if recorded is None else recorded.words
        frozen = getattr(self._task, "frozen", 0)  # only modules have such parameters
        return TaskDescription(shapes, metrics, optimum, kind, notes, people, words, frozen)

    @property
    def examples(self) -> ExampleSource:
        """The examples that devices train on, planted phrases among them."""
        return self._examples

    def text_losses(self, parameters: Vector, tokens: Integers) -> Float64Array:
        """Returns the sum of the losses of the words of texts [N, T], in nats [N]."""
        start = named(self._placed(parameters)[None, :], self._task.shapes)
        parts = []
        for some in torch.tensor(tokens, device=self._device).split(EXAMPLES_AT_ONCE):
            with torch.no_grad(), devices.device_errors(TOO_MANY):
                nats, _ = self._task.measure(start, {"tokens": some[None]})["loss"]
            parts.append(devices.on_host(nats[0].double()))
        return np.concatenate(parts)

    def evaluate(self, parameters: Vector, share: tuple[int, int] = (0, 1)) -> EvaluationPart:
        """Returns part i of n of an evaluation of parameters [D], for a share (i, n)."""
        _use_one_thread()
        training, placed = self._scenario.training, self._placed(parameters)
        with devices.device_errors(TOO_LARGE):
            return evaluate(self._task, self._examples, training, placed, share)

    def group_sums(self, parameters: Vector, by: By | GroupFunction) -> GroupSums:
        """Returns sums of the metrics of parameters [D] by group and device."""
        _use_one_thread()
        with devices.device_errors(TOO_LARGE):
            placed = self._placed(parameters)
            return group_sums(self._task, self._examples, self._scenario, placed, by)

    def fetch(self, parameters: Vector) -> Vector:
        """Returns parameters [D], which the aggregator's process may have kept."""
        return parameters

    def measure_devices(
        self, parameters: Vector, device_ids: Ids, most_examples: int
    ) -> DeviceMeasures:
        """Returns each device's metrics of parameters [D] on its first `most_examples` examples.

        Devices without examples, and devices with damaged data, are left out.
        """

        def measured(device_ids: Ids, counts: Integers) -> dict[str, Float64Array]:
            return device_sums(self._task, self._examples, device_ids, counts, placed)

        placed = self._placed(parameters)
        counts = np.minimum(self._examples.examples_on(device_ids), most_examples)
        has_examples = counts > 0
        with devices.device_errors(TOO_LARGE):
            sums, device_ids, counts = _of_whole_devices(
                measured, device_ids[has_examples], counts[has_examples]
            )
        return DeviceMeasures(device_ids, counts, sums)

    def seconds_per_device(
        self, order: TrainOrder, parameters: Vector, devices_at_once: int
    ) -> float:
        """Measures how long a device of the order takes, in groups of `devices_at_once`."""
        cohort = np.concatenate(order.groups)
        groups = np.split(cohort, range(devices_at_once, cohort.size, devices_at_once))
        # Sixteen devices, or one group, suffice for a mean at any size of the groups.
        timed = dataclasses.replace(order, groups=groups[: max(1, 16 // devices_at_once)])
        seconds: list[float] = []
        # The first pass compiles and reads data, so the fastest of a few passes counts.
        while len(seconds) < 2 or (len(seconds) < 4 and sum(seconds) < LONG_ENOUGH):
            start = time.perf_counter()
            self.train(timed, parameters)
            seconds.append(time.perf_counter() - start)
        return min(seconds) / sum(group.size for group in timed.groups)


def _report(
    round_index: int,
    result: WorkResult,
    group: ClippedGroup,
    clip: Clip,
    counts: dict[str, int],
) -> TrainReport:
    # Other updates are zero in the sum, so their losses and examples do not belong to it.
    done, norms = devices.on_host(group.done), devices.on_host(group.norms)
    is_in_sum = (done == Clipped.KEPT) | (done == Clipped.SHORTENED)
    # A loss may be infinite although the update is finite.
    losses = devices.on_host(result.losses)[is_in_sum]
    losses = losses[np.isfinite(losses)]
    is_counting = clip.counted_norm is not None
    # No comparison with a NaN holds, so an update that is not finite counts as long.
    short = int((norms <= (clip.counted_norm or 0.0)).sum()) if is_counting else 0
    return TrainReport(
        round_index=round_index,
        loss_sum=_fixed_point_sum(losses),
        trained=int(is_in_sum.sum()),
        examples=int(result.examples[is_in_sum].sum()),
        clipped=int((done == Clipped.SHORTENED).sum()),
        zeroed=int((done == Clipped.ZEROED).sum()),
        short=short,
        long=norms.size - short if is_counting else 0,
        not_finite=int((done == Clipped.NOT_FINITE).sum()),
        norm_sum=_fixed_point_sum(norms[is_in_sum]),
        **counts,
    )


def _fixed_point_sum(values: Float64Array) -> int:
    return sum(round(each * 2.0**FIXED_POINT_BITS) for each in values.tolist())


def _of_whole_devices(
    read: Callable[[Ids, Integers], _T], device_ids: Ids, counts: Integers
) -> tuple[_T, Ids, Integers]:
    """Returns read(device_ids, counts), with the devices whose data is not damaged."""
    while True:
        try:
            return read(device_ids, counts), device_ids, counts
        except DamagedExamples as error:
            is_whole = ~np.isin(device_ids, np.array(list(error.problems), np.uint64))
            # An error about other devices would repeat without end.
            if is_whole.all():
                raise
            device_ids, counts = device_ids[is_whole], counts[is_whole]


def _use_one_thread() -> None:
    # Before every order: an aggregator in this process starts numba's threads, and numba then gives
    # torch as many. Measured: small models then took eight times the CPU time on a busy machine.
    torch.set_num_threads(1)
