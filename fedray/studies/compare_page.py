"""Comparisons of trained runs as tables, figures and a page."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import PurePath
from typing import Any

import numpy as np

from fedray.base.rounding import as_set, counted, given, needed_noise, up
from fedray.report.figure import Axis, Figure, Mark, Series, needs_log
from fedray.report.figures import MetricLine, metric_curve
from fedray.report.page import render_study
from fedray.report.subject import Subject, condition_of
from fedray.report.subjects import trained_subject
from fedray.report.table import Table
from fedray.studies.compare import COSTS, PAIRED, PLANNED, Comparison, Group, shown_unit
from fedray.studies.paired import MeanInterval, difference_text, interval_text
from fedray.studies.reach import NOTE, Reach, ReachedRun
from fedray.studies.sweep.sweep import short_names
from fedray.wire.messages import Metric

LONG = 40
"""Characters from which a list is shown by its length only."""


def comparison_page(comparison: Comparison) -> str:
    runs = sum(len(group.runs) for group in comparison.groups)
    trace = comparison.trace_digest[:12]
    return render_study(
        "Training grid" if comparison.axes else "Trained runs compared",
        f"{runs} runs on the participations of one trace (digest {trace}).",
        comparison.figures(),
        comparison.tables(),
        comparison.to_json(),
        comparison.assumptions,
        verdict=comparison.answer,
        warnings=comparison.warnings,
    )


def comparison_subject(comparison: Comparison) -> Subject:
    """Returns the subject of a comparison: the one trace that all its runs were trained on."""
    first, runs = comparison.groups[0], sum(len(each.runs) for each in comparison.groups)
    trained = trained_subject(first.first).population
    each = first.trainings.replace(" (", " each (")
    return Subject(
        trained,
        trace=comparison.trace_digest[:12],
        runs=each if _share_trainings(comparison) else f"{counted(runs, 'training')} in all",
    )


def _share_trainings(comparison: Comparison) -> bool:
    """Whether all settings have as many trainings, with the same seeds."""
    return len({each.trainings for each in comparison.groups}) == 1


def _axes(comparison: Comparison) -> dict[str, Callable[[Group], str]]:
    """Returns the varied keys of a sweep that have several values, by their short names."""

    def text(key: str, group: Group) -> str:
        return as_set(group.cell[key])

    varied = [key for key in comparison.axes if len({text(key, g) for g in comparison.groups}) > 1]
    return {name: partial(text, key) for key, name in short_names(varied).items()}


def _setting_cells(comparison: Comparison) -> dict[str, Callable[[Group], str]]:
    """Returns the columns that distinguish settings: their labels, or the keys of a sweep, and
    their trainings, if these differ."""
    cells = _axes(comparison) or {"setting": lambda group: group.label}
    if not _share_trainings(comparison):
        cells["trainings"] = lambda group: group.trainings
    return cells


def _subjects(comparison: Comparison) -> Callable[[Group], Subject]:
    """Returns the function that gives the subject of a setting, in the words of these columns."""
    axes, is_shared = _axes(comparison), _share_trainings(comparison)

    def subject(group: Group) -> Subject:
        named = [f"{head}={text(group)}" for head, text in axes.items()]
        condition = condition_of(named) if named else group.label
        return Subject(condition=condition, runs="" if is_shared else group.trainings)

    return subject


def comparison_tables(comparison: Comparison) -> list[Table]:
    """Means of each metric, privacy and costs, and the keys in which scenarios differ."""
    tables = [_means_table(comparison, each) for each in _answer_first(comparison)]
    if comparison.reach is not None:
        reached = _reach_table(comparison.reach, comparison.delta)
        tables.append(reached.under(Subject(sample=comparison.sample)))
    tables.append(_groups_table(comparison))
    if comparison.differing_keys:
        tables.append(_settings_table(comparison))
    return tables


def _answer_first(comparison: Comparison) -> list[Metric]:
    return sorted(comparison.metrics, key=lambda each: each != comparison.metric)


def _means_table(comparison: Comparison, metric: Metric) -> Table:
    """Means over seeds, and differences from the best setting."""
    best = comparison.ranked[0]
    is_sample = any(len(group.runs) > 1 for group in comparison.groups)

    def of_pairs(text: Callable[[MeanInterval], str]) -> Callable[[Group], str]:
        return lambda group: (
            "" if group is best else text(comparison.difference(group, metric.name))
        )

    cells = _setting_cells(comparison) | {
        "mean ± 95 %" if is_sample else "mean": lambda group: interval_text(
            comparison.mean(group, metric.name), ".4f"
        ),
        "pairs": of_pairs(lambda found: str(found.count)),
        f"difference from {best.label}": of_pairs(lambda found: difference_text(found, "+.4f")),
    }
    if comparison.differ_in_rounds:
        cells["rounds"] = lambda group: group.rounds
    if any(each.sample != comparison.sample for each in comparison.groups):
        cells["evaluated on"] = lambda group: group.sample
    subject = _subjects(comparison)
    of_means = "of a mean, half of its own 95 % interval (Student's, over seeds)"
    of_pair = f"of a difference, half of {comparison.simultaneous(metric.name)}"
    learned = _learned(comparison)
    comma = "," if learned.endswith("train") else ""
    at = f"{comma} at {comparison.privacy}" if comparison.privacy else ""
    at += " or without noise" if at and len(comparison.ranked) < len(comparison.groups) else ""
    return Table.of(
        f"{metric.title.capitalize()}{metric.in_unit}{learned}{at}: {metric.better} is better",
        comparison.groups,
        cells,
        method=(PAIRED,) if metric == comparison.metric else (),
        details=("pairs",),
        subject=lambda group: replace(subject(group), sample=group.sample),
        legend=[("±", f"{of_means}; {of_pair}")],
    ).varied()


def _learned(comparison: Comparison) -> str:
    """Returns the model, its data, and how many devices of a round train, as far as all settings
    share them."""
    runs = [run for group in comparison.groups for run in group.runs.values()]
    of = [each.document["scenario"] for each in runs]
    tasks = [each["training"]["task"] for each in of]
    models = {
        PurePath(each["file"]).name if "file" in each else each["kind"].replace("_", " ")
        for each in tasks
    }
    data = {each["data"]["kind"].replace("_", " ") for each in of}
    # A user's own task may have data of its own.
    if any("file" in each for each in tasks):
        data.clear()
    shares = {(each["training"]["cohort_sample"], each["rounds"]["report_goal"]) for each in of}
    said = f" of the model {models.pop()}" if len(models) == 1 else ""
    said += f" on the data {data.pop()}" if len(data) == 1 else ""
    if len(shares) == 1:
        ((sample, goal),) = shares
        said += f", {min(sample, goal):,} of {goal:,} reports of a round train"
    return said


def _reach_table(reach: Reach, delta: float) -> Table:
    """Returns the runs, with the round, epsilon, updates and days of each."""
    cells = {
        "setting": lambda run: run.label,
        "seed": lambda run: str(run.seed),
        "round (from 0)": lambda run: (
            f"not reached, best {run.best:.4f}" if run.round is None else f"{run.round:,}"
        ),
        "epsilon": lambda run: "-" if run.spent is None else up(run.spent.epsilon),
        "updates": lambda run: "-" if run.updates is None else f"{run.updates:,}",
        "days": lambda run: "-" if run.days is None else f"{run.days:.2f}",
    }
    title = f"Rounds to reach {reach.metric} {given(reach.value)}, epsilon at delta {given(delta)}"

    def subject(run: ReachedRun) -> Subject:
        condition = f"{run.label} and seed={run.seed}"
        return Subject(condition=condition, runs="one training each", unit="device")

    return Table.of(title, reach.runs, cells, NOTE, subject=subject)


def _groups_table(comparison: Comparison) -> Table:
    """Privacy and costs of each setting."""
    cells = _setting_cells(comparison) | {
        "noise mult.": lambda group: (
            "-" if group.noise_multiplier is None else needed_noise(group.noise_multiplier)
        ),
    }
    # A run without noise has no privacy figures.
    if any(group.epsilon is not None for group in comparison.groups):
        for kind in ("enforced", "observed"):
            cells[f"epsilon {kind}"] = partial(_spent, kind)
    cells |= {
        "bytes per upload": lambda group: _shown(group.first.bytes_per_upload, ",d"),
        "seconds per round": lambda group: _shown(group.first.seconds_per_round, ".4g"),
    }
    title = f"Privacy at delta {given(comparison.delta)}, and costs of the smallest seed"
    subject = _subjects(comparison)
    notes = (COSTS, PLANNED) if comparison.differ_in_rounds else (COSTS,)
    table = Table.of(title, comparison.groups, cells, method=notes, subject=subject)
    return replace(table, subject=replace(table.subject, unit="device")).varied()


def _spent(kind: str, group: Group) -> str:
    value = (group.epsilon or {}).get(kind)
    return "-" if value is None else up(value)


def _settings_table(comparison: Comparison) -> Table:
    """Keys of the scenario in which settings differ, a column for each setting."""
    rows = [
        (key, *(_setting(group.settings.get(key)) for group in comparison.groups))
        for key in comparison.differing_keys
    ]
    heading = ("key", *(group.label for group in comparison.groups))
    note = "Keys of the scenario; seeds aside."
    return Table("What differs", heading, tuple(rows), method=(note,))


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None or not math.isfinite(value) else format(value, form)


def _setting(value: Any) -> str:
    if value is None:
        return "-"
    # Every digit is shown, since rounded values of two settings may look alike.
    text = as_set(value)
    if isinstance(value, list) and len(text) > LONG:
        return counted(len(value), "coefficient")
    # 64 characters are a SHA-256; its first 12 are enough to tell two files apart.
    return text[:12] if isinstance(value, str) and len(text) == 64 else text


def comparison_figures(comparison: Comparison) -> list[Figure]:
    """Paired differences from the best; every metric over rounds; and after the last round against
    epsilon, if runs differ in it. The cells of a sweep stand over its axis first."""
    figures: list[Figure] = [_over_axis(comparison)] if comparison.axes else []
    for metric in _answer_first(comparison):
        figures += [*_differences(comparison, metric), _curve(comparison, metric)]

    def epsilon(group: Group) -> float | None:
        return (group.epsilon or {}).get("observed")

    # A group whose trace is not at hand has no epsilon to stand over.
    known = [group for group in comparison.groups if epsilon(group) is not None]
    if known and not comparison.basis:
        axis = Axis(f"Epsilon at delta = {given(comparison.delta)}", decimals=4)
        note = " Epsilon is the observed one."
        figures += [
            _against(comparison, each, known, "epsilon", axis, epsilon, note)
            for each in comparison.metrics
        ]
    # All figures are of held-out metrics.
    return [each.under(Subject(sample=comparison.sample)) for each in figures]


def _differences(comparison: Comparison, metric: Metric) -> Iterator[Figure]:
    """Yields the differences that decide, a row for each setting but the best."""
    best = comparison.ranked[0]
    others = [each for each in comparison.groups if each is not best]
    found = {each.label: comparison.deciding(each, metric=metric) for each in others}
    found = {label: each for label, each in found.items() if math.isfinite(each.mean)}
    if not found:
        return
    # A bar of one seed is of two evaluations.
    is_sample = any(each.count > 1 for each in found.values())
    of = comparison.simultaneous(metric.name) if is_sample else "the errors of two evaluations"
    ends = np.array([(each.mean, each.low, each.high) for each in found.values()])
    scale, unit = shown_unit(metric)
    x, low, high = scale * ends.T
    yield Figure(
        f"{metric.name}-differences",
        f"Differences in {metric.title} from {best.label}",
        f"After the last round, {metric.better} is better. A bar is {of}. A setting whose bar "
        f"holds zero cannot be told apart from {best.label}.",
        Axis(f"Difference in {metric.title}{f' ({unit})' if unit else ''}", starts_at_zero=False),
        Axis("Setting", starts_at_zero=False),
        (
            Series(
                "difference",
                "rows",
                x,
                -1.0 * np.arange(x.size),
                labels=tuple(found),
                low=low,
                high=high,
            ),
        ),
        (Mark(0.0, best.label),),
    )


def _over_axis(comparison: Comparison) -> Figure:
    """The answer's metric over the axis of a sweep, a series for each combination of the other
    keys; a cell that diverged has no point."""
    metric, (x, *others) = comparison.metric, comparison.axes
    names = short_names(comparison.axes)

    def at_x(group: Group) -> Any:
        return group.cell[x]

    groups = [each for each in comparison.groups if math.inf not in comparison.badness(each)]
    groups.sort(key=at_x)
    figure = _against(comparison, metric, groups, names[x], Axis(x), at_x)
    lines: dict[str, list[Series]] = {}
    for group, point in zip(groups, figure.series, strict=True):
        named = ", ".join(f"{names[key]} {as_set(group.cell[key])}" for key in others)
        lines.setdefault(named or group.label, []).append(point)
    return replace(figure, series=tuple(_joined(name, each) for name, each in lines.items()))


def _joined(name: str, points: Sequence[Series]) -> Series:
    """Returns series of one point each as one."""
    x, y, low, high = (
        np.concatenate([getattr(each, part) for each in points])
        for part in ("x", "y", "low", "high")
    )
    return Series(name, "points", x, y, low=low, high=high, mechanism=points[0].mechanism)


def _curve(comparison: Comparison, metric: Metric) -> Figure:
    lines = []
    for group in comparison.groups:
        # The line is the mean of all seeds, with a band from the least to the largest.
        # Seeds that stopped early have fewer rounds, and a mean is of all of them.
        most = min(run.document["rounds"] for run in group.runs.values())
        first, *others = (
            {name: column[:most] for name, column in group.runs[seed].metrics.items()}
            for seed in group.seeds
        )
        lines.append(MetricLine(group.label, first, group.mechanism, others))
    return metric_curve(metric, lines, comparison.groups[0].first.document.get("optimum", {}))


def _against(
    comparison: Comparison,
    metric: Metric,
    groups: Sequence[Group],
    name: str,
    axis: Axis,
    of_group: Callable[[Group], float | None],
    note: str = "",
) -> Figure:
    """A metric after the last round, over epsilon or another figure of the groups."""
    means = [comparison.mean(group, metric.name) for group in groups]
    x = np.array([of_group(group) for group in groups], np.float64)
    # A single seed has no interval, hence no bars to explain.
    has_intervals = any(math.isfinite(mean.low) for mean in means)
    bars = " Bars are 95 % intervals of the mean over seeds." if has_intervals else ""
    return Figure(
        f"{metric.name}-{name}".replace(".", "-"),
        f"{metric.title.capitalize()} against {name}",
        f"After the last round.{note}{bars}",
        replace(axis, is_log=needs_log([x])),
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
                mechanism=group.mechanism,
            )
            for place, (group, mean) in enumerate(zip(groups, means, strict=True))
        ),
    )
