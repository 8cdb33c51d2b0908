"""Training of a model on a trace, with a noise mechanism.

Participation does not depend on training, so a model can be trained on a trace: the accepted
devices of round t are the cohort of step t. `train` reads a finished trace. `LiveTraining` receives
the rounds of a simulation as they are committed, and trains the same model, bit for bit.

    TRAINED.partial/
      unfinished.json                 the scenario and the trace
      checkpoints/NUMBER-DIGEST.npz   the last two checkpoints: the loop's whole state
"""

import contextlib
import contextvars
import dataclasses
import functools
import itertools
import json
import logging
import math
import os
import queue
import shlex
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedray.base.arrays import UInt32Array, UInt64Array
from fedray.base.document import json_of
from fedray.base.errors import CheckpointError, InputError, StopTraining, shown
from fedray.base.parsing import finite_or_none
from fedray.base.part_done import PartDone
from fedray.base.rounding import counted
from fedray.base.storage import local_path
from fedray.clients.data.factory import build_index, source_of
from fedray.clients.workers import TrainerWorker, start_trainers
from fedray.encoding.factory import encoding_of
from fedray.mechanisms.triangular import MatrixFile
from fedray.runs.cut import cut_trace
from fedray.runs.differing import differing
from fedray.runs.evaluations import Evaluations
from fedray.runs.grouped import grouped
from fedray.runs.noise_ahead import LEARNABLE, noise_ahead, told_ahead
from fedray.runs.simulation import about_run, useful_shards
from fedray.runtime.nodes import Node
from fedray.runtime.placement import Placement
from fedray.runtime.reservation import Reservation, looks, reserved, show
from fedray.runtime.tasks import run_jobs
from fedray.runtime.workers import shared
from fedray.scenario import Scenario
from fedray.scenario.content import PythonFile
from fedray.scenario.data import FormedData
from fedray.scenario.scenario import TRAINED_TABLES
from fedray.scenario.tasks import CustomTask
from fedray.scenario.training import FedAvg, Stop
from fedray.server.learning.evaluation import SharedEvaluation
from fedray.server.learning.training import (
    Cohort,
    Loads,
    TrainingLoop,
    cohort_places,
    group_size,
)
from fedray.server.learning.workers import (
    AggregatorWorker,
    StoreWorker,
    start_aggregator,
    start_store,
)
from fedray.trace.checkpoints import Checkpoints, has_checkpoint, prefixed, under
from fedray.trace.groups import Groups
from fedray.trace.imported import ImportedTrace, open_trace
from fedray.trace.model_files import BestModel
from fedray.trace.partial import new_directory, partial_directory, with_resume_hint
from fedray.trace.progress import read_progress
from fedray.trace.reader import Trace
from fedray.trace.schema import RUN_FILE
from fedray.trace.trained import (
    TRAINING,
    Stopped,
    TrainedRun,
    TrainedRunWriter,
    metric_of_answer,
)
from fedray.trace.unfinished import read_unfinished, write_unfinished
from fedray.wire.messages import (
    Metric,
    ProgressListener,
    TrainingEstimate,
    TrainingProgress,
    TrainOrder,
    TrainReport,
)

SECONDS_OF_A_TRAINER = 10.0
"""Least predicted work of each trainer on Ray, seconds; a process needs as long to load torch."""
TRAINING_KEYS = ("name", "description", *TRAINED_TABLES)
"""Keys of a scenario on which traces do not depend, except for the budget `privacy.stop_at`."""
_Key = TypeVar("_Key")


def train(
    trace: Trace | ImportedTrace | str | Path,
    scenario: Scenario | None = None,
    placement: Placement | None = None,
    out: str | Path | None = None,
    on_progress: ProgressListener | None = None,
    *,
    is_resumed: bool = False,
    trust_code: bool = False,
    ensured: Mapping[str, Any] | None = None,
) -> TrainedRun:
    """Trains as `fedray.runs.pipeline.train` does, without checking a claim.

    Args:
        trace, scenario, placement, out, on_progress, is_resumed, trust_code: as there.
        ensured: claim that the training ensures (`Claim.to_document`), for its record; the caller
            has checked it.

    Raises:
        InputError: the scenario has another population, `out` cannot be used, or the code is not
            trusted.
        CheckpointError: `out` has no unfinished training of this scenario.
        AggregatorLost, TrainerLost: a worker was lost too often.
    """
    opened = open_trace(trace) if isinstance(trace, str | Path) else trace
    value = scenario_to_train(opened, scenario)
    # Code that came with a trace may come from a stranger.
    if not trust_code:
        value.demand_trust_of_training()
    # The trace of a log has no scenario, so it was refused above.
    assert isinstance(opened, Trace)
    directory = local_path(out) if out is not None else new_directory(f"{value.name}-training")
    value.check_scale()
    # Unread data is read here once, so that its progress is shown.
    build_index(value, on_progress)
    check_report(value)
    time_of_devices = DeviceTime(value)
    # The length of the training decides whether it is worth starting Ray.
    here = (placement or Placement()).resolved(lambda: predicted_seconds(value, time_of_devices))
    partial = partial_directory(Path(os.path.abspath(directory)))
    try:
        return _train(
            opened,
            _Start(
                value,
                here,
                directory,
                partial,
                time_of_devices,
                is_resumed=is_resumed,
                on_progress=on_progress,
                trace=opened,
                ensured=ensured,
            ),
        )
    except (Exception, KeyboardInterrupt) as error:
        # After an InputError, resuming with the same arguments would fail again.
        if isinstance(error, InputError) or not has_checkpoint(partial):
            raise
        raise with_resume_hint(error, directory) from None


