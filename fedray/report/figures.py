"""The report's figures. Data are counted here, so that a page holds bins and steps, never rows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fedray.audit.audit import Audit
from fedray.audit.filtered import Exclusions
from fedray.audit.observers import OPERATOR, SYBILS, NotProtected, Releases
from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.rounding import counted, given, given_delta, up
from fedray.report.figure import LOG_BARS, Axis, Figure, Mark, Series, needs_log
from fedray.report.subject import Subject
from fedray.trace.reader import Trace
from fedray.trace.trained import TrainedRun, metric_of_answer
from fedray.wire.messages import Metric

HOUR, DAY = 3600.0, 86_400.0
MOST_BINS = 120
MOST_SHARES = 33
"""Largest number of shares of malicious devices in a figure."""
CLOSE = 0.08
"""Relative distance below which two levels of epsilon share a label."""


def trace_figures(trace: Trace) -> list[Figure]:
    """Figures of the run itself: supply, pace, and what its model learned."""
    # Rounds that draw from stored uploads have no times and no waiting devices.
    if "uploads" in trace.scenario["rounds"]:
        figures = [stored_uploads(trace)]
    else:
        figures = [eligible_devices(trace), eligible_by_hour(trace), round_durations(trace)]
    if trace.is_buffered:
        figures.append(staleness(trace))
    return [*figures, *(held_out_metrics(trace.trained) if trace.trained is not None else [])]


def audit_figures(audit: Audit) -> list[Figure]:
    """Returns the figures of an audit's trace, of participations, and of privacy.

    Privacy needs a mechanism with noise. An imported log has no figures of its own, because nothing
    is known of eligible devices and the model.
    """
    figures = trace_figures(audit.trace) if isinstance(audit.trace, Trace) else []
    figures.append(participations_per_device(audit))
    if audit.max_participations > 1:
        figures.append(gaps(audit))
    if audit.exclusions is not None and audit.exclusions.devices:
        figures.append(excluded_devices(audit, audit.exclusions))
    # Without noise no privacy was spent over rounds.
    if audit.over_rounds:
        figures.append(epsilon_over_rounds(audit))
    if audit.device_privacy is not None:
        privacy = audit.device_privacy
        of_model = " It is of the model only, without the answers." if audit.answers else ""
        figures.append(spent_figure({"rho": privacy.curve}, privacy.is_exact, of_model))
    of_devices = (malicious_devices(each) for each in audit.released if each.of_devices)
    figures += [each for each in of_devices if each is not None][:1]
    return figures


def stored_uploads(trace: Trace) -> Figure:
    """Returns the number of stored uploads that were eligible in each committed round."""
    is_committed = trace.rounds["state"] == 0
    held = trace.rounds["eligible_estimate"][is_committed].astype(np.float64)
    rounds = np.arange(held.size, dtype=np.float64)
    return Figure(
        "uploads",
        "Stored uploads",
        "Uploads from which the server could draw each round: those of the group whose turn it "
        "was, or all of the window.",
        Axis("Round"),
        Axis("Uploads", needs_log([held])),
        (Series("uploads", "steps", rounds, held, rounds + 1.0),),
    )


def staleness(trace: Trace) -> Figure:
    """Returns the accepted reports of buffered rounds by the number of versions that their model
    was behind."""
    counts = np.zeros(0, np.int64)
    for part in trace.accepted():
        assert part.versions is not None
        # The trace is read in parts, so that its rows are never in memory together.
        found = np.bincount(part.rounds - part.versions, minlength=counts.size)
        # The new counts are longer if this part has the stalest report so far.
        found[: counts.size] += counts
        counts = found
    # Numbers that do not occur have no bar: a logarithmic axis has no place for zero.
    behind = np.flatnonzero(counts).astype(np.float64)
    reports = counts[counts > 0].astype(np.float64)
    return Figure(
        "staleness",
        "Staleness of reports",
        "Accepted reports by how many newer versions of the model had been released when they "
        "were used. Devices that still trained when the last buffer was released are in no row.",
        Axis("Versions behind"),
        Axis("Reports", needs_log([reports], LOG_BARS)),
        (Series("reports", "bars", behind, reports, behind + 1.0),),
    )


def excluded_devices(audit: Audit, found: Exclusions) -> Figure:
    """Returns how many devices had been excluded at their budget before each round."""
    rounds, counts = np.unique(found.rounds, return_counts=True)
    x = rounds.astype(np.float64)
    # Each step lasts until the next exclusion, and the last one until the end of the run.
    until = np.append(x[1:], np.maximum(x[-1], float(audit.rounds)))
    return Figure(
        "excluded",
        "Excluded devices",
        "Devices that had not been selected, for good, because one more participation would have "
        "brought them beyond privacy.stop_at. Excluded devices took part "
        f"{found.participations:.2f} times on average, the others {found.of_others:.2f} times.",
        Axis("Round"),
        Axis("Devices"),
        (Series("excluded", "steps", x, np.cumsum(counts).astype(np.float64), until),),
    )


def eligible_devices(trace: Trace) -> Figure:
    """Returns the number of eligible devices over simulated time, at the windows in which they were
    counted.

    A `trace` has a count only for windows in which a round started; the time between them is a gap.
    """
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
    """Returns the mean number of eligible devices by hour of the day, UTC; each hour of each day of
    the `trace` has equal weight."""
    start, _, counts = _censuses(trace)
    # Hours are averaged within each day first, because hours with many rounds would weigh more.
    each_hour, place = np.unique((start // HOUR).astype(np.int64), return_inverse=True)
    counted = np.maximum(np.bincount(place), 1)
    mean = np.bincount(place, weights=counts) / counted
    of_day = each_hour % 24
    days = np.bincount(of_day, minlength=24)
    is_known = days > 0
    hours = np.flatnonzero(days).astype(np.float64)
    sums = np.bincount(of_day, weights=mean, minlength=24)
    by_hour = (sums[is_known] / days[is_known]).astype(np.float64)
    return Figure(
        "diurnal",
        "Eligible devices by hour",
        "The mean of the same counts by hour of the day. An hour with a gap had no round on any "
        "day, so nothing is known of it.",
        Axis("Hour of the day (UTC)"),
        Axis("Devices", needs_log([by_hour])),
        (Series("eligible", "steps", hours, by_hour, hours + np.float64(1.0)),),
    )


def _censuses(trace: Trace) -> tuple[Float64Array, Float64Array, Float64Array]:
    """Returns (start [w], end [w], devices [w]) of the look-ahead windows in which an attempt at a
    round started. The simulator counts at the start of each window, and the trace repeats the count
    in every attempt of the window."""
    window_seconds = 60.0 * trace.scenario["rounds"]["look_ahead_minutes"]
    windows = (trace.rounds["started"] // window_seconds).astype(np.int64)
    numbers, first = np.unique(windows, return_index=True)
    devices = trace.rounds["eligible_estimate"][first].astype(np.float64)
    return numbers * window_seconds, (numbers + 1) * window_seconds, devices


def round_durations(trace: Trace) -> Figure:
    """Returns the minutes from one commit of the `trace` to the next, over time; they set the pace
    and so the min-sep."""
    # State 0 is a committed round. Time in abandoned ones counts towards the next commit.
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
    """Returns the axis of simulated time, and the number of seconds in its unit."""
    # In a run of a few days hours matter; in a longer one they could not be read.
    if end > 3 * DAY:
        return Axis("Day of the run"), DAY
    return Axis("Hour of the run"), HOUR


def held_out_metrics(trained: TrainedRun) -> list[Figure]:
    """Returns every metric of the model on held-out data, over rounds, first that of the answer.

    If the data states the best value that any model can have, it is drawn as a line, and so is the
    round of the best model if it was kept.
    """
    line = MetricLine("", trained.metrics, start=trained.document["start"])
    optimum = trained.document.get("optimum", {})
    answer = metric_of_answer(trained.task_metrics)
    metrics = sorted(trained.task_metrics, key=lambda metric: metric != answer)
    figures = [metric_curve(metric, [line], optimum, trained.sample) for metric in metrics]
    if (best := trained.best_rounds) is None:
        return figures
    mark = Mark(float(best), f"best model, by {trained.document['best']['metric']}")
    return [replace(each, marks=(*each.marks, mark)) for each in figures]


@dataclass(frozen=True, slots=True)
class MetricLine:
    """Data of one line in a metric's figure."""

    name: str
    """The line's name; empty for the metric's own."""
    columns: Mapping[str, NDArray]
    """Columns of metrics.parquet, by name."""
    mechanism: str | None = None
    """Kind of the mechanism of its runs."""
    others: Sequence[Mapping[str, NDArray]] = ()
    """Columns of further runs with the same rounds, such as runs with other seeds. The line is then
    the mean of all runs, with a band from the smallest to the largest value."""
    start: Mapping[str, float | None] = field(default_factory=dict)
    """Metrics before the training, by name; empty if they are unknown or differ between runs."""


