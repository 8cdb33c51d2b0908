"""A trained model on the population's devices, as figures of its page."""

from typing import Any

import numpy as np

from fedray.report.figure import Axis, Figure, Series, Shown
from fedray.report.tables import PageTable
from fedray.report.text.training import on_devices_tables
from fedray.report.trained_page import render_trained
from fedray.studies.on_devices import DeviceGroup, OnDevices
from fedray.wire.messages import Metric

NORMAL_95 = 1.959964
"""Standard errors to either end of a 95 % interval of a mean over many devices."""
_AXES = {
    "participations": "Participations of a device",
    "trained": "Rounds in which a device trained",
    "zone": "Time zone (hours from UTC)",
}
_WORDS = {
    "participations": "by participations",
    "trained": "by rounds trained",
    "zone": "by time zone",
}


def on_devices_page(found: OnDevices) -> str:
    """The page of the trained run, with its model on devices before the run's own figures.

    Args:
        found: what was measured.
    """
    document = found.to_json()
    tables = [
        PageTable(table.title, table.rows, " ".join(found.notes))
        for table in on_devices_tables(document)
    ]
    return render_trained(
        found.trained, on_devices_figures(found), tables, {"on_devices": document}
    )


def on_devices_figures(found: OnDevices) -> list[Shown]:
    """Every metric by participations, by rounds trained, and by time zone, where there is more than
    one group."""
    figures: list[Shown] = []
    for metric in found.metrics:
        for by in _AXES:
            groups = [group for group in found.groups if group.by == by]
            if len(groups) > 1:
                figures.append(_figure(metric, by, groups))
    return figures


def _figure(metric: Metric, by: str, groups: list[DeviceGroup]) -> Figure:
    x = np.array([group.low for group in groups], np.float64)
    quantiles = np.array([group.quantiles[metric.name] for group in groups])
    means, errors = np.array([group.means[metric.name] for group in groups]).T
    # Groups have hundreds of devices, so that the mean is about normal.
    half = NORMAL_95 * errors
    spread: dict[str, Any] = {"low": quantiles[:, 0], "high": quantiles[:, -1]}
    return Figure(
        f"{metric.name}-by-{by}",
        f"{metric.title.capitalize()} on devices, {_WORDS[by]}",
        "Of the final model. The band has nine of ten devices, from the 5 % quantile to the 95 % "
        "quantile. Bars are 95 % intervals of the mean. A group of several counts stands at its "
        "least one.",
        Axis(_AXES[by]),
        Axis(f"{metric.title.capitalize()}{metric.in_unit}", starts_at_zero=False),
        (
            # There is an odd number of quantiles, so the middle one is the median.
            Series("median", "line", x, quantiles[:, quantiles.shape[1] // 2], **spread),
            Series("mean", "points", x, means, low=means - half, high=means + half),
        ),
    )
