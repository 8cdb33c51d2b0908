"""Fits reach and pace of a population to the min-seps of observed runs, and says which of them the
runs identify."""

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import pyarrow as pa
from pydantic import Field, ValidationError, model_validator

from fedray.base.arrays import Float64Array
from fedray.base.document import Document, InPlace, NotInJson
from fedray.base.errors import InputError, ScenarioError
from fedray.base.mistakes import Explained, refused
from fedray.base.parsing import decode_text
from fedray.base.regular_file import read_input
from fedray.base.result import Result
from fedray.base.rounding import counted
from fedray.report.subject import Subject, condition_of
from fedray.report.subjects import scenario_subject
from fedray.report.table import Table
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.scenario.overrides import apply_override, naming_overrides
from fedray.studies.reach_and_pace import (
    LEVEL,
    TASK_SD,
    Grid,
    Interval,
    Surface,
    interval_of,
    simulated_surfaces,
)
from fedray.studies.simulated import StudyCache

VARIED = ("reach", "pace", "both")
"""Parameters to fit."""
STEP = 0.02
"""Step of the grid of reach and pace, in logarithms."""
MISFIT = 3.0
"""Number of standard deviations beyond which reach and pace do not explain a run."""
OBSERVED = ("population.devices", "participation.timer_hours", "rounds.count")
"""Keys that say which run was observed; they have no defaults."""
PUBLISHED_GOAL = 6500
"""Report goal of the published runs (Xu et al. 2023)."""
Count = Annotated[int, Field(ge=1)]


class ObservedRun(Explained):
    """A run whose min-sep was observed. In a CSV file the fields are the columns."""

    rounds: Count
    """Number of committed rounds."""
    goal: Count
    """Report goal."""
    timer_hours: Annotated[float, Field(gt=0)]
    """Participation timer, in hours."""
    min_sep: Count | None = None
    """Least difference of two rounds of a device; None if no device took part twice."""
    max_participations: Count | None = None
    """k, the most rounds of a device; None if unknown."""
    days: Annotated[float, Field(gt=0)] | None = None
    """Days from the start to the last round; None for a range that k and the timer imply."""

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        k, b = self.max_participations, self.min_sep
        if k == 1:
            if b is not None:
                raise ValueError(
                    "max_participations=1 means that no device came back; leave min_sep empty"
                )
        elif b is None:
            raise ValueError("min_sep must be given unless max_participations is 1")
        elif b * ((k or 2) - 1) >= self.rounds:
            rule = f"{k or 2} rounds of a device, {b} apart, do not fit into {self.rounds} rounds"
            raise ValueError(f"{rule}; correct min_sep, max_participations or rounds")
        return self

    @property
    def log_min_sep(self) -> float:
        """Log min-sep, or that of the rounds, which it is at least if no device came back."""
        return math.log(self.min_sep or self.rounds)

    @property
    def log_days(self) -> tuple[float, float] | None:
        """Ends of the range of log days; None if nothing is known of them."""
        if self.days is not None:
            return math.log(self.days), math.log(self.days)
        if self.min_sep is None or self.max_participations is None:
            return None
        # Among many devices one comes back as soon as its timer lets it, so fewer than k timers
        # fit, which is an estimate and not a law.
        timer_days, k = self.timer_hours / 24.0, self.max_participations
        return math.log((k - 1) * timer_days), math.log(k * timer_days)


def read_runs(file: Path) -> list[ObservedRun]:
    """Reads observed runs from a CSV file with a heading.

    Raises:
        InputError: the file cannot be read or has no rows, or a row is not valid.
    """
    source = f"runs file {str(file)!r}"
    try:
        lines = csv.DictReader(decode_text(read_input(file)).splitlines(), strict=True)
        rows = [(lines.line_num, row) for row in lines]
    except (OSError, ValueError, csv.Error) as error:
        problem = getattr(error, "strerror", None) or error
        raise InputError(f"{source} cannot be read ({problem}); name a CSV file") from None
    if not rows:
        raise InputError(f"{source} has no rows; give a heading and a row per run")
    found = []
    for line, row in rows:
        # The cells beyond the heading are below None.
        values = {str(key): _value(text) for key, text in row.items() if text}
        try:
            found.append(ObservedRun.model_validate(values))
        except ValidationError as error:
            raise refused(
                InputError, f"{source}, line {line}", error, ObservedRun, values
            ) from None
    return found


def _value(text: Any) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except (TypeError, ValueError):
            continue
    return text


