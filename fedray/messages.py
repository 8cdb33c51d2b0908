"""Frozen values that cross the boundary between clients and server. Arrays are numpy; times are
seconds since start."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

FIXED_POINT_BITS = 40
"""Resolution of an update's coordinate: 2^40 steps per clip norm leave room for 2^22 clipped
updates in an int64 sum."""


class Outcome(IntEnum):
    """What became of a selected device. Numbers are the codes of the trace's `outcome` column."""

    ACCEPTED = 0
    """Its report arrived in time; in a committed round this is a participation."""
    LATE = 1
    """It reported after the round had closed."""
    DROPPED = 2
    """Its eligible session ended first."""
    FAILED = 3
    """It failed for a reason of its own."""
    ABANDONED = 4
    """Its report arrived in time, but the round was abandoned; nothing of it was used."""


NEVER = 2**32 - 1
"""The second at which the timer of a device opens that may not take part again; no simulated time
reaches it."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """Selected devices of one attempt whose fate the server has decided, sorted by device id; [S]
    each.

    attempt: number of the attempt, which counts them all; a shard applies each attempt once.
    reopen_seconds: whole second from which the device's timer is open again; 0 where no timer was
        started, NEVER for a device that has taken part as often as it may.
    remembers_round: whether the device keeps the round as its last one (it does when its report was
        accepted).
    """

    attempt: int
    round_index: int
    device_ids: NDArray[np.uint64]
    checkin_times: NDArray[np.float64]
    report_times: NDArray[np.float64]
    outcomes: NDArray[np.uint8]
    reopen_seconds: NDArray[np.uint32]
    remembers_round: NDArray[np.bool_]

    def slice_of_devices(self, first_device: int, end_device: int) -> "Settlement":
        """The rows of devices in [first_device, end_device)."""
        begin, end = np.searchsorted(
            self.device_ids, np.array([first_device, end_device], dtype=np.uint64)
        )
        if end - begin == self.device_ids.size:
            return self
        return Settlement(
            self.attempt,
            self.round_index,
            self.device_ids[begin:end],
            self.checkin_times[begin:end],
            self.report_times[begin:end],
            self.outcomes[begin:end],
            self.reopen_seconds[begin:end],
            self.remembers_round[begin:end],
        )


@dataclass(frozen=True, slots=True)
class CheckInOrder:
    """Asks a shard for the check-ins of one look-ahead window [start, end), after applying the
    settlements.

    ask_until_seconds: devices are asked to come before it; the window's end, or sooner where they
        are to come together.
    round_index: the round that is being formed.
    is_enumerated: how check-ins are drawn; True lists runs up to list_until_seconds, a window's
        end, and draws from them.
    """

    window: int
    start_seconds: float
    end_seconds: float
    ask_until_seconds: float
    checkins_per_hour: float
    round_index: int
    is_enumerated: bool
    list_until_seconds: float
    settlements: tuple[Settlement, ...]


@dataclass(frozen=True, slots=True)
class CheckIns:
    """First check-ins of a window's stretches, sorted by (time, device); [A] each.

    fixed_seconds, training_seconds: time from being selected to having reported: a fixed part
        (setup, transfers), and the training time, which varies between rounds. last_rounds: last
        round that the device remembers (-1 for none); empty unless rounds must be separated.
        timer_seconds: how long the device really waits; empty where all keep the timer.
        contributions: how many reports of the device were accepted, as it remembers; empty unless
        participations are capped.
    """

    device_ids: NDArray[np.uint64]
    times: NDArray[np.float64]
    session_ends: NDArray[np.float64]
    fixed_seconds: NDArray[np.float32]
    training_seconds: NDArray[np.float32]
    last_rounds: NDArray[np.int32]
    timer_seconds: NDArray[np.float64]
    contributions: NDArray[np.uint32]
    census: "Census"


@dataclass(frozen=True, slots=True)
class Census:
    """Estimates of whole numbers of devices, from a fixed sample.

    eligible: devices that are eligible at the window's start. open_eligible: of them, those whose
    timer is open. free_eligible: of those, the ones that no round separation holds back. listed:
    usable devices whose timer opens before list_until.
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


@dataclass(frozen=True, slots=True)
class TrainOrder:
    """Asks a trainer for the local training of some groups of a round's devices.

    round_index: the round.
    groups: the devices [G] of each group, sorted. What is in a group is fixed by the round's
        cohort, so that no result depends on who trains it.
    """

    round_index: int
    groups: Sequence[NDArray[np.uint64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainReport:
    """What became of the devices of an order, or of several.

    round_index: the round.
    devices: how many were asked.
    trained: of them, those whose update is in the sum.
    without_examples: those that hold no data.
    damaged: those whose data cannot be read.
    not_finite: those whose update has a NaN or an infinity; they count as zero.
    clipped: those whose update was scaled down to the clip norm.
    examples: different examples that those in the sum used.
    loss_sum: sum of their losses before training, in steps of 2^-FIXED_POINT_BITS, so that it is
        the same in any order.
    """

    round_index: int
    devices: int = 0
    trained: int = 0
    without_examples: int = 0
    damaged: int = 0
    not_finite: int = 0
    clipped: int = 0
    examples: int = 0
    loss_sum: int = 0

    @classmethod
    def of(cls, round_index: int, reports: Sequence["TrainReport"]) -> "TrainReport":
        """Several reports of one round as one."""
        names = cls.__dataclass_fields__.keys() - {"round_index"}
        sums = {name: sum(getattr(report, name) for report in reports) for name in names}
        return cls(round_index=round_index, **sums)


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One attempt at a round. `round_index` counts committed rounds; an abandoned attempt bears the
    number it tried for.

    eligible_estimate: devices eligible at the start of the look-ahead window in which the round
        started.
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
class TrainingMetrics:
    """What is known of the model after a round.

    report: what became of the round's devices.
    evaluation: on held-out data; None in rounds without one.
    """

    report: TrainReport
    evaluation: Evaluation | None = None

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
        """Share of the round's devices whose update was scaled down."""
        return self.report.clipped / self.report.devices


@dataclass(frozen=True, slots=True)
class ShardPart:
    """One partition of the trace: the rows of a run of device blocks as a Parquet file, and the
    digest of its columns.

    column_digests: of each column alone, by name. parquet: None where the shard has written the
        file itself.
    """

    first_device: int
    end_device: int
    rows: int
    digest: str
    column_digests: Mapping[str, str]
    parquet: bytes | None


@dataclass(frozen=True, slots=True)
class ShardUse:
    """What a shard has used so far: rows of the trace, peak memory of its process (MiB), seconds at
    work; the last window."""

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
    """

    committed: int
    count: int
    simulated_seconds: float
    eligible_estimate: int


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """How far a training is, after a round.

    trained, count: rounds that were trained on, and that there will be.
    metrics: of the last round.
    evaluation: the last one; None before the first.
    """

    trained: int
    count: int
    metrics: TrainingMetrics
    evaluation: Evaluation | None


Progress = RunProgress | TrainingProgress
ProgressListener = Callable[[Progress], None]
"""Is told how far a simulation or a training is; may be called from another thread."""
