"""The report's figures. Data are counted here, so that a page holds bins and steps, never rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedray.audit.audit import Audit
from fedray.messages import Metric
from fedray.report.figure import LOG_BARS, Axis, Figure, Mark, Series, needs_log
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace

HOUR, DAY = 3600.0, 86_400.0
MOST_BINS = 120


def figures_of(trace: Trace | ImportedTrace, audit: Audit) -> list[Figure]:
    """All figures of a trace and its audit, in the page's order; without a mechanism, those of
    participation alone."""
    of_run: list[Callable[[Trace], Figure | None]] = [
        eligible_devices,
        eligible_by_hour,
        round_durations,
    ]
    of_audit: list[Callable[[Audit], Figure | None]] = [participations_per_device, gaps]
    if audit.ledger:
        of_audit += [epsilon_over_rounds, rho_over_rounds, device_privacy]
    run: list[Figure | None] = []
    if isinstance(trace, Trace):
        run = [*(make(trace) for make in of_run), *held_out_metrics(trace)]
    return [figure for figure in (*run, *(make(audit) for make in of_audit)) if figure is not None]


def eligible_devices(trace: Trace) -> Figure:
    """Eligible devices over simulated time, at the windows in which they were counted."""
    start, end, counts = _censuses(trace)
    x, unit = _time_axis(float(end.max(initial=0.0)))
    return Figure(
        "eligible",
        "Eligible devices",
        "Charging, idle, on wifi: who could take part. Counted at the start of each look-ahead "
        "window in which a round started; "
        "where the line has a gap nothing was counted.",
        x,
        Axis("Devices", needs_log([counts])),
        (Series("eligible", "steps", start / unit, counts, end / unit),),
    )


def eligible_by_hour(trace: Trace) -> Figure:
    """Mean number of eligible devices by hour of the day, UTC; each hour of each day weighs the
    same."""
    start, _, counts = _censuses(trace)
    each_hour, place = np.unique((start // HOUR).astype(np.int64), return_inverse=True)
    mean = np.bincount(place, weights=counts) / np.maximum(np.bincount(place), 1)
    of_day = each_hour % 24
    days = np.bincount(of_day, minlength=24)
    hours = np.flatnonzero(days).astype(np.float64)
    by_hour = (np.bincount(of_day, weights=mean, minlength=24)[days > 0] / days[days > 0]).astype(
        np.float64
    )
    return Figure(
        "diurnal",
        "Eligible devices by hour",
        "The mean of the same counts by hour of the day. An hour with a gap had no round on any "
        "day, so nothing is known of it.",
        Axis("Hour of the day (UTC)"),
        Axis("Devices", needs_log([by_hour])),
        (Series("eligible", "steps", hours, by_hour, hours + np.float64(1.0)),),
    )


def _censuses(trace: Trace) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """(start [w], end [w], devices [w]) of the look-ahead windows in which an attempt at a round
    started: at each one's start the simulator counts, and the trace has the count with every
    attempt of the window."""
    window = 60.0 * trace.scenario["rounds"]["look_ahead_minutes"]
    numbers, first = np.unique(
        (trace.rounds["started"] // window).astype(np.int64), return_index=True
    )
    return (
        numbers * window,
        (numbers + 1) * window,
        trace.rounds["eligible_estimate"][first].astype(np.float64),
    )


def round_durations(trace: Trace) -> Figure:
    """Minutes from one commit to the next, over time: what sets the pace, and so the min-sep."""
    closed = trace.rounds["closed"][trace.rounds["state"] == 0]
    before = np.concatenate([[0.0], closed])[:-1]
    minutes = (closed - before) / 60.0
    x, unit = _time_axis(float(closed.max(initial=0.0)))
    return Figure(
        "durations",
        "Time per round",
        "A step for each committed round, from the commit before it (the first: from the start of "
        "the run) to its own.",
        x,
        Axis("Minutes", needs_log([minutes])),
        (Series("minutes", "steps", before / unit, minutes, closed / unit),),
    )


def _time_axis(end: float) -> tuple[Axis, float]:
    """The axis of simulated time, and how many seconds its unit has."""
    return (Axis("Day of the run"), DAY) if end > 3 * DAY else (Axis("Hour of the run"), HOUR)


def held_out_metrics(trace: Trace) -> list[Figure]:
    """Every metric of the model on held-out data, over rounds; none if no model was trained.

    A metric that the data says the best value of has that as a line to compare with.
    """
    columns = trace.metrics
    if columns is None:
        return []
    optimum = trace.trained.document.get("optimum", {}) if trace.trained is not None else {}
    return [
        metric_curve(metric, [MetricLine("", columns)], optimum) for metric in trace.task_metrics
    ]


@dataclass(frozen=True, slots=True)
class MetricLine:
    """What a line of a metric's figure is drawn from.

    name: of the line; empty for the metric's own.
    columns: of metrics.parquet.
    others: columns of further runs with the same rounds, such as those of other seeds. The line is
        then the mean of all, and has a band from the least to the largest.
    """

    name: str
    columns: Mapping[str, NDArray]
    others: Sequence[Mapping[str, NDArray]] = ()


def metric_curve(
    metric: Metric, lines: Sequence[MetricLine], optimum: Mapping[str, float]
) -> Figure:
    """A metric of models on held-out data, over rounds.

    Args:
        metric: which one.
        lines: what is drawn, in order.
        optimum: for metrics of which the data says it, the best value that any model can have.
    """
    series = [_metric_series(metric, line) for line in lines]
    best = optimum.get(metric.name)
    x = np.concatenate([each.x for each in series])
    if best is not None and x.size:
        ends = np.array([x.min(), x.max()])
        series.append(
            Series("best of any model", "line", ends, np.full(2, best), is_reference=True)
        )
    band = (
        " A line with a band is the mean over seeds; the band goes from the least to the largest."
        if any(line.others for line in lines)
        else ""
    )
    return Figure(
        metric.name,
        f"{metric.title.capitalize()} of the model",
        "On the data of devices that are in no population, at the rounds that are marked; the "
        f"lines between only join them. {metric.better.capitalize()} is better.{band}",
        Axis("Rounds"),
        Axis(f"Held-out {metric.title}{metric.in_unit}", starts_at_zero="share" in metric.unit),
        tuple(series),
    )


def _metric_series(metric: Metric, line: MetricLine) -> Series:
    name = f"evaluation_{metric.name}"
    values = np.stack([columns[name] for columns in (line.columns, *line.others)])
    # NaN in rounds without an evaluation, and where a model has diverged.
    is_known = ~np.isnan(values).any(axis=0)
    x = line.columns["round"][is_known] + 1.0
    values = values[:, is_known].astype(np.float64)
    ends = {"low": values.min(axis=0), "high": values.max(axis=0)} if line.others else {}
    return Series(line.name or metric.title, "line", x, values.mean(axis=0), **ends)


def participations_per_device(audit: Audit) -> Figure:
    """Devices by number of participations."""
    histogram = audit.participation_histogram()
    x = np.array(list(histogram), np.float64)
    y = np.array(list(histogram.values()), np.float64)
    return Figure(
        "participations",
        "Participations per device",
        "Of the devices that took part; the last bar is the max participations.",
        Axis("Participations"),
        Axis("Devices", needs_log([y], LOG_BARS)),
        (Series("devices", "bars", x, y, x + 1.0),),
    )


def gaps(audit: Audit) -> Figure | None:
    """Gaps between consecutive participations of a device, in at most 120 bins of whole rounds,
    with min-sep marked; None if no device took part twice."""
    values = audit.patterns.gaps
    if not values.size:
        return None
    edges, counts = gap_bins(values)
    is_seen = counts > 0
    heights = counts[is_seen].astype(np.float64)
    return Figure(
        "gaps",
        "Gaps between participations",
        "From one round of a device to its next; the least is the min-sep.",
        Axis("Gap (rounds)"),
        Axis("Pairs", needs_log([heights], LOG_BARS)),
        (
            Series(
                "pairs",
                "bars",
                edges[:-1][is_seen].astype(np.float64),
                heights,
                edges[1:][is_seen].astype(np.float64),
            ),
        ),
        (Mark(float(values.min()), f"min-sep {values.min():,}"),),
    )


def gap_bins(
    values: NDArray[np.int64], most: int = MOST_BINS
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Counts whole values in bins [edge, next edge) of equal whole width.

    Args:
        values: [N] whole numbers; the first bin starts at the least.
        most: how many bins there may be.

    Returns:
        (edges [m + 1], counts [m]).
    """
    if not values.size:
        return np.array([0, 1]), np.array([0])
    low = int(values.min())
    high = int(values.max())
    width = -(-(high - low + 1) // most)
    edges = np.arange(low, high + width + 1, width)
    return edges, np.histogram(values, bins=edges)[0]


def epsilon_over_rounds(audit: Audit) -> Figure:
    """Epsilon of the mechanism asked about once so many rounds had been released."""
    y = Axis(f"Epsilon at delta = {audit.mechanisms[0].observed.delta:g}", decimals=4)
    return _over_rounds(
        audit, "privacy", "Epsilon over rounds", y, [entry.epsilon for entry in audit.ledger]
    )


def rho_over_rounds(audit: Audit) -> Figure:
    """rho of the mechanism asked about once so many rounds had been released."""
    return _over_rounds(
        audit,
        "rho",
        "rho over rounds",
        Axis("rho (zCDP)", decimals=6),
        [entry.rho for entry in audit.ledger],
    )


def _over_rounds(audit: Audit, name: str, title: str, y: Axis, values: list[float]) -> Figure:
    """Privacy is lost with every round, so the value at the next computed round bounds those before
    it."""
    is_exact = all(entry.sensitivity_is_exact for entry in audit.ledger)
    kind = (
        "Exact for the trace"
        if is_exact
        else "An upper bound for the trace, at some rounds at least,"
    )
    note = (
        f"{kind} at the right end of each step; before it the step is an upper bound. Observed: "
        "it holds for this run's pattern."
    )
    ends = np.array([entry.rounds for entry in audit.ledger], np.float64)
    series = Series(
        title.split()[0], "steps", np.concatenate([[0.0], ends])[:-1], np.array(values), ends
    )
    return Figure(name, title, note, Axis("Rounds released"), y, (series,))


def device_privacy(audit: Audit) -> Figure:
    """rho that so many of the devices do not exceed, in steps of half a per cent."""
    privacy = audit.device_privacy
    # The page shows this figure only where there is noise, and then every device has a rho.
    assert privacy is not None
    rhos = np.array(privacy.curve)
    shares = np.linspace(0.0, 100.0, rhos.size + 1)
    kind = "" if privacy.is_exact else " Some devices' values are upper bounds."
    return Figure(
        "devices",
        "What the devices got",
        "Devices that took part, from the least rho to the largest: so many per cent of them have "
        "at most this rho." + kind,
        Axis("Devices (%)"),
        Axis("rho (zCDP)", needs_log([rhos]), decimals=6),
        (Series("rho", "steps", shares[:-1], rhos, shares[1:]),),
    )


def observed_beside_published(
    results: list[dict[str, Any]], figure_name: str, title: str, note: str
) -> Figure:
    """Draws one point per reproduced run, with the line of agreement; logarithmic axes.

    Args:
        results: documents of the runs.
        figure_name: which of their figures, such as "min_sep".
        title: what stands above the plot.
        note: what is to be known to read it.
    """
    points = [
        (each["name"], each[figure_name]["published"], each[figure_name]["observed"])
        for each in results
    ]
    points = [point for point in points if None not in point]
    names, published, observed = zip(*points, strict=True) if points else ((), (), ())
    both = np.array([*published, *observed] or [1.0], np.float64)
    ends = np.array([0.9 * both.min(), 1.1 * both.max()])
    agreement = Series("agreement", "line", ends, ends, is_reference=True)
    runs = Series(
        "runs",
        "points",
        np.array(published, np.float64),
        np.array(observed, np.float64),
        labels=tuple(names),
    )
    name = figure_name.replace("_", "-")
    note += " Where names would cover one another some are left out; pointing at a run names it."
    return Figure(
        name,
        title,
        note,
        Axis("Published", is_log=True),
        Axis("Simulated", is_log=True),
        (agreement, runs),
    )
