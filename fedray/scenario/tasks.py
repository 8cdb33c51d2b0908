"""The tables `training.task`: a model, its loss and its metrics, one per kind."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Tag

from fedray.scenario.content import PythonFile
from fedray.table import Table


class NextWordTask(Table):
    """A small LSTM that predicts the next word of the synthetic language; see
    clients/tasks/next_word.py."""

    kind: Literal["next_word"] = "next_word"
    """A small LSTM for the synthetic language."""


class CustomTask(PythonFile):
    """A task of the user's own, from a Python file that imports what it needs.

    The file defines `task`, a function or a class. `task(seed)` gives an object with what
    `clients.tasks.task.Task` lists, such as a `clients.tasks.module.ModuleTask`. Every trainer
    calls it once, with torch's own generator seeded too. Nothing is run when a trace is read.
    """

    kind: Literal["custom"] = "custom"
    """A task of the user's own."""
    table: ClassVar[str] = "training.task"


def _kind(value: Any) -> str:
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return "next_word" if kind is None else kind


AnyTask = Annotated[
    Annotated[NextWordTask, Tag("next_word")] | Annotated[CustomTask, Tag("custom")],
    Discriminator(_kind),
]
"""The tables of all tasks, told apart by `kind`."""
