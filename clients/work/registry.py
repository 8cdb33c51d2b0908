"""The kinds of work by `training.client.kind`. To add one: ARCHITECTURE.md, "To add"."""

from pkgutil import resolve_name

from fedray.clients.data.source import ExampleSource
from fedray.clients.tasks.task import Task
from fedray.clients.work.caps import demand_tokens
from fedray.clients.work.work import DeviceWork
from fedray.scenario import Scenario

WORKS = {
    "fedavg": "fedray.clients.work.local:LocalTraining",
    "fedprox": "fedray.clients.work.local:LocalTraining",
    "fedsgd": "fedray.clients.work.local:OneGradient",
}
"""What takes its table, a task, a source of examples and a seed, and is a `DeviceWork`."""


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
    return resolve_name(WORKS[table.kind])(table, task, source, scenario.training_seed)
