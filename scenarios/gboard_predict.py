"""Gboard's published runs, predicted: every parameter is fitted on the runs of other locales.

Each run is simulated at a fraction of its size under every `Mechanism` and at a few reaches, which
give a `Curve`; every fit is arithmetic on these curves. A prediction for a locale has one reach and
one mechanism, both chosen by the runs of all other locales (leave one locale out).

Beside it stand two formulas and the reach per locale, which is fitted on the locale's own row.
"""

import bisect
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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


@dataclass(frozen=True, slots=True)
class Mechanism:
    """Something that slows runs equally in all locales, as keys to set in their scenarios."""

    name: str
    """Name in tables."""
    overrides: tuple[str, ...]
    """Keys to set, as "table.key=value"."""


_SLOW_DAYS = "availability.slow_days={share=0.25,factor=0.5,days=3}"
MECHANISMS = (
    Mechanism("availability alone", ()),
    Mechanism("a round per 7 min", ("rounds.min_minutes_between=7.0",)),
    Mechanism("slow days", (_SLOW_DAYS,)),
    Mechanism("slow days, 7 min", (_SLOW_DAYS, "rounds.min_minutes_between=7.0")),
)
"""The choices of a prediction. Slow days: a quarter of all three-day spells, at half of the supply.
"""


@dataclass(frozen=True, slots=True)
class Curve:
    """A run under one mechanism: min-sep and days by the reach, means over seeds.

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
    mechanism: str
    """The mechanism that fits the other locales best."""
    reach: float
    """The reach that fits the other locales best."""
    min_sep: float
    """Predicted gap."""
    alone: float
    """The gap predicted with one reach, chosen by other locales, under the plain availability
    model."""
    low: float
    """Lower end of the interval of the min-sep, an estimate that assumes the same log-normal
    scatter in all locales, and in all seeds."""
    high: float
    """Upper end of that interval."""
    days: float
    """Predicted length of the run, in days."""
    max_participations: int
    """Predicted k, an estimate: number of timers that began in these days."""
    own_reach: float | None
    """Reach that this row would need under its mechanism; None if the whole population is too
    small."""
    transferred: float | None
    """Min-sep at the reach that the locale's other row needs; None without another row."""
    upper_bound: float
    """population / report goal: no min-sep is larger."""
    renewal: float
    """Min-sep by the renewal formula, fitted on other locales."""
    fitted: float | None
    """Min-sep at the reach of the row's scenario, under the plain availability model; None for a
    user's row."""
    is_fitted: bool
    """Whether that reach was fitted on this very row."""
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
    fitted_on: str
    """Data that its parameters were fitted on."""
    runs: int
    """Number of runs that it predicts."""
    error: float
    """Mean absolute error of log min-sep; 0.1 is about ten per cent."""
    median_error: float
    """Median absolute error of log min-sep."""
    participations_right: int | None
    """Number of runs whose predicted k is the published one; None for methods without one."""


@dataclass(frozen=True, slots=True)
class PaceScore:
    """How well a mechanism agrees with k at a given min-sep: each run has the reach that gives its
    own min-sep, so that only the mechanism can move its relative pace."""

    mechanism: str
    """Name of the mechanism."""
    inside: int
    """Number of runs whose relative pace is in the range that the published k implies."""
    distance: float
    """Mean distance of the logarithm of the relative pace from that range."""
    beyond_all: int
    """Number of runs that would need a reach above 1; they count with the pace of the whole
    population."""


@dataclass(frozen=True, slots=True)
class PredictionStudy(Document):
    """Predictions of runs, and the scores of methods on all published runs."""

    predictions: tuple[Prediction, ...]
    """Predictions of the requested runs."""
    scores: tuple[Score, ...]
    """A line per method; published runs only."""
    pace: tuple[PaceScore, ...]
    """A line per mechanism, then one for the mechanism that other locales choose."""
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
    # A user's runs are predicted, but nothing is fitted on them.
    runs = [*published, *(each for each in wanted if each.is_users)]
    curves = _simulated_curves(runs, overrides, scale, seeds, placement, on_progress)
    predictions = [predict(each, published, curves) for each in runs]
    by_row = dict(zip(runs, predictions, strict=True))
    study = PredictionStudy(
        predictions=tuple(by_row[each] for each in wanted),
        # Published runs come first, and only they have scores.
        scores=scores_of(predictions[: len(published)]),
        pace=pace_scores(published, curves),
        renewal=fit_renewal(published),
        scale=scale,
        seeds=seeds,
    )
    yield reproduced(study)


