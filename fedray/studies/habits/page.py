"""The page of a fit: measured beside simulated."""

import numpy as np
import tomli_w
from numpy.typing import NDArray

from fedray.report.figure import Axis, Figure, Series, Shown
from fedray.report.page import render_study
from fedray.report.tables import PageTable
from fedray.report.text.habits import estimate_rows, fit_sentence, held_rows, statistic_rows
from fedray.studies.habits.columns import GAP_HOURS, RUN_HOURS
from fedray.studies.habits.fit import NORMAL_95, HabitFit
from fedray.studies.habits.statistics import Summary


def habit_fit_page(fit: HabitFit, command: str) -> str:
    """Returns the page of a fit as text.

    Args:
        fit: the fit.
        command: the command line that made it, which the page shows.
    """
    document = fit.to_json()
    tables = [
        PageTable(
            "Parameters",
            estimate_rows(document),
            "By simulated moments; 95 % intervals. They take devices as independent of one "
            "another, and the habit model as true.",
        ),
        PageTable("Not fitted", held_rows(document)),
        PageTable(
            "Statistics",
            statistic_rows(document),
            "Difference: simulated minus measured, in standard errors of both. Estimates are "
            "chosen to make the differences small together.",
        ),
        PageTable("How this page was made", [["what", "is"], ["command", command]]),
    ]
    toml = tomli_w.dumps(document["tables"])
    return render_study(
        "Habits of a log's devices",
        fit_sentence(document),
        habit_fit_figures(fit),
        tables,
        document,
        scenario_toml=toml,
    )


def habit_fit_figures(fit: HabitFit) -> list[Shown]:
    """Hours of the day, lengths or gaps, and how unequal devices are: measured beside simulated."""
    figures: list[Shown] = [_lengths(fit), _inequality(fit)]
    # A log of rounds does not reveal the hour of the day.
    if fit.layout.kind != "rounds":
        figures.insert(0, _hours(fit))
    return figures


def _hours(fit: HabitFit) -> Figure:
    is_of_intervals = fit.layout.kind == "intervals"
    hours = np.arange(24, dtype=np.float64) + 0.5
    series = []
    for name, summary in (("measured", fit.measured), ("simulated", fit.simulated)):
        # Sums are shown per day, so that the length of the log does not matter.
        per_device = summary.columns["hours"] / fit.layout.days
        mean = per_device.mean(axis=0)
        half = NORMAL_95 * per_device.std(axis=0) / np.sqrt(summary.devices)
        series.append(Series(name, "line", hours, mean, low=mean - half, high=mean + half))
    what = "Share of devices that are eligible" if is_of_intervals else "Records per device"
    return Figure(
        "hours",
        "Hours of the day",
        "Of devices with a record. Bands are 95 % intervals over devices.",
        Axis("hour of the day"),
        Axis(what),
        tuple(series),
    )


def _lengths(fit: HabitFit) -> Figure:
    series = []
    is_of_intervals = fit.layout.kind == "intervals"
    for name, summary in (("measured", fit.measured), ("simulated", fit.simulated)):
        if is_of_intervals:
            x = np.array(RUN_HOURS)
            share = summary.columns["longer"].sum(axis=0) / summary.columns["runs"].sum()
        else:
            x = np.array(GAP_HOURS)
            counts = summary.columns["gaps"].sum(axis=0)
            # The last column counts all gaps; it is 0 if every device has one record.
            share = counts[:-1] / max(1.0, counts[-1])
        series.append(Series(name, "line", x, share))
    title = "Lengths of intervals" if is_of_intervals else "Times between records of a device"
    share = "Share that is longer" if is_of_intervals else "Share that is shorter"
    return Figure("lengths", title, "", Axis("hours", is_log=True), Axis(share), tuple(series))


def _inequality(fit: HabitFit) -> Figure:
    series = []
    for name, summary in (("measured", fit.measured), ("simulated", fit.simulated)):
        share, held = _held_by_the_top(summary)
        series.append(Series(name, "line", share, held))
    what = "eligible time" if fit.layout.kind == "intervals" else "records"
    return Figure(
        "inequality",
        "How unequal devices are",
        f"The share of all {what} that the most eligible devices hold.",
        Axis("share of the devices"),
        Axis(f"share of the {what}"),
        tuple(series),
    )


def _held_by_the_top(summary: Summary) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    # This is the Lorenz curve, read from the most eligible device on.
    held = np.cumsum(np.sort(summary.total)[::-1]) / summary.total.sum()
    share = np.linspace(0.0, 1.0, 41)
    devices = np.arange(summary.devices + 1) / summary.devices
    return share, np.interp(share, devices, np.concatenate([[0.0], held]))
