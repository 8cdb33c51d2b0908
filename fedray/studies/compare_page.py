"""Comparisons of trained runs as figures and a page."""

import math

import numpy as np

from fedray.base.rounding import given
from fedray.report.figure import Axis, Figure, Series, Shown, needs_log
from fedray.report.figures import MetricLine, metric_curve
from fedray.report.page import PageTable, render_study
from fedray.report.text.training import (
    comparison_mean_tables,
    comparison_run_rows,
    comparison_setting_rows,
)
from fedray.studies.compare import COSTS, PAIRED, Comparison, Group
from fedray.wire.messages import Metric


def comparison_page(comparison: Comparison) -> str:
    """The page of a comparison."""
    document = comparison.to_json()
    tables = [
        *(
            PageTable(table.title, table.rows, f"{PAIRED} {comparison.evaluation_note}".rstrip())
            for table in comparison_mean_tables(document)
        ),
        PageTable(
            "Runs",
            comparison_run_rows(document),
            "After the last round, on held-out data; standard errors in brackets. "
            f"{_epsilon_words(comparison)} {COSTS} {comparison.privacy_note}".rstrip(),
        ),
    ]
    if comparison.differing_keys:
        rows = comparison_setting_rows(document)
        tables.append(PageTable("What differs", rows, "Keys of the scenario; seeds aside."))
    runs = sum(len(group.runs) for group in comparison.groups)
    return render_study(
        "Trained runs compared",
        f"{runs} runs on the participations of one trace (digest {comparison.trace_digest[:12]}).",
        comparison_figures(comparison),
        tables,
        document,
        comparison.assumptions,
    )


def comparison_figures(comparison: Comparison) -> list[Shown]:
    """Every metric over rounds; and after the last round against epsilon, where that is known."""
    figures: list[Shown] = [_curve(comparison, metric) for metric in comparison.metrics]
    # A group whose trace is not at hand has no epsilon to stand over.
    known = [group for group in comparison.groups if _epsilon(group) is not None]
    if known:
        figures += [_against_epsilon(comparison, metric, known) for metric in comparison.metrics]
    return figures


def _curve(comparison: Comparison, metric: Metric) -> Figure:
    lines = []
    for group in comparison.groups:
        # The line is the mean of all seeds, with a band from the least to the largest.
        first, *others = (group.runs[seed].metrics for seed in group.seeds)
        lines.append(MetricLine(group.label, first, others))
    first_run = next(iter(comparison.groups[0].runs.values()))
    return metric_curve(metric, lines, first_run.document.get("optimum", {}))


def _against_epsilon(comparison: Comparison, metric: Metric, groups: list[Group]) -> Figure:
    means = [comparison.mean(group, metric.name) for group in groups]
    x = np.array([_epsilon(group) for group in groups], np.float64)
    # A single seed has no interval, so the note does not speak of bars then.
    has_intervals = any(math.isfinite(mean.low) for mean in means)
    bars = " Bars are 95 % intervals of the mean over seeds." if has_intervals else ""
    return Figure(
        f"{metric.name}-epsilon",
        f"{metric.title.capitalize()} against epsilon",
        f"After the last round. Epsilon is the observed one of the trace.{bars}",
        Axis(f"Epsilon at delta = {given(comparison.delta)}", needs_log([x]), decimals=4),
        Axis(f"Held-out {metric.title}{metric.in_unit}", starts_at_zero=False),
        # Each group is a series of one point, so that it has a name and a colour.
        tuple(
            Series(
                group.label,
                "points",
                x[place : place + 1],
                np.array([mean.mean]),
                low=np.array([mean.low]),
                high=np.array([mean.high]),
            )
            for place, (group, mean) in enumerate(zip(groups, means, strict=True))
        ),
    )


def _epsilon(group: Group) -> float | None:
    return None if group.epsilon is None else group.epsilon["observed"]


def _epsilon_words(comparison: Comparison) -> str:
    if all(group.epsilon is None for group in comparison.groups):
        return "Epsilon is not known without the trace."
    return (
        f"Epsilon at delta {given(comparison.delta)}: observed in this trace, and enforced by "
        "the rules of the run."
    )
