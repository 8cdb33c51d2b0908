"""Frozen values that cross the boundary between clients and server. Arrays are numpy; times are
seconds since start."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.encoding.tables import FIXED_POINT_BITS
from fedray.scenario.clipping import Clip


class Outcome(IntEnum):
    """What became of a selected device. Numbers are the codes of the trace's `outcome` column."""

    ACCEPTED = 0
    """Its report arrived in time; in a committed round this is a participation."""
    LATE = 1
    """It reported after the round had closed; where rounds are buffered, from too old a model."""
    DROPPED = 2
    """Its eligible session ended first."""
    FAILED = 3
    """It failed for a reason of its own."""
    ABANDONED = 4
    """Its report arrived in time, but the round was abandoned; nothing of it was used."""
    EXCLUDED = 5
    """It was not selected, because it would have gone beyond its privacy budget; nor was it later.
    The round is the one that was being formed."""


NEVER = 2**32 - 1
"""The second at which the timer of a device opens that may not take part again; no simulated time
reaches it."""


class Window(NamedTuple):
    """A look-ahead window, [start_time, end_time), and how devices are asked to come in it.

    number: windows are counted from 0; all have the same length.
    start_time, end_time: seconds since start.
    ask_until_time: devices are asked to come before it: the window's end, or sooner where they are
        to come together.
    check_ins_per_hour: rate of the Poisson process of an eligible device whose timer is open.
    """

    number: int
    start_time: float
    end_time: float
    ask_until_time: float
    check_ins_per_hour: float


