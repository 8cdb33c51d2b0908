"""Documents that commands put together themselves: the keys that `--json` prints.

The other documents are results (`fedray.base.document`).
"""

from collections.abc import Mapping
from typing import Annotated, NotRequired, TypedDict

from fedray.audit.audit import Audit
from fedray.audit.distribution import DevicePrivacy, Frontier, SpentByDevice
from fedray.audit.over_rounds import SpentAfter
from fedray.runs.answers import Answers
from fedray.trace.trained import TrainedDocument
from fedray.wire.messages import ShardUse


class Written(TypedDict):
    """Files that a command wrote because an option named them."""

    page: NotRequired[str]
    """Path of the page; only with `--page`."""
    figures: NotRequired[str]
    """Directory of the figures; only with `--figures`."""


class WrittenCoefficients(TypedDict):
    """File of coefficients that `fedray mechanism` wrote."""

    coefficients: NotRequired[str]
    """Path of the file; only with `--coefficients`."""


class WrittenAnswer(TypedDict):
    """Files that `fedray answer` wrote."""

    answer: NotRequired[str]
    """Path of answer.json; absent for a question that is not the run's own."""
    vocabulary: NotRequired[str]
    """Path of the words; only with `--vocabulary`."""


class Costs(TypedDict):
    """Costs of a simulation."""

    report: str | None
    """Path of the page; None if it could not be written."""
    wall_seconds: float
    """Wall-clock time of the simulation in seconds."""
    shard_use: list[ShardUse]
    """Resources that each worker of the population used."""
    driver_peak_mebibytes: float
    """Peak memory of the process that ran the rounds, in MiB."""
    restarts: int
    """Number of lost workers that were replaced."""


class WithRun(TypedDict):
    """Keys that `fedray run` adds to an audit."""

    training: TrainedDocument | None
    """The trained run; None without a training."""
    question: NotRequired[Answers]
    """Answers to the question of the scenario; only with the table analytics."""


class WithTasksRun(TypedDict):
    """Keys that `fedray run` adds to an audit of several tasks."""

    reports: dict[str, str]
    """Path of the page of each task that committed rounds, by its name."""
    training: Mapping[Annotated[str, "task"], TrainedDocument | None]
    """The trained run of each task; None for a task without a training."""
    questions: Mapping[Annotated[str, "task"], Answers]
    """Answers of each task that evaluates a model."""


class WithTraining(TypedDict):
    """Keys that `fedray train` adds to a trained run."""

    audit: Audit
    """The audit of the trace with this run's mechanism and noise."""
    report: str
    """Path of the page."""


class WithSearch(TypedDict):
    """Keys that `fedray optimize` adds to the figures of a mechanism."""

    seconds: float
    """Wall-clock time of the search in seconds."""


class WithHabitFit(TypedDict):
    """Keys that `fedray fit-log` adds to a fit."""

    times: str
    """Meaning of the log's times, in words; empty for a log that was simulated."""


class Verified(TypedDict):
    """Key that `fedray audit` adds to every audit."""

    digest_verified: bool
    """Whether `--verify` recomputed every digest."""


class WithHold(TypedDict):
    """Keys that `fedray audit --until` adds to an outlook."""

    hold: NotRequired[str]
    """Path of the list of devices that must wait; only with `--hold`, if a list keeps the claim."""
    history: NotRequired[str]
    """Path of the history; only with `--history`."""
    gauges: NotRequired[str]
    """Path of the file of gauges; only with `--gauges`."""


class WithAudit(TypedDict):
    """Keys that `fedray audit` adds to the audit of one trace."""

    worst_devices: NotRequired[tuple[SpentByDevice, ...]]
    """The devices that spent most under the first mechanism. Only with `--claim`."""
    device_privacy: NotRequired[DevicePrivacy | None]
    """Privacy of the devices under the first mechanism; None without noise. Only with `--claim`."""
    frontier: NotRequired[Frontier | None]
    """Its frontier; None without a mechanism, a min-sep, or a theorem. Only with `--claim`."""
    over_rounds: NotRequired[list[SpentAfter]]
    """Privacy over rounds of the first mechanism; empty without noise. Only with `--claim`."""
    integrity: str
    """Protection of the figures of the trace against damage, as a sentence."""
    events: NotRequired[str]
    """Path of the events; only with `--events`."""
    evidence: NotRequired[str]
    """Path of the evidence that breaks the claim; only with `--evidence`."""
    statement: NotRequired[str]
    """Folder of the privacy statement; only with `--statement`."""
