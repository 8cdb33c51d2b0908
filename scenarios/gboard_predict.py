"""Published runs of both papers and what models say of them: min-seps fitted, and predicted without
the row, without its locale, and without its paper.

`gboard_surfaces` simulates every configuration on a coarse grid of population, pace and timer; all
fits are arithmetic on these surfaces (`gboard_fits`). Repeats of a configuration count as one.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

import fedray
from .gboard_fits import (
    LEVEL,
    MODELS,
    REPEAT_SD,
    TASK_SD,
    Coverage,
    Interval,
    Likelihoods,
    Point,
    locale_likelihood,
    log_likelihood,
    predicted,
    profiles,
    recovery,
)
from .gboard_rows import PublishedRun, Rows, later_runs, published_runs, select
from .gboard_surfaces import SHARES, Surface, simulated_surfaces
from .reproduction import Document, Progress, Reproduced, Reproduction, Table
from .small_runs import SCALE

NOTHING = "nothing"
LEFT_OUT: Mapping[str, Callable[[PublishedRun], object]] = {
    NOTHING: lambda run: None,
    "row": lambda run: run.configuration,
    "locale": lambda run: run.locale,
    "paper": lambda run: run.earlier is None,
}
"""Rows that a fit leaves out before it predicts a row: those that share this with it."""
TODAY, RENEWAL = "shipped today", "renewal formula"


@dataclass(frozen=True, slots=True)
class Said(Document):
    """Min-seps of a run by a model."""

    model: str
    """Name of the model."""
    min_seps: dict[str, float]
    """Min-sep by what was left out in the fit: `nothing`; this `row` and its repeats; the rows of
    its `locale`; its `paper`. Only the first for the shipped scenarios."""
    max_participations: int | None
    """k fitted without this run, an estimate: number of timers that began in its days. None for the
    renewal formula."""


@dataclass(frozen=True, slots=True)
class RowStudy(Document):
    """A published run, and what each model says of it."""

    name: str
    """Name of the row."""
    published_min_sep: int
    """The published gap; the number of rounds if it is censored."""
    is_censored: bool
    """Whether no device came back, so that the min-sep is at least the number of rounds."""
    published_max_participations: int
    """The published k."""
    said: tuple[Said, ...]
    """The models, in the order of the scores."""

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
    """Errors by what was left out; the keys are those of `Said.min_seps`."""
    participations_right: int | None
    """Number of configurations whose k, predicted without the run, is the published one."""


@dataclass(frozen=True, slots=True)
class LocaleProfile(Document):
    """Interval of a parameter of a locale, with the other parameters free."""

    locale: str
    """The locale."""
    parameter: str
    """reach, pace (minutes) or timer (factor of the later paper's timer on the earlier one's)."""
    interval: Interval
    """Profile-likelihood interval."""


@dataclass(frozen=True, slots=True)
class GoalRatio(Document):
    """Ratio of a locale's min-seps at two report goals in the later paper."""

    locale: str
    """The locale."""
    goals: tuple[int, int]
    """The report goals."""
    published: float
    """Published ratio; a lower bound if the first run is censored."""
    by_model: dict[str, float]
    """Ratio by model, fitted on all runs."""


@dataclass(frozen=True, slots=True)
class PredictionStudy(Document):
    """Published runs of both papers, and what models say of them."""

    rows: tuple[RowStudy, ...]
    """The requested runs."""
    scores: tuple[Score, ...]
    """A line per model, over the configurations of all runs."""
    profiles: tuple[LocaleProfile, ...]
    """Parameters of each locale, if reach, pace and later timer are all free."""
    ratios: tuple[GoalRatio, ...]
    """Ratios of min-seps between goals."""
    recovery: tuple[Coverage, ...]
    """Intervals of synthetic runs, by parameter."""
    scale: float
    """Size of the simulations, as a share of population and report goal."""


def run(
    rows: Rows = None,
    scale: Annotated[float, "Size of the simulations."] = SCALE,
    sets: Annotated[int, "Synthetic sets of runs, for the coverage of the intervals."] = 20,
    overrides: Sequence[str] = (),
    placement: "fedray.Placement | None" = None,
    on_progress: Progress = lambda _: None,
) -> Iterator[Reproduced]:
    """Predicts published runs from others, and scores the predictions.

    Args:
        rows: runs to show, as `gboard_rows.select` takes them; all published runs are simulated
            in any case, since parameters are fitted on them.
        scale: share of population and report goal that is simulated.
        sets: synthetic sets of runs.
        overrides: keys set in every scenario.
        placement: place of the simulations, a task each.
        on_progress: listener.

    Raises:
        InputError: if a row is unknown, or `sets` is not 1 to 1000.
    """
    if not 1 <= sets <= 1000:
        rule = "must be from 1 to 1000"
        raise fedray.InputError.of("sets", sets, rule, "200 give coverages to 2 per cent")
    published = [*published_runs(), *later_runs()]
    wanted = select(rows, published)
    surfaces = simulated_surfaces(published, overrides, scale, placement, on_progress)
    study = study_of(published, surfaces, sets)
    names = {each.name for each in wanted}
    shown = tuple(each for each in study.rows if each.name in names)
    yield _reproduced(replace(study, rows=shown, scale=scale))


