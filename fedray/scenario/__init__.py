"""Scenario: everything that may change a result, as a frozen value.

Each table of the file has a module here; each key is a field, with its unit in its name or in its
description. `fedray schema` prints the same as a JSON schema. What may only change the wall clock
is in `fedray.runtime.placement`.
"""

from fedray.scenario.scenario import FILE_KEYS, TRAINED_TABLES, Scenario
from fedray.scenario.several_tasks import SeveralTasks, read_scenario
from fedray.scenario.shipped import find_scenario, shipped_scenarios

__all__ = [
    "FILE_KEYS",
    "TRAINED_TABLES",
    "Scenario",
    "SeveralTasks",
    "find_scenario",
    "read_scenario",
    "shipped_scenarios",
]
