"""Frozen values exchanged between clients and server. Arrays are numpy; times are seconds since
start."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.base.arrays import (
    BoolArray,
    Float32Array,
    Float64Array,
    Int32Array,
    Int64Array,
    UInt8Array,
    UInt32Array,
    UInt64Array,
)
from fedray.base.errors import InputError
from fedray.base.rounding import counted
from fedray.encoding.tables import FIXED_POINT_BITS
from fedray.scenario.clipping import Clip


class Outcome(IntEnum):
    """Fate of a selected device; its number is the code in the trace's column `outcome`."""

    # Traces store these numbers, so they must never change.
    ACCEPTED = 0
    """The report arrived in time; in a committed round this is a participation."""
    LATE = 1
    """The report arrived after the round had closed; in buffered rounds, from too old a model."""
    DROPPED = 2
    """The device's interval ended first."""
    FAILED = 3
    """The device failed for a reason of its own."""
    ABANDONED = 4
    """The report arrived in time, but the round was abandoned; the report was not used."""
    EXCLUDED = 5
    """The device was not selected in this round or later, because it would have exceeded its
    privacy budget. The round is the one that was being formed."""


NEVER = 2**32 - 1
"""Open time of a device that may not take part again; no simulated time reaches it."""


class Window(NamedTuple):
    """Look-ahead window, [start_time, end_time), with the rate of its check-ins."""

    number: int
    """Count of earlier windows; all have the same length."""
    start_time: float
    """Start of the window, seconds since start."""
    end_time: float
    """End of the window, seconds since start."""
    ask_until_time: float
    """End of the check-ins: the window's end, or earlier if devices are to come together."""
    check_ins_per_hour: float
    """Rate of the Poisson process of an eligible device with an open timer."""


