"""The work of a scenario's selected devices."""

from pkgutil import resolve_name

from fedray.scenario import Scenario
from ..data.source import ExampleSource
from ..tasks.task import Task
from .caps import demand_tokens
from .work import DeviceWork


def work_of(scenario: Scenario, task: Task, source: ExampleSource) -> DeviceWork:
    """Returns the work of a scenario's devices on a task and its examples.

    Raises:
        ScenarioError: the examples lack a field that the work needs.
    """
    table = scenario.training.client
    demand_tokens(table, source)
    return resolve_name(table.implementation)(
        table, task, source, scenario.training_seed, scenario.rounds.count
    )
