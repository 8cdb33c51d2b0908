"""The task of a scenario. The module of a task is imported when the task is first used."""

from pkgutil import resolve_name

from fedray.scenario import Scenario
from ..data.source import Fields
from .task import Task


def task_of(scenario: Scenario, fields: Fields) -> Task:
    """Returns the scenario's task for data with these fields.

    Raises:
        ScenarioError: the task does not fit the data. Methods of a custom task raise it too.
    """
    table = scenario.training.task
    return resolve_name(table.implementation)(table, scenario.training_seed, fields)