NO_WINDOW = Window(-1, 0.0, 0.0, 0.0, 0.0)
"""Placeholder for the window before the first one."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """Fates of the selected devices of one attempt, sorted by device id; [S] each.

    If the server stores uploads, an attempt is either an upload or a round. In buffered rounds, an
    attempt comprises everything that ended while the buffer was filled: a device may have several
    rows, in order of check-in, of which at most one is accepted.
    """

    # Rounds count from 0, so no round has this number.
    NO_ROUND: ClassVar[int] = -1
    attempt: int
    """Number of the attempt; a shard applies each attempt once."""
    round_index: int
    """Attempted round; NO_ROUND for uploads stored for later rounds, which devices remember like a
    round, but which have no rows in the trace."""
    device_ids: UInt64Array
    """Selected devices."""
    check_in_times: Float64Array
    """Last check-in of each before it was selected, seconds since start."""
    report_times: Float64Array
    """Time of each report; NaN if the device did not report."""
    outcomes: UInt8Array
    """Codes of `Outcome`."""
    open_times: UInt32Array
    """Whole second from which the device's timer is open again; 0 if no timer was started, NEVER if
    the device has reached its cap."""
    remembers_round: BoolArray
    """Whether the device stores the round as its last one."""
    forget_times: UInt32Array
    """Whole second at which a device loses the history that contains this attempt; empty if
    histories are never lost."""
    versions: UInt32Array = field(default_factory=lambda: np.empty(0, np.uint32))
    """Version of the model that the device was sent (the number of rounds released before it
    started); empty unless rounds are buffered."""
    task: int = 0
    """Position of the task in the scenario, if several tasks share the devices. With NO_ROUND, only
    the timers of that task are started."""

    @property
    def is_of_uploads(self) -> bool:
        """Whether devices uploaded, and no round was attempted."""
        return self.round_index == self.NO_ROUND

    @property
    def is_of_commit(self) -> bool:
        """Whether the round was committed."""
        # A Poisson sample may be empty; every other committed round accepts a device.
        has_accepted = bool((self.outcomes == Outcome.ACCEPTED).any())
        return not self.is_of_uploads and (has_accepted or not self.device_ids.size)

    @property
    def accepted_device_ids(self) -> UInt64Array:
        """Devices whose reports were used [A], sorted unless rounds are buffered."""
        return self.device_ids[self.outcomes == Outcome.ACCEPTED]

    @property
    def has_arrived(self) -> BoolArray:
        """Whether each report arrived before the attempt closed [S], committed or not."""
        # A device cannot know that its report was not used, so it counts both.
        return (self.outcomes == Outcome.ACCEPTED) | (self.outcomes == Outcome.ABANDONED)

    def slice_of_devices(self, first_device: int, end_device: int) -> "Settlement":
        """Returns the rows of devices in [first_device, end_device), as views."""
        # Rows are sorted by device, so those of a range are adjacent. A view keeps the whole
        # message in memory, so rows are copied when they are stored.
        bounds = np.array([first_device, end_device], dtype=np.uint64)
        begin, end = np.searchsorted(self.device_ids, bounds)
        # A single shard holds all devices, so it needs no views.
        if end - begin == self.device_ids.size:
            return self
        # Unused columns are empty, and so are their slices.
        rows = {name: getattr(self, name)[begin:end] for name in _SETTLED}
        return replace(self, **rows)


def settlements_of_devices(
    settlements: Iterable[Settlement], first_device: int, end_device: int
) -> tuple[Settlement, ...]:
    """Cuts settlements to the devices in [first_device, end_device)."""
    return tuple(each.slice_of_devices(first_device, end_device) for each in settlements)


@dataclass(frozen=True, slots=True)
class SettlementBatch:
    """Settlements in order of attempt, as a message of few arrays: each column of theirs is one
    array, settlement after settlement."""

    heads: Int64Array
    """Attempt, round, task and number of rows of each settlement [B, 4]."""
    columns: tuple[NDArray, ...]
    """Columns of `Settlement` [S], in their order; unused ones are empty."""

    def __iter__(self) -> Iterator[Settlement]:
        begin = 0
        for attempt, round_index, task, size in self.heads.tolist():
            rows = slice(begin, begin + size)
            begin += size
            columns = (column[rows] for column in self.columns)
            yield Settlement(attempt, round_index, *columns, task=task)

    @classmethod
    def cut(
        cls, settlements: Sequence[Settlement], edges: Sequence[int]
    ) -> list["SettlementBatch"]:
        """Cuts settlements to ranges of devices, each from an edge to the next one.

        Args:
            settlements: [B]; all use the same columns.
            edges: [N + 1], rising.
        """
        heads = np.array(
            [
                (each.attempt, each.round_index, each.task, each.device_ids.size)
                for each in settlements
            ],
            np.int64,
        ).reshape(-1, 4)
        # Rows of a settlement are sorted by device, so a range has adjacent ones.
        devices = np.array(edges, np.uint64)
        bounds = np.array(
            [np.searchsorted(each.device_ids, devices) for each in settlements], np.int64
        ).reshape(-1, devices.size)
        sizes = np.diff(bounds).T  # [N, B]
        before = np.cumsum(heads[:, 3]) - heads[:, 3]
        taken = (before + bounds[:, :-1].T).ravel()
        counts = sizes.ravel()
        # All columns are ordered by range once: with 64 ranges, a cut of every settlement for each
        # took seven times as long.
        order = np.repeat(taken - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        columns: list[NDArray] = []
        for name in _SETTLED:
            parts = [getattr(each, name) for each in settlements]
            column = np.concatenate(parts) if parts else np.empty(0)
            columns.append(column[order] if column.size else column)
        ends = np.cumsum(sizes.sum(axis=1)).tolist()
        return [
            cls(
                np.column_stack((heads[:, :3], sizes[place])),
                tuple(column[begin:end] for column in columns),
            )
            for place, (begin, end) in enumerate(itertools.pairwise([0, *ends]))
        ]


_SETTLED = [
    each.name for each in fields(Settlement) if each.name not in ("attempt", "round_index", "task")
]
"""Columns of a settlement."""
Settlements = tuple[Settlement, ...] | SettlementBatch
"""Settlements in order of attempt, to iterate over."""


@dataclass(frozen=True, slots=True)
class CheckInOrder:
    """Order to a shard: apply settlements, then list the check-ins of a look-ahead window."""

    window: Window
    """Window with its rate."""
    is_enumerated: bool
    """Whether check-ins are drawn from listed intervals, rather than by thinning."""
    list_from_time: float
    """Start of the period for which intervals are listed, at the latest the window's start, seconds
    since start. A later listing, as after a resume, gives the same."""
    list_until_time: float
    """End of that period, which is a window's end, seconds since start."""
    settlements: Settlements = ()
    """Settlements since the last order, cut to the shard's devices."""
    rounds: tuple[int, ...] = (0,)
    """Round that each task is forming; a single one if devices are not shared."""