def _with_start(
    x: Float64Array, values: Float64Array, start: float | None
) -> tuple[Float64Array, Float64Array]:
    """Returns rounds [m] and values [.., m] with the value before training, at 0 rounds, if that is
    known."""
    if start is None:
        return x, values
    before = np.full((*values.shape[:-1], 1), start)
    return np.insert(x, 0, 0.0), np.concatenate([before, values], axis=-1)


def metric_curve(
    metric: Metric, lines: Sequence[MetricLine], optimum: Mapping[str, float], sample: str = ""
) -> Figure:
    """Returns a metric of models on held-out data, over rounds.

    Args:
        metric: the metric.
        lines: lines in the order of drawing.
        optimum: best value that any model can have, for metrics for which the data states it.
        sample: data of the evaluations; empty if it differs between lines.
    """
    best = optimum.get(metric.name)
    band = ""
    if any(line.others for line in lines):
        band = (
            " A line with a band is the mean over seeds; the band goes from the least to the "
            "largest."
        )
    return Figure(
        metric.name,
        f"{metric.title.capitalize()} of the model",
        "On the data of devices that are in no population; lines only join the rounds after which "
        f"it was measured. {metric.better.capitalize()} is better.{band}",
        Axis("Rounds"),
        Axis(f"Held-out {metric.title}{metric.in_unit}", starts_at_zero=False),
        tuple(_metric_series(metric, line) for line in lines),
        () if best is None else (Mark(best, "best of any model", "y"),),
        Subject(sample=sample),
    )


