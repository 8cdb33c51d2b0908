"""The parameters of availability models that a log can identify, on scales without bounds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import getitem
from typing import Any, Literal

from scipy import special

from fedray.base.errors import InputError
from fedray.scenario import Scenario
from fedray.scenario.availability import (
    ConditionsAvailability,
    HabitAvailability,
    PoissonAvailability,
)

Fitted = HabitAvailability | ConditionsAvailability | PoissonAvailability
"""Tables of the models that can be fitted."""
Kind = Literal["intervals", "check-ins", "participations"]
"""Content of a log: intervals of eligibility, or moments of check-ins or participations."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number that may be fitted. The optimiser and the standard errors work on its scale."""

    name: str
    """Its key in the table `availability`, with dots; night_propensity has two, alpha and beta."""
    scale: Literal["log", "logit", "plain"]
    """Scale of the estimate and its interval."""
    low: float
    """Least value of a search."""
    high: float
    """Largest value of a search."""
    of: tuple[Kind, ...]
    """Kinds of logs that can identify it."""

    def to_scale(self, value: float) -> float:
        """Returns the place of a value on the scale."""
        if self.scale == "log":
            return math.log(value)
        return math.log(value / (1.0 - value)) if self.scale == "logit" else value

    def from_scale(self, free: float) -> float:
        """Returns the value at a place on the scale, no further than its ends."""
        if self.scale == "log":
            # The exponential of a far place would overflow, so the end is applied first.
            value = math.exp(min(free, math.log(self.high)))
        else:
            value = float(special.expit(free)) if self.scale == "logit" else free
        # Rounding on the scale would exceed an end that the scenario refuses.
        return min(max(value, self.low), self.high)

    def slope(self, free: float) -> float:
        """Returns the derivative of the value with respect to its place on the scale."""
        value = self.from_scale(free)
        if self.scale == "log":
            return value
        return value * (1.0 - value) if self.scale == "logit" else 1.0


_ALL: tuple[Kind, ...] = ("intervals", "check-ins", "participations")
_INTERVALS: tuple[Kind, ...] = ("intervals",)
_RECORDS: tuple[Kind, ...] = ("check-ins", "participations")
RATE = "records_per_hour"
"""Rate at which an eligible device leaves records; not a key of a scenario."""
OFFSET = "utc_offset_hours"
"""The key of the table `population.time_zones`."""
_HABITS = (
    Parameter("night_propensity.alpha", "log", 0.05, 50.0, _ALL),
    Parameter("night_propensity.beta", "log", 0.05, 50.0, _ALL),
    Parameter("night_center_hours", "plain", -6.0, 8.0, _ALL),
    Parameter("night_center_between_hours", "log", 0.05, 6.0, _ALL),
    Parameter("night_center_within_hours", "log", 0.05, 3.0, _INTERVALS),
    Parameter("night_length_hours", "log", 0.5, 20.0, ("intervals", "check-ins")),
    Parameter("night_length_between", "log", 0.05, 2.0, _INTERVALS),
    Parameter("night_length_within", "log", 0.03, 1.5, _INTERVALS),
    Parameter("interruption_on_hours", "log", 0.5, 200.0, _INTERVALS),
    Parameter("interruption_off_hours", "log", 0.01, 5.0, _INTERVALS),
    Parameter("day_sessions", "log", 0.02, 4.0, _ALL),
    Parameter("day_habit_weight", "logit", 0.01, 0.99, _INTERVALS),
    Parameter("day_habit_shape", "log", 0.05, 20.0, _INTERVALS),
    Parameter("day_length_minutes", "log", 2.0, 600.0, _INTERVALS),
    Parameter("day_length_sigma", "log", 0.05, 2.0, _INTERVALS),
    Parameter("weekend_factor", "log", 0.05, 10.0, _ALL),
    # No log identifies the bounds of distributions well.
    Parameter("session_max_hours", "log", 0.1, 24.0, ()),
    Parameter("day_start_hours", "plain", 0.0, 24.0, ()),
)
_OF_LOG = (
    Parameter(OFFSET, "plain", -12.0, 14.0, _INTERVALS),
    Parameter(RATE, "log", 0.005, 60.0, _RECORDS),
)
PARAMETERS = (*_HABITS, *_OF_LOG)
"""Parameters of the habit model."""
_USES = (
    Parameter("uses.per_hour_by_day", "log", 0.005, 6.0, _INTERVALS),
    Parameter("uses.per_hour_by_night", "log", 0.005, 6.0, _INTERVALS),
    Parameter("uses.minutes", "log", 1.0, 240.0, _INTERVALS),
)
# With six sessions of up to half a day no device is nearly always eligible, which is refused.
_SESSIONS = (
    Parameter("sessions_per_day", "log", 0.02, 6.0, _ALL),
    Parameter("session_minutes", "log", 2.0, 1440.0, ("intervals", "check-ins")),
    Parameter("session_max_hours", "log", 0.1, 48.0, ()),
)
_PARTS = ("charging.", "wifi.")
_PAIR = {"alpha": 0, "beta": 1}
"""Positions of two parameters in the pair that the table has."""


def parameters_of(table: Fitted) -> tuple[Parameter, ...]:
    """Returns the parameters of a model and of its log."""
    if isinstance(table, ConditionsAvailability):
        parts = [replace(each, name=part + each.name) for part in _PARTS for each in _HABITS]
        return (*parts, *_USES, *_OF_LOG)
    return PARAMETERS if isinstance(table, HabitAvailability) else (*_SESSIONS, *_OF_LOG)


def start_values(table: Fitted) -> dict[str, Any]:
    """Returns the parameters' values in a table, except parameters that no table has."""
    names = [each.name for each in parameters_of(table) if each not in _OF_LOG]
    keys = table.model_dump()
    return {name: reduce(getitem, _path(name), keys) for name in names}


def table_of(values: Mapping[str, Any], base: Fitted) -> Fitted:
    """Returns the base table with other values by parameter, without the rate and the offset."""
    # JSON has lists, which can be changed, where the table has pairs.
    keys: Any = base.model_dump(mode="json", exclude_none=True)
    for name in values.keys() - {OFFSET, RATE}:
        *path, last = _path(name)
        reduce(getitem, path, keys)[last] = values[name]
    return type(base)(**keys)


def _path(name: str) -> list[Any]:
    """Returns the keys that lead to a parameter in the tables."""
    return [_PAIR.get(part, part) for part in name.split(".")]


def base_table(overrides: Sequence[str]) -> Fitted:
    """Returns the start of a fit. Raises InputError for other keys or another model.

    Args:
        overrides: keys of the model, as "availability.key=value".
    """
    for each in overrides:
        if not each.startswith("availability."):
            raise InputError.of(
                "overrides", each, "is not a key of availability; a fit takes no others"
            )
    # The rest of the scenario does not matter, as only availability is read from it.
    tables = {
        "population": {"devices": 10},
        "rounds": {"count": 1, "report_goal": 1},
        "training": {"enabled": False},
    }
    table = Scenario.from_tables(tables).with_overrides(*overrides).availability
    if not isinstance(table, Fitted):
        remedy = "take habit, conditions or poisson"
        raise InputError.of("availability.model", table.model, "cannot be fitted", remedy)
    return table