@dataclass(frozen=True, slots=True)
class CheckIns:
    """First check-in of each eligible interval in a window, sorted by (time, device); [A] each.

    If T tasks share the devices, the columns from fixed_seconds on are [A, T], and all are filled.
    """

    device_ids: UInt64Array
    """Devices that check in."""
    times: Float64Array
    """Check-in times, seconds since start."""
    interval_ends: Float64Array
    """End of the device's interval, seconds since start."""
    fixed_seconds: Float32Array
    """Time from selection to report without training (setup, transfers), which is the same in all
    rounds of the device."""
    training_seconds: Float32Array
    """Training time, which a factor scales in each round."""
    upload_seconds: Float32Array
    """Last part of the fixed time, the upload; empty unless a policy counts uploads."""
    last_rounds: Int32Array
    """Last round that the device remembers, or -1; empty unless rounds must be separated."""
    timer_seconds: Float64Array
    """Time that the device really waits; empty if all devices keep the timer."""
    contributions: UInt32Array
    """Number of reports in time that the device remembers; empty unless participations are
    capped."""
    census: "Census"
    """Census of the shard's devices at the window's start."""
    open_times: Float64Array = field(default_factory=lambda: np.empty(0))
    """Time from which the task's own rules admit the device, whole seconds or later, infinity for
    never; empty unless several tasks share the devices."""
    task_censuses: tuple["Census", ...] = ()
    """Census of each task; empty unless there are several."""

    @classmethod
    def merged(cls, parts: Sequence["CheckIns"]) -> "CheckIns":
        """Merges the lists of neighbouring ranges of devices, given in order of device."""
        # A single shard has sorted its list already.
        if len(parts) == 1:
            return parts[0]
        times = np.concatenate([part.times for part in parts])
        # A stable sort breaks ties in time by device. It finds the sorted runs and merges them.
        order = np.argsort(times, kind="stable")
        columns: dict[str, NDArray] = {}
        for column in fields(cls):
            if column.name not in ("census", "task_censuses"):
                values = np.concatenate([getattr(part, column.name) for part in parts])
                # Unused columns are empty.
                columns[column.name] = values[order] if values.size else values
        # The ranges have no device in common, so counts add up.
        nothing = Census(0, 0, 0, 0)
        census = sum((part.census for part in parts), nothing)
        of_tasks = zip(*(part.task_censuses for part in parts), strict=True)
        task_censuses = tuple(sum(each, nothing) for each in of_tasks)
        return cls(**columns, census=census, task_censuses=task_censuses)


@dataclass(frozen=True, slots=True)
class Census:
    """Estimated numbers of devices, from a fixed sample."""

    eligible: int
    """Eligible devices at the window's start."""
    open_eligible: int
    """Eligible devices whose timer is open."""
    free_eligible: int
    """Eligible devices with an open timer that no round separation holds back."""
    listed: int
    """Usable devices whose timer opens before the order's list_until_time."""
    spent_eligible: int = 0
    """Eligible devices that have reached their cap."""

    def __add__(self, other: "Census") -> "Census":
        names = [each.name for each in fields(self)]
        return Census(*(getattr(self, name) + getattr(other, name) for name in names))


