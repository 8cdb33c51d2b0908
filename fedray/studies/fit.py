"""Fits an unpublished key, the reach or the check-in rate, to an observed min-sep by simulation."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pyarrow as pa

from fedray.base.document import Document, InJson, Key, NotInJson
from fedray.base.errors import FitFailed, InputError, ScenarioError
from fedray.base.result import Result
from fedray.base.rounding import shown_min_sep
from fedray.report.table import Table
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.scenario.overrides import apply_override, naming_overrides
from fedray.studies.simulated import simulated

RANGES = {"population.reach": (0.01, 1.0), "rounds.max_checkins_per_hour": (0.01, 60.0)}
"""Keys that can be fitted, with their ranges. Both let more devices check in as they grow, so that
min-sep does not fall."""
MOST_RUNS = 16
OBSERVED = ("population.devices", "participation.timer_hours", "rounds.count")
"""Keys that say which run was observed; they have no defaults."""
PUBLISHED_GOAL = 6500
"""Report goal of the published runs (Xu et al. 2023)."""


@dataclass(frozen=True, slots=True)
class FittedRun(Document):
    """One simulated run of the search: the tried value, and the participation of the run."""

    value: float
    """Value of the key."""
    min_sep: NotInJson[int | None]
    """The gap; None if the run starved, which counts as too small, and the number of rounds if no
    device came twice, which counts as too large."""
    max_participations: int | None
    """k; None if the run starved."""

    @property
    def min_sep_text(self) -> str:
        """The min-sep as text, or that the run starved."""
        return "starved" if self.max_participations is None else shown_min_sep(self.gap)

    @property
    def gap(self) -> Annotated[int | None, Key("min_sep")]:
        """The gap; None if no device took part twice, and if the run starved."""
        return self.min_sep if (self.max_participations or 0) > 1 else None


@dataclass(frozen=True, slots=True)
class Fit(Result):
    """The value whose run came nearest, and all runs of the search.

    It may be further off than the tolerance if the search ended before; see `relative_error`.
    """

    TABLES: ClassVar[str] = "fedray.studies.fit:fit_tables"

    key: str
    """The key of the scenario that was fitted."""
    target: int
    """The min-sep (gap) that was observed."""
    best: FittedRun
    """The run whose min-sep came nearest."""
    runs: tuple[FittedRun, ...]
    """All runs, in order of the search."""

    def __repr__(self) -> str:
        return (
            f"<Fit {self.key}={self.best.value:g}: min-sep {self.best.min_sep_text} "
            f"for {self.target:,}, {len(self.runs)} runs>"
        )

    @property
    def relative_error(self) -> InJson[float]:
        """The best run's min-sep over the observed one, minus 1."""
        assert self.best.min_sep is not None
        return self.best.min_sep / self.target - 1.0

    def to_arrow(self) -> pa.Table:
        """The runs in order of the search, a row each."""
        return pa.Table.from_pylist([run.to_json() for run in self.runs])


def fit_tables(fit: Fit) -> list[Table]:
    """The runs of a fit, in order of the search."""
    cells = {
        fit.key: lambda run: f"{run.value:g}",
        "min-sep (gap)": lambda run: run.min_sep_text,
        "max part.": lambda run: str(run.max_participations or "-"),
    }
    return [Table.of("Runs", fit.runs, cells)]


