"""Tables and figures of the learning study."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .learning_results import (
    NO_NOISE,
    Comparison,
    LearningCurves,
    MetricResult,
    TrainedMechanism,
)
from .reproduction import (
    Axis,
    Figure,
    Mark,
    MeanInterval,
    Metric,
    MetricLine,
    Reproduced,
    Series,
    Table,
    bounds_text,
    counted,
    figure_text,
    given,
    mean_interval,
    metric_curve,
    needs_log,
    shown_noise,
    significant,
    up,
)

CONVENTIONS = (
    "A final value is the mean of the evaluations in the last fifth of the rounds. Intervals are "
    "Student's over the seeds, 95 % each on its own; a gain is how much better the first is, seed "
    "by seed, and positive where the expected order holds. Noise multipliers of different "
    "mechanisms cannot be compared; the error is that of the prefix sums at the common rho."
)
FINAL = "The mean of the evaluations in the last fifth of the rounds"


def reproduced(
    study: LearningCurves,
    documents: Sequence[dict[str, Any]],
    baselines: Sequence[Table] = (),
) -> Reproduced:
    """Returns the tables, the figures and the verdict of a study.

    Args:
        study: the study.
        documents: JSON of this study and the earlier ones.
        baselines: tables of other models.
    """
    verdicts = [each.verdict for metric in study.metrics for each in metric.order]
    n, b, k = (
        getattr(study.participation, name) for name in ("rounds", "min_sep", "max_participations")
    )
    setting = (
        f"{study.scenario}: {n:,} rounds, min-sep {b}, at most "
        f"{counted(k, 'participation')}; rho {up(study.rho)}, epsilon {up(study.epsilon)} at delta "
        f"{given(study.delta)}; {len(study.seeds)} seeds of each mechanism"
    )
    return Reproduced(
        title=f"What models learn under each mechanism: {study.scenario}",
        document={"studies": list(documents)},
        kept=documents[-1],
        folder=study.scenario,
        shown=[table for metric in study.metrics for table in _tables(study, metric)]
        + [*baselines],
        notes=[setting, CONVENTIONS],
        verdict=f"Of {len(verdicts)} neighbours in the expected order, "
        f"{verdicts.count('confirmed')} are confirmed, {verdicts.count('reversed')} reversed and "
        f"{verdicts.count('not decided')} not decided.",
        drawn=learning_figures(study),
    )


def _tables(study: LearningCurves, result: MetricResult) -> list[Table]:
    metric = result.metric
    unit = ", ".join(filter(None, (metric.unit, f"{metric.better} is better")))
    error = figure_text(result.evaluation_error)
    title = f"Held-out {metric.name} ({unit}; standard error of an evaluation {error})"
    heading = ["mechanism", "noise multiplier", "error", metric.name, "95 % interval"]
    values = [_value_cells(each, _final(result, each.name)) for each in study.mechanisms]
    gains = [_gain_cells(each) for each in (*result.order, *result.guesses, *result.workloads)]
    cells = {
        "workload": lambda each: each.workload,
        "rank correlation": lambda each: figure_text(each.rank_correlation.mean),
        "95 % interval": lambda each: bounds_text(each.rank_correlation),
        "over prefix sums": lambda each: figure_text(each.over_prefix.mean, "+.4f"),
        "its 95 % interval": lambda each: bounds_text(each.over_prefix, "+.4f"),
        "residual": lambda each: figure_text(each.residual),
    }
    return [
        Table.headed(title, [heading, *values]),
        Table.headed(
            f"Gains in {metric.name}", [["expected", "gain", "95 % interval", ""], *gains]
        ),
        Table.of(f"Errors of workloads as predictors of {metric.name}", result.predictors, cells),
    ]


def _value_cells(mechanism: TrainedMechanism, value: MeanInterval) -> list[str]:
    return [
        mechanism.name,
        shown_noise(mechanism.noise_multiplier),
        significant(mechanism.errors.get("prefix")),
        figure_text(value.mean),
        bounds_text(value),
    ]


def _gain_cells(pair: Comparison) -> list[str]:
    return [
        f"{pair.first} >= {pair.second}",
        figure_text(pair.gain.mean, "+.4f"),
        bounds_text(pair.gain, "+.4f"),
        pair.verdict,
    ]


def learning_figures(study: LearningCurves) -> list[Figure]:
    """Returns, for every metric, its curves, its final values over the predicted error and, if
    mechanisms were made for wrong min-seps, its final values over these."""
    figures: list[Figure] = []
    for result in study.metrics:
        figures += [_curves(study, result.metric), _against_error(study, result)]
        if any(each.made_for_min_sep != study.participation.min_sep for each in _made_for(study)):
            figures.append(_against_guess(study, result))
    return figures


def _curves(study: LearningCurves, metric: Metric) -> Figure:
    """Returns the curves of the mechanisms in the literature's order, and of the reference."""
    lines = []
    for mechanism in _without_guesses(study):
        # The line is the mean of all seeds, with a band from the smallest value to the largest.
        first, *others = (study.runs[mechanism.name, seed].metrics for seed in study.seeds)
        lines.append(MetricLine(mechanism.name, first, others))
    first_run = next(iter(study.runs.values()))
    return metric_curve(metric, lines, first_run.document.get("optimum", {}))


def _against_error(study: LearningCurves, result: MetricResult) -> Figure:
    """Returns a point per mechanism, and a line for the reference, which has no predicted error."""
    noised = [(each, each.errors["prefix"]) for each in _without_guesses(study) if each.errors]
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
    """Returns a line for each kind that is made for a min-sep."""
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
                # With the right min-sep the name is the kind; other names end in their min-sep.
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
    """Returns the mechanisms that were made for the trace, and the reference."""
    # Mechanisms that do not depend on a min-sep, like the reference, have None.
    known = (None, study.participation.min_sep)
    return [each for each in study.mechanisms if each.made_for_min_sep in known]


def _made_for(study: LearningCurves) -> list[TrainedMechanism]:
    """Returns the mechanisms that were optimised for a min-sep and prefix sums."""
    return [
        each
        for each in study.mechanisms
        if each.made_for_min_sep is not None and each.made_for_workload is None
    ]


def _final(result: MetricResult, name: str) -> MeanInterval:
    return mean_interval(result.values[name].values())


def _final_axis(metric: Metric) -> Axis:
    return Axis(f"Held-out {metric.title}{metric.in_unit}", starts_at_zero=False)


def _point(name: str, x: float, final: MeanInterval) -> Series:
    low, high = (np.array([end]) for end in (final.low, final.high))
    return Series(name, "points", np.array([x]), np.array([final.mean]), low=low, high=high)


def _column(finals: list[MeanInterval], name: str) -> NDArray[np.float64]:
    """Returns one value of all intervals; an unknown end, as after divergence, is the mean."""
    values = [getattr(each, name) for each in finals]
    means = [each.mean for each in finals]
    kept = [mean if math.isnan(value) else value for value, mean in zip(values, means, strict=True)]
    return np.array(kept, np.float64)