def check_report(scenario: Scenario) -> None:
    """Raises InputError if `training.stop` names a metric that the task does not have, or its data
    has no groups of `training.report_by`; the data must have been read."""
    training = scenario.training
    if not training.enabled or (training.stop is None and not training.report_by):
        return
    # They load torch, which few runs need here.
    from fedray.clients.groups import check_by
    from fedray.clients.tasks.factory import task_of

    source = source_of(scenario)
    task = task_of(scenario, source.fields)
    named_metric(task.metrics, training.stop)
    fields = getattr(task, "source", None) or source
    for by in training.report_by:
        check_by(by, fields.fields, "training.report_by")


def named_metric(metrics: Sequence[Metric], stop: Stop | None) -> Metric:
    """Returns the metric by which a training ends and its best round is kept: that of
    `training.stop`, or else that by which models are judged. Raises InputError if the task has no
    such metric."""
    if stop is None:
        return metric_of_answer(metrics)
    found = {each.name: each for each in metrics}
    if stop.metric not in found:
        rule = "is no metric of the task"
        raise InputError.of("training.stop.metric", stop.metric, rule, f"use {' or '.join(found)}")
    return found[stop.metric]


def unfinished_training(directory: Path) -> tuple[Path, Scenario]:
    """Returns the trace and the scenario of an interrupted training, given its `out`. Raises
    CheckpointError."""
    partial, document, _ = read_unfinished(Path(os.path.abspath(directory)))
    if "trace" not in document:
        raise CheckpointError(
            f"{str(partial)!r} is not a training of a finished trace; continue the run instead"
        )
    return Path(document["trace"]), Scenario.of_document(document, str(partial), partial)


