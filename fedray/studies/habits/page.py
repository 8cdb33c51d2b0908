"""The page of a fit: measured beside simulated."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import tomli_w

from fedray.base.rounding import counted
from fedray.report.figure import Axis, Figure, Series
from fedray.report.page import render_study
from fedray.report.subject import Subject
from fedray.report.table import Table
from fedray.studies.habits.columns import GAP_HOURS, RUN_HOURS
from fedray.studies.habits.fit import NORMAL_95, HabitFit, Held, Statistic
from fedray.studies.habits.statistics import Summary


def habit_fit_page(fit: HabitFit, command: str = "") -> str:
    """Returns the page of a fit, which shows the command line that made it, if one did."""
    made = [Table.facts("How this page was made", [("command", command)])] if command else []
    first, *others = habit_fit_tables(fit)
    return render_study(
        "Habits of a log's devices",
        fit_sentence(fit),
        habit_fit_figures(fit),
        # The verdict of the page is the last note of the first table.
        [replace(first, notes=first.notes[:-1]), *others, *made],
        fit.to_json(),
        scenario_toml=tomli_w.dumps(fit.to_tables()),
    )


def fit_sentence(fit: HabitFit) -> str:
    """Describes the records of the log, and how well the model fits them."""
    verdict = "fits these devices: the differences that are left are no more than chance explains"
    if fit.p_value < 0.01:
        verdict = (
            "does not quite fit these devices: the differences that are left are more than chance "
            "explains, and the intervals are those of its nearest values"
        )
    return (
        f"The {fit.table.model} model {verdict} (J statistic {fit.j_statistic:.1f} on "
        f"{fit.degrees_of_freedom} degrees of freedom, p-value {fit.p_value:.3g}). A log of "
        f"{fit.layout.kind}: {fit.records:,} records of {fit.devices:,} devices on "
        f"{fit.layout.days} whole days, beside {fit.simulated_devices:,} simulated devices."
    )


def habit_fit_subject(fit: HabitFit) -> Subject:
    """Returns the subject of a fit: the log's devices, of which the figures are estimates."""
    log = f"a log of {counted(fit.devices, 'device')}"
    return Subject(log, estimand="estimates", sample=f"{fit.layout.days} whole days")


def habit_fit_tables(fit: HabitFit) -> list[Table]:
    """Fitted parameters, other parameters, and statistics."""
    estimates = {
        "parameter": lambda each: each.name,
        "estimate": lambda each: f"{each.value:.4g}",
        "standard error": lambda each: f"{each.standard_error:.4g}",
        "95 % low": lambda each: f"{each.low:.4g}",
        "95 % high": lambda each: f"{each.high:.4g}",
    }
    held = {
        "parameter": lambda each: each.name,
        "held at": _held_at,
        "why": lambda each: each.reason,
    }
    statistics = {
        "statistic": lambda each: each.name,
        "measured": lambda each: f"{each.measured:.4f}",
        "simulated": lambda each: f"{each.simulated:.4f}",
        "difference": _difference,
    }
    return [
        Table.of(
            "Parameters, with 95 % intervals",
            fit.estimates,
            estimates,
            "By simulated moments. The intervals take devices as independent of one another, and "
            "the model as true.",
            fit_sentence(fit),
        ),
        Table.of("Not fitted", fit.held, held),
        Table.of(
            "Statistics",
            fit.statistics,
            statistics,
            "Difference: simulated minus measured, in standard errors of both. Estimates are "
            "chosen to make the differences small together.",
        ),
    ]


def _held_at(held: Held) -> str:
    value = held.value
    return f"{value:.4g}" if isinstance(value, float) else ", ".join(map(str, value))


def _difference(statistic: Statistic) -> str:
    """In standard errors, so that statistics of any unit can be compared."""
    if not statistic.standard_error > 0:
        return "-"
    return f"{(statistic.simulated - statistic.measured) / statistic.standard_error:+.1f}"


def habit_fit_figures(fit: HabitFit) -> list[Figure]:
    """Hours of the day, lengths or gaps, and how unequal devices are: measured beside simulated."""
    return [_hours(fit), _lengths(fit), _inequality(fit)]


def _of_both(fit: HabitFit, curve: Callable[[str, Summary], Series]) -> tuple[Series, ...]:
    return curve("measured", fit.measured), curve("simulated", fit.simulated)


def _hours(fit: HabitFit) -> Figure:
    hours = np.arange(24, dtype=np.float64) + 0.5

    def curve(name: str, summary: Summary) -> Series:
        # Sums are shown per day, so that the length of the log does not matter.
        per_device = summary.columns["hours"] / fit.layout.days
        mean = per_device.mean(axis=0)
        half = NORMAL_95 * per_device.std(axis=0) / np.sqrt(summary.devices)
        return Series(name, "line", hours, mean, low=mean - half, high=mean + half)

    is_of_intervals = fit.layout.kind == "intervals"
    what = "Share of devices that are eligible" if is_of_intervals else "Records per device"
    return Figure(
        "hours",
        "Hours of the day",
        "Of devices with a record. Bands are 95 % intervals over devices.",
        Axis("hour of the day"),
        Axis(what),
        _of_both(fit, curve),
    )


def _lengths(fit: HabitFit) -> Figure:
    def longer(name: str, summary: Summary) -> Series:
        share = summary.columns["longer"].sum(axis=0) / summary.columns["runs"].sum()
        return Series(name, "line", np.array(RUN_HOURS), share)

    def shorter(name: str, summary: Summary) -> Series:
        counts = summary.columns["gaps"].sum(axis=0)
        # The last column counts all gaps; it is 0 if every device has one record.
        return Series(name, "line", np.array(GAP_HOURS), counts[:-1] / max(1.0, counts[-1]))

    title, share, curve = "Times between records of a device", "Share that is shorter", shorter
    if fit.layout.kind == "intervals":
        title, share, curve = "Lengths of intervals", "Share that is longer", longer
    series = _of_both(fit, curve)
    return Figure("lengths", title, "", Axis("hours", is_log=True), Axis(share), series)


def _inequality(fit: HabitFit) -> Figure:
    def curve(name: str, summary: Summary) -> Series:
        # This is the Lorenz curve, read from the most eligible device on.
        held = np.cumsum(np.sort(summary.total)[::-1]) / summary.total.sum()
        share = np.linspace(0.0, 1.0, 41)
        devices = np.arange(summary.devices + 1) / summary.devices
        return Series(name, "line", share, np.interp(share, devices, np.append(0.0, held)))

    what = "eligible time" if fit.layout.kind == "intervals" else "records"
    return Figure(
        "inequality",
        "How unequal devices are",
        f"The share of all {what} that the most eligible devices hold.",
        Axis("share of the devices"),
        Axis(f"share of the {what}"),
        _of_both(fit, curve),
    )
