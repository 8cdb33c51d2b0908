"""The table `training`: what is trained, on the devices and on the server."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from fedray.scenario.content import PythonFile
from fedray.table import Positive, Table


class SGD(Table):
    """Stochastic gradient descent on a device."""

    learning_rate: Positive = 1.0
    """Step size of the local steps."""
    batch_size: Annotated[int, Field(gt=0, lt=2**31)] = 8
    """Examples per local step."""
    local_steps: Annotated[int, Field(gt=0, lt=2**31)] = 2
    """Local steps per round: a device trains on the first batch_size x local_steps of its examples;
    one that holds fewer goes round again."""


class FedAvgMomentum(Table):
    """Server update: momentum on the average of the clipped, noised updates (FedAvg with server
    momentum)."""

    learning_rate: Positive = 1.0
    """Step size of the server."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Share of the previous step that is kept."""


class Training(Table):
    """What is trained; without training the population, the rounds, the trace and the audit are the
    same."""

    enabled: bool = True
    """Whether a model is trained."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """Seed of the model, its data and its noise; none: the scenario's. The population never depends
    on it."""
    task: str = "next_word"
    """Model, data and metric: a name of clients/tasks/registry.py, or custom."""
    cohort_sample: Annotated[int, Field(gt=0, le=100_000)] = 64
    """Accepted devices of a round that really train; the noise is scaled by cohort_sample /
    report_goal."""
    client: SGD = SGD()
    """Optimiser on the device."""
    server: FedAvgMomentum = FedAvgMomentum()
    """Optimiser on the server."""
    evaluate_every: Annotated[int, Field(gt=0, lt=2**31)] = 10
    """Rounds between two evaluations on held-out text."""
    checkpoint_every: Annotated[int, Field(gt=0, lt=2**31)] = 100
    """Rounds between two copies of the aggregator's state, from which it goes on when it is
    lost."""


class CustomTraining(PythonFile, Training):
    """Training of a task of the user's own, from a Python file that imports what it needs.

    The file defines `task`, a function or a class. `task(seed)` gives an object with what
    `clients.tasks.task.Task` lists, such as a `clients.tasks.module.ModuleTask`. Every trainer
    calls it once, with torch's own generator seeded too. Nothing is run when a trace is read.
    """

    task: Literal["custom"] = "custom"  # pyright: ignore[reportIncompatibleVariableOverride]
    """A task of the user's own."""
    table: ClassVar[str] = "training"


def _task_tag(value: Any) -> str:
    task = value.get("task") if isinstance(value, dict) else getattr(value, "task", None)
    return "custom" if task == "custom" else "named"


AnyTraining = Annotated[
    Annotated[Training, Tag("named")] | Annotated[CustomTraining, Tag("custom")],
    Discriminator(_task_tag),
]
"""The table of a shipped task, or that of a user's own; told apart by `task`."""
