"""Documents that commands put together themselves: the keys that `--json` prints.

The other documents are results (`fedray.base.document`). No command imports this module.
"""

from collections.abc import Mapping
from typing import Annotated, NotRequired, TypedDict

from fedray.audit.audit import Audit
from fedray.studies.answers import Answers
from fedray.trace.trained import TrainedDocument
from fedray.wire.messages import ShardUse


class Written(TypedDict):
    """Files that a command wrote because an option named them."""

    page: NotRequired[str]
    """Path of the page; only with `--page`."""
    figures: NotRequired[str]
    """Directory of the figures; only with `--figures`."""


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
    interrupted: bool
    """Whether Ctrl-C ended the search before the optimum was found."""


class WithHabitFit(TypedDict):
    """Keys that `fedray fit-log` adds to a fit."""

    times: str
    """Meaning of the log's times, in words; empty for a log that was simulated."""


class WithFit(TypedDict):
    """Keys that `fedray fit-min-sep` adds to a fit."""

    scale: float
    """Size of the runs, as a share of population and report goal."""