def _metric_series(metric: Metric, line: MetricLine) -> Series:
    name = f"evaluation_{metric.name}"
    # All seeds of a line have the same rounds, and are evaluated in the same ones.
    values = np.stack([columns[name] for columns in (line.columns, *line.others)])
    # NaN in rounds without an evaluation, and where a model has diverged.
    is_known = ~np.isnan(values).any(axis=0)
    # After round t, which counts from 0, the model was trained on t + 1 rounds.
    x = line.columns["round"][is_known] + 1.0
    values = values[:, is_known].astype(np.float64)
    x, values = _with_start(x, values, line.start.get(metric.name))
    ends = {"low": values.min(axis=0), "high": values.max(axis=0)} if line.others else {}
    more = {"mechanism": line.mechanism, **ends}
    return Series(line.name or metric.title, "line", x, values.mean(axis=0), **more)


def participations_per_device(audit: Audit) -> Figure:
    """Returns the devices of the `audit` that took part, by number of participations: a bar for
    each number that occurs."""
    histogram = audit.participations_per_device
    x = np.array(list(histogram), np.float64)
    y = np.array(list(histogram.values()), np.float64)
    return Figure(
        "participations",
        "Participations per device",
        "Of the devices that took part; the last bar is the max participations.",
        Axis("Participations"),
        Axis("Devices", needs_log([y], LOG_BARS)),
        (Series("devices", "bars", x, y, x + 1.0),),
        tuple(
            _broken(most + 0.5, x[-1] + 0.5, most)
            for most in _claimed(audit, "max_participations")
            if most < x[-1]
        ),
    )


def _claimed(audit: Audit, statement: str) -> list[float]:
    """Returns the value of a claim's statement, if it has that."""
    value = getattr(audit.claim, statement, None)
    return [] if value is None else [float(value)]


def _broken(begin: float, end: float, claimed: float) -> Mark:
    """Returns the zone of the values that break a claim. The bar of a whole number begins half a
    unit before it."""
    return Mark(begin, f"breaks the claimed {claimed:g}", until=end)


def gaps(audit: Audit) -> Figure:
    """Returns the gaps between consecutive participations of a device, in at most 120 bins of whole
    rounds, with min-sep marked."""
    pairs = audit.patterns.pairs_by_gap
    claimed = _claimed(audit, "min_sep")
    enforced = [each.enforced.min_sep for each in audit.mechanisms[:1]]
    # A bar on both sides of a limit would show kept gaps as broken.
    edges, counts = gap_bins(pairs, next((int(e) for e in (*claimed, *enforced) if e), None))
    # Empty bins are left out, because a logarithmic axis has no place for them.
    is_seen = counts > 0
    heights = counts[is_seen].astype(np.float64)
    starts = edges[:-1][is_seen].astype(np.float64)
    ends = edges[1:][is_seen].astype(np.float64)
    least = float(np.flatnonzero(pairs)[0])
    return Figure(
        "gaps",
        "Gaps between participations",
        "From one round of a device to its next; the least is the min-sep.",
        Axis("Gap (rounds)"),
        Axis("Pairs", needs_log([heights], LOG_BARS)),
        (Series("pairs", "bars", starts, heights, ends),),
        (
            Mark(least, f"min-sep {least:,.0f}"),
            *(_broken(least - 0.5, each - 0.5, each) for each in claimed if least < each),
        ),
    )


