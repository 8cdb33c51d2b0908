"""Gboard's published runs, predicted: every parameter is fitted on the runs of other locales.

Each run is simulated at a fraction of its size and at a few reaches, which give a `Curve`; every
fit is arithmetic on these curves. A prediction for a locale has one reach, chosen by the runs of
all other locales (leave one locale out). Beside it stand a formula, fitted in the same way, and the
reach of the locale's other row.
"""

import bisect
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from scipy import special

import fedray
from fedray import InputError
from .gboard_rows import PublishedRun, Rows, published_runs, select
from .reproduction import Document, Progress, Reproduced, Reproduction, Table
from .small_runs import SCALE, Outcome, outcomes_of

REACHES = (0.25, 0.5, 1.0)
"""Reaches that are simulated; values at other reaches are interpolated."""
LOG_REACHES = tuple(math.log(0.05) * step / 300 for step in range(301))
"""Reaches that fits choose from: logarithms of 1 to 0.05, in steps of one per cent."""
CONFIDENCE = 0.9
"""Confidence of the intervals of predicted min-seps."""


PACE = "rounds.min_minutes_between=7.0"
"""Key set in every scenario. Of no limit and this one, the other locales choose this one for each
locale (docs/published.md)."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Min-sep and days of a run by the reach, means over seeds.

    Both are nearly powers of the reach, and level where rounds cannot come faster; so they are
    interpolated in logarithms, and continued below the least reach that was simulated.
    """

    log_reaches: tuple[float, ...]
    """[R] logs of the simulated reaches, rising to 0."""
    log_min_seps: tuple[float, ...]
    """[R] logs of the min-seps."""
    log_days: tuple[float, ...]
    """[R] logs of the days."""
    seed_variance: float
    """Variance of log min-sep between seeds; 0 if there was one seed."""

    def min_sep(self, log_reach: float) -> float:
        """Returns the log of the min-sep at a reach."""
        return _interpolated(self.log_reaches, self.log_min_seps, log_reach)

    def days(self, log_reach: float) -> float:
        """Returns the log of the days at a reach."""
        return _interpolated(self.log_reaches, self.log_days, log_reach)

    def needed_log_reach(self, min_sep: float) -> float | None:
        """Returns the log of the smallest reach at which a run has this min-sep; None if the whole
        population is too small for it."""
        wanted = math.log(min_sep)
        # The last value is at reach 1, the whole population.
        if wanted > self.log_min_seps[-1]:
            return None
        # Min-seps rise up to the first piece that reaches this high.
        right = max(1, bisect.bisect_left(self.log_min_seps, wanted))
        piece = slice(right - 1, right + 1)
        return _interpolated(self.log_min_seps[piece], self.log_reaches[piece], wanted)


@dataclass(frozen=True, slots=True)
class Prediction(Document):
    """One run as predicted by the runs of other locales, and as published."""

    name: str
    """Name of the row."""
    reach: float
    """The reach that fits the other locales best."""
    min_sep: float
    """Predicted gap."""
    low: float
    """Lower end of the interval of the min-sep, an estimate that assumes the same log-normal
    scatter in all locales, and in all seeds."""
    high: float
    """Upper end of that interval."""
    days: float
    """Predicted length of the run, in days."""
    max_participations: int
    """Predicted k, an estimate: number of timers that began in these days."""
    transferred: float | None
    """Min-sep at the reach that the locale's other row needs; None without another row."""
    renewal: float
    """Min-sep by the renewal formula, fitted on other locales."""
    published_min_sep: int
    """The published gap."""
    published_max_participations: int
    """The published k."""
    published_days: tuple[float, float]
    """Smallest and largest number of days of the published run, as implied by its k."""


@dataclass(frozen=True, slots=True)
class Score:
    """Errors of a method over the published runs."""

    method: str
    """Name of the method."""
    runs: int
    """Number of runs that it predicts."""
    error: float
    """Mean absolute error of log min-sep; 0.1 is about ten per cent."""
    median_error: float
    """Median absolute error of log min-sep."""
    participations_right: int | None
    """Number of runs whose predicted k is the published one; None for methods without one."""