NO_CHECK_INS = CheckIns(
    device_ids=np.empty(0, np.uint64),
    times=np.empty(0),
    interval_ends=np.empty(0),
    fixed_seconds=np.empty(0, np.float32),
    training_seconds=np.empty(0, np.float32),
    upload_seconds=np.empty(0, np.float32),
    last_rounds=np.empty(0, np.int32),
    timer_seconds=np.empty(0),
    contributions=np.empty(0, np.uint32),
    census=Census(0, 0, 0, 0),
)
"""Check-ins before the first window."""


@dataclass(frozen=True, slots=True)
class TrainOrder:
    """Order to a trainer: train groups of a round's devices."""

    round_index: int
    """The round."""
    groups: Sequence[UInt64Array]
    """Devices [G] of each group, sorted. The round's cohort determines the groups, so that no
    result depends on the trainer."""
    clip: Clip | None = None
    """Clipping of the updates; None for measurements, whose updates are discarded, to clip as in
    the first round."""
    version: int | None = None
    """Version of the model that the devices train from, which is its number of rounds; None for the
    newest."""
    weight: float = 1.0
    """Factor applied to the clipped updates, at most 1; a function of round and version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainReport:
    """Counts of the devices of one or more orders."""

    round_index: int
    """The round."""
    devices: int = 0
    """Devices asked to train."""
    accepted: int = 0
    """Devices that the round accepted, of which `devices` may be a sample; 0 in a trainer's own
    report, where it is unknown."""
    trained: int = 0
    """Devices whose update is in the sum."""
    without_examples: int = 0
    """Devices without data."""
    damaged: int = 0
    """Devices whose data cannot be read."""
    not_finite: int = 0
    """Devices whose update has a NaN or an infinity; it counts as zero."""
    clipped: int = 0
    """Devices whose update was scaled down to the clip norm."""
    zeroed: int = 0
    """Devices whose update was so long that it counts as zero."""
    short: int = 0
    """Devices whose update is no longer than the order's `counted_norm`."""
    long: int = 0
    """Devices whose update is longer, or not finite; 0 like `short` if nothing is counted."""
    examples: int = 0
    """Different examples used by the devices in the sum."""
    weight_sum: int = 0
    """Sum of the weights of the devices asked, in steps of 2^-FIXED_POINT_BITS; 0 if all weights
    are equal."""
    loss_sum: int = 0
    """Sum of the devices' losses before training, in steps of 2^-FIXED_POINT_BITS, so that it is
    the same in any order; `mean_loss` has the mean in its own unit."""
    norm_sum: int = 0
    """Sum of the norms of their updates before clipping, in the same steps; `mean_norm` has the
    mean."""
    clipped_coordinates: int = 0
    """Coordinates of updates that the encoding clipped after the rotation."""

    @property
    def mean_loss(self) -> float | None:
        """Mean loss of the devices in the sum before training; None without one."""
        return self.loss_sum / 2.0**FIXED_POINT_BITS / self.trained if self.trained else None

    @property
    def mean_norm(self) -> float | None:
        """Mean norm of the updates in the sum before clipping; None without one."""
        return self.norm_sum / 2.0**FIXED_POINT_BITS / self.trained if self.trained else None

    @property
    def sampled_share(self) -> float:
        """Share of the accepted devices that were asked to train; 1 if `accepted` is unknown."""
        return self.devices / self.accepted if self.accepted else 1.0

    @property
    def weights(self) -> float:
        """Sum of the weights."""
        return self.weight_sum / 2.0**FIXED_POINT_BITS

    @classmethod
    def of(cls, round_index: int, reports: Sequence["TrainReport"]) -> "TrainReport":
        """Adds up several reports of one round."""
        # Every field but the round is a sum.
        names = cls.__dataclass_fields__.keys() - {"round_index"}
        sums = {name: sum(getattr(report, name) for report in reports) for name in names}
        return cls(round_index=round_index, **sums)


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One attempt at a round; times are seconds since start.

    A buffered round opens and starts when the one before is released, and closes when its buffer is
    full. Its selected devices are those whose attempts ended in the meantime.
    """

    round_index: int
    """Number of earlier committed rounds."""
    opened: float
    """Start of the selection; for stored uploads, end of their window."""
    started: float
    """Time at which devices were selected, or selection was abandoned."""
    closed: float
    """Time at which the round was committed or abandoned."""
    selected: int
    """Selected devices."""
    reported: int
    """Selected devices that reported, in time or late."""
    accepted: int
    """Devices whose reports were used; 0 for an abandoned attempt."""
    is_committed: bool
    """Whether the round was committed."""
    eligible_estimate: int
    """Devices eligible at the start of the look-ahead window in which the round started; for stored
    uploads, devices eligible in the round."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of a model on held-out data, which is a ratio of sums over examples."""

    name: str
    """Name in columns and JSON, such as "loss"."""
    unit: str
    """Unit, such as "nats per word", or ""."""
    better: Literal["lower", "higher"]
    """Direction of better values."""
    is_exponential: bool = False
    """Whether the figure is exp(ratio), as a perplexity is."""

    def __post_init__(self) -> None:
        # Metrics of a user's task come from Python, which does not check types.
        if not isinstance(self.name, str) or not self.name:
            raise InputError.of("name", self.name, "is not a name", "give a metric a text")
        if not isinstance(self.unit, str):
            raise InputError.of("unit", self.unit, "is not a text", 'give one, such as ""')
        if self.better not in ("lower", "higher"):
            rule = 'is not "lower" or "higher"'
            raise InputError.of("better", self.better, rule, "give one of them")

    @property
    def sign(self) -> float:
        """1 if higher values are better, else -1."""
        return 1.0 if self.better == "higher" else -1.0

    @property
    def title(self) -> str:
        """Name in words."""
        return self.name.replace("_", " ")

    @property
    def in_unit(self) -> str:
        """Suffix of the name on an axis: the unit in parentheses, or ""."""
        return f" ({self.unit})" if self.unit else ""


