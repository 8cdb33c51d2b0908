"""Kinds of work by their tables. To add one: its table in fedray/scenario/training.py, its file
here, and a line in this file."""

from clients.data.source import ExampleSource
from clients.tasks.task import Task
from clients.work.caps import demand_tokens
from clients.work.local import LocalTraining, OneGradient
from clients.work.work import DeviceWork
from fedray.scenario import FedSGD, Scenario


def work_of(scenario: Scenario, task: Task, source: ExampleSource) -> DeviceWork:
    """What the selected devices of a scenario do. Raises ScenarioError if their examples have not
    what it needs."""
    table, seed = scenario.training.client, scenario.training_seed
    demand_tokens(table, source)
    if isinstance(table, FedSGD):
        return OneGradient(table, task, source, seed)
    return LocalTraining(table, task, source, seed)
