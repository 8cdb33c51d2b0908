"""Tasks by name. To add one: its file, its name here and in `tests/contracts/test_tasks.py`. A task
is imported when it is first used."""

from importlib import import_module

from clients.tasks.task import Task
from fedray.errors import ScenarioError
from fedray.scenario import CustomTraining, Scenario

TASKS = {"next_word": "clients.tasks.next_word:NextWord"}


def check_task_name(scenario: Scenario) -> None:
    """Raises ScenarioError if there is no task of the name that a scenario has."""
    name = scenario.training.task
    if name not in TASKS and not isinstance(scenario.training, CustomTraining):
        raise ScenarioError(
            f"training.task={name!r}: must be one of {', '.join(TASKS)}, custom; correct it or set "
            "training.enabled=false"
        )


def task_of(scenario: Scenario) -> Task:
    """The scenario's task. Raises ScenarioError; a custom task's methods do so too."""
    check_task_name(scenario)
    training, seed = scenario.training, scenario.training_seed
    if isinstance(training, CustomTraining):
        from clients.tasks.custom import CustomTask  # loads torch

        return CustomTask(training, seed)
    module, _, attribute = TASKS[training.task].partition(":")
    return getattr(import_module(module), attribute)(seed)