@dataclass(frozen=True, slots=True)
class FittedRun(Document):
    """An observed run, and its figures at the best values."""

    run: InPlace[ObservedRun]
    """The observed run."""
    fitted_min_sep: float
    """Min-sep at the best values; the number of rounds or more if no device takes part twice."""
    fitted_days: float
    """Days at the best values."""
    misfit: float
    """Distance from the best values, in standard deviations of the assumed scatter: of log min-sep
    or of the log of observed days, whichever is larger."""


@dataclass(frozen=True, slots=True)
class Fit(Result):
    """Reach and pace of a population, fitted to observed runs: estimates."""

    TABLES: ClassVar[str] = "fedray.studies.fit:fit_tables"
    SUBJECT: ClassVar[str] = "fedray.studies.fit:fit_subject"

    parameters: tuple[Interval, ...]
    """The fitted parameters, each with an interval in which the others are free."""
    runs: tuple[FittedRun, ...]
    """The runs, in the given order."""
    scale: float
    """Size of the simulations, as a share of population and report goals."""
    warnings: NotInJson[tuple[str, ...]] = ()
    """Problems of the cache."""
    population: NotInJson[str] = ""
    """Population of the runs, with its size; empty if unknown."""

    def __repr__(self) -> str:
        found = "; ".join(f"{each.parameter} {each.text}" for each in self.parameters)
        return f"<Fit of {len(self.runs)} runs: {found}>"

    def to_arrow(self) -> pa.Table:
        """The runs in the given order, a row each."""
        return pa.Table.from_pylist([each.to_json() for each in self.runs])


def fit_subject(fit: Fit) -> Subject:
    """Returns the subject of a fit: the population of the observed runs, as estimates."""
    runs = counted(len(fit.runs), "observed run")
    return Subject(fit.population or "one population", runs=runs, estimand="estimates")


def fit_tables(fit: Fit) -> list[Table]:
    """The runs beside the best values, and the parameters with their intervals."""
    settings: dict[str, Callable[[FittedRun], str]] = {
        "rounds": lambda each: f"{each.run.rounds:,}",
        "goal": lambda each: f"{each.run.goal:,}",
        "timer": lambda each: f"{each.run.timer_hours:g} h",
    }

    def subject(each: FittedRun) -> Subject:
        named = (f"{name}={text(each)}" for name, text in settings.items())
        return Subject(condition=condition_of(named), runs="one run each")

    runs = settings | {
        "k": lambda each: str(each.run.max_participations or "-"),
        "min-sep": lambda each: str(each.run.min_sep or f">= {each.run.rounds}"),
        "fitted": lambda each: f"{each.fitted_min_sep:.0f}",
        "days": lambda each: f"{each.run.days:.1f}" if each.run.days else "-",
        "fitted days": lambda each: f"{each.fitted_days:.1f}",
    }
    parameters = {
        "parameter": lambda each: each.parameter,
        "best": lambda each: f"{each.best:.3g}",
        f"{100 * LEVEL:g} % interval": lambda each: each.text,
        "identified": lambda each: each.identified,
    }
    scatter = (
        f"Profile likelihoods of simulations at {100 * fit.scale:g} % of the size, with an assumed "
        f"scatter of {100 * TASK_SD:g} % between runs. "
        "Where an end is missing, the runs do not refute the values beyond it."
    )
    far = sum(each.misfit > MISFIT for each in fit.runs)
    misfit = f"{far} of {len(fit.runs)} runs are more than {MISFIT:g} standard deviations off: no "
    misfit += "value explains them all, and the intervals do not hold."
    return [
        Table.of("Runs and the best fit", fit.runs, runs, subject=subject),
        Table.of(
            "Parameters: reach (population.reach), pace in minutes (rounds.min_minutes_between)",
            *(fit.parameters, parameters, scatter, misfit if far else ""),
        ),
    ]


