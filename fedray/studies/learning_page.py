"""The learning study as figures and a page."""

import math

import numpy as np
from numpy.typing import NDArray

from fedray.report.figure import Axis, Figure, Mark, Series, Shown, needs_log
from fedray.report.figures import MetricLine, metric_curve
from fedray.report.page import render_study
from fedray.report.table import Table
from fedray.report.text.learning import CONVENTIONS, gain_rows, study_sentence, value_rows
from fedray.studies.learning_curves import (
    NO_NOISE,
    LearningCurves,
    MetricResult,
    TrainedMechanism,
)
from fedray.studies.paired import MeanInterval, mean_interval
from fedray.wire.messages import Metric

FINAL = "The mean of the evaluations in the last fifth of the rounds"


def learning_page(study: LearningCurves) -> str:
    """The page of a study."""
    document = study.to_json()
    return render_study(
        f"What models learn under each mechanism: {study.scenario}",
        study_sentence(document),
        learning_figures(study),
        learning_tables(study),
        document,
    )


def learning_tables(study: LearningCurves) -> list[Table]:
    """For every metric of a `study`: the values of the mechanisms, and what each gains."""
    document = study.to_json()
    tables = []
    for metric in document["metrics"]:
        name = metric["name"].replace("_", " ")
        tables.append(Table.headed(f"Held-out {name}", value_rows(document, metric), CONVENTIONS))
        tables.append(Table.headed(f"Gains in {name}", gain_rows(metric)))
    return tables


def learning_figures(study: LearningCurves) -> list[Shown]:
    """For every metric: its curves, its final values over the predicted error, and, where
    mechanisms were made for wrong min-seps, its final values over these."""
    figures: list[Shown] = []
    for result in study.metrics:
        figures += [_curves(study, result.metric), _against_error(study, result)]
        if any(each.made_for_min_sep != study.participation.min_sep for each in _made_for(study)):
            figures.append(_against_guess(study, result))
    return figures


def _curves(study: LearningCurves, metric: Metric) -> Figure:
    """The curves of the mechanisms in the literature's order, and of the reference."""
    lines = []
    for mechanism in _without_guesses(study):
        # The line is the mean of all seeds, with a band from the least to the largest.
        first, *others = (study.runs[mechanism.name, seed].metrics for seed in study.seeds)
        lines.append(MetricLine(mechanism.name, first, others))
    first_run = next(iter(study.runs.values()))
    return metric_curve(metric, lines, first_run.document.get("optimum", {}))


def _against_error(study: LearningCurves, result: MetricResult) -> Figure:
    """A point per mechanism; the reference, which has no predicted error, as a line."""
    noised = [
        (each, each.rms_prefix_error)
        for each in _without_guesses(study)
        if each.rms_prefix_error is not None
    ]
    errors = np.array([error for _, error in noised], np.float64)
    series = [_point(each.name, error, _final(result, each.name)) for each, error in noised]
    reference = _final(result, NO_NOISE).mean
    ends = np.array([errors.min(), errors.max()])
    series.append(Series(NO_NOISE, "line", ends, np.full(2, reference), is_reference=True))
    return Figure(
        f"{result.metric.name}-error",
        f"Final {result.metric.title} over the predicted error",
        f"{FINAL}; bars are 95 % intervals of the mean over seeds. All mechanisms have the same "
        "rho on this trace; the dashed line is the model without noise.",
        Axis("RMS error of the prefix sums at clip norm 1", needs_log([errors]), False, 4),
        _final_axis(result.metric),
        tuple(series),
    )


def _against_guess(study: LearningCurves, result: MetricResult) -> Figure:
    """A line for each kind that is made for a min-sep."""
    truth = study.participation.min_sep
    series = []
    for kind in dict.fromkeys(each.kind for each in _made_for(study)):
        own = sorted(
            (each.made_for_min_sep, each.name)
            for each in _made_for(study)
            if each.kind == kind and each.made_for_min_sep is not None
        )
        finals = [_final(result, name) for _, name in own]
        series.append(
            Series(
                # A right guess has the kind alone as its name, and others end in their min-sep.
                own[0][1].partition(" for min-sep")[0],
                "line",
                np.array([min_sep for min_sep, _ in own], np.float64),
                _column(finals, "mean"),
                low=_column(finals, "low"),
                high=_column(finals, "high"),
            )
        )
    return Figure(
        f"{result.metric.name}-guess",
        f"Final {result.metric.title} if the min-sep was guessed wrong",
        f"{FINAL}; bands are 95 % intervals of the mean over seeds. A mechanism that was made for "
        "another min-sep has the noise for the same rho of this trace: it loses utility, and no "
        "privacy.",
        Axis("Min-sep that the mechanism was made for", needs_log([each.x for each in series])),
        _final_axis(result.metric),
        tuple(series),
        (Mark(float(truth), f"min-sep {truth:,}"),),
    )


def _without_guesses(study: LearningCurves) -> list[TrainedMechanism]:
    """The mechanisms that were made for the trace, and the reference."""
    # None is for mechanisms that are made for no min-sep, and for the reference.
    known = (None, study.participation.min_sep)
    return [each for each in study.mechanisms if each.made_for_min_sep in known]


def _made_for(study: LearningCurves) -> list[TrainedMechanism]:
    """The mechanisms that were optimised for a min-sep."""
    return [each for each in study.mechanisms if each.made_for_min_sep is not None]


def _final(result: MetricResult, name: str) -> MeanInterval:
    return mean_interval(result.values[name].values())


def _final_axis(metric: Metric) -> Axis:
    return Axis(f"Held-out {metric.title}{metric.in_unit}", starts_at_zero=False)


def _point(name: str, x: float, final: MeanInterval) -> Series:
    low, high = (np.array([end]) for end in (final.low, final.high))
    return Series(name, "points", np.array([x]), np.array([final.mean]), low=low, high=high)


def _column(finals: list[MeanInterval], name: str) -> NDArray[np.float64]:
    """One figure of all; where there is no interval, as of a run that diverged, its ends are the
    mean."""
    values = [getattr(each, name) for each in finals]
    means = [each.mean for each in finals]
    kept = [mean if math.isnan(value) else value for value, mean in zip(values, means, strict=True)]
    return np.array(kept, np.float64)