@dataclass(frozen=True, slots=True)
class PredictionStudy(Document):
    """Predictions of runs, and the scores of methods on all published runs."""

    predictions: tuple[Prediction, ...]
    """Predictions of the requested runs."""
    scores: tuple[Score, ...]
    """A line per method, over all published runs."""
    renewal: tuple[float, float]
    """(e, w hours) of the renewal formula, fitted on all published runs."""
    scale: float
    """Size of the simulations, as a share of population and report goal."""
    seeds: int
    """Number of runs of each case."""


def run(
    rows: Rows = None,
    scale: Annotated[float, "Size of the simulations."] = SCALE,
    seeds: Annotated[int, "Runs of each case; their spread is part of the intervals."] = 2,
    overrides: Sequence[str] = (),
    placement: "fedray.Placement | None" = None,
    on_progress: Progress = lambda _: None,
) -> Iterator[Reproduced]:
    """Predicts runs from the published runs of other locales, and scores the predictions.

    Args:
        rows: runs to show, as `gboard_rows.select` takes them; all published runs are simulated
            in any case, since parameters are fitted on them.
        scale: share of population and report goal that is simulated.
        seeds: runs of each case.
        overrides: keys set in every scenario.
        placement: place of the simulations, a task each.
        on_progress: listener.

    Raises:
        InputError: if a row is unknown, or seeds are not 1 to 100.
    """
    if not 1 <= seeds <= 100:
        raise InputError.of("seeds", seeds, "must be from 1 to 100", "the number of runs per case")
    wanted = select(rows)
    published = published_runs()
    curves = _simulated_curves(published, overrides, scale, seeds, placement, on_progress)
    by_row = {each: predict(each, published, curves) for each in published}
    study = PredictionStudy(
        predictions=tuple(by_row[each] for each in wanted),
        scores=scores_of([*by_row.values()]),
        renewal=fit_renewal(published),
        scale=scale,
        seeds=seeds,
    )
    yield reproduced(study)


Curves = dict[PublishedRun, Curve]


def predict(run: PublishedRun, published: Sequence[PublishedRun], curves: Curves) -> Prediction:
    """Predicts a run from the published runs of all other locales.

    Args:
        run: a run of any locale.
        published: runs to fit parameters on; runs of the same locale are left out.
        curves: curves of all runs.
    """
    # Another row of the same locale would give away its reach.
    others = [other for other in published if other.locale != run.locale]
    log_reach = _best_reach(others, curves)
    own = curves[run]
    residuals = [math.log(other.min_sep) - curves[other].min_sep(log_reach) for other in others]
    # One parameter was fitted; the prediction for a new locale scatters as the others do.
    freedom = len(residuals) - 1
    between = sum(each**2 for each in residuals) / freedom
    deviation = math.sqrt(between * (1 + 1 / len(residuals)) + own.seed_variance)
    half_width = float(special.stdtrit(freedom, (1 + CONFIDENCE) / 2)) * deviation
    center = own.min_sep(log_reach)
    e, wait_hours = fit_renewal(others)
    days = math.exp(own.days(log_reach))
    siblings = [each for each in published if each.locale == run.locale and each.name != run.name]
    return Prediction(
        name=run.name,
        reach=math.exp(log_reach),
        min_sep=math.exp(center),
        low=math.exp(center - half_width),
        high=math.exp(center + half_width),
        days=days,
        max_participations=_timers_begun(days, run),
        transferred=_transferred(run, siblings, curves),
        renewal=_renewal(run, e, wait_hours),
        published_min_sep=run.min_sep,
        published_max_participations=run.max_participations,
        published_days=run.days,
    )


def scores_of(predictions: Sequence[Prediction]) -> tuple[Score, ...]:
    """Scores all methods on the predictions of the same published runs."""
    right = sum(
        each.max_participations == each.published_max_participations for each in predictions
    )
    return (
        _score("renewal formula, fitted on other locales", predictions, "renewal"),
        _score("one reach, fitted on other locales", predictions, "min_sep", right),
        _score("reach of the locale's other task", predictions, "transferred"),
    )


