"""The availability models by `availability.model`. To add one: ARCHITECTURE.md, "To add"."""

from pkgutil import resolve_name

from fedray.clients.availability.model import Availability
from fedray.scenario import Scenario

MODELS = {
    "always_on": "fedray.clients.availability.always_on:AlwaysOnModel",
    "custom": "fedray.clients.availability.custom:CustomModel",
    "habit": "fedray.clients.availability.habit:HabitAvailabilityModel",
    "poisson": "fedray.clients.availability.poisson:PoissonModel",
    "replay": "fedray.clients.availability.replay:ReplayModel",
}
"""What takes a scenario and its table, and is an `Availability`."""


def availability_of(scenario: Scenario) -> Availability:
    """The scenario's availability model."""
    table = scenario.availability
    return resolve_name(MODELS[table.model])(scenario, table)
