"""The availability models by `availability.model`. To add one: ARCHITECTURE.md, "To add"."""

from pkgutil import resolve_name

from fedray.clients.availability.by_class import AvailabilityByClass
from fedray.clients.availability.model import Availability
from fedray.clients.availability.slow_days import SlowDaysModel
from fedray.device_classes import DeviceClasses
from fedray.scenario import Scenario

MODELS = {
    "always_on": "fedray.clients.availability.always_on:AlwaysOnModel",
    "conditions": "fedray.clients.availability.conditions:ConditionsModel",
    "custom": "fedray.clients.availability.custom:CustomModel",
    "habit": "fedray.clients.availability.habit:HabitAvailabilityModel",
    "poisson": "fedray.clients.availability.poisson:PoissonModel",
    "replay": "fedray.clients.availability.replay:ReplayModel",
}
"""What takes a scenario and its table, and is an `Availability`."""


def availability_of(scenario: Scenario) -> Availability:
    """The scenario's availability model; one for each class of devices, if they differ."""
    classes = scenario.population.classes or ()
    if any(each.availability or each.time_zones for each in classes):
        models = [_model_of(of_class) for of_class in scenario.of_classes]
        return AvailabilityByClass(DeviceClasses.of(scenario), models)
    return _model_of(scenario)


def _model_of(scenario: Scenario) -> Availability:
    """The availability model of a scenario without classes, with its slow days."""
    table = scenario.availability
    model = resolve_name(MODELS[table.model])(scenario, table)
    if table.slow_days is None:
        return model
    return SlowDaysModel(scenario, table.slow_days, model)
