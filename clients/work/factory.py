"""What the selected devices of a scenario do."""

from pkgutil import resolve_name

from fedray.clients.data.source import ExampleSource
from fedray.clients.tasks.task import Task
from fedray.clients.work.caps import demand_tokens
from fedray.clients.work.work import DeviceWork
from fedray.scenario import Scenario


def work_of(scenario: Scenario, task: Task, source: ExampleSource) -> DeviceWork:
    """What the selected devices of a scenario do.

    Args:
        scenario: says the kind of work.
        task: the model that it trains.
        source: of the examples.

    Raises:
        ScenarioError: the examples lack what the work needs.
    """
    table = scenario.training.client
    demand_tokens(table, source)
    return resolve_name(table.implementation)(table, task, source, scenario.training_seed)