@dataclass(frozen=True, slots=True)
class TaskDescription:
    """The learning task as a trainer built it."""

    shapes: Mapping[str, tuple[int, ...]]
    """Shape of each parameter by name, in the order of the flat vector [D]."""
    metrics: tuple[Metric, ...]
    """Metrics of an evaluation."""
    optimum: Mapping[str, float]
    """Best value of any model, for metrics for which the data determines it."""
    device: str = "cpu"
    """Kind of device of the trainer."""
    notes: tuple[str, ...] = ()
    """Sentences on the task for whoever trains it, such as why devices train one at a time."""
    people: Mapping[str, int] = field(default_factory=dict)
    """Number of `clients` in recorded data, and `most_devices` of one unless that is unknown; empty
    for other data."""
    words: tuple[str, ...] = ()
    """Vocabulary of a text in words, in order of their numbers; empty for other data."""
    frozen: int = 0
    """Number of parameters of the model that are not trained."""


class Measured(NamedTuple):
    """A figure of a model, with its standard error."""

    value: float
    """The metric on the held-out data; NaN if it is not finite."""
    standard_error: float
    """Standard error of the metric; NaN if only one device was measured."""


UNLIMITED = 2**40
"""Number of held-out devices of data without a limit."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Held-out data on which a model is evaluated."""

    examples: int
    """Number of examples that count."""
    available: int
    """Number of examples that the evaluated devices hold."""
    devices: int
    """Number of evaluated devices with examples."""
    held_out_devices: int
    """Number of devices that the data holds out, evaluated or not; 2^40 without a limit."""

    def __str__(self) -> str:
        """The data as "2,481 of 2,481 examples of 50 devices"."""
        is_part = self.devices < self.held_out_devices < UNLIMITED
        of = f"{self.devices:,} of " if is_part else ""
        devices = counted(self.held_out_devices if is_part else self.devices, "device")
        return f"{self.examples:,} of {counted(self.available, 'example')} of {of}{devices}"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Metrics of a model on held-out data."""

    metrics: Mapping[Annotated[str, "metric"], Measured]
    """Metrics by name, in the task's order."""
    data: Evaluated
    """The data."""


