"""Kinds of work by their tables. To add one: its table in fedray/scenario/training.py, its file
here, and a line in this file."""

from clients.data.source import ExampleSource
from clients.tasks.task import Task
from clients.work.local import LocalTraining, OneGradient
from clients.work.work import DeviceWork
from fedray.scenario import FedSGD, Scenario


def work_of(scenario: Scenario, task: Task, source: ExampleSource) -> DeviceWork:
    """What the selected devices of a scenario do."""
    table, seed = scenario.training.client, scenario.training_seed
    if isinstance(table, FedSGD):
        return OneGradient(table, task, source, seed)
    return LocalTraining(table, task, source, seed)