def train_many(
    trace: Trace,
    trainings: Mapping[_Key, tuple[Scenario, Path]],
    placement: Placement | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> dict[_Key, TrainedRun]:
    """Trains a model on a trace for each scenario, each a task; finished trainings are read.

    Args:
        trace: trace of all trainings.
        trainings: scenario, whose code is trusted, and directory of each training.
        placement: where the tasks run, each in one process.
        on_progress: called with the number of trained models, and the first that is missing.

    Raises:
        InputError: a directory holds another training, or a scenario may end its training early.
        TraceCorrupt: a finished training is damaged.
    """
    if stops := [each.training.stop for each, _ in trainings.values() if each.training.stop]:
        rule = "may end each of several models after other rounds, so that none are comparable"
        raise InputError.of("training.stop.metric", stops[0].metric, rule, "leave the table out")
    # A task may run where the working directory is another one.
    missing = [
        (trace.path.absolute(), scenario, out.absolute())
        for scenario, out in trainings.values()
        if not is_trained(trace, scenario, out)
    ]
    left, count = [*missing], len(trainings)
    # Jobs start in order, so the first that is left is in training, also before the first is done.
    for place, _ in itertools.chain([(-1, None)], run_jobs(_train_one, missing, placement)):
        if place >= 0:
            left.remove(missing[place])
        # Models are trained side by side, so the pace is that of the rounds of all.
        begun = sum(_share_trained(out) for *_, out in left)
        done, now = count - len(left), ""
        for *_, out in left[:1]:
            where = shlex.quote(os.path.relpath(out.parent))
            now = f", now {out.name}; `fedray status {where}` lists all"
        on_progress(PartDone(f"{done} of {count} models trained{now}", done + begun, count))
    return {key: TrainedRun.open(out) for key, (_, out) in trainings.items()}


def _share_trained(out: Path) -> float:
    """Returns the share of a training's rounds that are trained, from 0 to 1."""
    told = read_progress(partial_directory(out))
    # A training that has just finished has no report left.
    return float(out.exists()) if told is None else told.done / max(1, told.count)


def is_trained(trace: Trace, scenario: Scenario, out: Path) -> bool:
    """Returns whether a whole trained run exists. Raises InputError if it is another one, and
    TraceCorrupt if it is damaged."""
    if not out.exists():
        return False
    run = TrainedRun.open(out)
    run.verify()
    # The folder's name does not identify the training, so both digests must fit.
    if (run.trace_digest, run.document.get("scenario_digest")) != (trace.digest, scenario.digest):
        raise InputError(
            f"output {str(out)!r} holds a training of another scenario or trace; name a new "
            "directory, or remove it first"
        )
    return True


def _train_one(job: tuple[Path, Scenario, Path]) -> None:
    trace, scenario, out = job
    # A training is short: without checkpoints an interrupted one starts from the beginning.
    here = Placement(backend="in-process", checkpoint_seconds=math.inf)
    train(trace, scenario, here, out, trust_code=True)


def scenario_of(trace: Trace | ImportedTrace) -> Scenario:
    """Returns the scenario of a trace.

    Args:
        trace: trace of a simulation.

    Raises:
        InputError: the trace is a log.
    """
    if isinstance(trace, ImportedTrace):
        raise InputError(
            f"trace {str(trace.path)!r} was imported from a log, so its devices have no data to "
            "train on; use the trace of a simulation"
        )
    return Scenario.from_tables(
        trace.scenario, source=str(trace.path), directory=trace.path, is_recorded=True
    )


def finish_training(
    trace: Trace,
    placement: Placement,
    on_progress: ProgressListener | None = None,
    scenario: Scenario | None = None,
    evaluations: Evaluations | None = None,
    *,
    trust_code: bool = False,
) -> TrainedRun:
    """Trains the model of a run whose trace is complete, from its last checkpoint if it has one.

    Args:
        trace: trace of the run.
        placement: workers and cluster.
        on_progress: called with the progress.
        scenario: scenario that the run was started with, whose code is the user's own.
        evaluations: evaluations of the model by devices of other tasks.
        trust_code: whether the code of a custom task that came with the trace may be run.

    Raises:
        InputError: the code is not trusted.
        FedrayError: see `train`.
    """
    # A live training is written next to the trace, and moved into it at the end.
    partial = _live_partial(trace.path)
    is_resumed = has_checkpoint(partial)
    value = scenario_to_train(trace, None)
    # A caller who gives the same scenario already has its code and trusts it.
    is_given = scenario is not None and scenario.digest == value.digest
    if not (trust_code or is_given):
        value.demand_trust_of_training()
    time_of_devices = DeviceTime(value)
    placement = placement.resolved(lambda: predicted_seconds(value, time_of_devices))
    start = _Start(
        value,
        placement,
        trace.path / TRAINING,
        partial,
        time_of_devices,
        is_resumed=is_resumed,
        on_progress=on_progress,
        evaluations=evaluations,
        trace=trace,
    )
    return _train(trace, start)


class DeviceTime:
    """Training time per device of a scenario, measured at most once.

    Args:
        scenario: the scenario.
    """

    group: int
    """Devices that train at once; known once the time was measured."""
    kind = "cpu"
    """Kind of the trainers' device."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._seconds: float | None = None

    def measured_by(self, trainers: Sequence[TrainerWorker]) -> float:
        """Returns the seconds per device, measured by the first trainer unless they are known."""
        if self._seconds is None:
            training = self._scenario.training
            parameters = trainers[0].initial_parameters().result()
            timed = min(training.devices_at_once, training.cohort_sample)
            self.group = group_size(timed, parameters.size, self.kind)
            # Spread over the population, because devices that joined together may be alike.
            last = self._scenario.population.devices - 1
            device_ids = np.linspace(0, last, timed).astype(np.uint64)
            order = TrainOrder(0, [device_ids])
            answer = trainers[0].seconds_per_device(order, parameters, self.group)
            self._seconds = float(answer.result())
        return self._seconds


def predicted_seconds(scenario: Scenario, time_of_devices: DeviceTime | None = None) -> float:
    """Returns the predicted seconds of a training in this process, by training some of its devices
    here. No result depends on them.

    Args:
        scenario: the scenario.
        time_of_devices: object that keeps the measurement; None to discard it.
    """
    per_device = time_of_devices or DeviceTime(scenario)
    with _trainers_in_process(scenario) as trainers:
        return _estimate(scenario, trainers, scenario.rounds.count, per_device).sample_seconds


def _most_trainers(scenario: Scenario, placement: Placement, time_of_devices: DeviceTime) -> int:
    """Returns the largest number of trainers that a training on Ray can use: each has a group of
    devices in a round and SECONDS_OF_A_TRAINER of work, unless the placement says otherwise."""
    if placement.backend == "in-process" or placement.trainers:
        return placement.trainers or 1
    sample = scenario.trained_devices
    # Groups are of one version; in buffered rounds that may be a device.
    by_groups = sample
    if placement.trainer_gpus:
        group, by_work = scenario.training.devices_at_once, sample
    else:
        with _trainers_in_process(scenario, 1) as trainers:
            seconds = time_of_devices.measured_by(trainers) * scenario.rounds.count * sample
        group, by_work = time_of_devices.group, math.ceil(seconds / SECONDS_OF_A_TRAINER)
    if scenario.rounds.buffer is None:
        by_groups = math.ceil(sample / group)
    return max(1, min(by_groups, by_work))


def size_and_seconds(scenario: Scenario) -> tuple[int, float]:
    """Returns the number of parameters of a model, and the predicted seconds of its training by one
    trainer, for which some devices are trained here."""
    # A worker has a deadline to start, and unread data may take longer.
    build_index(scenario)
    with _trainers_in_process(scenario, 1) as trainers:
        parameters = trainers[0].initial_parameters().result().size
        estimate = _estimate(scenario, trainers, scenario.rounds.count, DeviceTime(scenario))
        return parameters, estimate.sample_seconds


def check_model(scenario: Scenario) -> None:
    """Raises InputError if the model of a scenario does not go with its data."""
    build_index(scenario)
    with _trainers_in_process(scenario, 1):
        pass


@contextlib.contextmanager
def _trainers_in_process(
    scenario: Scenario, count: int | None = None
) -> Iterator[list[TrainerWorker]]:
    """Context of `count` trainers in this process, one per CPU by default."""
    here = Placement(backend="in-process", trainers=count)
    trainers = start_trainers(scenario.for_trainers(), here, None)
    try:
        yield trainers
    finally:
        for trainer in trainers:
            trainer.worker.close()


def rehearse(scenario: Scenario) -> None:
    """Raises InputError if a user's code, which must be trusted, would fail at once in training."""
    if scenario.training.enabled and scenario.training_files:
        here = Placement(backend="in-process")
        with _trainers_in_process(scenario, 1) as trainers:
            _rehearsed(trainers, start_aggregator(scenario.for_aggregator(), here), None)


def cohorts(trace: Trace, scenario: Scenario) -> Iterator[tuple[int, Cohort]]:
    """Yields (round, its cohort, sorted by id) for all committed rounds, in order.

    The trace is read part by part, and only the cohorts are kept in memory.

    Args:
        trace: trace of the rounds.
        scenario: source of the number of devices to train.
    """
    rounds = trace.rounds
    # State 0 is committed; abandoned attempts have no cohort.
    is_committed = rounds["state"] == 0
    accepted = rounds["accepted"][is_committed].astype(np.int64)
    # Parts come in order of devices: the p-th accepted device of a round is in the part in which
    # the count of its accepted devices passes p.
    of_rounds = [cohort_places(scenario, index, int(count)) for index, count in enumerate(accepted)]
    sizes = [each.size for each in of_rounds]
    # A trace without a round has nothing to join, hence the empty array.
    places = np.concatenate([np.empty(0, np.int64), *of_rounds])
    rounds_of = np.repeat(np.arange(accepted.size), sizes)
    chosen = np.zeros(places.size, np.uint64)
    versions = np.zeros(places.size, np.uint32) if trace.is_buffered else None
    seen = np.zeros(accepted.size, np.int64)
    """Number of accepted devices of each round in earlier parts."""
    for part in trace.accepted():
        # Within a part, rows of a round come in order of device, as places count them.
        in_order = np.argsort(part.rounds, kind="stable")
        counts = np.bincount(part.rounds, minlength=accepted.size)
        starts = np.cumsum(counts) - counts
        # A negative position is in an earlier part, and one that is too large in a later one.
        within = places - seen[rounds_of]
        is_here = (within >= 0) & (within < counts[rounds_of])
        found = in_order[(starts[rounds_of] + within)[is_here]]
        chosen[is_here] = part.device_ids[found]
        if versions is not None:
            assert part.versions is not None
            versions[is_here] = part.versions[found]
        seen += counts
    ends = np.cumsum(sizes)
    for index, (begin, end) in enumerate(zip(ends - sizes, ends, strict=True)):
        of_cohort = None if versions is None else versions[begin:end]
        yield index, Cohort(chosen[begin:end], of_cohort, int(accepted[index]))


class LiveTraining:
    """Context that trains the rounds of a simulation in progress, in its own thread.

    `add` queues committed rounds; `finish` waits until all are trained.

    Args:
        scenario: scenario of simulation and training.
        placement: workers and cluster.
        trace_directory: future directory of the trace, which will contain the trained run.
        is_resumed: whether the simulation continues from a checkpoint; the training then continues
            from its own, if it has one.
        on_progress: called with the progress, from the thread.
        time_of_devices: measured training time, if known from the choice of placement.
    """

    def __init__(
        self,
        scenario: Scenario,
        placement: Placement,
        trace_directory: Path,
        is_resumed: bool = False,
        on_progress: ProgressListener | None = None,
        time_of_devices: DeviceTime | None = None,
    ) -> None:
        self._scenario = scenario
        self._trace_directory = Path(os.path.abspath(trace_directory))
        partial = _live_partial(self._trace_directory)
        self._partial = partial
        self._stack = contextlib.ExitStack()
        # Nothing is made before the context is entered.
        start = _Start(
            scenario,
            placement,
            self._trace_directory / TRAINING,
            partial,
            time_of_devices or DeviceTime(scenario),
            is_resumed=is_resumed and has_checkpoint(partial),
            on_progress=on_progress,
            shards=functools.partial(useful_shards, scenario, placement),
        )
        self._made_within = _training(start)
        self._rounds: queue.SimpleQueue[tuple[int, Cohort] | None]
        self._rounds = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._is_over = False

    def __enter__(self) -> Self:
        if has_checkpoint(self._partial) and not self._is_trace_kept:
            # The process was killed before the simulation had a checkpoint.
            directory = self._trace_directory / TRAINING
            with TrainedRunWriter(directory, is_resumed=True, partial=self._partial) as orphan:
                orphan.discard()
        self._training = self._stack.enter_context(self._made_within)
        # A daemon thread does not keep an ending process alive.
        run_here = contextvars.copy_context().run
        self._thread = threading.Thread(None, run_here, "training", [self._work], daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Rounds that are still queued are not trained.
        self._is_over = True
        self._rounds.put(None)
        self._thread.join()
        if not self._is_trace_kept:
            self._training.writer.discard()
        self._stack.__exit__(kind, value, traceback)

    @property
    def _is_trace_kept(self) -> bool:
        """Whether there is a trace or a checkpoint of one, which continuing a training needs."""
        trace_partial = partial_directory(self._trace_directory)
        return self._trace_directory.exists() or has_checkpoint(trace_partial)

    def add(
        self,
        round_index: int,
        accepted_device_ids: UInt64Array,
        versions: UInt32Array,
    ) -> str:
        """Queues a committed round, which is trained in the thread. Returns how the run ends with
        this round, if the training has stopped after it or an earlier one; else an empty text.

        Args:
            round_index: number of the round; rounds must be added in order.
            accepted_device_ids: [A], sorted.
            versions: model version of each [A]; empty unless rounds are buffered.

        Raises:
            FedrayError: error of the thread.
        """
        self._raise()
        if self._training.stopped is not None and round_index + 1 >= self._training.rounds:
            return self._training.ended
        places = cohort_places(self._scenario, round_index, accepted_device_ids.size)
        is_buffered = self._scenario.rounds.buffer is not None
        # Only in buffered rounds can devices have an older model than the newest.
        of_cohort = versions[places] if is_buffered else None
        cohort = Cohort(accepted_device_ids[places], of_cohort, accepted_device_ids.size)
        self._rounds.put((round_index, cohort))
        return ""

    def finish(self, trace: Trace) -> TrainedRun:
        """Waits until every round is trained or the training has stopped, and moves the trained run
        into the trace, which is replaced if it has later rounds.

        Args:
            trace: the complete trace.

        Raises:
            FedrayError: error of the thread.
        """
        self._rounds.put(None)
        # Short timeouts let an interrupt through.
        while self._thread.is_alive():
            self._thread.join(timeout=0.2)
        self._raise()
        return self._training.finish(trace)

    def _work(self) -> None:
        try:
            self._training.begin()
            while (item := self._rounds.get()) is not None and not self._is_over:
                self._training.train(*item)
        except BaseException as error:
            # The caller's thread raises it, when it adds the next round or finishes.
            self._error = error

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


@dataclass(frozen=True, slots=True)
class _Start:
    """Everything with which a training starts."""

    scenario: Scenario
    """Scenario with the model, its data and its mechanism."""
    placement: Placement
    """Workers and cluster."""
    directory: Path
    """Future directory of the trained run."""
    partial: Path
    """Directory of its files until then."""
    time_of_devices: DeviceTime
    """Training time of devices, which may have been measured."""
    is_resumed: bool
    """Whether to continue from the last checkpoint in `partial`."""
    on_progress: ProgressListener | None
    """Called with the progress."""
    evaluations: Evaluations | None = None
    """Evaluations of the model by devices of other tasks."""
    trace: Trace | None = None
    """The trace, if it is complete."""
    ensured: Mapping[str, Any] | None = None
    """Claim that the training ensures, as it is recorded."""
    shards: Callable[[float], int] = lambda _: 0
    """Number of shards for a number of CPUs, which a live training reserves too."""

    @property
    def document(self) -> dict[str, Any]:
        """Keys of training.json and unfinished.json on the claim."""
        return {} if self.ensured is None else {"ensured": self.ensured}


@dataclass
class _Training:
    """A training: its loop, its checkpoints and its directory."""

    _start: _Start
    _trainers: list[TrainerWorker]
    _aggregator: AggregatorWorker
    _store: StoreWorker | None
    writer: TrainedRunWriter
    _checkpoints: Checkpoints
    _state: dict[str, NDArray]
    _reservation: Reservation | None
    _rehearsed: SharedEvaluation | None
    """Evaluation of the initial model, if it was made before."""

    def __post_init__(self) -> None:
        self._scenario, self._placement = self._start.scenario, self._start.placement
        self._evaluations = self._start.evaluations
        self._on_progress = self._start.on_progress or (lambda progress: None)
        self._nodes_now = looks(self._reservation)
        self._seconds_of_rounds: list[float] = []
        """Seconds of each round since the training began or was resumed."""
        self.stopped: Stopped | None = None
        """Reason for which the training ended before its last planned round; None if it did not."""

    def begin(self) -> None:
        """Waits for the workers, and restores the state; a live training does so in its thread."""
        scenario, trainers = self._scenario, self._trainers
        # On CPUs there is only one kind, so a single trainer is asked.
        asked = trainers if self._placement.trainer_gpus else trainers[:1]
        descriptions = [answer.result() for answer in [each.describe() for each in asked]]
        self._description, kind = descriptions[0], descriptions[0].device
        if any(each.device != kind for each in descriptions):
            raise InputError(
                "trainer_gpus: the trainers are on GPUs of several models, whose updates differ in "
                "their last bits; use nodes with one model of GPU"
            )
        for note in self._description.notes:
            logging.getLogger("fedray").warning("fedray: %s", note)
        # Evaluated before the first round, so that a model that became worse is known to be.
        self._untrained = self._rehearsed or _evaluated_start(trainers, self._reservation)[0]
        parameters = sum(math.prod(shape) for shape in self._description.shapes.values())
        self._noise_warning = ""
        self._update_noise = noise_ahead(scenario, parameters)
        if ratio := self._update_noise:
            told = told_ahead(ratio, parameters, scenario)
            if ratio > LEARNABLE:
                self._noise_warning = told
                logging.getLogger("fedray").warning("fedray: warning: %s", told)
            else:
                logging.getLogger("fedray").info("noise   %s", told)
        self._judged = named_metric(self._description.metrics, scenario.training.stop)
        workers = trainers, self._aggregator
        loop = TrainingLoop(
            scenario, *workers, _loads_of(scenario), kind, self._store, self._judged
        )
        self._loop = loop
        if self._state:
            loop.load(self._state)
            self.stopped = json.loads(str(self._state["stopped"]))
            if self._evaluations is not None:
                self._evaluations.load(under("evaluations.", self._state))
        rounds_left = scenario.rounds.count - loop.next_round
        # An estimate trains some devices, so it is made only for a listener.
        if self._start.on_progress is not None and rounds_left:
            time_of_devices = self._start.time_of_devices
            time_of_devices.kind = kind
            self._on_progress(_estimate(scenario, trainers, rounds_left, time_of_devices))
        # The time for the estimate does not count as training.
        self._begun = time.monotonic()
        # The first one is due after the first round, so that an interruption loses little.
        self._last_checkpoint = self._begun - self._placement.checkpoint_seconds
        self.writer.progress.begin("training", loop.next_round, scenario.rounds.count)

    def train(self, round_index: int, cohort: Cohort) -> None:
        """Trains a round, unless it was trained before the last checkpoint or the training has
        stopped."""
        # A resumed simulation reports all of its rounds again, from the first.
        if round_index < self._loop.next_round or self.stopped is not None:
            return
        # A live training also waits for rounds, so each round is timed by itself.
        if nodes := next(self._nodes_now):
            self._follow(nodes)
        before = time.monotonic()
        self._evaluate()
        self._loop.train(round_index, cohort)
        self._seconds_of_rounds.append(time.monotonic() - before)
        # `finish` reports the last round, after its evaluation.
        if self._loop.next_round < self._scenario.rounds.count:
            try:
                self.stopped = self._why_stopped()
            except Exception:
                # A listener that fails costs no round.
                self._save()
                raise
        is_due = time.monotonic() - self._last_checkpoint > self._placement.checkpoint_seconds
        if is_due or self.stopped is not None:
            self._save()

    def _save(self) -> None:
        of_devices = self._evaluations.state() if self._evaluations is not None else {}
        # So that a resumed run stops after the same round, whatever its listener does.
        of_stop = {"stopped": np.array(json.dumps(self.stopped))}
        of_evaluations = prefixed("evaluations.", of_devices)
        self._checkpoints.save({**self._loop.state(), **of_evaluations, **of_stop})
        self._last_checkpoint = time.monotonic()

    @property
    def rounds(self) -> int:
        """Number of trained rounds."""
        return self._loop.next_round

    @property
    def ended(self) -> str:
        """End of the run whose training has stopped, as run.json records it."""
        assert self.stopped is not None
        of = counted(self._scenario.rounds.count, "round")
        return f"stopped by the training after {self.rounds:,} of {of}: {self.stopped['reason']}"

    def _why_stopped(self) -> Stopped | None:
        """Reports the last round, which is not the last planned one, and returns the reason to stop
        after it; None to continue. Raises InputError if one of several tasks is stopped."""
        stop = self._scenario.training.stop
        if stop is not None and (reason := self._loop.why_stopped):
            # `finish` reports it.
            return Stopped(reason=reason, chosen_by=stop.held_out, metric=stop.metric)
        try:
            self._tell()
        except StopTraining as error:
            if self._evaluations is not None:
                raise InputError(
                    "on_progress: StopTraining was raised in a run of several tasks, whose devices "
                    "would then be free for the others; run the task by itself, or continue this "
                    "run without"
                ) from None
            reason = str(error).rstrip(".") or "StopTraining was raised"
            return Stopped(reason=reason, chosen_by="callback", metric=self._judged.name)
        return None

    def _follow(self, nodes: Sequence[Node]) -> None:
        """Moves workers off nodes that are being drained, and trains on nodes that have joined."""
        if any(each.worker.must_move(nodes) for each in self._servers):
            # So that no round is trained again; if the aggregator is lost, it moves here.
            self._loop.state()
        for each in self._servers:
            if each.worker.must_move(nodes):
                self._loop.restart(each)
        # After the aggregator, whose process some may share.
        for each in self._trainers:
            if each.worker.must_move(nodes):
                each.worker.restart()
        placement = self._placement
        if self._reservation is None or placement.trainers or placement.trainer_gpus:
            return
        for joined in self._reservation.joined(nodes, placement, len(self._trainers)):
            # The loop has the same list.
            self._trainers += start_trainers(self._scenario.for_trainers(), placement, joined)

    @property
    def _servers(self) -> list[AggregatorWorker | StoreWorker]:
        return [self._aggregator, *([] if self._store is None else [self._store])]

    def _evaluate(self) -> None:
        if self._evaluations is not None:
            self._evaluations.measure(self._loop, self._description.metrics)

    def _tell(self) -> None:
        loop = self._loop
        count = self._scenario.rounds.count
        progress = TrainingProgress(
            loop.next_round, count, loop.metrics[-1], loop.last_evaluation, loop.evaluated
        )
        show(trained_round=loop.next_round, train_loss=progress.metrics.train_loss)
        self._on_progress(progress)
        self.writer.progress.tell(loop.next_round, lambda: self._facts(progress))

    def _facts(self, progress: TrainingProgress) -> dict[str, Any]:
        """Returns further figures for the progress file of a training."""
        evaluation = progress.evaluation
        measures = {} if evaluation is None else evaluation.metrics
        return {
            "train_loss": finite_or_none(progress.metrics.train_loss),
            "evaluation": {name: finite_or_none(each.value) for name, each in measures.items()},
            "evaluated": progress.evaluated,
            "trainers": len(self._trainers),
        }

    def finish(self, trace: Trace) -> TrainedRun:
        """Writes the trained run, after the evaluations, which a resumed training would repeat."""
        self._evaluate()
        if self._evaluations is not None:
            self._evaluations.write()
        model = self._loop.finish()
        # All evaluations, the last one included, are complete now. The rounds are over too.
        with contextlib.suppress(StopTraining):
            self._tell()
        recorded = trace
        if self.stopped is not None:
            trace = self._cut(trace)
        whole = TrainReport.of(0, [row.report for row in self._loop.metrics])
        workers, untrained = [*self._trainers, *self._servers], self._untrained.result()
        start = untrained.metrics.items()
        own = self.writer.directory.resolve()
        # A trace within the trained run moves with it.
        is_within = trace.path.parent == self.writer.partial
        document = {
            "trace_digest": trace.digest,
            "trace": trace.path.name if is_within else os.path.relpath(trace.path.resolve(), own),
            "rounds": self._loop.next_round,
            "seed": self._scenario.training_seed,
            **self._scenario.to_document(),
            **self._start.document,
            "aggregator_device": str(model["device"]),
            "trainer_device": self._loop.trainer_kind,
            "devices_at_once": self._loop.devices_at_once,
            "encoding": _encoding_figures(self._scenario, model["parameters"].size, whole),
            "mean_norm": whole.mean_norm,
            "update_noise": self._update_noise,
            "noise_warning": self._noise_warning,
            "start": json_of({name: each.value for name, each in start}),
            "start_errors": json_of({name: each.standard_error for name, each in start}),
            "evaluated": dataclasses.asdict(untrained.data),
            "trainers": len(self._trainers),
            "restarts": sum(each.worker.restarts for each in workers),
            "notes": [*self._checkpoints.notes, *self._description.notes],
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            "wall_seconds": round(time.monotonic() - self._begun, 3),
            "seconds_per_round": self._seconds_per_round(),
        }
        best = None
        if self.stopped is not None:
            document["stopped"] = self.stopped
            # A run's own trace is cut, and rounds that a model ended were not fixed before.
            is_own = self._start.directory == recorded.path / TRAINING
            if not is_own and recorded.run.get("stopped") is None:
                place = os.path.relpath(recorded.path.resolve(), own)
                document["given"] = {"trace": place, "digest": recorded.digest}
        if (whole_trace := trace.run.get("cut_from")) is not None:
            document["cut_from"] = whole_trace
        if groups := self._groups(model["parameters"]):
            document["groups"] = json_of(groups)
        # A repetition on the trace that such a training has left keeps it too.
        if self._scenario.training.stop is not None or trace.run.get("stopped"):
            best = self._best()
        path = self.writer.finish(
            self._loop.metrics, self._description, model["parameters"], document, best
        )
        return TrainedRun.open(path)

    def _groups(self, parameters: NDArray[np.float32]) -> list[Groups]:
        """Returns the metrics of the last model, [D], by the groups of `training.report_by`."""
        scenario, metrics = self._scenario, self._description.metrics
        found = []
        for by in scenario.training.report_by:
            sums = self._trainers[-1].group_sums(parameters, by).result()
            found.append(grouped(scenario.name, by, "last", self.rounds, sums, metrics))
        return found

    def _best(self) -> BestModel | None:
        if self._loop.best is None:
            return None
        index, parameters = self._loop.best
        return BestModel(self._judged.name, index + 1, parameters)

    def _cut(self, trace: Trace) -> Trace:
        """Returns the trace of the trained rounds: in place of the run's own trace, or within the
        trained run, if its trace has later rounds."""
        changes: dict[str, Any] = {"ended": self.ended, "stopped": self.stopped}
        place = trace.path
        if self._start.directory != trace.path / TRAINING:
            place = self.writer.partial / "trace"
            # The given trace stays, and others are trained on it.
            changes["cut_from"] = trace.run.get("cut_from", trace.digest)
            if (place / RUN_FILE).exists():
                return Trace.open(place)
            if trace.committed_rounds == self.rounds:
                return trace
        elif trace.run.get("stopped") is not None:
            return trace
        return cut_trace(trace, self._scenario, self.rounds, place, changes)

    def _seconds_per_round(self) -> float | None:
        """Returns the median, because the first round includes compilation; None without rounds."""
        seconds = self._seconds_of_rounds
        return round(statistics.median(seconds), 6) if seconds else None


def _encoding_figures(scenario: Scenario, dimension: int, whole: TrainReport) -> dict[str, Any]:
    """Returns the encoding's figures for a model of D parameters, as training.json records them."""
    table = scenario.privacy.sent
    encoding = encoding_of(table, scenario.sum_setting(dimension))
    figures = {
        "kind": table.kind,
        "bits_per_parameter": encoding.bits_per_parameter,
        "inflation": encoding.contribution_norm(1.0),
    }
    if not table.adds_noise:
        return figures
    from fedray.encoding.device_noise import DeviceNoiseEncoding

    assert isinstance(encoding, DeviceNoiseEncoding)
    of_devices = {
        "modulus": encoding.modulus,
        "coefficients": list(encoding.coefficients),
        "device_variance": float(encoding.variance),
        "wrap_probability": encoding.wrap_probability(scenario.rounds.count),
        "clipped_coordinates": whole.clipped_coordinates,
    }
    return {**figures, "noise_of_devices": of_devices}


def _train(trace: Trace, start: _Start) -> TrainedRun:
    with _training(start) as training:
        training.begin()
        for round_index, cohort in cohorts(trace, start.scenario):
            training.train(round_index, cohort)
            if training.stopped is not None:
                break
        return training.finish(trace)


@contextlib.contextmanager
def _training(start: _Start) -> Iterator[_Training]:
    """Starts the workers of a training and makes its directory, for a block."""
    scenario, placement, partial = start.scenario, start.placement, start.partial
    state: dict[str, NDArray] = {}
    run = ""
    if start.is_resumed:
        _, document, run = read_unfinished(partial)
        if document.get("scenario_digest") != scenario.digest:
            raise CheckpointError(
                f"{str(partial)!r} is a training of another scenario (digest "
                f"{str(document.get('scenario_digest'))[:12]}) than this one "
                f"({scenario.digest[:12]}){differing(document, scenario)}; give the scenario that "
                "it was started with"
            )
    from fedray.runtime.devices import torch_restored  # it loads torch, which simulations need not

    with contextlib.ExitStack() as stack:
        # Workers in this process set torch up for themselves; it may be a notebook's.
        stack.enter_context(torch_restored())
        writer = stack.enter_context(
            TrainedRunWriter(start.directory, is_resumed=start.is_resumed, partial=partial)
        )
        # A resumed training already has its files and its identity in the directory.
        if not start.is_resumed:
            # The trace of a live training is not complete yet.
            where = {} if start.trace is None else {"trace": str(start.trace.path.resolve())}
            document = {**scenario.to_document(), **where, **start.document}
            run = write_unfinished(partial, document)
            for table in scenario.training_files:
                writer.save_content(table.content_name, table.content)
                if isinstance(table, PythonFile):
                    table.remember()
            mechanism = scenario.privacy.mechanism
            # A run's trace already has the matrix of its mechanism.
            is_of_run = partial != partial_directory(Path(os.path.abspath(start.directory)))
            if isinstance(mechanism, MatrixFile) and not is_of_run:
                writer.save_content(mechanism.content_name, mechanism.content)
        checkpoints = Checkpoints(partial, run)
        if start.is_resumed:
            state = checkpoints.newest()

        def say(waits: str) -> None:
            writer.progress.begin("training", 0, scenario.rounds.count, waits)

        # The simulation beside a live training shares its reservation.
        about = about_run(scenario, start.directory)
        most_trainers = _most_trainers(scenario, placement, start.time_of_devices)
        reservation = stack.enter_context(
            reserved(placement, start.shards, about, say, most_trainers=most_trainers)
        )
        # The stack closes in reverse order: workers before their cluster.
        aggregator = start_aggregator(scenario.for_aggregator(), placement, reservation)
        stack.callback(aggregator.worker.close)
        store = start_store(scenario.for_aggregator(), placement, reservation)
        if store is not None:
            stack.callback(store.worker.close)
        trainers = start_trainers(scenario.for_trainers(), placement, reservation)
        # The list grows while nodes join.
        stack.callback(lambda: [each.worker.close() for each in trainers])
        # A user's code may fail at once, and held-out data be damaged; other code is tested.
        is_tried = scenario.training_files or isinstance(scenario.data, FormedData)
        first = _rehearsed(trainers, aggregator, reservation) if is_tried else None
        workers = trainers, aggregator, store
        yield _Training(start, *workers, writer, checkpoints, state, reservation, first)


def _estimate(
    scenario: Scenario,
    trainers: Sequence[TrainerWorker],
    rounds: int,
    time_of_devices: DeviceTime,
) -> TrainingEstimate:
    """Returns the predicted time of a training with these trainers, measured on some devices."""
    sample = scenario.trained_devices
    accepted = scenario.rounds.report_goal
    per_device = time_of_devices.measured_by(trainers)
    group = time_of_devices.group

    def seconds(devices: int) -> float:
        # Groups are dealt evenly, so a trainer with one more than others ends last.
        groups = math.ceil(devices / group)
        groups_of_the_busiest = math.ceil(groups / len(trainers))
        devices_of_the_busiest = min(devices, groups_of_the_busiest * group)
        return rounds * per_device * devices_of_the_busiest

    return TrainingEstimate(rounds, sample, seconds(sample), accepted, seconds(accepted))


def _evaluated_start(
    trainers: Sequence[TrainerWorker], reservation: Reservation | None
) -> tuple[SharedEvaluation, NDArray[np.float32]]:
    """Returns the evaluation of the initial model, and its parameters [D]."""
    parameters = trainers[-1].initial_parameters().result()
    # On Ray all trainers read one copy.
    kept = parameters if reservation is None else shared(parameters)
    return SharedEvaluation(trainers, kept), parameters


def _rehearsed(
    trainers: Sequence[TrainerWorker],
    aggregator: AggregatorWorker,
    reservation: Reservation | None,
) -> SharedEvaluation:
    """Returns the evaluation of the initial model. Raises InputError if a user's code fails at
    once, or held-out data is damaged, before the training begins."""
    found, parameters = _evaluated_start(trainers, reservation)
    found.result()
    # Every population has a device 0.
    trainers[-1].train(TrainOrder(0, [np.zeros(1, np.uint64)]), parameters).result()
    aggregator.rehearse(parameters.size).result()
    return found


def _loads_of(scenario: Scenario) -> Loads | None:
    """Returns the costs of devices if their training times differ, or None."""
    client = scenario.training.client
    # A fixed number of steps takes equally long on all devices; epochs and full gradients do not.
    is_even = isinstance(client, FedAvg) and client.epochs is None
    # A user's task may have its own data, which is not opened here.
    is_custom = isinstance(scenario.training.task, CustomTask)
    if is_even or is_custom:
        return None
    source = source_of(scenario)
    most = client.max_examples

    def examples_used(device_ids: NDArray[np.uint64]) -> NDArray[np.int64]:
        held = source.examples_on(device_ids)
        return held if most is None else np.minimum(held, most)

    return examples_used


def _live_partial(trace_directory: Path) -> Path:
    """Returns the directory of a training whose trace may be incomplete, next to the trace."""
    return partial_directory(trace_directory.with_name(f"{trace_directory.name}.training"))


def scenario_to_train(trace: Trace | ImportedTrace, scenario: Scenario | None) -> Scenario:
    """Returns the trace's own scenario, with those tables replaced that may differ."""
    kept = scenario_of(trace)
    given = kept if scenario is None else scenario
    # Tables are compared with all defaults, so that a missing key counts as its default.
    before, after = kept.to_tables(), given.to_tables()
    for table in after.keys() | before.keys():
        was, now = _fixed(table, before), _fixed(table, after)
        if was == now:
            continue
        # A single key that differs is more helpful than two whole tables.
        key, was, now = _first_difference(table, was, now)
        raise InputError.of(
            key,
            now,
            f"but the trace was simulated with {shown(was)}",
            "only the tables data, training and privacy may differ, except for the budget, which "
            "determined the rounds; leave the others unchanged, or simulate again",
        )
    # With training enabled, the training tables are validated too.
    trained = given.with_overrides("training.enabled=true")
    trained_tables = {name: getattr(trained, name) for name in TRAINED_TABLES}
    # Everything that affects participation stays that of the trace.
    return kept.model_copy(update=trained_tables)


def _fixed(table: str, tables: Mapping[str, Any]) -> Any:
    """Returns a table of a scenario if a trace depends on it; of `privacy`, its budget."""
    if table == "privacy":
        return {key: tables[table].get(key) for key in ("stop_at", "at_limit")}
    return None if table in TRAINING_KEYS else tables.get(table)


def _first_difference(key: str, before: Any, after: Any) -> tuple[str, Any, Any]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                return _first_difference(f"{key}.{name}", before.get(name), after.get(name))
    return key, before, after