NO_WINDOW = Window(-1, 0.0, 0.0, 0.0, 0.0)
"""Before the first one."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """Selected devices of one attempt whose fate the server has decided, sorted by device id; [S]
    each. Where the server stores uploads, an attempt is one at uploading, or one at a round.

    attempt: number of the attempt, which counts them all; a shard applies each attempt once.
    round_index: the round that was attempted; NO_ROUND of uploads that are stored for later rounds,
        of which a device remembers what it remembers of a round, and of which the trace has no
        rows.
    device_ids: the selected devices.
    check_in_times: when each checked in before it was selected, seconds since start.
    report_times: when each reported; NaN where it did not.
    outcomes: codes of `Outcome`.
    reopen_times: whole second from which the device's timer is open again; 0 where no timer was
        started, NEVER for a device that has taken part as often as it may.
    remembers_round: whether the device keeps the round as its last one.
    forget_times: whole second at which a device loses the history in which this attempt is; empty
        where no history is ever lost.
    versions: how many rounds had been released when the device started, which is the version of
        the model that it was sent; empty unless rounds are buffered. Then the attempt is all that
        ended while the buffer was filled, and a device may have several rows of it, in order of
        check-in, at most one of which is accepted.
    task: whose attempt it was, or whose timers alone it starts (then of NO_ROUND), where several
        tasks share the devices: their place in the scenario.
    """

    NO_ROUND: ClassVar[int] = -1
    attempt: int
    round_index: int
    device_ids: NDArray[np.uint64]
    check_in_times: NDArray[np.float64]
    report_times: NDArray[np.float64]
    outcomes: NDArray[np.uint8]
    reopen_times: NDArray[np.uint32]
    remembers_round: NDArray[np.bool_]
    forget_times: NDArray[np.uint32]
    versions: NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, np.uint32))
    task: int = 0

    @property
    def is_of_uploads(self) -> bool:
        """Whether devices uploaded, and no round was attempted."""
        return self.round_index == self.NO_ROUND

    @property
    def is_of_commit(self) -> bool:
        """Whether it is of a round that was committed. A Poisson sample may be empty; every other
        committed round accepts somebody."""
        has_accepted = bool((self.outcomes == Outcome.ACCEPTED).any())
        return not self.is_of_uploads and (has_accepted or not self.device_ids.size)

    @property
    def has_arrived(self) -> NDArray[np.bool_]:
        """Whether each report arrived before the attempt closed [S], committed or not."""
        # A device cannot know that its report was not used, so both count for it.
        return (self.outcomes == Outcome.ACCEPTED) | (self.outcomes == Outcome.ABANDONED)

    def slice_of_devices(self, first_device: int, end_device: int) -> "Settlement":
        """The rows of devices in [first_device, end_device)."""
        # Rows are sorted by device, so those of a range lie together.
        begin, end = np.searchsorted(
            self.device_ids, np.array([first_device, end_device], dtype=np.uint64)
        )
        # Nothing is copied where all rows are of these devices.
        if end - begin == self.device_ids.size:
            return self
        return Settlement(
            self.attempt,
            self.round_index,
            self.device_ids[begin:end],
            self.check_in_times[begin:end],
            self.report_times[begin:end],
            self.outcomes[begin:end],
            self.reopen_times[begin:end],
            self.remembers_round[begin:end],
            # Columns that nobody needs are empty, and a slice of them is empty too.
            self.forget_times[begin:end],
            self.versions[begin:end],
            self.task,
        )


def settlements_of_devices(
    settlements: Sequence[Settlement], first_device: int, end_device: int
) -> tuple[Settlement, ...]:
    """The rows of `settlements` of devices from `first_device` to below `end_device`."""
    return tuple(each.slice_of_devices(first_device, end_device) for each in settlements)


@dataclass(frozen=True, slots=True)
class CheckInOrder:
    """Asks a shard for the check-ins of one look-ahead window, after applying the settlements.

    window: which one, and how devices are asked to come.
    is_enumerated: how check-ins are drawn; True lists the intervals up to list_until_time, and
        draws from them.
    list_from_time: when the period began for which intervals are listed, or the window; seconds
        since start. Whoever lists them later, as after a resume, lists what was listed then.
    list_until_time: a window's end, seconds since start.
    settlements: what was decided since the last order, cut to the shard's devices.
    rounds: round that each task forms; a single one where devices are not shared.
    """

    window: Window
    is_enumerated: bool
    list_from_time: float
    list_until_time: float
    settlements: tuple[Settlement, ...] = ()
    rounds: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True)
class CheckIns:
    """The first check-in of each eligible interval in a window, sorted by (time, device); [A] each.

    Where T tasks share the devices, the columns from fixed_seconds on are [A, T], none of them
    empty.

    device_ids: who checks in.
    times: when, seconds since start.
    interval_ends: when the device stops being eligible, seconds since start.
    fixed_seconds: from being selected to having reported, the part that is the same in all rounds
        of the device (setup, transfers).
    training_seconds: the other part, which varies between rounds by a factor.
    upload_seconds: of the fixed part, that of the upload, which comes last; empty unless a policy
        counts uploads.
    last_rounds: last round that the device remembers (-1 for none); empty unless rounds must be
        separated.
    timer_seconds: how long the device really waits; empty where all keep the timer.
    contributions: how many reports of the device arrived in time, as it remembers; empty unless
        participations are capped.
    census: of the shard's devices, at the window's start.
    open_times: where several tasks share the devices, from when on the task's own rules admit the
        device, whole seconds or later; infinite where they never do. Else empty.
    task_censuses: the census of each task, where there are several.
    """

    device_ids: NDArray[np.uint64]
    times: NDArray[np.float64]
    interval_ends: NDArray[np.float64]
    fixed_seconds: NDArray[np.float32]
    training_seconds: NDArray[np.float32]
    upload_seconds: NDArray[np.float32]
    last_rounds: NDArray[np.int32]
    timer_seconds: NDArray[np.float64]
    contributions: NDArray[np.uint32]
    census: "Census"
    open_times: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    task_censuses: tuple["Census", ...] = ()

    @classmethod
    def merged(cls, parts: Sequence["CheckIns"]) -> "CheckIns":
        """Lists of neighbouring ranges of devices, in order of device, as one list."""
        if len(parts) == 1:
            return parts[0]
        times = np.concatenate([part.times for part in parts])
        # Ties in time are broken by device, because the sort is stable. It finds the sorted runs,
        # and merges them.
        order = np.argsort(times, kind="stable")
        columns: dict[str, NDArray] = {}
        for column in fields(cls):
            if column.name not in ("census", "task_censuses"):
                values = np.concatenate([getattr(part, column.name) for part in parts])
                # Columns that nobody needs are empty.
                columns[column.name] = values[order] if values.size else values
        # The ranges have no device in common, so counts add up.
        census = sum((part.census for part in parts), Census(0, 0, 0, 0))
        of_tasks = zip(*(part.task_censuses for part in parts), strict=True)
        task_censuses = tuple(sum(each, Census(0, 0, 0, 0)) for each in of_tasks)
        return cls(**columns, census=census, task_censuses=task_censuses)


@dataclass(frozen=True, slots=True)
class Census:
    """Estimates of whole numbers of devices, from a fixed sample.

    eligible: devices that are eligible at the window's start.
    open_eligible: of them, those whose timer is open.
    free_eligible: of those, the ones that no round separation holds back.
    listed: usable devices whose timer opens before the order's list_until_time.
    spent_eligible: eligible devices that have taken part as often as they may.
    """

    eligible: int
    open_eligible: int
    free_eligible: int
    listed: int
    spent_eligible: int = 0

    def __add__(self, other: "Census") -> "Census":
        return Census(
            self.eligible + other.eligible,
            self.open_eligible + other.open_eligible,
            self.free_eligible + other.free_eligible,
            self.listed + other.listed,
            self.spent_eligible + other.spent_eligible,
        )


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
"""Before the first window."""


@dataclass(frozen=True, slots=True)
class TrainOrder:
    """Asks a trainer for the local training of some groups of a round's devices.

    round_index: the round.
    groups: the devices [G] of each group, sorted. What is in a group is fixed by the round's
        cohort, so that no result depends on who trains it.
    clip: how their updates are clipped; None where nothing of what is trained is kept, as in
        measurements: as in the first round.
    version: of the model that the devices were sent, and from which they train: so many rounds it
        was trained on. None: the round's own, which is the newest.
    weight: by which their clipped updates are scaled, at most 1. It follows from round and version.
    """

    round_index: int
    groups: Sequence[NDArray[np.uint64]]
    clip: Clip | None = None
    version: int | None = None
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainReport:
    """What became of the devices of an order, or of several.

    round_index: the round.
    devices: how many were asked.
    accepted: how many the round accepted, of which those that were asked may be a sample; 0 in a
        trainer's own report, which does not know it.
    trained: of them, those whose update is in the sum.
    without_examples: those that hold no data.
    damaged: those whose data cannot be read.
    not_finite: those whose update has a NaN or an infinity; they count as zero.
    clipped: those whose update was scaled down to the clip norm.
    zeroed: those whose update was so long that it counts as zero.
    short: those whose update is no longer than the order's `counted_norm`.
    long: those whose update is longer, or not finite; 0 like `short` where nothing is counted.
    examples: different examples that those in the sum used.
    weight_sum: sum of the weights of those that were asked, in steps of 2^-FIXED_POINT_BITS; 0
        where all count the same and their number is what matters.
    loss_sum: sum of their losses before training, in steps of 2^-FIXED_POINT_BITS, so that it is
        the same in any order.
    """

    round_index: int
    devices: int = 0
    accepted: int = 0
    trained: int = 0
    without_examples: int = 0
    damaged: int = 0
    not_finite: int = 0
    clipped: int = 0
    zeroed: int = 0
    short: int = 0
    long: int = 0
    examples: int = 0
    weight_sum: int = 0
    loss_sum: int = 0

    @property
    def sampled_share(self) -> float:
        """Share of the accepted devices that were asked; 1 where their number is not known."""
        return self.devices / self.accepted if self.accepted else 1.0

    @property
    def weights(self) -> float:
        """The sum of weights."""
        return self.weight_sum / 2.0**FIXED_POINT_BITS

    @classmethod
    def of(cls, round_index: int, reports: Sequence["TrainReport"]) -> "TrainReport":
        """Several reports of one round as one."""
        # Every field but the round is a sum, so a field that is added is summed as well.
        names = cls.__dataclass_fields__.keys() - {"round_index"}
        sums = {name: sum(getattr(report, name) for report in reports) for name in names}
        return cls(round_index=round_index, **sums)


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One attempt at a round; times are seconds since start.

    A buffered round opens and starts when the one before is released, and closes when its buffer is
    full. Its selected devices are those whose attempts ended in that time.

    round_index: counts committed rounds; an abandoned attempt bears the number it tried for.
    opened: when selection for it began; of stored uploads, when their window ended.
    started: when its devices were selected, or it was given up.
    closed: when it was committed or abandoned.
    selected: devices that were selected.
    reported: of them, those that reported at all, late ones included.
    accepted: devices whose reports were used; 0 for an abandoned attempt.
    is_committed: whether it was committed.
    eligible_estimate: devices eligible at the start of the look-ahead window in which the round
        started; of stored uploads, how many were eligible in the round.
    """

    round_index: int
    opened: float
    started: float
    closed: float
    selected: int
    reported: int
    accepted: int
    is_committed: bool
    eligible_estimate: int


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of a model on held-out data: a ratio of sums over the examples.

    name: as in columns and JSON, such as "loss".
    unit: such as "nats per word"; "" for none.
    better: whether lower or higher values are better.
    is_exponential: whether the figure is exp(ratio), as a perplexity is.
    """

    name: str
    unit: str
    better: Literal["lower", "higher"]
    is_exponential: bool = False

    @property
    def title(self) -> str:
        """The name in words."""
        return self.name.replace("_", " ")

    @property
    def in_unit(self) -> str:
        """What follows the name on an axis: the unit in brackets, if there is one."""
        return f" ({self.unit})" if self.unit else ""


@dataclass(frozen=True, slots=True)
class TaskDescription:
    """What is trained, as a trainer has built it.

    shapes: of every parameter by its name; in this order they lay out the flat vector [D].
    metrics: what an evaluation measures.
    optimum: for metrics of which the data says it, the best value that any model can have.
    """

    shapes: Mapping[str, tuple[int, ...]]
    metrics: tuple[Metric, ...]
    optimum: Mapping[str, float]


class Measured(NamedTuple):
    """A figure of a model, and its standard error (NaN where one device alone was measured)."""

    value: float
    standard_error: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Metrics of a model on held-out data.

    metrics: by name, as the task has them.
    devices, examples: on how many they were measured.
    """

    metrics: Mapping[str, Measured]
    devices: int
    examples: int