Curves = dict[tuple[PublishedRun, Mechanism], Curve]


def predict(run: PublishedRun, published: Sequence[PublishedRun], curves: Curves) -> Prediction:
    """Predicts a run from the published runs of all other locales.

    Args:
        run: a run of any locale.
        published: runs to fit parameters on; runs of the same locale are left out.
        curves: curves of all runs under every mechanism.
    """
    # Another row of the same locale would give away its reach.
    others = [other for other in published if other.locale != run.locale]
    mechanism, log_reach = _best_fit(others, curves, MECHANISMS)
    alone = MECHANISMS[0]
    own = curves[run, mechanism]
    residuals = [
        math.log(other.min_sep) - curves[other, mechanism].min_sep(log_reach) for other in others
    ]
    # One parameter was fitted; the prediction for a new locale scatters as the others do.
    freedom = len(residuals) - 1
    between = sum(each**2 for each in residuals) / freedom
    deviation = math.sqrt(between * (1 + 1 / len(residuals)) + own.seed_variance)
    half_width = float(special.stdtrit(freedom, (1 + CONFIDENCE) / 2)) * deviation
    center = own.min_sep(log_reach)
    needed = own.needed_log_reach(run.min_sep)
    e, wait_hours = fit_renewal(others)
    days = math.exp(own.days(log_reach))
    siblings = [each for each in published if each.locale == run.locale and each.name != run.name]
    fitted = None if run.is_users else math.log(run.scenario().population.reach)
    return Prediction(
        name=run.name,
        mechanism=mechanism.name,
        reach=math.exp(log_reach),
        min_sep=math.exp(center),
        alone=math.exp(curves[run, alone].min_sep(_best_fit(others, curves, (alone,))[1])),
        low=math.exp(center - half_width),
        high=math.exp(center + half_width),
        days=days,
        max_participations=_timers_begun(days, run),
        own_reach=None if needed is None else math.exp(needed),
        transferred=_transferred(run, siblings, mechanism, curves),
        upper_bound=run.population / run.report_goal,
        renewal=_renewal(run, e, wait_hours),
        fitted=None if fitted is None else math.exp(curves[run, alone].min_sep(fitted)),
        is_fitted=run.is_fitted,
        published_min_sep=run.min_sep,
        published_max_participations=run.max_participations,
        published_days=run.days,
    )


def scores_of(predictions: Sequence[Prediction]) -> tuple[Score, ...]:
    """Scores all methods on the predictions of the same published runs."""
    right = sum(
        each.max_participations == each.published_max_participations for each in predictions
    )
    unfitted = [each for each in predictions if not each.is_fitted]
    others = "other locales"
    return (
        _score("population / report goal", "nothing", predictions, "upper_bound"),
        _score("renewal formula", others, predictions, "renewal"),
        _score("one reach, availability alone", others, predictions, "alone"),
        _score("one reach and a mechanism", others, predictions, "min_sep", right),
        _score("reach of the other task", "the locale", predictions, "transferred"),
        _score("reach per locale", "its row or locale", predictions, "fitted"),
        _score("the same, on rows it predicts", "the locale", unfitted, "fitted"),
    )


def pace_scores(published: Sequence[PublishedRun], curves: Curves) -> tuple[PaceScore, ...]:
    """Scores the agreement of mechanisms with the k of runs at a given min-sep.

    Args:
        published: the runs.
        curves: curves of all runs under every mechanism.

    Returns:
        A line per mechanism; then one in which each locale has the mechanism with the least
        distance over the runs of all other locales.
    """
    found = []
    for mechanism in MECHANISMS:
        chosen = dict.fromkeys(published, mechanism)
        found.append(_pace_score(mechanism.name, chosen, curves))
    chosen = {}
    for run in published:
        others = [other for other in published if other.locale != run.locale]
        chosen[run] = min(MECHANISMS, key=partial(_pace_loss, others, curves))
    found.append(_pace_score("chosen by the other locales", chosen, curves))
    return tuple(found)


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


