"""The availability model of a scenario."""

from pkgutil import resolve_name

from fedray.scenario import Scenario
from fedray.wire.device_classes import DeviceClasses
from fedray.wire.zones import Zones
from .by_class import AvailabilityByClass
from .model import Availability


def availability_of(scenario: Scenario) -> Availability:
    """Makes the availability model of a scenario, by class if its classes differ in it."""
    classes = scenario.population.classes or ()
    if any(each.availability or each.time_zones for each in classes):
        models = [_model_of(of_class) for of_class in scenario.of_classes]
        return AvailabilityByClass(DeviceClasses.of(scenario), models)
    return _model_of(scenario)


def _model_of(scenario: Scenario) -> Availability:
    table = scenario.availability
    zones = Zones.of(scenario.population.time_zones, scenario.seed)
    return resolve_name(table.implementation)(table, scenario.seed, zones)
