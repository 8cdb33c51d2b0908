"""Published runs of both papers and predictions by models, fitted on all rows, without the row,
without its locale, and without its paper.

`gboard_fits` simulates every configuration on a coarse grid of population, pace and timer; all fits
are arithmetic on these surfaces. Repeats of a configuration count as one.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from .gboard_fits import (
    MODELS,
    PACES,
    SHARES,
    Evidence,
    LocaleInterval,
    Point,
    evidence_of,
    intervals,
    place_in,
    predicted,
    simulated_surfaces,
)
from .gboard_rows import ROWS, PublishedRun, later_runs, published_runs, select
from .reproduction import (
    Announcement,
    Document,
    Option,
    Reproduced,
    Reproduction,
    Request,
    Subject,
    Table,
)
from .reproduction import reach_and_pace as likelihood

SUBJECT = Subject("Gboard's published runs", estimand="estimates")
NOTHING = "nothing"
LEFT_OUT: Mapping[str, Callable[[PublishedRun], object]] = {
    NOTHING: lambda run: None,
    "row": lambda run: run.configuration,
    "locale": lambda run: run.locale,
    "paper": lambda run: run.earlier is None,
}
"""Rows that a fit leaves out before it predicts a row: the rows with the same value of this."""


@dataclass(frozen=True, slots=True)
class Said(Document):
    """Predictions of a run by a model."""

    model: str
    """Name of the model."""
    min_seps: dict[str, float]
    """Min-sep by the rows that the fit left out: `nothing`; this `row` and its repeats; the rows of
    its `locale`; its `paper`. Only the first for the shipped scenarios."""
    max_participations: int | None
    """k without this row, an estimate: number of timers that began in the predicted days. None for
    the renewal formula."""


@dataclass(frozen=True, slots=True)
class RowStudy(Document):
    """A published run, and the predictions of each model."""

    name: str
    """Name of the row."""
    published_min_sep: int
    """The published gap; the number of rounds if it is censored."""
    is_censored: bool
    """Whether no device came back, so that the min-sep is at least the number of rounds."""
    published_max_participations: int
    """The published k."""
    said: tuple[Said, ...]
    """Predictions, in the order of the scores."""

    def error(self, min_sep: float) -> float:
        """Returns the absolute error of log min-sep; 0 above a censored one."""
        error = math.log(min_sep / self.published_min_sep)
        return max(0.0, -error) if self.is_censored else abs(error)


@dataclass(frozen=True, slots=True)
class Score(Document):
    """Mean absolute errors of log min-sep of a model over the configurations; 0.1 is about ten
    per cent."""

    model: str
    """Name of the model."""
    errors: dict[str, float]
    """Errors by the rows that the fit left out, with the keys of `Said.min_seps`."""
    participations_right: int
    """Number of configurations whose k, predicted without the row, is the published one."""


@dataclass(frozen=True, slots=True)
class PredictionStudy(Document):
    """Published runs of both papers, and predictions by models."""

    rows: tuple[RowStudy, ...]
    """The requested runs."""
    scores: tuple[Score, ...]
    """A line per model, over the configurations of all runs."""
    intervals: tuple[LocaleInterval, ...]
    """Parameters of each locale, if reach, pace and later timer are all free."""
    scale: float
    """Size of the simulations, as a share of population and report goal."""


def run(request: Request, *, rows: str | None, scale: float) -> Iterator[Reproduced]:
    """Predicts published runs from others, and scores the predictions.

    Args:
        request: its placement has a task for each simulation.
        rows: runs to show, as `gboard_rows.select` takes them; all published runs are simulated
            in any case, since parameters are fitted on them.
        scale: share of population and report goal that is simulated.

    Raises:
        InputError: if a row is unknown.
    """
    published = [*published_runs(), *later_runs()]
    names = {each.name for each in select(rows, published)}
    surfaces = simulated_surfaces(published, request, scale)
    request.on_progress(Announcement("fitting the models"))
    study = study_of(published, surfaces, scale)
    shown = tuple(each for each in study.rows if each.name in names)
    yield _reproduced(replace(study, rows=shown))


def study_of(
    published: Sequence[PublishedRun], surfaces: Mapping[str, likelihood.Surface], scale: float
) -> PredictionStudy:
    """Fits all models to published runs on their surfaces, and leaves rows out in turn."""
    repeats: dict[str, list[PublishedRun]] = {}
    for each in published:
        repeats.setdefault(each.configuration, []).append(each)
    evidence = [evidence_of(found, surfaces[name]) for name, found in repeats.items()]
    said = {each.run.configuration: _said(each, evidence) for each in evidence}
    rows = [
        RowStudy(
            *(each.name, each.min_sep, each.is_censored, each.max_participations),
            said[each.configuration],
        )
        for each in published
    ]
    # One of the repeats of a configuration is scored.
    names = [each.configuration for each in published]
    scored = list(dict(zip(names, rows, strict=True)).values())
    found = [
        interval
        for locale in dict.fromkeys(each.locale for each in published)
        for interval in intervals([each for each in evidence if each.run.locale == locale])
    ]
    scores = [_score(place, scored) for place in range(len(scored[0].said))]
    return PredictionStudy(tuple(rows), tuple(scores), tuple(found), scale)


def _said(own: Evidence, evidence: Sequence[Evidence]) -> tuple[Said, ...]:
    run = own.run

    def min_sep(point: Point) -> float:
        return math.exp(point.of(run, own.surface.log_min_seps))

    def timers_begun(point: Point) -> int:
        # A device takes part at the start, and once more after every timer.
        hours = 24.0 * math.exp(point.of(run, own.surface.log_days))
        return math.floor(hours / point.timer_hours(run)) + 1

    rest = {
        kind: [each for each in evidence if kind == NOTHING or shared(each.run) != shared(run)]
        for kind, shared in LEFT_OUT.items()
    }
    scenario = run.scenario()
    pace = scenario.rounds.min_minutes_between or PACES[0]
    today = Point(place_in(SHARES, scenario.population.reach), place_in(PACES, pace))
    by_formula = {
        kind: renewal(run, *fit_renewal([each.run for each in others]))
        for kind, others in rest.items()
    }
    result = [
        Said("shipped today", {NOTHING: min_sep(today)}, timers_begun(today)),
        Said("renewal formula", by_formula, None),
    ]
    for model in MODELS:
        points = {kind: predicted(model, run, others) for kind, others in rest.items()}
        min_seps = {kind: min_sep(point) for kind, point in points.items()}
        result.append(Said(model.name, min_seps, timers_begun(points["row"])))
    return tuple(result)


def fit_renewal(runs: Sequence[PublishedRun]) -> tuple[float, float]:
    """Returns (e, w) with the least absolute errors of log min-sep by the renewal formula, w up to
    30 days; censored runs are not used."""
    known = [run for run in runs if not run.is_censored]
    best = (math.inf, 0.0, 0.0)
    # For each wait the best share has a closed form, so that only waits are searched.
    for wait_hours in range(0, 721, 4):
        errors = [math.log(run.min_sep / renewal(run, 1.0, wait_hours)) for run in known]
        # The median is the constant with the least absolute errors.
        log_share = statistics.median(errors)
        error = sum(abs(each - log_share) for each in errors)
        best = min(best, (error, math.exp(log_share), float(wait_hours)))
    return best[1], best[2]


def renewal(run: PublishedRun, share: float, wait_hours: float) -> float:
    """Returns the min-sep of a run by the renewal formula: a share e of the devices takes part
    whenever its timer T is over and it has waited w hours more: e N / goal T / (T + w)."""
    timers_share = run.timer_hours / (run.timer_hours + wait_hours)
    return share * run.population / run.report_goal * timers_share


def _score(place: int, rows: Sequence[RowStudy]) -> Score:
    said = [row.said[place] for row in rows]
    pairs = list(zip(rows, said, strict=True))
    errors = {
        kind: statistics.fmean(row.error(each.min_seps[kind]) for row, each in pairs)
        for kind in said[0].min_seps
    }
    right = sum(each.max_participations == row.published_max_participations for row, each in pairs)
    return Score(said[0].model, errors, right)


def _reproduced(study: PredictionStudy) -> Reproduced:
    """Returns the tables and the verdict of a study."""
    left_out = [score.errors.get("row", math.inf) for score in study.scores]
    best = left_out.index(min(left_out))
    return Reproduced(
        title="Gboard runs, predicted",
        document=study.to_json(),
        shown=_tables(study, best),
        notes=(*_NOTES, f"Simulated at {study.scale:g} of population and report goal."),
        verdict=f'Without the row, "{study.scores[best].model}" has the least mean error of log '
        f"min-sep, {left_out[best]:.3f}.",
        subject=SUBJECT,
    )


_NOTES = (
    "Rows of McMahan, Xu, Zhang 2024 have the population and timer of the locale's first row in Xu "
    "et al. 2023, unless a model gives the later runs a timer or population of their own. Where no "
    "device came back, the min-sep is at least (>=) the number of rounds.",
    "Without: the row and its repeats, its locale, or its paper was left out of the fit. Where all "
    "rows of a locale are left out, its parameters are those that fit all others best, by absolute "
    "errors of log min-sep and of log days outside those that k implies. k, without the row, is "
    "the number of timers that began in the predicted days.",
    f"Intervals are profile likelihoods at {likelihood.LEVEL:.0%}, with a scatter of "
    f"{likelihood.TASK_SD:.0%} between tasks, {likelihood.REPEAT_SD:.1%} between repeats. No row "
    "refutes the values beyond an open end.",
)


def _tables(study: PredictionStudy, best: int) -> list[Table]:
    def min_sep(at: int, left_out: str) -> Callable[[RowStudy], str]:
        return lambda row: f"{row.said[at].min_seps[left_out]:.0f}"

    def error(left_out: str) -> Callable[[Score], str]:
        return lambda score: f"{score.errors[left_out]:.3f}" if left_out in score.errors else "-"

    shown = dict(zip(("fitted", "without row", "locale", "paper"), LEFT_OUT, strict=True))
    rows: dict[str, Callable[[RowStudy], str]] = {
        "run": lambda row: row.name,
        "printed": lambda row: f"{'>= ' if row.is_censored else ''}{row.published_min_sep}",
        "today": min_sep(0, NOTHING),
        **{heading: min_sep(best, kind) for heading, kind in shown.items()},
        "k": lambda row: (
            f"{row.said[best].max_participations} / {row.published_max_participations}"
        ),
    }
    scores: dict[str, Callable[[Score], str]] = {
        "model": lambda score: score.model,
        **{heading: error(kind) for heading, kind in shown.items()},
        "k right": lambda score: str(score.participations_right or "-"),
    }
    found: dict[str, Callable[[LocaleInterval], str]] = {
        "locale": lambda each: each.locale,
        "parameter": lambda each: each.parameter,
        "best": lambda each: f"{each.best:.3g}",
        f"{likelihood.LEVEL:.0%}": lambda each: each.text,
    }
    return [
        Table.of(
            f"Min-seps by {study.scores[best].model}; k / printed",
            study.rows,
            rows,
            subject=lambda row: replace(SUBJECT, condition=row.name),
        ),
        Table.of(
            "Mean absolute errors of log min-sep",
            study.scores,
            scores,
            subject=lambda score: replace(SUBJECT, condition=score.model),
        ),
        Table.of(
            "Parameters of each locale, the others free",
            study.intervals,
            found,
            subject=lambda each: replace(SUBJECT, condition=each.locale),
        ),
    ]


REPRODUCTION = Reproduction(
    "gboard-predict",
    "Runs of Xu et al. 2023 and McMahan, Xu, Zhang 2024, predicted from others (198 small runs).",
    "Xu et al. 2023, tables 1 and 2; McMahan, Xu, Zhang 2024, table 4",
    "8 min",
    run,
    (ROWS, Option("scale", float, 0.01, "Size of the simulations.")),
    has_overrides=True,
    has_placement=True,
)