def fit_renewal(runs: Sequence[PublishedRun]) -> tuple[float, float]:
    """Fits the renewal formula: a share e of the devices takes part whenever its timer T is over
    and it has waited w hours more, so that min-sep = e N / goal T / (T + w).

    Args:
        runs: runs to fit, at least one.

    Returns:
        (e, w), with the least absolute errors of log min-sep; w from 0 to 30 days.
    """
    best = (math.inf, 0.0, 0.0)
    # For each wait the best share has a closed form, so that only waits are searched.
    for wait_hours in range(0, 721, 4):
        errors = [math.log(run.min_sep / _renewal(run, 1.0, wait_hours)) for run in runs]
        # The median is the constant with the least absolute errors.
        log_share = statistics.median(errors)
        error = sum(abs(each - log_share) for each in errors)
        best = min(best, (error, math.exp(log_share), float(wait_hours)))
    return best[1], best[2]


def _renewal(run: PublishedRun, share: float, wait_hours: float) -> float:
    timers_share = run.timer_hours / (run.timer_hours + wait_hours)
    return share * run.population / run.report_goal * timers_share


def _best_reach(runs: Sequence[PublishedRun], curves: Curves) -> float:
    """Returns the log reach with the least absolute errors of log min-sep, and of log days outside
    the range that k implies."""

    def loss(log_reach: float) -> float:
        total = 0.0
        for run in runs:
            total += abs(math.log(run.min_sep) - curves[run].min_sep(log_reach))
            total += _days_off(run, curves[run], log_reach)
        return total

    return min(LOG_REACHES, key=loss)


def _days_off(run: PublishedRun, curve: Curve, log_reach: float) -> float:
    """Returns the distance of log days from the range that the published k implies."""
    least, most = (math.log(each) for each in run.days)
    days = curve.days(log_reach)
    return max(0.0, least - days, days - most)


def _score(
    method: str,
    predictions: Sequence[Prediction],
    field: str,
    participations_right: int | None = None,
) -> Score:
    errors = []
    for each in predictions:
        value = getattr(each, field)
        # A locale with one row has no other row whose reach could be used.
        if value is not None:
            errors.append(abs(math.log(value / each.published_min_sep)))
    return Score(
        method=method,
        runs=len(errors),
        error=statistics.fmean(errors),
        median_error=statistics.median(errors),
        participations_right=participations_right,
    )


def _transferred(
    run: PublishedRun, siblings: Sequence[PublishedRun], curves: Curves
) -> float | None:
    if not siblings:
        return None
    needed = [curves[each].needed_log_reach(each.min_sep) for each in siblings]
    # If the whole population was too small, it is the nearest choice.
    log_reach = statistics.fmean(each or 0.0 for each in needed)
    return math.exp(curves[run].min_sep(log_reach))


def _timers_begun(days: float, run: PublishedRun) -> int:
    # A device takes part at the start, and once more after every timer.
    return math.floor(days * 24.0 / run.timer_hours) + 1


def _simulated_curves(
    runs: Sequence[PublishedRun],
    overrides: Sequence[str],
    scale: float,
    seeds: int,
    placement: "fedray.Placement | None",
    on_progress: Progress,
) -> Curves:
    cases = list(itertools.product(runs, REACHES, range(1, seeds + 1)))
    scenarios = []
    for run, reach, seed in cases:
        # Set last, so that no override changes the comparison.
        keys = (*overrides, PACE, f"population.reach={reach}", f"seed={seed}")
        scenarios.append(run.scenario(keys).scaled(scale))
    by_case = dict(zip(cases, outcomes_of(scenarios, placement, on_progress), strict=True))
    return {
        run: curve_through(
            [[by_case[run, reach, seed] for seed in range(1, seeds + 1)] for reach in REACHES]
        )
        for run in runs
    }


