"""A trained run on disk: the model that was trained on a trace, and its metrics.

    TRAINED/
      training.json      scenario and trace of the training, digests of the files and of itself
      metrics.parquet    a row per round
      model.safetensors  the final model's parameters by name
      best.safetensors   those after the best evaluation, if it is kept and was an earlier one
      trace/             the trace of its rounds, if it has stopped before those of the given trace

`fedray run` writes it to TRACE/training, and `fedray train` to its `--out`.
"""

import dataclasses
import hashlib
import io
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, NotRequired, Self, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from fedray.base.arrays import Float32Array, Float64Array
from fedray.base.document import json_of
from fedray.base.errors import TraceCorrupt, shown
from fedray.base.result import DrawnResult
from fedray.base.rounding import counted, number_text, up
from fedray.base.storage import fetched
from fedray.scenario.clipping import Clip
from fedray.trace.columns import COLUMNS, Column, arrow_table, schema_of
from fedray.trace.divergence import Change, has_diverged, remedy, seen
from fedray.trace.files import DocumentForm, read_columns
from fedray.trace.groups import Groups
from fedray.trace.model_files import (
    BEST_FILE,
    MODEL_FILE,
    TRAINING_FILE,
    BestFigures,
    BestModel,
    Which,
    changed,
    figures_of,
    model_content,
    read_model,
)
from fedray.trace.partial import PartialDirectory
from fedray.trace.provenance import package_versions
from fedray.trace.schema import METRICS_FILE, RUN_FILE, columns_digest
from fedray.wire.messages import Evaluated, Measured, Metric, TaskDescription, TrainingMetrics

FORMAT = "fedray-training"
VERSION = 4
TRAINING = "training"
"""Folder of a trace in which `fedray run` puts the trained run."""
LIVE_TRAINING = f".{TRAINING}.partial"
"""End of the name of the folder beside a trace in which that training is under way."""
VOCABULARY_FILE = "vocabulary.json"
"""List of the words that have numbers, from 4 on; see fedray.clients.data.form."""
LEFT_OUT = {
    "without_examples": "without examples",
    "damaged": "with damaged data",
    "not_finite": "with an update that is not finite",
    "zeroed": "with an update so long that it counts as zero",
}
"""Meanings of columns that count devices which took part but added nothing to the model."""
MANY_NOT_FINITE = 0.01
"""Share of updates that are not finite from which a training is warned of."""
EXTREME = 0.01
"""Share of updates, clipped or not clipped, up to which the clip norm is taken to be mistaken."""
LAST_SHARE, LEAST_ROUNDS = 10, 10
"""The first round's loss is compared with the losses of the last tenth of the rounds, at least 10
of them, in runs of at least 20 rounds."""
SURE_DEVIATIONS = 4.0
"""The loss on the devices rose if these losses exceed the first by this many of their standard
deviations. If the model never changes, that happens in at most 2 of 10,000 runs with log-normal
losses of any width."""
ANSWERED = "accuracy"
"""Metric by which models are judged; those of tasks without it by their first one."""
_FORM = DocumentForm(
    TRAINING_FILE,
    FORMAT,
    VERSION,
    {
        "trace_digest": str,
        "trace": str,
        "rounds": int,
        "seed": int,
        "scenario": dict,
        "metrics_digest": str,
        "model_sha256": str,
        "parameters": dict,
        "task_metrics": list,
        "optimum": dict,
        "encoding": dict,
        "update_noise": float,
        "noise_warning": str,
        "start": dict,
        "start_errors": dict,
        "evaluated": dict,
        "notes": list,
    },
    "of a trained run",
    "train again",
    "use the fedray release that wrote it, or train again",
)


def metric_of_answer(metrics: Sequence[Metric]) -> Metric:
    """Returns the metric by which models are judged: accuracy if there is one, else the first."""
    return next((each for each in metrics if each.name == ANSWERED), metrics[0])


def metric_columns(metrics: Sequence[Metric]) -> list[Column]:
    """Returns the columns of metrics.parquet for a task: the common ones, then a value and a
    standard error for each metric, in order."""
    of_task = [
        Column(
            name=f"evaluation_{metric.name}{end}",
            type="double or null",
            unit=metric.unit,
            meaning=f"{metric.title} on held-out data{error}; null without an evaluation.",
        )
        for metric in metrics
        for end, error in (("", ""), ("_error", ", its standard error"))
    ]
    return [*COLUMNS[METRICS_FILE], *of_task]


