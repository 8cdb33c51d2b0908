"""The availability model of a scenario."""

from pkgutil import resolve_name

from fedray.clients.availability.by_class import AvailabilityByClass
from fedray.clients.availability.model import Availability
from fedray.clients.availability.slow_days import SlowDaysModel
from fedray.scenario import Scenario
from fedray.wire.device_classes import DeviceClasses


def availability_of(scenario: Scenario) -> Availability:
    """Makes the availability model of a scenario, by class if its classes differ in it."""
    classes = scenario.population.classes or ()
    if any(each.availability or each.time_zones for each in classes):
        models = [_model_of(of_class) for of_class in scenario.of_classes]
        return AvailabilityByClass(DeviceClasses.of(scenario), models)
    return _model_of(scenario)


def _model_of(scenario: Scenario) -> Availability:
    table = scenario.availability
    model = resolve_name(table.implementation)(scenario, table)
    if table.slow_days is None:
        return model
    return SlowDaysModel(scenario, table.slow_days, model)