@dataclass(frozen=True, slots=True)
class EvaluationPart:
    """One trainer's part of an evaluation: sums over rows of examples, each of one device."""

    metrics: tuple[Metric, ...]
    """Metrics of the task, in its order."""
    data: Evaluated
    """Data of the whole evaluation."""
    batches: Sequence[tuple[Int64Array, Mapping[str, Float64Array]]]
    """For each batch of R rows, the place of each row's device [R], and the row's sums of
    numerators and of weights [R, 2], by metric."""


@dataclass(frozen=True, slots=True)
class DeviceMeasures:
    """Metrics of a model on the data of each of U devices."""

    device_ids: UInt64Array
    """[U]; devices with readable data."""
    examples: Int64Array
    """[U]; number of examples used."""
    sums: Mapping[str, Float64Array]
    """Sums of numerators and of weights, [U, 2], by metric; their ratio is the metric."""

    def values(self, metric: Metric) -> Float64Array:
        """Returns each device's metric, [U]; NaN if its examples have no weight."""
        numerators, weights = self.sums[metric.name].T
        # Division by zero weight gives NaN, as it should.
        with np.errstate(all="ignore"):
            ratios = np.where(weights > 0, numerators / weights, np.nan)
            return np.exp(ratios) if metric.is_exponential else ratios


@dataclass(frozen=True, slots=True)
class GroupSums:
    """Sums of a model's metrics over evaluated examples, by group and device: N pairs of a group
    and a device that has examples of it."""

    data: Evaluated
    """Data that the sums are over."""
    labels: tuple[str, ...]
    """Name of each group, [K], in order."""
    groups: Int64Array
    """Place of the group of each pair, [N]."""
    devices: Int64Array
    """Place of its device among all that were evaluated, [N]."""
    examples: Int64Array
    """Number of its examples, [N]."""
    sums: Mapping[str, Float64Array]
    """Sums of numerators and of weights, [N, 2], by metric; their ratio is the metric."""


@dataclass(frozen=True, slots=True)
class TrainingMetrics:
    """Figures of the model after a round."""

    report: TrainReport
    """Report on the round's devices."""
    evaluation: Evaluation | None = None
    """Evaluation on held-out data; None in rounds without one."""
    clip: Clip | None = None
    """Clipping of the round's updates; None if it was not recorded."""

    @property
    def round_index(self) -> int:
        """Index of the round."""
        return self.report.round_index

    @property
    def train_loss(self) -> float:
        """Mean loss of the round's devices before they trained; NaN if no device trained."""
        mean = self.report.mean_loss
        return math.nan if mean is None else mean

    @property
    def clipped_share(self) -> float:
        """Share of the round's devices whose update was scaled down; 0 without devices."""
        # A Poisson sample may have no devices.
        return self.report.clipped / max(1, self.report.devices)


@dataclass(frozen=True, slots=True)
class ShardPart:
    """Part of the trace: the rows of whole device blocks, as a Parquet file."""

    first_device: int
    """First device of the part, [first_device, end_device)."""
    end_device: int
    """End of the range of the part's devices."""
    rows: int
    """Number of rows."""
    digest: str
    """Digest of all columns."""
    column_digests: Mapping[str, str]
    """Digest of each column, by name."""
    parquet: bytes | None
    """Bytes of the file; None if the shard has written the file itself."""
    losses: "Losses | None" = None
    """Losses of the devices' histories; None if histories are never lost."""
    classes: "ClassCounts | None" = None
    """Participations by class; None without classes."""