@dataclass(frozen=True, slots=True)
class DeviceMeasures:
    """What a model's metrics are on the data of each of U devices.

    device_ids: [U]; those that have data which can be read.
    examples: [U]; how many of its examples were used.
    sums: by metric, [U, 2]: the sums of numerators and of weights, whose ratio is the metric.
    """

    device_ids: NDArray[np.uint64]
    examples: NDArray[np.int64]
    sums: Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class TrainingMetrics:
    """What is known of the model after a round.

    report: what became of the round's devices.
    evaluation: on held-out data; None in rounds without one.
    clip: how the round's updates were clipped; None where that was not recorded.
    """

    report: TrainReport
    evaluation: Evaluation | None = None
    clip: Clip | None = None

    @property
    def round_index(self) -> int:
        """The round."""
        return self.report.round_index

    @property
    def train_loss(self) -> float:
        """Mean loss of the round's devices before they trained; NaN if none did."""
        if not self.report.trained:
            return math.nan
        return self.report.loss_sum / 2.0**FIXED_POINT_BITS / self.report.trained

    @property
    def clipped_share(self) -> float:
        """Share of the round's devices whose update was scaled down; 0 of none."""
        return self.report.clipped / max(1, self.report.devices)


@dataclass(frozen=True, slots=True)
class ShardPart:
    """One part of the trace: the rows of whole device blocks, as a Parquet file.

    first_device, end_device: its devices, [first_device, end_device).
    rows: how many it has.
    digest: of all its columns.
    column_digests: of each column alone, by name.
    parquet: the file's bytes; None where the shard has written the file itself.
    losses: when its devices lost their history; None where none is ever lost.
    classes: participations by class; None where there are no classes.
    clock_settings: when its devices' clocks were set; None where none ever is.
    """

    first_device: int
    end_device: int
    rows: int
    digest: str
    column_digests: Mapping[str, str]
    parquet: bytes | None
    losses: "Losses | None" = None
    classes: "ClassCounts | None" = None
    clock_settings: "ClockSettings | None" = None