def fit_min_sep(
    scenario: Scenario,
    runs: Sequence[ObservedRun],
    vary: str = "both",
    scale: float = 0.1,
    placement: Placement | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Fit:
    """Fits the reach (`population.reach`) and the pace (`rounds.min_minutes_between`) that all runs
    share.

    Six small runs are simulated for each observed one. Log min-sep is normal around the simulated
    one, or at least the log of the rounds if no device came back.

    Args:
        scenario: the population; the runs replace rounds, goal and timer.
        runs: observed runs of the population; at least one.
        vary: one of `VARIED`; the other parameter is that of the scenario.
        scale: share of population and report goals that is simulated: 0.1 is ten times as fast as
            1, and off by a percent or two.
        placement: where the simulations happen, a task each.
        on_progress: called with lines of progress.

    Raises:
        InputError: an argument is impossible, or a simulated run ends early.
    """
    if vary not in VARIED:
        raise InputError.of("vary", vary, f"is not one of {', '.join(VARIED)}")
    if not runs:
        raise InputError.of("runs", "[]", "is empty", "give at least one observed run")
    grid = _grid(scenario, runs, vary)
    keys = [
        (
            f"rounds.count={run.rounds}",
            f"rounds.report_goal={run.goal}",
            f"participation.timer_hours={run.timer_hours!r}",
        )
        for run in runs
    ]
    wanted = [(scenario.with_overrides(*each), grid) for each in keys]
    cache = StudyCache()
    place = placement or Placement()
    surfaces = simulated_surfaces(wanted, scale, place, cache, on_progress)
    likelihood = np.zeros((grid.shares.size, grid.paces.size))
    for run, surface in zip(runs, surfaces, strict=True):
        is_censored = run.min_sep is None
        likelihood += surface.log_likelihood(run.log_min_sep, is_censored, TASK_SD, run.log_days)[0]
    best = np.unravel_index(int(np.argmax(likelihood)), likelihood.shape)
    parameters = {
        "reach": interval_of("reach", grid.shares, likelihood.max(axis=1)),
        "pace": interval_of("pace", grid.paces, likelihood.max(axis=0)),
    }
    return Fit(
        tuple(each for name, each in parameters.items() if vary in (name, "both")),
        tuple(map(_fitted, runs, surfaces, [best] * len(runs))),
        scale,
        tuple(cache.warnings),
        scenario_subject(scenario).population,
    )


def _grid(scenario: Scenario, runs: Sequence[ObservedRun], vary: str) -> Grid:
    """Returns the reaches from 0.2 to 1, and all paces that matter to a run."""
    shares = np.array([scenario.population.reach]) if vary == "pace" else _steps(0.2, 1.0)
    # Far below the time in which the whole population serves one round, a pace does not matter.
    devices = scenario.population.devices
    fastest = 0.1 * min(60.0 * run.timer_hours * run.goal / devices for run in runs)
    # A pace lets no more rounds into a timer, so that min-seps refute slower ones.
    slowest = 3.0 * max(60.0 * run.timer_hours / (run.min_sep or run.rounds) for run in runs)
    if vary == "reach":
        return Grid(shares, np.array([scenario.rounds.min_minutes_between or fastest]))
    return Grid(shares, _steps(fastest, max(slowest, 10.0 * fastest)))


def _steps(low: float, high: float) -> Float64Array:
    return np.geomspace(low, high, 1 + math.ceil(math.log(high / low) / STEP))


def _fitted(run: ObservedRun, surface: Surface, best: tuple[Any, ...]) -> FittedRun:
    log_min_sep, log_days = float(surface.log_min_seps[0][best]), float(surface.log_days[0][best])
    off = run.log_min_sep - log_min_sep
    misfits = [off if run.min_sep is None else abs(off)]
    if run.days is not None:
        misfits.append(abs(math.log(run.days) - log_days))
    worst = max(0.0, *misfits) / TASK_SD
    return FittedRun(run, math.exp(log_min_sep), math.exp(log_days), worst)


def scenario_to_fit(file: Path | None, overrides: Sequence[str] = ()) -> Scenario:
    """Returns the scenario of a file, or one of defaults, with keys set.

    Args:
        file: a scenario file; None for the defaults, which lack the keys of `OBSERVED`.
        overrides: keys to set, as "table.key=value".

    Raises:
        InputError: without a file, a key of `OBSERVED` is not set; or the file's runs end at a
            privacy budget.
    """
    if file is None:
        return naming_overrides(_of_defaults, "scenario", overrides)
    scenario = Scenario.from_toml(file, overrides)
    # A run of fewer rounds has another min-sep than the one that was observed.
    if scenario.privacy.stop_at is not None:
        raise InputError(
            f"privacy.stop_at of {str(file)!r} may end runs before rounds.count="
            f"{scenario.rounds.count}, all of which are needed here; leave it out"
        )
    return scenario


def _of_defaults(overrides: Sequence[str]) -> Scenario:
    tables: dict[str, Any] = {
        "rounds": {"report_goal": PUBLISHED_GOAL},
        "training": {"enabled": False},
    }
    for each in overrides:
        apply_override(tables, each)
    for key in OBSERVED:
        table, _, name = key.partition(".")
        if name not in tables.get(table, {}):
            raise ScenarioError(
                f"{key} must be set, since no scenario is named; set it, or name a scenario"
            )
    return Scenario.from_tables(tables)
