"""Kinds of work by their tables. To add one: its table in fedray/scenario/training.py, its file
here, and a line in this file."""

from clients.data.source import ExampleSource
from clients.tasks.task import Task
from clients.work.caps import demand_tokens
from clients.work.local import LocalTraining, OneGradient
from clients.work.work import DeviceWork
from fedray.scenario import Scenario
from fedray.scenario.training import FedSGD


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
    seed = scenario.training_seed
    demand_tokens(table, source)
    if isinstance(table, FedSGD):
        return OneGradient(table, task, source, seed)
    return LocalTraining(table, task, source, seed)