def fit_min_sep(
    scenario: Scenario,
    min_sep: int,
    key: str = "population.reach",
    scale: float = 1.0,
    tolerance: float = 0.01,
    placement: Placement | None = None,
    on_run: Callable[[FittedRun], None] | None = None,
) -> Fit:
    """Finds the value of a key at which the run's min-sep is the observed one.

    Regula falsi in the logarithms (min-sep is nearly proportional to reach while supply is short),
    kept within a bracket.

    Args:
        scenario: everything except the key.
        min_sep: observed gap, least difference of two rounds of one device: one more than a
            published MinS, which counts the rounds in between.
        key: key to fit, one of `RANGES`.
        scale: factor on population and report goal, which leaves min-sep nearly unchanged: 0.1 is
            ten times as fast, and off by a percent or two.
        tolerance: relative error of min-sep at which the search ends.
        placement: where the runs happen; in this process by default.
        on_run: called with every run.

    Raises:
        FitFailed: no value in the range has this min-sep.
        InputError: an argument is impossible.
    """
    if key not in RANGES:
        raise InputError.of("key", key, "cannot be fitted", f"take one of {', '.join(RANGES)}")
    if not 1 <= min_sep < scenario.rounds.count:
        rule = f"must be at least 1 and less than the {scenario.rounds.count} rounds"
        raise InputError.of("min_sep", min_sep, rule, "give the observed gap")
    if not 0 < tolerance < 1:
        rule = "must be between 0 and 1"
        raise InputError.of("tolerance", tolerance, rule, "0.01 is one percent")
    smaller = scenario.scaled(scale)
    runs: list[FittedRun] = []

    def try_value(value: float) -> FittedRun:
        # Min-sep does not depend on the model, so nothing is trained.
        tried = smaller.with_overrides(f"{key}={value!r}", "training.enabled=false")
        truth = simulated(tried, placement)
        # A run that ended early has too few rounds for its min-sep to be compared.
        found = None if truth.note else truth.participation
        limits = (None, None) if found is None else (found.min_sep, found.max_participations)
        run = FittedRun(value, *limits)
        runs.append(run)
        if on_run is not None:
            on_run(run)
        return run

    def is_near(run: FittedRun) -> bool:
        return run.gap is not None and abs(run.gap / min_sep - 1.0) <= tolerance

    # min-sep grows with the key, so its largest value shows whether a solution exists.
    low, high = RANGES[key]
    top = try_value(high)
    if not is_near(top) and (top.min_sep is None or top.min_sep < min_sep):
        found = "the run starves" if top.min_sep is None else f"min-sep is {top.min_sep}"
        raise FitFailed(
            f"min_sep={min_sep} is out of reach: even at {key}={high:g} {found}; check population, "
            "timer and rounds"
        )
    above = top
    # The lower end is not simulated: it counts as too small, as a run that starves does.
    below = FittedRun(low, None, None)
    while not is_near(runs[-1]) and len(runs) < MOST_RUNS and above.value / below.value > 1.002:
        # Every third time the middle, so that the bracket shrinks whatever the curve.
        middle = round(math.sqrt(below.value * above.value), 4)
        run = try_value(middle if len(runs) % 3 == 0 else _between(below, above, min_sep))
        if run.min_sep is not None and run.min_sep >= min_sep:
            above = run
        else:
            below = run
    # A run in which no device came twice has no min-sep that could be near.
    compared = [(abs(run.gap - min_sep), run) for run in runs if run.gap is not None]
    if not compared:
        raise FitFailed(
            f"min_sep={min_sep} is out of reach: at no {key} that was tried did a device take part "
            "twice; check rounds"
        )
    _, best = min(compared, key=lambda each: each[0])
    return Fit(key, min_sep, best, tuple(runs))


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


def _between(below: FittedRun, above: FittedRun, target: int) -> float:
    """The next value to try: on the line through both ends, in logarithms; proportional if the
    lower end has no min-sep."""
    assert above.min_sep is not None
    if below.min_sep is None:
        guess = above.value * target / above.min_sep
    else:
        # Min-sep is about proportional to the key until both ends give a slope.
        slope = 1.0
        if above.min_sep > below.min_sep:
            value_ratio = above.value / below.value
            min_sep_ratio = above.min_sep / below.min_sep
            slope = math.log(value_ratio) / math.log(min_sep_ratio)
        guess = below.value * (target / below.min_sep) ** slope
    # Away from the ends of the bracket, where a run would add almost no information.
    margin = (above.value / below.value) ** 0.02
    return round(min(max(guess, below.value * margin), above.value / margin), 4)
