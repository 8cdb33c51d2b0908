"""The task of a scenario. A task is imported when it is first used."""

from collections.abc import Mapping
from pkgutil import resolve_name

from fedray.clients.data.source import Field
from fedray.clients.tasks.task import Task
from fedray.scenario import Scenario


def task_of(scenario: Scenario, fields: Mapping[str, Field]) -> Task:
    """The scenario's task for data of these fields.

    Args:
        scenario: says the task, its table and its seed.
        fields: of the data, by name.

    Raises:
        ScenarioError: the task does not fit the data. A custom task's methods raise it too.
    """
    table = scenario.training.task
    return resolve_name(table.implementation)(table, scenario.training_seed, fields)
