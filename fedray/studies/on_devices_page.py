"""A trained model on the population's devices, as figures of its page."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from fedray.base.rounding import number_text
from fedray.report.figure import Axis, Figure, Series, Shown
from fedray.report.table import Table
from fedray.report.trained_page import trained_page
from fedray.studies.on_devices import QUANTILES, DeviceGroup, OnDevices
from fedray.wire.messages import Metric

NORMAL_95 = 1.959964
"""Standard errors to either end of a 95 % interval of a mean over many devices."""
_KINDS = {"all": "all", "participations": "took part", "trained": "trained", "zone": "time zone"}
_FIGURES = {
    "participations": ("by participations", "Participations of a device"),
    "trained": ("by rounds trained", "Rounds in which a device trained"),
    "zone": ("by time zone", "Time zone (hours from UTC)"),
}
"""Words of a title and of an axis, by kind of groups."""


def on_devices_page(found: OnDevices) -> str:
    """Returns the page of the trained run, with its model on devices before its own figures."""
    figures, tables = on_devices_figures(found), on_devices_tables(found)
    return trained_page(found.trained, figures, tables, {"on_devices": found.to_json()})


def on_devices_tables(found: OnDevices) -> list[Table]:
    """A table per metric, a row per group of devices; notes are under the last."""
    *metrics, last = found.metrics
    without = f"{found.without_data:,} devices of the samples have no data that can be read."
    notes = (*found.notes, without if found.without_data else "")
    return [*(_table(found, each) for each in metrics), _table(found, last, *notes)]


def _table(found: OnDevices, metric: Metric, *notes: str) -> Table:
    def quantile(place: int) -> Callable[[DeviceGroup], str]:
        return lambda group: number_text(cast(float, group.metrics[metric.name].quantiles[place]))

    quantiles = [f"{100 * each:g} %" for each in QUANTILES]
    cells = {
        "by": lambda group: _KINDS[group.by],
        "group": lambda group: group.label,
        "devices": lambda group: f"{group.devices:,}",
        "mean": lambda group: number_text(group.metrics[metric.name].value),
        "error": lambda group: number_text(group.metrics[metric.name].standard_error),
        **{head: quantile(place) for place, head in enumerate(quantiles)},
    }
    title = f"{metric.title.capitalize()}{metric.in_unit} on devices: {metric.better} is better"
    # The ends and the median are kept, because every second quantile is left out.
    return Table.of(title, found.groups, cells, *notes, details=tuple(quantiles[1::2]))


def on_devices_figures(found: OnDevices) -> list[Shown]:
    """Every metric by participations, rounds trained and time zone, if there are several groups."""
    figures: list[Shown] = []
    for metric in found.metrics:
        for by in _FIGURES:
            groups = [group for group in found.groups if group.by == by]
            if len(groups) > 1:
                figures.append(_figure(metric, by, groups))
    return figures


def _figure(metric: Metric, by: str, groups: list[DeviceGroup]) -> Figure:
    x = np.array([group.low for group in groups], np.float64)
    own = [group.metrics[metric.name] for group in groups]
    quantiles = np.array([each.quantiles for each in own])
    means, errors = np.array([(each.value, each.standard_error) for each in own]).T
    # Groups have hundreds of devices, so that the mean is about normal.
    half = NORMAL_95 * errors
    spread: dict[str, Any] = {"low": quantiles[:, 0], "high": quantiles[:, -1]}
    words, axis = _FIGURES[by]
    return Figure(
        f"{metric.name}-by-{by}",
        f"{metric.title.capitalize()} on devices, {words}",
        "Of the final model. The band has nine of ten devices, from the 5 % quantile to the 95 % "
        "quantile. Bars are 95 % intervals of the mean. A group of several counts stands at its "
        "least one.",
        Axis(axis),
        Axis(f"{metric.title.capitalize()}{metric.in_unit}", starts_at_zero=False),
        (
            # There is an odd number of quantiles, so the middle one is the median.
            Series("median", "line", x, quantiles[:, quantiles.shape[1] // 2], **spread),
            Series("mean", "points", x, means, low=means - half, high=means + half),
        ),
    )
