"""The availability models by `availability.model`. To add one: ARCHITECTURE.md, "To add"."""

from pkgutil import resolve_name

from clients.availability.model import Availability
from fedray.scenario import Scenario

MODELS = {
    "always_on": "clients.availability.always_on:AlwaysOnModel",
    "custom": "clients.availability.custom:CustomModel",
    "habit": "clients.availability.habit:HabitAvailabilityModel",
    "poisson": "clients.availability.poisson:PoissonModel",
    "replay": "clients.availability.replay:ReplayModel",
}
"""What takes a scenario and its table, and is an `Availability`."""


def availability_of(scenario: Scenario) -> Availability:
    """The scenario's availability model."""
    table = scenario.availability
    return resolve_name(MODELS[table.model])(scenario, table)