def _best_fit(
    runs: Sequence[PublishedRun], curves: Curves, mechanisms: Sequence[Mechanism]
) -> tuple[Mechanism, float]:
    """Returns the mechanism and the log reach with the least absolute errors of log min-sep, and of
    log days outside the range that k implies."""

    def loss(candidate: tuple[Mechanism, float]) -> float:
        mechanism, log_reach = candidate
        total = 0.0
        for run in runs:
            curve = curves[run, mechanism]
            total += abs(math.log(run.min_sep) - curve.min_sep(log_reach))
            total += _days_off(run, curve, log_reach)
        return total

    # The first of equal losses counts, so the simpler mechanism is taken.
    return min(itertools.product(mechanisms, LOG_REACHES), key=loss)


def _days_off(run: PublishedRun, curve: Curve, log_reach: float) -> float:
    """Returns the distance of log days from the range that the published k implies."""
    least, most = (math.log(each) for each in run.days)
    days = curve.days(log_reach)
    return max(0.0, least - days, days - most)


def _pace_off(run: PublishedRun, curve: Curve) -> float:
    """Returns the distance of the log of the relative pace, at the reach that gives the run's own
    min-sep, from the range that the published k implies (`PublishedRun.relative_pace`)."""
    log_reach = curve.needed_log_reach(run.min_sep)
    # If the whole population is too small, its pace stands for that of a larger one: relative
    # paces hardly depend on how many devices there are.
    if log_reach is None:
        log_reach = 0.0
    days = curve.days(log_reach)
    min_sep = curve.min_sep(log_reach)
    least, most = (math.log(each) for each in run.relative_pace)
    # Relative pace is the rounds in a timer's length over the min-sep, here in logarithms.
    timers = days + math.log(24.0 / run.timer_hours)
    pace = math.log(run.rounds) - timers - min_sep
    # Rounding must not decide about a pace at an end of the range.
    distance = max(0.0, least - pace, pace - most)
    return distance if distance > 1e-9 else 0.0


def _pace_loss(runs: Sequence[PublishedRun], curves: Curves, mechanism: Mechanism) -> float:
    return sum(_pace_off(run, curves[run, mechanism]) for run in runs)


def _pace_score(name: str, chosen: dict[PublishedRun, Mechanism], curves: Curves) -> PaceScore:
    own = {run: curves[run, mechanism] for run, mechanism in chosen.items()}
    off = [_pace_off(run, curve) for run, curve in own.items()]
    needed = [curve.needed_log_reach(run.min_sep) for run, curve in own.items()]
    return PaceScore(
        mechanism=name,
        inside=sum(each == 0.0 for each in off),
        distance=statistics.fmean(off),
        beyond_all=needed.count(None),
    )


def _score(
    method: str,
    fitted_on: str,
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
        fitted_on=fitted_on,
        runs=len(errors),
        error=statistics.fmean(errors),
        median_error=statistics.median(errors),
        participations_right=participations_right,
    )


