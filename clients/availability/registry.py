"""The availability models by `availability.model`. To add one: ARCHITECTURE.md, "To add"."""

from pkgutil import resolve_name

from clients.availability.model import Availability
from clients.availability.slow_days import SlowDaysModel
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
    """The scenario's availability model, with its slow days."""
    table = scenario.availability
    model = resolve_name(MODELS[table.model])(scenario, table)
    if table.slow_days is None:
        return model
    return SlowDaysModel(scenario, table.slow_days, model)
