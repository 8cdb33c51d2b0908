"""The table `population` and the tables in it, which describe the devices."""

import collections
import math
from collections.abc import Iterable
from typing import Annotated, Any, Self

import numpy as np
from pydantic import Field, model_validator

from fedray.base.arrays import Float64Array
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


RankCorrelation = Annotated[float, Field(gt=-1, lt=1)]


class Correlation(Table):
    """Rank correlations (Spearman's) of device attributes within a class.

    They come from a Gaussian copula, so the distribution of each attribute stays the same. `habit`
    is the propensity of a device to have an eligible night, `speed` is high if training is fast,
    and `bandwidth` stands for both the download and the upload rate.
    """

    habit_speed: RankCorrelation = 0.0
    """Rank correlation between habit and speed."""
    habit_bandwidth: RankCorrelation = 0.0
    """Rank correlation between habit and each rate."""
    habit_examples: RankCorrelation = 0.0
    """Rank correlation between habit and the number of examples."""
    speed_bandwidth: RankCorrelation = 0.0
    """Rank correlation between speed and each rate."""
    speed_examples: RankCorrelation = 0.0
    """Rank correlation between speed and the number of examples."""
    bandwidth_examples: RankCorrelation = 0.0
    """Rank correlation between each rate and the number of examples."""
    downlink_uplink: RankCorrelation = 0.0
    """Rank correlation between the two rates; it must be high if other correlations with them
    are."""

    @property
    def is_of_habit(self) -> bool:
        """Whether any attribute is correlated with habit."""
        return any((self.habit_speed, self.habit_bandwidth, self.habit_examples))

    @property
    def is_of_examples(self) -> bool:
        """Whether any attribute is correlated with the number of examples."""
        return any((self.habit_examples, self.speed_examples, self.bandwidth_examples))

    def factor(self) -> Float64Array:
        """Returns L [5, 5], lower triangular with rows of length 1. L e are the normal scores of
        (habit, speed, download rate, upload rate, examples) for independent normal variables e.

        The Pearson correlation of normal scores with the rank correlation rho is 2 sin(pi rho / 6)
        (Kruskal 1958, "Ordinal measures of association", section 6).

        Raises:
            numpy.linalg.LinAlgError: no five variables have these correlations.
        """
        # Only the part below the diagonal is filled in, since `cholesky` reads no other.
        ranks = np.eye(5)
        ranks[1, 0] = self.habit_speed
        # Both rates have the same correlations with the other variables.
        ranks[2, :2] = ranks[3, :2] = self.habit_bandwidth, self.speed_bandwidth
        ranks[3, 2] = self.downlink_uplink
        bandwidth = self.bandwidth_examples
        ranks[4, :4] = self.habit_examples, self.speed_examples, bandwidth, bandwidth
        # The sine maps 0 to 0 and 1 to 1, so the diagonal stays 1 and rows have length 1.
        return np.linalg.cholesky(2.0 * np.sin(np.pi / 6.0 * ranks)).astype(np.float64)

    @model_validator(mode="after")
    def _some_variables_have_them(self) -> Self:
        # Correlations can contradict each other, and the factorization fails exactly then.
        try:
            self.factor()
        except np.linalg.LinAlgError:
            given = {name: value for name, value in self.model_dump().items() if value}
            told = ", ".join(f"{name}={value:g}" for name, value in given.items())
            raise ValueError(
                f"{told}: no variables can have all of these correlations; move them towards 0, or "
                "raise downlink_uplink"
            ) from None
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
    correlation: Correlation | None = None
    """Table: rank correlations of speed, bandwidth, habit and examples. Default: they are
        independent."""
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
