"""Tasks by name. To add one: its file, its name here, its test. A task is imported when it is first
used."""

from importlib import import_module

from clients.tasks.task import Task
from fedray.errors import ScenarioError

TASKS = {"next_word": "clients.tasks.next_word:NextWord"}


def check_task_name(name: str) -> None:
    """Raises ScenarioError if there is no task of that name."""
    if name not in TASKS:
        raise ScenarioError(
            f"training.task={name!r}: must be one of {', '.join(TASKS)}; correct it or set "
            "training.enabled=false"
        )


def task_named(name: str, seed: int) -> Task:
    """The task of that name for a seed. Raises ScenarioError."""
    check_task_name(name)
    module, _, attribute = TASKS[name].partition(":")
    return getattr(import_module(module), attribute)(seed)
