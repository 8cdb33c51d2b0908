"""The tasks by `training.task.kind`. A task is imported when it is first used. To add one:
ARCHITECTURE.md, "To add"."""

from collections.abc import Mapping
from pkgutil import resolve_name

from fedray.clients.data.source import Field
from fedray.clients.tasks.task import Task
from fedray.scenario import Scenario

TASKS = {
    "custom": "fedray.clients.tasks.custom:CustomTask",
    "image_cnn": "fedray.clients.tasks.image_cnn:ImageCnn",
    "keyboard_lstm": "fedray.clients.tasks.keyboard_lstm:KeyboardLstm",
    "logistic": "fedray.clients.tasks.logistic:Logistic",
    "mlp": "fedray.clients.tasks.mlp:Mlp",
    "next_word": "fedray.clients.tasks.next_word:NextWord",
    "quadratic": "fedray.clients.tasks.quadratic:Quadratic",
    "transformer_lm": "fedray.clients.tasks.transformer_lm:TransformerLm",
}
"""What takes its table, a seed and the fields of the data, and is a `Task`."""


def task_of(scenario: Scenario, fields: Mapping[str, Field]) -> Task:
    """The scenario's task for data of these fields.

    Args:
        scenario: says the task, its table and its seed.
        fields: of the data, by name.

    Raises:
        ScenarioError: the task does not fit the data. A custom task's methods raise it too.
    """
    table = scenario.training.task
    return resolve_name(TASKS[table.kind])(table, scenario.training_seed, fields)
