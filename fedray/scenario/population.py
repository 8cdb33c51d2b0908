"""The table `population` and the tables in it, which describe the devices."""

import collections
import math
from collections.abc import Iterable
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from fedray.base.table import PositiveShare, Spread, Table


class TimeZone(Table):
    """A time zone and the share of devices in it."""

    # Zones in use range from Baker Island to Kiribati.
    utc_offset_hours: Annotated[float, Field(ge=-12, le=14)] = 0.0
    """Local time minus UTC, hours."""
    share: PositiveShare = 1.0
    """Share of the devices, in the population or in the class that has the zone; the shares of all
    zones sum to 1."""


Factor = Annotated[float, Field(ge=0.01, le=100)]
TimeZones = Annotated[tuple[TimeZone, ...], Field(strict=False, min_length=1)]


class DeviceClass(Table):
    """A class of devices, such as old phones or a region. Each device's class is drawn by the
    shares. A key that a class leaves out has the population's value."""

    name: Annotated[str, Field(min_length=1, max_length=40)]
    """Name of the class in reports."""
    share: PositiveShare
    """Share of the population; the shares of all classes sum to 1."""
    train_time_factor: Factor = 1.0
    """Factor on the training time of `latency`."""
    downlink_factor: Factor = 1.0
    """Factor on the download rate of `latency`."""
    uplink_factor: Factor = 1.0
    """Factor on the upload rate of `latency`."""
    setup_seconds: Annotated[float, Field(ge=0, le=1e6)] | None = None
    """Fixed time before training starts, seconds. Default: the value in `latency`."""
    failure_probability: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Probability that a selected device fails for a reason of its own. Default: the value in
    `latency`."""
    examples_factor: Factor = 1.0
    """Factor on `examples_median`; `examples_max` does not change."""
    availability: dict[str, Any] | None = None
    """Keys of the table `availability` that differ in this class, such as night_length_hours."""
    time_zones: TimeZones | None = None
    """Time zones of this class; default: the population's."""

    @model_validator(mode="after")
    def _zones_sum_to_one(self) -> Self:
        # A class without zones passes, because the substitute zone has the share 1.
        _demand_whole("time_zones", (zone.share for zone in self.time_zones or (TimeZone(),)))
        return self


class Owners(Table):
    """Persons who own the devices. The number of devices of a person minus 1 is binomial. Devices
    of one person have neighbouring ids."""

    mean_devices: Annotated[float, Field(ge=1, le=6)]
    """Mean number of devices of a person."""
    most_devices: Annotated[int, Field(ge=1, le=6)] = 3
    """Largest number of devices of a person, for which guarantees per person hold."""

    @property
    def shares(self) -> list[float]:
        """Shares of the persons with 1, 2, .., `most_devices` devices."""
        trials = self.most_devices - 1
        chance = (self.mean_devices - 1.0) / max(1, trials)
        return [
            math.comb(trials, more) * chance**more * (1.0 - chance) ** (trials - more)
            for more in range(self.most_devices)
        ]

    @model_validator(mode="after")
    def _mean_is_not_above_most(self) -> Self:
        if self.mean_devices > self.most_devices:
            raise ValueError(
                f"mean_devices={self.mean_devices:g} must be at most most_devices="
                f"{self.most_devices}; lower it, or raise most_devices"
            )
        return self


class Population(Table):
    """Number, classes, time zones and data sizes of the devices."""

    # Ids from 2^40 on belong to held-out clients.
    devices: Annotated[int, Field(gt=0, lt=2**40)]
    """Number of devices in the population."""
    time_zones: TimeZones = (TimeZone(),)
    """Time zones of the devices."""
    reach: PositiveShare = 1.0
    """Share of the population that the task can ever use (wifi, competing tasks, caps)."""
    unreachable: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of devices that are never eligible: 0.20 if `devices` counts installs, 0 if it
    counts devices that were seen."""
    joins_per_day: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    """Number of devices that join per day, evenly spread over it. In the order of joining, devices
    take the next id of each block of 65,536 ids in turn."""
    lifetime_days: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Mean days until a device leaves for good (exponential). Default: devices never leave."""
    examples_median: Annotated[float, Field(gt=0, le=1e6)] = 60.0
    """Median number of training examples on a device."""
    examples_sigma: Spread = 0.6
    """Log-standard deviation of the number of examples between devices."""
    examples_max: Annotated[int, Field(gt=0, lt=2**32)] = 400
    """Largest number of examples on a device, at which the log-normal distribution is cut."""

    classes: (
        Annotated[tuple[DeviceClass, ...], Field(strict=False, min_length=1, max_length=100)] | None
    ) = None
    """Classes of devices, each a table `[[population.classes]]`. Default: all devices differ only
    by chance."""
    owners: Owners | None = None
    """Table: persons who own the devices. Default: unknown, and the audit is per device."""

    @model_validator(mode="after")
    def _shares_sum_to_one(self) -> Self:
        _demand_whole("time_zones", (zone.share for zone in self.time_zones))
        if self.classes is not None:
            _demand_whole("classes", (each.share for each in self.classes))
        return self

    @model_validator(mode="after")
    def _classes_have_names_of_their_own(self) -> Self:
        names = collections.Counter(each.name for each in self.classes or ())
        for name, count in names.items():
            if count > 1:
                raise ValueError(
                    f"classes: {count} have the name {name!r}; give each class its own name"
                )
        return self


def _demand_whole(key: str, shares: Iterable[float]) -> None:
    # An exact sum and a small slack accept shares such as ten times 0.1.
    total = math.fsum(shares)
    if abs(total - 1.0) > 1e-9:
        raise ValueError(f"{key}: the shares sum to {total:g}; scale them so that they sum to 1")