class ClassCounts(NamedTuple):
    """Participations by class of devices [K].

    selected: times that a device was selected.
    participations: accepted updates of committed rounds.
    devices: that had one at least.
    least_gap: least difference between the rounds of two participations of a device; 0 for none.
    most: most participations of a device.
    """

    selected: NDArray[np.int64]
    participations: NDArray[np.int64]
    devices: NDArray[np.int64]
    least_gap: NDArray[np.int64]
    most: NDArray[np.int64]

    def __add__(self, other: "ClassCounts") -> "ClassCounts":  # pyright: ignore[reportIncompatibleMethodOverride]
        """The counts of the devices of both."""
        nearer = np.minimum(self.least_gap, other.least_gap)
        either = np.maximum(self.least_gap, other.least_gap)
        return ClassCounts(
            selected=self.selected + other.selected,
            participations=self.participations + other.participations,
            devices=self.devices + other.devices,
            # 0 means that there is no gap, so then the other one counts.
            least_gap=np.where(nearer > 0, nearer, either),
            most=np.maximum(self.most, other.most),
        )


class Losses(NamedTuple):
    """Losses [L] of devices' histories, in order of device and time.

    device_ids: who lost it.
    times: when, seconds since start.
    """

    device_ids: NDArray[np.uint64]
    times: NDArray[np.float64]