def curve_through(outcomes: Sequence[Sequence[Outcome]]) -> Curve:
    """Returns the curve through simulated runs, given a list with a run per seed for each of
    `REACHES`."""
    min_seps = [[math.log(each.min_sep) for each in runs] for runs in outcomes]
    days = [[math.log(each.days) for each in runs] for runs in outcomes]
    variances = [statistics.variance(each) for each in min_seps if len(each) > 1]
    return Curve(
        log_reaches=tuple(math.log(reach) for reach in REACHES),
        log_min_seps=tuple(statistics.fmean(each) for each in min_seps),
        log_days=tuple(statistics.fmean(each) for each in days),
        seed_variance=statistics.fmean(variances) if variances else 0.0,
    )


def _interpolated(places: Sequence[float], values: Sequence[float], at: float) -> float:
    """Returns the value of a piecewise linear function, continued beyond its ends."""
    # The piece that contains `at`, or the first or last one if it lies beyond the ends.
    right = min(max(bisect.bisect_left(places, at), 1), len(places) - 1)
    left = right - 1
    slope = (values[right] - values[left]) / (places[right] - places[left])
    return values[left] + slope * (at - places[left])


def reproduced(study: PredictionStudy) -> Reproduced:
    """Returns the tables, the figure and the verdict of a study."""
    runs = study.predictions
    inside = sum(each.low <= each.published_min_sep <= each.high for each in runs)
    right = sum(each.max_participations == each.published_max_participations for each in runs)
    return Reproduced(
        title="Gboard runs, predicted",
        document=study.to_json(),
        shown=_tables(study),
        notes=_notes(study),
        verdict=f"Of {len(runs)} runs, {inside} have the published min-sep in the "
        f"{CONFIDENCE:.0%} interval, and {right} the published max participations.",
    )


def _tables(study: PredictionStudy) -> list[Table]:
    predicted = "Min-sep, predicted by the runs of other locales; k and days / published"
    return [
        Table.of(predicted, study.predictions, _PREDICTED),
        Table.of("Errors of log min-sep over the published runs", study.scores, _SCORES),
    ]


def _notes(study: PredictionStudy) -> list[str]:
    share, wait_hours = study.renewal
    return [
        "Leave one locale out: the reach of a prediction is the one that fits the published runs "
        "of all other locales best, by absolute errors of log min-sep and of log days outside "
        "those that k implies. There is at most one round per 7 minutes. Intervals are estimates: "
        "they hold if locales scatter log-normally, and so do seeds. k is the number of timers "
        "that began in the predicted days.",
        "Other task: min-sep by the reach that the locale's other row needs.",
        f"Renewal formula: min-sep = e N / goal T / (T + w), with timer T; over all published runs "
        f"e = {share:.3f} and w = {wait_hours:.0f} h.",
        f"Simulated at {study.scale:g} of population and report goal, {study.seeds} seeds of each "
        "case.",
    ]


def _days(run: Prediction) -> str:
    low, high = run.published_days
    return f"{run.days:.1f} / {low:.0f} to {high:.0f}"


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


_PREDICTED: Mapping[str, Callable[[Prediction], str]] = {
    "run": lambda run: run.name,
    "predicted": lambda run: _whole(run.min_sep),
    "90 %": lambda run: f"{run.low:.0f} to {run.high:.0f}",
    "published": lambda run: f"{run.published_min_sep}",
    "k": lambda run: f"{run.max_participations} / {run.published_max_participations}",
    "days": _days,
    "reach": lambda run: f"{run.reach:.2f}",
    "renewal": lambda run: _whole(run.renewal),
    "other task": lambda run: _whole(run.transferred),
}
_SCORES: Mapping[str, Callable[[Score], str]] = {
    "method": lambda score: score.method,
    "runs": lambda score: f"{score.runs}",
    "mean error": lambda score: f"{score.error:.3f}",
    "median": lambda score: f"{score.median_error:.3f}",
    "k right": lambda score: _whole(score.participations_right),
}

REPRODUCTION = Reproduction(
    "Runs of Xu et al. 2023, each predicted from the runs of other locales (78 small runs).", run
)