def study_of(
    published: Sequence[PublishedRun], surfaces: Mapping[str, Surface], sets: int
) -> PredictionStudy:
    """Fits all models to published runs on their surfaces, and leaves runs out in turn."""
    repeats: dict[str, list[PublishedRun]] = {}
    for each in published:
        repeats.setdefault(each.configuration, []).append(each)
    runs = {name: found[0] for name, found in repeats.items()}
    likelihoods = {name: log_likelihood(found, surfaces[name]) for name, found in repeats.items()}
    said = {name: _said(run, runs, surfaces, likelihoods) for name, run in runs.items()}
    rows = tuple(
        RowStudy(
            each.name,
            each.min_sep,
            each.is_censored,
            each.max_participations,
            said[each.configuration],
        )
        for each in published
    )
    # Of the repeats of a configuration the first is scored.
    scored = [row for row, each in zip(rows, published, strict=True) if each in runs.values()]
    locales = list(dict.fromkeys(each.locale for each in published))
    return PredictionStudy(
        rows=rows,
        scores=tuple(_score(place, scored) for place in range(len(scored[0].said))),
        profiles=tuple(
            LocaleProfile(locale, parameter, interval)
            for locale in locales
            for parameter, interval in profiles(
                *locale_likelihood(locale, runs, likelihoods)
            ).items()
        ),
        ratios=tuple(_ratios(runs, said)),
        recovery=recovery(runs, surfaces, sets),
        scale=1.0,
    )


def _said(
    run: PublishedRun,
    runs: Mapping[str, PublishedRun],
    surfaces: Mapping[str, Surface],
    likelihoods: Likelihoods,
) -> tuple[Said, ...]:
    surface = surfaces[run.configuration]

    def min_sep(point: Point) -> float:
        return math.exp(point.of(run, surface.log_min_seps))

    def timers_begun(point: Point) -> int:
        # A device takes part at the start, and once more after every timer.
        timer_hours = run.timer_hours * point.timer_factor(run)
        return math.floor(math.exp(point.of(run, surface.log_days)) * 24.0 / timer_hours) + 1

    shipped = run.scenario().population.reach
    today = Point(int(np.argmin(np.abs(np.log(SHARES / shipped)))), 0)
    rest = {
        kind: [
            name for name, other in runs.items() if kind == NOTHING or shared(other) != shared(run)
        ]
        for kind, shared in LEFT_OUT.items()
    }
    by_formula = {
        kind: renewal(run, *fit_renewal([runs[name] for name in names]))
        for kind, names in rest.items()
    }
    result = [
        Said(TODAY, {NOTHING: min_sep(today)}, timers_begun(today)),
        Said(RENEWAL, by_formula, None),
    ]
    for model in MODELS:
        points = {
            kind: predicted(model, run, runs, {name: likelihoods[name] for name in names})
            for kind, names in rest.items()
        }
        gaps = {kind: min_sep(point) for kind, point in points.items()}
        result.append(Said(model.name, gaps, timers_begun(points["row"])))
    return tuple(result)


def fit_renewal(runs: Sequence[PublishedRun]) -> tuple[float, float]:
    """Fits the renewal formula: a share e of the devices takes part whenever its timer T is over
    and it has waited w hours more, so that min-sep = e N / goal T / (T + w).

    Args:
        runs: runs to fit, at least one; those that are censored are left out.

    Returns:
        (e, w), with the least absolute errors of log min-sep; w from 0 to 30 days.
    """
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
    """Returns the min-sep of a run by the renewal formula."""
    timers_share = run.timer_hours / (run.timer_hours + wait_hours)
    return share * run.population / run.report_goal * timers_share


def _score(place: int, rows: Sequence[RowStudy]) -> Score:
    said = [row.said[place] for row in rows]
    errors = {
        kind: statistics.fmean(
            row.error(each.min_seps[kind]) for row, each in zip(rows, said, strict=True)
        )
        for kind in said[0].min_seps
    }
    ks = [each.max_participations for each in said]
    right = sum(k == row.published_max_participations for k, row in zip(ks, rows, strict=True))
    return Score(said[0].model, errors, None if ks[0] is None else right)


def _ratios(
    runs: Mapping[str, PublishedRun], said: Mapping[str, tuple[Said, ...]]
) -> Iterator[GoalRatio]:
    later = [run for run in runs.values() if run.earlier]
    for one in later:
        for two in later:
            if one.locale == two.locale and one.report_goal < two.report_goal:
                pairs = zip(said[one.configuration], said[two.configuration], strict=True)
                yield GoalRatio(
                    one.locale,
                    (one.report_goal, two.report_goal),
                    one.min_sep / two.min_sep,
                    {
                        low.model: low.min_seps[NOTHING] / high.min_seps[NOTHING]
                        for low, high in pairs
                    },
                )