def _transferred(
    run: PublishedRun, siblings: Sequence[PublishedRun], mechanism: Mechanism, curves: Curves
) -> float | None:
    if not siblings:
        return None
    needed = [curves[each, mechanism].needed_log_reach(each.min_sep) for each in siblings]
    # If the whole population was too small, it is the nearest choice.
    log_reach = statistics.fmean(each or 0.0 for each in needed)
    return math.exp(curves[run, mechanism].min_sep(log_reach))


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
    cases = list(itertools.product(runs, MECHANISMS, REACHES, range(1, seeds + 1)))
    scenarios = []
    for run, mechanism, reach, seed in cases:
        # Set last, so that no override changes the comparison.
        keys = (*overrides, *mechanism.overrides, f"population.reach={reach}", f"seed={seed}")
        scenarios.append(run.scenario(keys).scaled(scale))
    by_case = dict(zip(cases, outcomes_of(scenarios, placement, on_progress), strict=True))
    table = {}
    for run, mechanism in itertools.product(runs, MECHANISMS):
        outcomes = [
            [by_case[run, mechanism, reach, seed] for seed in range(1, seeds + 1)]
            for reach in REACHES
        ]
        table[run, mechanism] = curve_through(outcomes)
    return table


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
    runs = study.predictions
    predicted = "Min-sep, predicted by the runs of other locales alone; k and days / published"
    paces = "Relative pace of the published runs where min-sep is given"
    return [
        Table.of(predicted, runs, _PREDICTED),
        Table.of("Min-sep by every method", runs, _METHODS),
        Table.of("Errors of log min-sep over the published runs", study.scores, _SCORES),
        Table.of(paces, study.pace, _PACES),
    ]


def _notes(study: PredictionStudy) -> list[str]:
    chosen = ", ".join(sorted({each.mechanism for each in study.predictions}))
    share, wait_hours = study.renewal
    return [
        "Leave one locale out: reach and mechanism of a prediction are those that fit the "
        "published runs of all other locales best, by absolute errors of log min-sep and of log "
        f"days outside those that k implies. Chosen: {chosen}. Intervals are estimates: they hold "
        "if locales scatter log-normally, and so do seeds. k is the number of timers that began "
        "in the predicted days.",
        "Needed: the reach that the row would need; >1 where the whole population is too small. "
        "Other task: by the reach that the locale's other row needs. Own reach: the scenario's, "
        "one per locale, under the availability model alone; on fitted rows its error says "
        "nothing, since it was chosen to be zero.",
        f"Renewal formula: min-sep = e N / goal T / (T + w), with timer T; over all published runs "
        f"e = {share:.3f} and w = {wait_hours:.0f} h.",
        "Relative pace where min-sep is given: every run has the reach that its own min-sep needs, "
        "so that only the mechanism moves the pace. Inside: it is among those that k implies. "
        "Distance: mean distance of its logarithm from there.",
        f"Simulated at {study.scale:g} of population and report goal, {study.seeds} seeds of each "
        "case.",
    ]


def _days(run: Prediction) -> str:
    low, high = run.published_days
    return f"{run.days:.1f} / {low:.0f} to {high:.0f}"


def _own_is(run: Prediction) -> str:
    if run.fitted is None:
        return "-"
    return "fitted" if run.is_fitted else "predicted"


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
    "needed": lambda run: ">1" if run.own_reach is None else f"{run.own_reach:.2f}",
}
_METHODS: Mapping[str, Callable[[Prediction], str]] = {
    "run": lambda run: run.name,
    "published": lambda run: f"{run.published_min_sep}",
    "N / goal": lambda run: _whole(run.upper_bound),
    "renewal": lambda run: _whole(run.renewal),
    "one reach": lambda run: _whole(run.min_sep),
    "other task": lambda run: _whole(run.transferred),
    "own reach": lambda run: _whole(run.fitted),
    "which is": _own_is,
}
_SCORES: Mapping[str, Callable[[Score], str]] = {
    "method": lambda score: score.method,
    "fitted on": lambda score: score.fitted_on,
    "runs": lambda score: f"{score.runs}",
    "mean error": lambda score: f"{score.error:.3f}",
    "median": lambda score: f"{score.median_error:.3f}",
    "k right": lambda score: _whole(score.participations_right),
}
_PACES: Mapping[str, Callable[[PaceScore], str]] = {
    "mechanism": lambda pace: pace.mechanism,
    "pace inside": lambda pace: f"{pace.inside}",
    "distance": lambda pace: f"{pace.distance:.3f}",
    "reach above 1": lambda pace: f"{pace.beyond_all}",
}


REPRODUCTION = Reproduction(
    "Runs of Xu et al. 2023, each predicted from the runs of other locales (260 small runs).", run
)
