"""Metrics of a model by group: of classes, of time zones, or as a user's function says, each with
an interval; and of the worst tenth of devices."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np

from fedray.base.arrays import Float64Array
from fedray.base.document import Document
from fedray.base.intervals import (
    Interval,
    mean_interval,
    quantile_interval,
    ratio_with_error,
    share_interval,
)
from fedray.base.result import Result
from fedray.wire.messages import Evaluated, GroupSums, Metric

Label = str | int | float
"""Label of a group."""
GroupFunction = Callable[[int, dict[str, Any]], Label | None]
"""Returns the label of an example, or None to leave it out, from the id of its device and its
fields by name: numbers or arrays, each in the shape of one example."""
By = Literal["class", "zone"]
"""Kind of groups that needs no function."""
TENTH = 0.1
"""Share of the devices that are the worst."""


@dataclass(frozen=True, slots=True)
class GroupMetric(Document):
    """A metric of a model on the examples of a group."""

    value: float
    """The metric; NaN if no example counts."""
    low: float
    """Lower end of its 95 % interval; NaN if unknown."""
    high: float
    """Upper end of its 95 % interval; NaN if unknown."""


@dataclass(frozen=True, slots=True)
class Group(Document):
    """A group of examples."""

    name: str
    """Its class, zone, or what the function returned."""
    devices: int
    """Number of devices that have examples of it."""
    examples: int
    """Number of these examples."""
    metrics: Mapping[Annotated[str, "metric"], GroupMetric]
    """Metrics on them by name."""


@dataclass(frozen=True, slots=True)
class WorstTenth(Document):
    """A metric of the devices with its worst values, a tenth of all, each on its own examples."""

    devices: int
    """Number of these devices, rounded up."""
    of: int
    """Number of devices that have the metric."""
    mean: float
    """Mean of their values."""
    mean_of_all: float
    """Mean of the values of all devices."""
    quantile: float
    """The best of their values."""
    low: float
    """Lower end of the 95 % interval of the value that a tenth of such devices is worse than; NaN
    if these are too few devices for it."""
    high: float
    """Upper end of that interval; NaN likewise."""


@dataclass(frozen=True, slots=True)
class Groups(Result):
    """Metrics of a model by group."""

    TABLES: ClassVar[str] = "fedray.report.groups:groups_tables"
    SUBJECT: ClassVar[str] = "fedray.report.groups:groups_subject"

    run: str
    """Name of the scenario of the training."""
    by: str
    """Kind of the groups: class, zone, or the name of a function."""
    model: Literal["last", "best"]
    """Model that was evaluated."""
    rounds: int
    """Number of rounds that it was trained on."""
    evaluated_on: Literal["held-out devices", "devices of the population"]
    """Devices whose examples they are. Those of the population may have trained."""
    data: Evaluated
    """The data."""
    metrics: tuple[Metric, ...]
    """Metrics of the task."""
    groups: tuple[Group, ...]
    """The groups, in order of their labels."""
    worst_tenth: Mapping[Annotated[str, "metric"], WorstTenth]
    """The worst tenth of these devices by metric; empty without devices."""

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Self:
        """Returns the metrics of a document; the inverse of `to_json`, except that numbers that
        were not finite are NaN."""
        groups = (
            {**each, "metrics": {n: GroupMetric(**_numbers(e)) for n, e in each["metrics"].items()}}
            for each in document["groups"]
        )
        worst = document["worst_tenth"].items()
        values = {
            **document,
            "data": Evaluated(**document["data"]),
            "metrics": tuple(Metric(**each) for each in document["metrics"]),
            "groups": tuple(Group(**each) for each in groups),
            "worst_tenth": {name: WorstTenth(**_numbers(each)) for name, each in worst},
        }
        return cls(**{field.name: values[field.name] for field in fields(cls)})

    def __repr__(self) -> str:
        return f"<Groups of {self.run} by {self.by}: {len(self.groups)} groups on {self.data}>"


def _numbers(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name: math.nan if each is None else each for name, each in table.items()}


def groups_of(
    sums: GroupSums, metrics: Sequence[Metric]
) -> tuple[tuple[Group, ...], dict[str, WorstTenth]]:
    """Returns the metrics of each group, and of the worst tenth of the devices.

    Examples of a device are alike, so devices are the units of every interval. The interval of a
    share is that of Korn and Graubard; those of other metrics are Student's, which are approximate
    for few devices.

    Args:
        sums: sums by group and device.
        metrics: metrics of the task.
    """
    groups = tuple(
        Group(
            name,
            devices=int((sums.groups == place).sum()),
            examples=int(sums.examples[sums.groups == place].sum()),
            metrics={
                each.name: _measured(each, sums.sums[each.name][sums.groups == place])
                for each in metrics
            },
        )
        for place, name in enumerate(sums.labels)
    )
    worst = {each.name: _worst_tenth(each, sums) for each in metrics}
    return groups, {name: each for name, each in worst.items() if each is not None}


def _measured(metric: Metric, sums: Float64Array) -> GroupMetric:
    """Returns a metric with its interval, from the sums of devices [U, 2]."""
    sums = sums[sums[:, 1] > 0]
    ratio, error = ratio_with_error(sums)
    devices, weight = len(sums), float(sums[:, 1].sum())
    if metric.unit.startswith("share"):
        return GroupMetric(ratio, *share_interval(ratio, error, devices, weight))
    ends = mean_interval(ratio, error, devices)
    if metric.is_exponential:
        with np.errstate(over="ignore"):
            return GroupMetric(*(float(each) for each in np.exp([ratio, *ends])))
    return GroupMetric(ratio, *ends)


def _worst_tenth(metric: Metric, sums: GroupSums) -> WorstTenth | None:
    """Returns the worst tenth of the devices with a metric; None without devices."""
    # A device may have examples of several groups.
    found = sums.sums[metric.name]
    totals = np.zeros((int(sums.devices.max(initial=-1)) + 1, 2))
    np.add.at(totals, sums.devices, found)
    totals = totals[totals[:, 1] > 0]
    if not len(totals):
        return None
    values = totals[:, 0] / totals[:, 1]
    if metric.is_exponential:
        with np.errstate(over="ignore"):
            values = np.exp(values)
    # From the worst on: ascending, or of negative values.
    ordered = np.sort(metric.sign * values)
    count = math.ceil(TENTH * ordered.size)
    ends = quantile_interval(ordered, TENTH)
    low, high = ends if metric.sign > 0 else Interval(-ends.high, -ends.low)
    worst = metric.sign * ordered[:count]
    return WorstTenth(
        devices=count,
        of=ordered.size,
        mean=float(worst.mean()),
        mean_of_all=float(values.mean()),
        quantile=float(worst[-1]),
        low=low,
        high=high,
    )
