"""The page of a fit: measured beside simulated."""

from collections.abc import Callable

import numpy as np

from fedray.base.rounding import counted
from fedray.report.figure import Axis, Figure, Series
from fedray.report.page import render_study
from fedray.report.subject import Subject
from fedray.report.table import Table
from fedray.studies.habits.columns import GAP_HOURS, RUN_HOURS
from fedray.studies.habits.fit import NEARLY, NORMAL_95, HabitFit, Held, Statistic
from fedray.studies.habits.statistics import Summary

GRADES = (
    "A model fits if the p-value of J is at least 0.01. It nearly fits if the misfit is at most "
    f"{NEARLY:g}, a reasonable error of approximation (Browne and Cudeck 1993). The misfit is the "
    "root mean square of the differences that chance does not explain, in standard deviations of "
    "one device. Unlike J, it does not grow with the log."
)


def habit_fit_page(fit: HabitFit, command: str = "") -> str:
    """Returns the page of a fit, which shows the command line that made it, if one did."""
    made = [Table.facts("How this page was made", [("command", command)])] if command else []
    return render_study(
        "Habits of a log's devices",
        fit.headline,
        habit_fit_figures(fit),
        [*habit_fit_tables(fit), *made],
        fit.to_json(),
        scenario_toml=fit.to_toml(),
    )


def fit_sentence(fit: HabitFit) -> str:
    """Describes the records of the log, and how well the model fits them."""
    freedom = counted(fit.degrees_of_freedom, "degree")
    j = f"J {fit.j_statistic:.1f} on {freedom} of freedom, p-value {fit.p_value:.3g}"
    misfit = f"the misfit is {fit.misfit:.3f} standard deviations of a device"
    verdict = {
        "fits": f"chance explains the differences that are left ({j}).",
        "nearly fits": f"{misfit}, at most {NEARLY:g} ({j}). Its intervals are of nearest values.",
        "does not fit": f"{misfit}, above {NEARLY:g} ({j}). Its intervals mean nothing.",
    }
    return (
        f"The {fit.table.model} model {fit.grade} these devices: {verdict[fit.grade]} A log of "
        f"{fit.layout.kind}: {fit.records:,} records of {fit.devices:,} devices on "
        f"{fit.layout.days} whole days, beside {fit.simulated_devices:,} simulated devices."
    )


def advice(fit: HabitFit) -> list[str]:
    """Returns sentences on estimates that mean less than others, and on the fit to try next."""
    found = []
    ends = [f"{each.name} ({each.bound})" for each in fit.estimates if each.bound]
    if ends:
        found.append(
            f"At the end of its search: {', '.join(ends)}. The log would be explained better "
            "beyond it, so such an estimate and its interval mean little."
        )
    if (hours := fit.proposed_offset_hours) is not None:
        found.append(
            f"The log's day is that of devices whose local time is its clock {hours:+g} hours: fit "
            f"again with --utc-offset {hours:g}, or with --utc-offset unknown."
        )
    if fit.grade == "does not fit" and len(fit.zones) < 2 and fit.layout.kind == "intervals":
        found.append(
            "If the devices are in several time zones, give each row's local time minus the log's "
            "clock with --column zone=NAME."
        )
    if fit.offset_hours is not None:
        found.append(
            "The centre of the nights and the offset trade off: a later centre with a larger "
            "offset gives nearly the same log. If the zone is known, give it."
        )
    return found


def habit_fit_subject(fit: HabitFit) -> Subject:
    """Returns the subject of a fit: the log's devices."""
    log = f"a log of {counted(fit.devices, 'device')}"
    return Subject(log, sample=f"{fit.layout.days} whole days")


def habit_fit_tables(fit: HabitFit) -> list[Table]:
    """Fitted parameters, other parameters, and statistics."""
    estimates = {
        "parameter": lambda each: each.name,
        "estimate": lambda each: f"{each.value:.4g}",
        "standard error": lambda each: f"{each.standard_error:.4g}",
        "95 % low": lambda each: f"{each.low:.4g}",
        "95 % high": lambda each: f"{each.high:.4g}",
    }
    if any(each.bound for each in fit.estimates):
        estimates["search"] = lambda each: f"at its {each.bound} end" if each.bound else "inside"
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
            *advice(fit),
            method=[GRADES],
            subject=Subject(estimand="estimates"),
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