class ClockSettings(NamedTuple):
    """Times [C] at which clocks of devices were set to another time, in order of device and time.

    device_ids: whose clock it was.
    times: when, seconds since start.
    seconds: by how many seconds it was set forward; negative for back.
    """

    device_ids: NDArray[np.uint64]
    times: NDArray[np.float64]
    seconds: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ShardUse:
    """What the shards of a node have used so far.

    first_device, end_device: their devices, [first_device, end_device).
    rows: rows of the trace that they hold.
    peak_mebibytes: peak memory of their process.
    busy_seconds: wall-clock time of their calls for windows; what goes on between calls is not in
        it.
    window: number of the last window that they listed.
    """

    first_device: int
    end_device: int
    rows: int
    peak_mebibytes: float
    busy_seconds: float
    window: int


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far a simulation is, after an attempt at a round.

    committed, count: rounds that are committed, and that are wanted.
    simulated_seconds: since the start of the run.
    eligible_estimate: devices that were eligible when the present look-ahead window began.
    may_come: estimate of the eligible devices that no rule held back then; of several tasks, the
        largest number that one of them had.
    starving: the reason why no round was committed for most of a day; empty otherwise.
    """

    committed: int
    count: int
    simulated_seconds: float
    eligible_estimate: int
    may_come: int | None = None
    starving: str = ""


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """How far a training is, after a round.

    trained, count: rounds that were trained on, and that there will be.
    metrics: of the last round.
    evaluation: the last one; None before the first.
    evaluated: rounds that the evaluated model was trained on; 0 before the first.
    """

    trained: int
    count: int
    metrics: TrainingMetrics
    evaluation: Evaluation | None
    evaluated: int


@dataclass(frozen=True, slots=True)
class TrainingEstimate:
    """How long a training will take, as measured with some of its devices before it begins. The
    time of evaluations and of the aggregator is not in it.

    count: rounds that will be trained.
    devices: how many train in each.
    sample_seconds: how long that takes the trainers that there are.
    accepted: devices that a round accepts.
    full_seconds: how long it would take if all of these trained.
    """

    count: int
    devices: int
    sample_seconds: float
    accepted: int
    full_seconds: float


@dataclass(frozen=True, slots=True)
class DataProgress:
    """How far data is that is read once as a whole, before anything is simulated or trained, to
    count its words or values.

    clients, count: those that were read, and all of them.
    """

    clients: int
    count: int


Progress = DataProgress | RunProgress | TrainingEstimate | TrainingProgress
ProgressListener = Callable[[Progress], None]
"""Is told how far a simulation or a training is; may be called from another thread."""
