"""Kinds of data by their tables. To add one: its table in fedray/scenario/data.py, its file here,
and a line in this file. A kind is imported when it is first used."""

from importlib import import_module

from clients.data.source import ExampleSource
from fedray.scenario import Scenario

SOURCES = {"language": "clients.data.language:Language"}


def source_of(scenario: Scenario) -> ExampleSource:
    """The examples of the devices of a scenario. Raises InputError if they cannot be opened."""
    module, _, attribute = SOURCES[scenario.data.kind].partition(":")
    return getattr(import_module(module), attribute)(scenario)