class ClassCounts(NamedTuple):
    """Participations by class of devices [K]."""

    selected: Int64Array
    """Selections."""
    participations: Int64Array
    """Accepted updates of committed rounds."""
    devices: Int64Array
    """Devices with at least one participation."""
    least_gap: Int64Array
    """Smallest difference between the rounds of two participations of a device; 0 if no device has
    two."""
    most: Int64Array
    """Largest number of participations of a device."""

    def __add__(self, other: "ClassCounts") -> "ClassCounts":  # pyright: ignore[reportIncompatibleMethodOverride]
        """Adds the counts of two disjoint sets of devices."""
        # The sum of plain tuples would be their concatenation.
        nearer = np.minimum(self.least_gap, other.least_gap)
        either = np.maximum(self.least_gap, other.least_gap)
        return ClassCounts(
            selected=self.selected + other.selected,
            participations=self.participations + other.participations,
            devices=self.devices + other.devices,
            # 0 means no gap, so it is not a minimum.
            least_gap=np.where(nearer > 0, nearer, either),
            most=np.maximum(self.most, other.most),
        )


class Losses(NamedTuple):
    """Losses [L] of devices' histories, in order of device and time (seconds since start)."""

    device_ids: UInt64Array
    times: Float64Array


@dataclass(frozen=True, slots=True)
class ShardUse:
    """Resources that the shards of a node have used so far."""

    first_device: int
    """First device of the shards, [first_device, end_device)."""
    end_device: int
    """End of the range of the shards' devices."""
    rows: int
    """Rows of the trace in memory or temporary files."""
    peak_mebibytes: float
    """Peak memory of the process."""
    busy_seconds: float
    """Wall-clock time of the calls for windows, without the work between calls."""
    window: int
    """Number of the last window listed."""


@dataclass(frozen=True, slots=True)
class RunProgress:
    """Progress of a simulation, after an attempt at a round."""

    committed: int
    """Committed rounds."""
    count: int
    """Rounds wanted."""
    simulated_seconds: float
    """Simulated time since the start of the run."""
    eligible_estimate: int
    """Eligible devices at the start of the present look-ahead window."""
    may_come: int | None = None
    """Estimate of the eligible devices that no rule held back then; with several tasks, the largest
    number of any task."""
    starving: str = ""
    """Reason why no round was committed for most of a day; empty otherwise."""
    # A function, since the columns of all rounds are too much for every report.
    so_far: Callable[[], tuple[Any, Mapping[str, Sequence[float]]]] | None = None
    """Function that returns the scenario and, by name, columns of its committed rounds, from which
    fedray/audit/so_far.py bounds the privacy spent; None with several tasks."""


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """Progress of a training, after a round."""

    trained: int
    """Rounds trained."""
    count: int
    """Total number of rounds."""
    metrics: TrainingMetrics
    """Figures of the last round."""
    evaluation: Evaluation | None
    """Last evaluation; None before the first. That of a round comes with the next one, which is
    trained beside it, or at once if the scenario has `training.stop`."""
    evaluated: int
    """Rounds that the evaluated model was trained on; 0 before the first evaluation."""


@dataclass(frozen=True, slots=True)
class TrainingEstimate:
    """Estimated time of a training without evaluations and the aggregator, measured with some of
    its devices before it begins."""

    count: int
    """Rounds to train."""
    devices: int
    """Devices that train in each round."""
    sample_seconds: float
    """Estimated time with these devices."""
    accepted: int
    """Devices that a round accepts."""
    full_seconds: float
    """Estimated time if all accepted devices trained."""


@dataclass(frozen=True, slots=True)
class DataProgress:
    """Progress of the first reading of data, which counts its words or values before anything is
    simulated or trained."""

    clients: int
    """Clients read."""
    count: int
    """Total number of clients."""


Progress = DataProgress | RunProgress | TrainingEstimate | TrainingProgress
ProgressListener = Callable[[Progress], None]
"""Receives progress; may be called from another thread."""