def gap_bins(pairs: Int64Array, edge: int | None = None) -> tuple[Int64Array, Int64Array]:
    """Counts gaps in bins [edge, next edge) of equal whole width.

    Args:
        pairs: number of pairs by their gap, [n]; the first bin starts at the smallest gap.
        edge: gap at which a bin starts instead, if it lies among the bins.

    Returns:
        (edges [m + 1], counts [m]).
    """
    gaps = np.flatnonzero(pairs)
    low, high = int(gaps[0]), int(gaps[-1])
    # Rounded up, so that at most MOST_BINS hold all values, wherever the first one starts.
    width = -(-(high - low + 1) // (MOST_BINS - (edge is not None)))
    low -= 0 if edge is None else (low - edge) % width
    edges = np.arange(low, high + width + 1, width)
    # Sums of whole numbers, which float64 holds exactly.
    return edges, np.histogram(gaps, edges, weights=pairs[gaps])[0].astype(np.int64)


def epsilon_over_rounds(audit: Audit) -> Figure:
    """Returns epsilon of the first mechanism, over the number of released rounds.

    Privacy is lost with every round, so the value at a computed round bounds those before it.
    """
    is_exact = all(entry.sensitivity_is_exact for entry in audit.over_rounds)
    kind = "Exact for the trace"
    if not is_exact:
        kind = "An upper bound for the trace, at some rounds at least,"
    used = audit.mechanisms[0]
    note = (
        f"{kind} at the right end of each of {counted(len(audit.over_rounds), 'step')}; before it "
        "the step is an upper bound. Observed: "
        f"it holds for this run's pattern{', without amplification' if used.sampled else ''}."
        f"{' It is of the model only, without the answers.' if audit.answers else ''}"
    )
    marks = [Mark(each, f"claimed {each:g}", "y") for each in _claimed(audit, "epsilon")]
    most = audit.supported_epsilon if audit.findings else None
    if most is not None and any(abs(each.at - most) < CLOSE * most for each in marks):
        # Labels of two lines that lie on each other could not be read.
        marks = [replace(each, text=f"{each.text}; {up(most)} may be published") for each in marks]
    elif most is not None:
        marks.append(Mark(most, "may be published", "y"))
    ends = np.array([entry.rounds for entry in audit.over_rounds], np.float64)
    starts = np.concatenate([[0.0], ends])[:-1]
    epsilons = np.array([entry.epsilon for entry in audit.over_rounds])
    delta = given(used.observed.delta)
    return Figure(
        "privacy",
        "Observed epsilon over rounds",
        note,
        Axis("Rounds released"),
        Axis(f"Epsilon at delta = {delta}", decimals=4),
        (Series("Epsilon", "steps", starts, epsilons, ends),),
        tuple(marks),
    )


def malicious_devices(releases: Releases) -> Figure | None:
    """Returns epsilon against the operator of the server over the share of malicious devices, up to
    the largest share under which a store keeps its secrets; None if epsilon is unknown."""
    fewest = min(each.devices for each in releases.of_devices)
    most = releases.most_malicious
    whole = np.linspace(0.0, math.floor(most * fewest), MOST_SHARES).round()
    # A float just above k / f would count one more device.
    shares = {each / fewest: (each - 1e-9) / fewest for each in whole.tolist()} | {most: most}
    points: list[tuple[float, float]] = []
    for share, counted_share in sorted(shares.items()):
        try:
            epsilon = releases.epsilon_against(SYBILS if share else OPERATOR, counted_share)
        except NotProtected:
            break
        if epsilon is None:
            return None
        points.append((100.0 * share, epsilon))
    protected = points[-1][0]
    x, y = np.array(points).T
    return Figure(
        "malicious",
        "Epsilon against the operator, by its malicious devices",
        "The operator of the server knows the noise of so many per cent of the devices in each "
        f"sum, and {fewest:,} devices are in the sum with the fewest. Beyond {protected:.3g} % "
        "nothing protects.",
        Axis("Malicious devices (%)"),
        Axis(f"Epsilon at delta = {given_delta(releases.delta)}", decimals=4),
        (Series("Epsilon", "line", x, y),),
        (Mark(protected, "none", until=100.0),),
        Subject(condition=f"trust {releases.trust}", unit="device"),
    )


def spent_figure(
    curves: Mapping[str, Sequence[float]], is_exact: bool, further_note: str = ""
) -> Figure:
    """Draws the privacy of each device of a run; guarantees are bounds for all devices.

    Args:
        curves: rho that the share i / n of the devices do not exceed, i = 1 .. n, by the name of
            the line.
        is_exact: False if the rho of some devices are upper bounds.
        further_note: sentence on the lines, after a space.
    """
    rhos = {name: np.array(curve) for name, curve in curves.items()}
    # All curves have the same shares.
    shares = np.linspace(0.0, 100.0, len(next(iter(rhos.values()))) + 1)
    kind = "" if is_exact else " Some devices' values are upper bounds."
    return Figure(
        "devices",
        "What the devices got",
        "Devices that took part, from the least rho to the largest: so many per cent of them have "
        f"at most this rho.{further_note}{kind}",
        Axis("Devices (%)"),
        Axis("rho (zCDP)", needs_log(list(rhos.values())), decimals=6),
        tuple(
            Series(name, "steps", shares[:-1], values, shares[1:]) for name, values in rhos.items()
        ),
    )