_METRICS, _EVALUATED = TypeAdapter(tuple[Metric, ...]), TypeAdapter(Evaluated)
_FORMS_OF_STOP = {
    "given": (TypeAdapter(dict[str, str]), {"trace", "digest"}),
    "best": (TypeAdapter(dict[str, str | int]), {"metric", "rounds", "sha256"}),
}
_FORMS = {
    "task_metrics": _METRICS,
    "optimum": TypeAdapter(dict[str, float]),
    "start": TypeAdapter(dict[str, float | None]),
    "start_errors": TypeAdapter(dict[str, float | None]),
    "evaluated": _EVALUATED,
}


class DeviceNoiseFigures(TypedDict):
    """The noise of devices and the sums that a store opens, as training.json records them."""

    modulus: int
    """M: sums are modulo M."""
    coefficients: list[int]
    """Whole coefficients of C, without a common divisor; [1] for independent noise."""
    device_variance: float
    """Variance of the noise of one device of a whole cohort on a coordinate, in squared steps."""
    wrap_probability: float
    """Upper bound on the probability that any coordinate of an opened sum wraps."""
    clipped_coordinates: int
    """Number of coordinates of updates that were clipped after the rotation, which is one for the
    whole run."""


class EncodingFigures(TypedDict):
    """The encoding of updates, as training.json records it."""

    kind: str
    """Kind of the scenario's `privacy.encoding`, or of its `privacy.trust` if devices
    add the noise."""
    bits_per_parameter: float
    """Number of bits that a device sends per round and parameter."""
    inflation: float
    """Largest norm of an encoded update divided by the clip norm; at least 1."""
    noise_of_devices: NotRequired[DeviceNoiseFigures]
    """The noise of devices, if they add it."""


class Stopped(TypedDict):
    """End of a training before its last planned round."""

    reason: str
    """Clause that says why it ended."""
    chosen_by: Literal["public", "clients", "callback"]
    """Origin of the choice: held-out data that are public or of clients, or a callback of the
    user."""
    metric: NotRequired[str]
    """Name of the held-out metric by which the best round was chosen; absent in older runs."""


class Given(TypedDict):
    """Trace whose first rounds were trained."""

    trace: str
    """Its directory, relative to the trained run."""
    digest: str
    """Its digest."""


def check_stopped(document: Mapping[str, Any], file: Path) -> None:
    """Raises TraceCorrupt if the key `stopped` of a file's document has values of another form."""
    found = document.get("stopped")
    if found is not None and not (
        isinstance(found, dict)
        and isinstance(found.get("reason"), str)
        and found.get("chosen_by") in ("public", "clients", "callback")
        and isinstance(found.get("metric", ""), str)
    ):
        raise TraceCorrupt.at(file, "has values of another form in stopped")


class TrainedDocument(TypedDict):
    """training.json, with the path and the last metrics."""

    path: str
    """Directory of the trained run."""
    format: str
    """Name of the format of training.json."""
    version: int
    """Version of that format."""
    metrics_digest: str
    """Digest of the columns of metrics.parquet."""
    model_sha256: str
    """SHA-256 of the model's file, in hexadecimal."""
    parameters: dict[str, list[int]]
    """Shape of each trained tensor of the model by name."""
    frozen_parameters: int
    """Number of parameters of the model that were not trained, and are in no file."""
    task_metrics: list[Metric]
    """Metrics of the evaluations."""
    optimum: dict[str, float]
    """Best possible value of each metric by name, if the task knows it."""
    start: dict[str, float | None]
    """Metrics of the model before its training, by name; null if a value is not finite."""
    start_errors: dict[str, float | None]
    """Standard errors of these metrics, by name; null if an error is not known."""
    evaluated: Evaluated
    """Data of all evaluations, of the untrained model and after rounds."""
    trace_digest: str
    """Digest of the trace that the model was trained on."""
    trace: str
    """Directory of that trace, relative to the trained run."""
    rounds: int
    """Number of rounds that were trained."""
    stopped: NotRequired[Stopped]
    """The end before the last planned round; absent if all were trained."""
    cut_from: NotRequired[str]
    """Digest of the trace whose first rounds are the trace of this training; absent unless a
    training has stopped before the rounds of its given trace."""
    given: NotRequired[Given]
    """The trace of all rounds that could have been trained, if it was complete before a training
    that stopped, and no model ended it; else absent."""
    best: NotRequired[BestFigures]
    """The best round; absent unless `training.stop` is given or the training has stopped."""
    groups: NotRequired[list[Groups]]
    """Metrics of the last model by the groups of `training.report_by`; absent without any."""
    seed: int
    """Seed of the training."""
    scenario_digest: str
    """Digest of the scenario."""
    scenario: dict[str, Any]
    """The tables of the scenario file, with all defaults."""
    aggregator_device: str
    """Device on which the model was kept, such as `cpu`."""
    trainer_device: str
    """Kind of device on which the trainers computed, such as `cpu`."""
    devices_at_once: int | None
    """Number of devices whose updates are computed together in one batch."""
    encoding: EncodingFigures
    """Encoding of updates."""
    mean_norm: float | None
    """Mean norm of updates before clipping, computed without noise; None without an update."""
    update_noise: float
    """Norm of independent noise on each mean update that would disturb the model as much as the
    noise of the mechanism, in clip norms: a score over up to 200 rounds. Of correlated noise, a
    mean update itself has more (see docs/published.md). 0 without noise."""
    noise_warning: str
    """A sentence if the noise on a mean update is too much for learning; else empty."""
    people: dict[str, int]
    """Number of `clients` in the recorded data, held-out ones aside, and `most_devices` that hold
    the data of one, unless that is unknown; empty for other data."""
    trainers: int
    """Number of workers that trained devices."""
    restarts: int
    """Number of lost workers that were replaced."""
    notes: list[str]
    """Sentences about checkpoint problems, too much noise and a divergence of the training."""
    written: str
    """Time of writing: UTC, as ISO 8601 has it."""
    wall_seconds: float
    """Wall-clock time of the training in seconds; of a resumed one, since it was resumed."""
    seconds_per_round: float | None
    """Median wall-clock time of a round on the training machine since the training began or was
    resumed, including evaluations, in seconds; None if not recorded."""
    packages: dict[str, str]
    """Versions of Python and of packages by name."""
    document_digest: str
    """Digest of training.json itself."""
    last_metrics: dict[str, float | None]
    """Columns of metrics.parquet in the last round by name (see the trace columns); null if a value
    is missing or not finite."""
    best_metrics: NotRequired[dict[str, float | None]]
    """The same columns in the best round; absent unless `best` is given."""


