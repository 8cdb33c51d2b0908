"""The tables `population` and `population.time_zones`: who the devices are."""

import math
from typing import Annotated, Self

from pydantic import Field, model_validator

from fedray.table import PositiveShare, Spread, Table


class TimeZone(Table):
    """One time zone and how many of the devices live in it."""

    utc_offset_hours: Annotated[float, Field(ge=-12, le=14)] = 0.0
    """Local time minus UTC, hours."""
    share: PositiveShare = 1.0
    """Share of the population; the shares of all zones sum to 1."""


class Population(Table):
    """Who the devices are."""

    devices: Annotated[int, Field(gt=0, lt=2**40)]
    """Devices in the population."""
    time_zones: Annotated[tuple[TimeZone, ...], Field(strict=False, min_length=1)] = (TimeZone(),)
    """Where the devices live."""
    reach: PositiveShare = 1.0
    """Share of the population that the task can use at all (wifi, competing tasks, caps)."""
    unreachable: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of devices that are never eligible; 0.20 when `devices` counts installs, 0 when it
    counts devices seen."""
    joins_per_day: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    """Devices that join in a day, evenly. Ids are given in turn to each block of 65,536, in the
    order of joining."""
    lifetime_days: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Mean days until a device leaves for good (exponential); none: nobody leaves."""
    examples_median: Annotated[float, Field(gt=0, le=1e6)] = 60.0
    """Median number of training examples on a device."""
    examples_sigma: Spread = 0.6
    """Log-standard deviation of the examples between devices."""
    examples_max: Annotated[int, Field(gt=0, lt=2**32)] = 400
    """Most examples that a device holds; the rest of the log-normal's tail is cut."""

    @model_validator(mode="after")
    def _shares_sum_to_one(self) -> Self:
        total = math.fsum(zone.share for zone in self.time_zones)
        if abs(total - 1.0) > 1e-9:
            raise ValueError(f"time_zones: the shares sum to {total:g}, not 1; scale them")
        return self
