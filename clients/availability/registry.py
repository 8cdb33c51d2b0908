"""The availability models by their tables."""

from clients.availability.always_on import AlwaysOnModel
from clients.availability.custom import CustomModel
from clients.availability.habit import HabitAvailabilityModel
from clients.availability.model import Availability
from clients.availability.poisson import PoissonModel
from clients.availability.replay import ReplayModel
from fedray.scenario import Scenario
from fedray.scenario.availability import (
    AlwaysOn,
    CustomAvailability,
    HabitAvailability,
    PoissonAvailability,
    ReplayAvailability,
)


def availability_of(scenario: Scenario) -> Availability:
    """The scenario's availability model."""
    match scenario.availability:
        case HabitAvailability() as table:
            return HabitAvailabilityModel(scenario, table)
        case AlwaysOn():
            return AlwaysOnModel()
        case PoissonAvailability() as table:
            return PoissonModel(scenario, table)
        case ReplayAvailability() as table:
            return ReplayModel(scenario, table)
        case CustomAvailability() as table:
            return CustomModel(scenario, table)