class TrainedRun(DrawnResult):
    """An opened trained run; its files are read on demand.

    document: training.json.

    Raises:
        TraceError: the directory is not a trained run.
        TraceCorrupt: a file is missing, damaged, or changed.
        TraceVersion: another release of fedray wrote it.
    """

    TABLES: ClassVar[str] = "fedray.report.traces:trained_tables"
    SUBJECT: ClassVar[str] = "fedray.report.subjects:trained_subject"
    FIGURES: ClassVar[str] = "fedray.report.trained_page:trained_figures"
    PAGE: ClassVar[str] = "fedray.report.trained_page:trained_page"

    path: Path
    """Directory of the trained run."""

    def __init__(self, path: Path, document: dict[str, Any], verify: bool = True) -> None:
        self.path = path
        self.document = document
        self._verify = verify

    @classmethod
    def open(cls, path: str | Path, verify: bool = True) -> Self:
        """Opens the directory of a trained run.

        Args:
            path: the directory.
            verify: whether training.json, and files when they are read, must have their digests.
        """
        directory = fetched(path)
        file = directory / TRAINING_FILE
        if file.exists() and (directory / RUN_FILE).exists():
            raise TraceCorrupt(
                f"{shown(str(directory))} has {RUN_FILE} and {TRAINING_FILE}, so it has files of "
                "two runs; put each run in its own directory"
            )
        document = _FORM.read(directory)
        _FORM.check(document, directory, verify)
        if wrong := list(_of_another_form(document)):
            problem = f"has values of another form in {', '.join(wrong)}"
            raise TraceCorrupt.at(file, problem, "train again")
        check_stopped(document, file)
        if not _is_best(document):
            raise TraceCorrupt.at(file, "has values of another form in best", "train again")
        return cls(directory, document, verify)

    def __repr__(self) -> str:
        rounds = self.document["rounds"]
        return (
            f"<TrainedRun {shown(str(self.path))}: {rounds:,} rounds of {self.trace_digest[:12]}>"
        )

    @property
    def trace_digest(self) -> str:
        """Digest of the trace whose participations were trained on, which identifies it."""
        return self.document["trace_digest"]

    @property
    def whole_trace_digest(self) -> str:
        """Digest of the given trace, whose first rounds `trace_digest` has if it stopped early."""
        return self.document.get("cut_from", self.trace_digest)

    @property
    def trace_path(self) -> Path:
        """Directory of that trace, if neither was moved since the training."""
        return Path(os.path.normpath(self.path.resolve() / self.document["trace"]))

    @property
    def short(self) -> str:
        """Trained and planned rounds, as "7 of 60 rounds", if fewer were trained; else empty."""
        trained, planned = self.document["rounds"], self.document["scenario"]["rounds"]["count"]
        return f"{trained:,} of {planned:,} rounds" if trained < planned else ""

    @property
    def task_metrics(self) -> tuple[Metric, ...]:
        """Metrics of the evaluations, with names, units and which values are better."""
        return _METRICS.validate_python(self.document["task_metrics"])

    @cached_property
    def metrics(self) -> dict[str, NDArray]:
        """Columns of metrics.parquet by name, with a row per round; NaN if a round was not
        evaluated. Raises TraceCorrupt."""
        schema = schema_of(metric_columns(self.task_metrics))
        columns = read_columns(self.path / METRICS_FILE, schema)
        if self._verify and columns_digest(columns) != self.document.get("metrics_digest"):
            raise changed(self.path / METRICS_FILE)
        return columns

    @cached_property
    def groups(self) -> tuple[Groups, ...]:
        """Metrics of the last model by the groups of `training.report_by`, in their order. Raises
        TraceCorrupt."""
        try:
            return tuple(Groups.of_document(each) for each in self.document.get("groups", ()))
        # A document that was made by hand may have any value anywhere.
        except (KeyError, TypeError, AttributeError, ValueError):
            file, problem = self.path / TRAINING_FILE, "has values of another form in groups"
            raise TraceCorrupt.at(file, problem, "train again") from None

    @property
    def best_rounds(self) -> int | None:
        """Number of rounds that the best model was trained on; None unless it was kept."""
        best = self.document.get("best")
        return None if best is None else best["rounds"]

    def parameters(self, which: Which = "last") -> Float32Array:
        """Returns the parameters [D] of the last or the best model, in the order of the training.
        Raises InputError if no best model was kept."""
        parts = self.named_parameters(which)
        # training.json lists the names in the order of the flat vector.
        return np.concatenate([parts[name].ravel() for name in self.document["parameters"]])

    def named_parameters(self, which: Which = "last") -> dict[str, Float32Array]:
        """Returns the parameters of the last or the best model by name. Raises InputError if no
        best model was kept."""
        return read_model(self.path, self.document, which, self._verify)

    def to_arrow(self) -> pa.Table:
        """Returns the metrics with a row per round and the columns of metrics.parquet, null if a
        round was not evaluated; and the seed, mechanism and noise, so that runs can be joined."""
        columns = {name: pa.array(each, from_pandas=True) for name, each in self.metrics.items()}
        privacy = self.document["scenario"]["privacy"]
        kind = privacy["mechanism"]["kind"]
        noise = None if kind == "none" else privacy["noise_multiplier"]
        own = {"seed": self.document["seed"], "mechanism": kind, "noise_multiplier": noise}
        rows = len(self.metrics["round"])
        return pa.table(columns | {name: pa.array([each] * rows) for name, each in own.items()})

    def last_evaluation(self) -> dict[str, Measured]:
        """Returns the metrics after the last round by name, with standard errors; both are NaN if
        it was not evaluated."""
        return self._evaluation(-1)

    def best_evaluation(self) -> dict[str, Measured] | None:
        """Returns the metrics after the best round, as `last_evaluation`; None unless its model was
        kept."""
        return None if self.best_rounds is None else self._evaluation(self.best_rounds - 1)

    def _evaluation(self, place: int) -> dict[str, Measured]:
        row = {name: float(column[place]) for name, column in self.metrics.items()}
        measures = {}
        for metric in self.task_metrics:
            column = f"evaluation_{metric.name}"
            measures[metric.name] = Measured(row[column], row[f"{column}_error"])
        return measures

    @property
    def sample(self) -> str:
        """Data of every evaluation, as "2,481 of 2,481 examples of 50 devices"."""
        return str(self.evaluated)

    @cached_property
    def evaluated(self) -> Evaluated:
        """Data of every evaluation, in numbers."""
        return _EVALUATED.validate_python(self.document["evaluated"])

    @property
    def finals(self) -> list[tuple[str, str]]:
        """Names of the held-out metrics with their data, and their values after the last round as
        text; then those after the best round, if it was an earlier one."""
        found = [
            (f"held-out {name}, on {self.sample}", number_text(each.value))
            for name, each in self.last_evaluation().items()
        ]
        best, rounds = self.best_evaluation(), self.best_rounds
        if best is not None and rounds != self.document["rounds"]:
            after = f"of the best model, after {counted(rounds or 0, 'round')}"
            found += [
                (f"held-out {name} {after}", number_text(each.value)) for name, each in best.items()
            ]
        return found

    @property
    def start_is_best(self) -> str:
        """A sentence if the untrained model was better than the best one after a round; else
        empty."""
        found, rounds = self.best_evaluation(), self.best_rounds
        if found is None:
            return ""
        name = self.document["best"]["metric"]
        start, best = self.document["start"].get(name), found[name].value
        (metric,) = (each for each in self.task_metrics if each.name == name)
        if start is None or not metric.sign * (start - best) > 0:
            return ""
        return (
            f"The untrained model was better than the best one: held-out {metric.title} "
            f"{number_text(start)} before the training, {number_text(best)} after "
            f"{counted(rounds or 0, 'round')}."
        )

    @property
    def clipped_share(self) -> float:
        """Share of all updates that were scaled down to the clip norm; NaN without an update."""
        columns, names = self.metrics, ("trained", *LEFT_OUT)
        # The share of a round is of all its devices, also of those without an update.
        devices = sum(columns[name].astype(np.float64) for name in names)
        trained = int(columns["trained"].sum())
        return float(columns["clipped_share"] @ devices) / trained if trained else math.nan

    @property
    def clipping(self) -> str:
        """A sentence if a fixed clip norm clipped nearly every update, or nearly none though its
        noise is proportional to it; else empty."""
        privacy = self.document["scenario"]["privacy"]
        return _clipping(privacy, self.clipped_share, self.document.get("mean_norm"))

    @property
    def bits_per_parameter(self) -> float:
        """Number of bits that a device sent per round and parameter of the model."""
        return self.document["encoding"]["bits_per_parameter"]

    @property
    def bytes_per_upload(self) -> int:
        """Number of bytes that a device sent per round, rounded up."""
        parameters = sum(math.prod(shape) for shape in self.document["parameters"].values())
        return math.ceil(self.bits_per_parameter * parameters / 8)

    @property
    def seconds_per_round(self) -> float | None:
        """Median wall-clock time of a round on the training machine since the training began or was
        resumed, including evaluations; None if not recorded."""
        return self.document.get("seconds_per_round")

    @cached_property
    def divergence(self) -> str:
        """Sentences on why the model should not be used, and what to change; empty if the training
        did not diverge, as `has_diverged` decides. A model that no device changed is of no use
        either."""
        is_untrained = not self.metrics["trained"].any()
        if is_untrained and not _not_finite(self.metrics):
            why = next((text for _, text in _left_out_rows(self.metrics)), "none took part")
            return f"The model was never trained: no device added an update ({why})."
        # Noise may have made a model better to which no device added anything.
        if not (is_untrained or self._has_diverged):
            return ""
        worse = (str(each) for each in self._changes if each.trend in ("worse", "not finite"))
        found = " and ".join(filter(None, (_not_finite(self.metrics), self._risen_loss(), *worse)))
        privacy, norm = self.document["scenario"]["privacy"], self.document.get("mean_norm")
        # Only a fixed norm can be lowered; others follow the updates.
        is_fixed = privacy.get("clipping", {}).get("kind", "fixed") == "fixed"
        mean = norm / privacy["clip_norm"] if is_fixed and norm else None
        advice = remedy(self.document["update_noise"], self.noise_warning, mean)
        return f"The training diverged: {found}. {advice}"

    @property
    def seen(self) -> str:
        """A sentence on what got worse in a training that did not diverge; empty if nothing did."""
        if self.divergence:
            return ""
        return seen(self._changes, [*filter(None, (_not_finite(self.metrics), self._risen_loss()))])

    @property
    def _has_diverged(self) -> bool:
        return has_diverged(
            [each.trend for each in self._changes],
            has_risen=bool(self._risen_loss()) or self._rises_everywhere,
            is_often_not_finite=bool(_not_finite(self.metrics)),
        )

    @property
    def _rises_everywhere(self) -> bool:
        """Whether the held-out loss rose by more than its own size, and that on the devices rose
        too; a model that fits the devices too well has only the former."""
        losses, last = self._device_losses
        has_doubled = any(each.metric.better == "lower" and each.is_far for each in self._changes)
        return has_doubled and losses.size > 0 and bool(np.median(last) > losses[0])

    @cached_property
    def _changes(self) -> list[Change]:
        """Changes of the held-out loss and of the metric by which models are judged, as far as they
        are known; one change if they are the same."""
        start, errors = self.document["start"], self.document["start_errors"]
        known = [each for each in self.task_metrics if start.get(each.name) is not None]
        if not known:
            return []
        answer = metric_of_answer(known)
        loss = next((each for each in known if each.better == "lower"), answer)
        finals = self.last_evaluation()

        def before(name: str) -> Measured:
            error = errors.get(name)
            return Measured(start[name], math.nan if error is None else error)

        both = dict.fromkeys((loss, answer))
        return [Change(each, before(each.name), finals[each.name]) for each in both]

    @property
    def noise_warning(self) -> str:
        """A sentence if the noise on a mean update is too much for learning; else empty."""
        return self.document["noise_warning"]

    @property
    def warnings(self) -> list[str]:
        """Sentences on why the model, or its training, should be looked at."""
        failed = self.divergence or self.noise_warning
        found = (failed, self.start_is_best, self.seen, self.clipping, undefined(self))
        return [each for each in found if each]

    @property
    def _device_losses(self) -> tuple[Float64Array, Float64Array]:
        """Losses on the devices, of all rounds in which any trained, and the last of these."""
        losses = self.metrics["train_loss"].astype(np.float64)
        losses = losses[np.isfinite(losses)]
        return losses, losses[-max(LEAST_ROUNDS, losses.size // LAST_SHARE) :]

    def _risen_loss(self) -> str:
        losses, last = self._device_losses
        if losses.size < 2 * LEAST_ROUNDS:
            return ""
        first, median = float(losses[0]), float(np.median(last))
        # The loss must rise by its own size, even if losses can be negative, and by more than
        # rounds of one model differ, because the devices of a round may be few and unlike.
        if median - first <= max(abs(first), SURE_DEVIATIONS * float(last.std(ddof=1))):
            return ""
        return (
            f"the loss on the devices was {first:.4f} in the first round and {median:.4f} in the "
            f"last {last.size} (median)"
        )

    def rows(self) -> list[list[str]]:
        """Returns the training as rows of a table, each with a name and a value: rounds, task,
        losses, and devices that were left out."""
        document = self.document
        loss = number_text(self.metrics["train_loss"][-1])
        loss += " on the last round's devices, of the model that they were sent"
        if not self.metrics["trained"][-1]:
            loss = "not known: no device of the last round trained"
        rounds = self.short.removesuffix(" rounds") or f"{document['rounds']:,}"
        stopped, best = document.get("stopped"), document.get("best")
        why = "" if stopped is None else f"; stopped because {stopped['reason']}"
        rows = [
            ["rounds", f"{rounds}, {_devices_of_a_round(document['scenario'])} in each{why}"],
            ["task", f"{_task_name(document['scenario']['training'])}, seed {document['seed']}"],
            ["loss", loss],
            ["parameters", f"{_parameter_counts(document)}; {self.bytes_per_upload:,} bytes up"],
        ]
        kind = document["scenario"]["privacy"].get("clipping", {}).get("kind", "fixed")
        rows += _clip_norm_rows(self.metrics["clip_norm"], is_clipped=kind != "none")
        if math.isfinite(self.clipped_share):
            rows.append(["clipped", f"{100 * self.clipped_share:.1f} % of the updates"])
        rows += [*_encoding_rows(document["encoding"]), *_left_out_rows(self.metrics)]
        optimum = document["optimum"]
        measures = self.last_evaluation()
        for metric in self.task_metrics:
            measured = measures[metric.name]
            text = f"{number_text(measured.value)} {metric.unit}".rstrip()
            if not math.isnan(measured.standard_error):
                text += f", standard error {measured.standard_error:.4f}"
            text += f", on {self.sample}"
            if (before := document["start"].get(metric.name)) is not None:
                text += f"; {before:.4f} before the training"
            if metric.name in optimum:
                text += f"; the best of any model {optimum[metric.name]:.4f}"
                if self.has_reached(metric):
                    text += ", reached within the errors"
            rows.append([f"held-out {metric.name}", text])
        if best is not None:
            file = BEST_FILE if best["sha256"] != document["model_sha256"] else MODEL_FILE
            said = f"after {counted(best['rounds'], 'round')}, by held-out {best['metric']}: {file}"
            if file == BEST_FILE:
                found = (self.best_evaluation() or {}).items()
                values = (f"{name} {number_text(each.value)}" for name, each in found)
                said += f"; {', '.join(values)}"
            rows.append(["best model", said])
        rows.append(["trace", f"digest {self.trace_digest}"])
        return rows

    def has_reached(self, metric: Metric) -> bool:
        """Whether a metric is, within two standard errors, the best that any model can have, and
        these are at most a tenth of that best."""
        found, best = self.last_evaluation()[metric.name], self.document["optimum"].get(metric.name)
        gap = metric.sign * ((math.nan if best is None else best) - found.value)
        return gap <= 2 * found.standard_error <= abs(best or 0.0) / 10

    def to_json(self) -> dict[str, Any]:
        """Returns training.json, with the warnings among its notes, and the metrics of the last
        and the best round as one JSON object; null for values that are not finite."""
        places = {"last_metrics": -1}
        if self.best_rounds is not None:
            places["best_metrics"] = self.best_rounds - 1
        of_rounds = {
            key: json_of({name: column[place] for name, column in self.metrics.items()})
            for key, place in places.items()
        }
        notes = [*self.document["notes"], *self.warnings]
        return {"path": str(self.path), **self.document, "notes": notes, **of_rounds}

    def verify(self) -> None:
        """Reads every file and compares its digest with the recorded one. Raises TraceCorrupt at
        the first difference."""
        # Opened again, because cached values may have been read without checking digests.
        checked = type(self).open(self.path)
        _ = checked.metrics, checked.parameters()
        if checked.best_rounds is not None:
            checked.parameters("best")


def _devices_of_a_round(scenario: Mapping[str, Any]) -> str:
    """Returns which devices of a round trained."""
    # Only scenarios with stored uploads have the table, and only groups draw a fixed number.
    uploads = scenario["rounds"].get("uploads") or {}
    if uploads.get("schedule", {}).get("kind", "cyclic") != "cyclic":
        return "all devices that were drawn"
    return f"{scenario['training']['cohort_sample']:,} devices"


def _encoding_rows(encoding: Mapping[str, Any]) -> list[list[str]]:
    """Returns the encoding of updates as rows."""
    text = f"{encoding['kind']}, {encoding['bits_per_parameter']:.4g} bits per parameter"
    if encoding["inflation"] > 1.0:
        text += f"; noise for {up(encoding['inflation'], 6)} times the clip norm"
    rows = [["encoding", text]]
    if noise := encoding.get("noise_of_devices"):
        rows.append(
            [
                "noise of devices",
                f"{counted(len(noise['coefficients']), 'coefficient')} of C, modulus "
                f"{noise['modulus']:,}; a coordinate wraps with a probability of at most "
                f"{noise['wrap_probability']:.2g}; "
                f"{counted(noise['clipped_coordinates'], 'coordinate')} clipped",
            ]
        )
    return rows


def _not_finite(metrics: Mapping[str, NDArray]) -> str:
    """Returns how many updates were not finite, in a clause; empty if they were few."""
    count, trained = (int(metrics[name].sum()) for name in ("not_finite", "trained"))
    if count == 0 or count < MANY_NOT_FINITE * (count + trained):
        return ""
    return f"{count:,} of {count + trained:,} updates were not finite"


def _left_out_rows(metrics: Mapping[str, NDArray]) -> list[list[str]]:
    """Returns a row on devices that took part but added nothing to the model, if any."""
    counts = {text: int(metrics[name].sum()) for name, text in LEFT_OUT.items()}
    texts = [f"{count:,} {text}" for text, count in counts.items() if count]
    return [["left out", ", ".join(texts)]] if texts else []


def _parameter_counts(document: Mapping[str, Any]) -> str:
    trained = sum(math.prod(shape) for shape in document["parameters"].values())
    frozen = document.get("frozen_parameters", 0)
    return f"{trained:,} trained{f', {frozen:,} frozen' if frozen else ''}"


def _clipping(privacy: Mapping[str, Any], share: float, mean: float | None) -> str:
    """Returns a sentence on a fixed clip norm that clipped a `share` of updates of a mean norm."""
    # Other kinds of clipping follow the norms of updates or have no norm.
    if privacy.get("clipping", {}).get("kind", "fixed") != "fixed":
        return ""
    norm = privacy["clip_norm"]
    shown = f"{100 * share:.1f} %" if share >= 0.001 else "Less than 0.1 %"
    said = f"{shown} of the updates were clipped to privacy.clip_norm={norm:g}"
    near = "" if mean is None else f" near their mean norm {mean:.2g}"
    if share >= 1 - EXTREME:
        return (
            f"{said}, so the model learns from their directions only; try a higher one{near} too."
        )
    if share <= EXTREME and privacy["mechanism"]["kind"] != "none":
        return f"{said}, to which noise is proportional; a lower one{near} adds less noise."
    return ""


def _clip_norm_rows(norms: NDArray, *, is_clipped: bool) -> list[list[str]]:
    """Returns the clip norms of rounds as a row, of the first and the last if they differ; without
    clipping, the norm above which an update counts as zero."""
    norms = norms[np.isfinite(norms)]
    if not norms.size:
        return []
    first, last = (f"{norms[place]:.4g}" for place in (0, -1))
    said = last if first == last else f"{first} in the first round, {last} in the last"
    if not is_clipped:
        said = f"none; an update longer than {last} counts as zero"
    return [["clip norm", said]]


def undefined(run: TrainedRun) -> str:
    """Returns a sentence on metrics that were a number in no evaluation, although others were;
    empty if there is none."""
    columns = {
        each.title: run.metrics[f"evaluation_{each.name}"].astype(np.float64)
        for each in run.task_metrics
    }
    never = [name for name, column in columns.items() if np.isnan(column).all()]
    if not never or len(never) == len(columns):
        return ""
    return f"Held-out {' and '.join(never)}: not a number in any evaluation; see the task's code"


class TrainedRunWriter(PartialDirectory):
    """An unfinished trained run: a directory that gets its final name when it is complete."""

    def __init__(
        self, directory: str | Path, *, is_resumed: bool = False, partial: Path | None = None
    ) -> None:
        super().__init__(directory, TRAINING_FILE, is_resumed=is_resumed, partial=partial)

    def finish(
        self,
        metrics: Sequence[TrainingMetrics],
        description: TaskDescription,
        parameters: Float32Array,
        document: Mapping[str, Any],
        best: BestModel | None = None,
    ) -> Path:
        """Writes metrics, models and training.json, and gives the directory its final name. Returns
        its path.

        Args:
            metrics: one row per round.
            description: description of the training.
            parameters: the final model, [D].
            document: further keys of training.json.
            best: model of the best round, if it is kept.
        """
        # The digest depends on the order of the columns, which is that of the file.
        columns = _metric_values(metrics, description.metrics)
        table = arrow_table(metric_columns(description.metrics), columns)
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
        self._write(METRICS_FILE, buffer.getvalue())
        content = model_content(parameters, description.shapes)
        self._write(MODEL_FILE, content)
        model_sha256, of_best = hashlib.sha256(content).hexdigest(), {}
        if best is not None:
            content = model_content(best.parameters, description.shapes)
            of_best["best"] = figures_of(best, content)
            if of_best["best"]["sha256"] != model_sha256:
                self._write(BEST_FILE, content)
        if words := description.words:
            # Without it the model reads numbers that stand for nothing.
            self._write(VOCABULARY_FILE, json.dumps(words, ensure_ascii=False).encode())
        head = {
            "format": FORMAT,
            "version": VERSION,
            "metrics_digest": columns_digest(columns),
            "model_sha256": model_sha256,
            "parameters": {name: list(shape) for name, shape in description.shapes.items()},
            "frozen_parameters": description.frozen,
            "task_metrics": [dataclasses.asdict(metric) for metric in description.metrics],
            "optimum": dict(description.optimum),
            "people": dict(description.people),
            **of_best,
        }
        return self.publish({**head, **document, "packages": package_versions()})


def _is_best(document: Mapping[str, Any]) -> bool:
    """Whether the best round, if there is one, is one of the training's by one of its metrics."""
    best = document.get("best")
    if best is None:
        return True
    rounds, names = best["rounds"], [each["name"] for each in document["task_metrics"]]
    is_round = isinstance(rounds, int) and 1 <= rounds <= document["rounds"]
    return is_round and best["metric"] in names


def _of_another_form(document: Mapping[str, Any]) -> Iterator[str]:
    """Yields the keys of training.json with values of another form."""
    yield from (name for name, form in _FORMS.items() if not _has_form(document[name], form))
    if not isinstance(document.get("cut_from", ""), str):
        yield "cut_from"
    for name, (form, keys) in _FORMS_OF_STOP.items():
        found = document.get(name)
        if found is not None and not (_has_form(found, form) and found.keys() == keys):
            yield name


def _has_form(value: Any, form: TypeAdapter[Any]) -> bool:
    try:
        form.validate_python(value)
    except ValidationError:
        return False
    return True


def _task_name(training: Mapping[str, Any]) -> str:
    """Returns the kind of the task, or the user's file."""
    task = training["task"]
    return task.get("file", task["kind"])


def _metric_values(
    rows: Sequence[TrainingMetrics], metrics: Sequence[Metric]
) -> dict[str, NDArray]:
    columns: dict[str, NDArray] = {
        "round": np.array([row.round_index for row in rows], np.uint32),
        "train_loss": np.array([row.train_loss for row in rows]),
        "clipped_share": np.array([row.clipped_share for row in rows]),
    }
    for name in ("trained", *LEFT_OUT):
        columns[name] = np.array([getattr(row.report, name) for row in rows], np.uint32)
    # A clip that was not recorded is NaN, which becomes null.
    clips = [row.clip or Clip(math.nan) for row in rows]
    columns["clip_norm"] = np.array([clip.norm for clip in clips])
    # None becomes NaN here, and null in the file.
    columns["counted_norm"] = np.array([clip.counted_norm for clip in clips], np.float64)
    nothing = Measured(math.nan, math.nan)
    for metric in metrics:
        evaluations = [row.evaluation for row in rows]
        measured = [nothing if each is None else each.metrics[metric.name] for each in evaluations]
        name = f"evaluation_{metric.name}"
        columns[name] = np.array([each.value for each in measured])
        columns[f"{name}_error"] = np.array([each.standard_error for each in measured])
    return columns
