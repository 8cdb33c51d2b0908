"""Tables of a model's metrics by group."""

import math

from fedray.base.rounding import counted, number_text
from fedray.report.subject import Subject
from fedray.report.table import Table
from fedray.trace.groups import Group, GroupMetric, Groups, WorstTenth
from fedray.wire.messages import Metric

KINDS = ("class", "zone", "group")
"""Kinds of groups that are no function with a name."""
OF_DEVICES = (
    "Intervals are at 95 %, for each group by itself. Devices are their units, since examples of a "
    "device are alike: Korn and Graubard's for shares, else Student's, which are approximate for "
    "few devices."
)
MAY_HAVE_TRAINED = (
    "These are devices of the population, which may have trained, because devices that are held "
    "out have no zone."
)
BY_CHANCE = (
    "Means are over devices, each with the same weight, and so differ from a mean over examples. "
    "A device's value is on its own examples. If these are few, part of the tail is chance, and "
    "would be there if the model served all devices alike."
)


def groups_subject(found: Groups) -> Subject:
    """Returns the subject of metrics by group."""
    return Subject(found.run, runs="one training")


def groups_tables(found: Groups) -> list[Table]:
    """Returns the metrics of each group, then those of the worst tenth of devices."""
    sample = f"{found.data}, {found.evaluated_on}"
    after = f"the {found.model} model, after {counted(found.rounds, 'round')}"
    cells = {
        found.by: lambda group: group.name,
        "devices": lambda group: f"{group.devices:,}",
        "examples": lambda group: f"{group.examples:,}",
        **{_heading(each): _cell(each) for each in found.metrics},
    }
    kind = found.by if found.by in KINDS else f"the function {found.by}"
    is_of_population = found.evaluated_on == "devices of the population"
    note = MAY_HAVE_TRAINED if is_of_population else ""
    subject = Subject(sample=sample)
    by_group = Table.of(
        f"By {kind}: {after}", found.groups, cells, OF_DEVICES, note, subject=subject
    )
    if not found.worst_tenth:
        return [by_group]
    rows = [(each, found.worst_tenth[each.name]) for each in found.metrics]
    worst_cells = {
        "metric": lambda row: _heading(row[0]),
        "devices": lambda row: f"{row[1].devices:,} of {row[1].of:,}",
        "mean of these": lambda row: number_text(row[1].mean),
        "mean of all devices": lambda row: number_text(row[1].mean_of_all),
        "a tenth is worse than": _quantile,
    }
    worst = Table.of(
        f"The worst tenth of devices: {after}", rows, worst_cells, BY_CHANCE, subject=subject
    )
    return [by_group, worst]


def _heading(metric: Metric) -> str:
    return f"{metric.title}{metric.in_unit}"


def _cell(metric: Metric):  # pyright: ignore[reportUnknownParameterType]
    def cell(group: Group) -> str:
        return _with_interval(group.metrics[metric.name])

    return cell


def _quantile(row: tuple[Metric, WorstTenth]) -> str:
    found = row[1]
    return _with_interval(GroupMetric(found.quantile, found.low, found.high))


def _with_interval(found: GroupMetric) -> str:
    """Returns a value with the ends of its interval, those that are known."""
    if math.isnan(found.low) and math.isnan(found.high):
        return f"{number_text(found.value)} (no interval)"
    low, high = (
        number_text(end) if math.isfinite(end) else f"{name} not known"
        for name, end in (("low end", found.low), ("high end", found.high))
    )
    return f"{number_text(found.value)} ({low} to {high})"