def _reproduced(study: PredictionStudy) -> Reproduced:
    """Returns the tables and the verdict of a study."""
    best = min(study.scores, key=lambda each: each.errors.get("row", math.inf))
    said = [next(each for each in row.said if each.model == best.model) for row in study.rows]
    near = sum(
        row.error(each.min_seps["row"]) <= math.log1p(TASK_SD)
        for row, each in zip(study.rows, said, strict=True)
    )
    return Reproduced(
        title="Gboard runs, predicted",
        document=study.to_json(),
        shown=_tables(study, best.model),
        notes=(*_NOTES, f"Simulated at {study.scale:g} of population and report goal."),
        verdict="On rows left out, the least mean error of log min-sep is "
        f'{best.errors["row"]:.3f}, by "{best.model}": of {len(said)} runs, {near} are within '
        f"{TASK_SD:.0%}.",
    )


_NOTES = (
    "Rows of McMahan, Xu, Zhang 2024 have the population and timer of the locale's first row in Xu "
    "et al. 2023, unless a model gives the later runs a timer or population of their own. Where no "
    "device came back, the min-sep is at least (>=) the number of rounds.",
    f"Errors are those of log min-sep, with a scatter of {TASK_SD:.0%} between tasks and "
    f"{REPEAT_SD:.1%} between repeats; repeats of a configuration are fitted, left out and scored "
    "as one. k is the number of timers that began in the predicted days. Where all runs of a "
    "locale are left out, its parameters are those that fit the other locales.",
    f"Intervals are profile likelihoods at {LEVEL:.0%}. An open end is one that no row refutes. "
    "Synthetic runs have known parameters and the assumed scatter.",
)


def _tables(study: PredictionStudy, best: str) -> list[Table]:
    names = [each.model for each in study.rows[0].said]
    place = names.index(best)

    def value(row: RowStudy, model: int, left_out: str) -> str:
        return f"{row.said[model].min_seps[left_out]:.0f}"

    rows: dict[str, Callable[[RowStudy], str]] = {
        "run": lambda row: row.name,
        "printed": lambda row: f"{'>= ' * row.is_censored}{row.published_min_sep}",
        "today": lambda row: value(row, 0, NOTHING),
        "fitted": lambda row: value(row, place, NOTHING),
        "without row": lambda row: value(row, place, "row"),
        "without locale": lambda row: value(row, place, "locale"),
        "without paper": lambda row: value(row, place, "paper"),
        "k": lambda row: (
            f"{row.said[place].max_participations} / {row.published_max_participations}"
        ),
    }
    models: dict[str, Callable[[RowStudy], str]] = {
        "run": lambda row: row.name,
        **{
            f"{number}": lambda row, at=number: value(row, at, "row")
            for number in range(1, len(names))
        },
    }
    key = ", ".join(f"{number} {name}" for number, name in enumerate(names) if number)
    scores: dict[str, Callable[[Score], str]] = {
        "model": lambda score: score.model,
        "fitted": lambda score: _error(score, NOTHING),
        "without row": lambda score: _error(score, "row"),
        "without locale": lambda score: _error(score, "locale"),
        "without paper": lambda score: _error(score, "paper"),
        "k right": lambda score: str(score.participations_right or "-"),
    }
    found: dict[str, Callable[[LocaleProfile], str]] = {
        "locale": lambda each: each.locale,
        "parameter": lambda each: each.parameter,
        "best": lambda each: f"{each.interval.best:.3g}",
        f"{LEVEL:.0%}": lambda each: each.interval.text,
    }
    ratios: dict[str, Callable[[GoalRatio], str]] = {
        "locale": lambda each: each.locale,
        "goals": lambda each: f"{each.goals[0]} / {each.goals[1]}",
        "printed": lambda each: f"{each.published:.2f}",
        **{
            f"{number}": lambda each, at=name: f"{each.by_model[at]:.2f}"
            for number, name in enumerate(names)
        },
    }
    recovered: dict[str, Callable[[Coverage], str]] = {
        "parameter": lambda each: each.parameter,
        "intervals": lambda each: f"{each.intervals}",
        "contain the truth": lambda each: f"{each.covered / each.intervals:.1%}",
        "not identifiable": lambda each: f"{each.not_identifiable}",
        "called so": lambda each: f"{each.called_so}",
    }
    return [
        Table.of(f"Min-seps by {best}; k without the row / printed", study.rows, rows),
        Table.of(f"Min-seps without the row, by model: {key}", study.rows, models),
        Table.of(
            "Mean absolute errors of log min-sep over the configurations", study.scores, scores
        ),
        Table.of("Parameters of each locale, the other two free", study.profiles, found),
        Table.of(f"Ratios of min-seps between goals; 0 {TODAY}", study.ratios, ratios),
        Table.of("Intervals of synthetic runs", study.recovery, recovered),
    ]


def _error(score: Score, left_out: str) -> str:
    return f"{score.errors[left_out]:.3f}" if left_out in score.errors else "-"


REPRODUCTION = Reproduction(
    "Runs of Xu et al. 2023 and McMahan, Xu, Zhang 2024, each predicted from others (396 small "
    "runs).",
    run,
)
