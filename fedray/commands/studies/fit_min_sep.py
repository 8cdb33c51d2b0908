"""`fedray fit-min-sep`: fit reach and pace of a population to observed min-seps."""

import contextlib
import sys
from pathlib import Path

from fedray.base.errors import InputError, shown
from fedray.commands.frame.output import print_line, print_result
from fedray.commands.frame.placing import placement_of
from fedray.commands.frame.progress import progress_line

COLUMNS = {
    "rounds.count": "rounds",
    "rounds.report_goal": "goal",
    "participation.timer_hours": "timer_hours",
}
"""Keys that a file of runs gives, with its columns."""


def fit_min_sep(
    scenario: Path | None = None,
    *,
    runs: Path | None = None,
    min_sep: int | None = None,
    max_participations: int | None = None,
    vary: str = "both",
    scale: float = 0.1,
    overrides: list[str] | None = None,
    place: list[str] | None = None,
    as_json: bool = False,
) -> None:
    """Fit the reach of a population and the pace of its rounds to observed min-seps, and show
    whether the runs identify them.

    The observed runs are the rows of --runs, or one run of the scenario with --min-sep.
    Publications that count the M rounds between two participations of a device observe the min-sep
    M + 1; it is left empty if no device took part twice. Without SCENARIO, --set must give
    population.devices and, without --runs, participation.timer_hours and rounds.count;
    rounds.report_goal is then 6500, as published.

    Example: fedray fit-min-sep --min-sep 207 --max-participations 5 --vary reach
    --set population.devices=3240000 --set participation.timer_hours=48 --set rounds.count=1170

    Args:
        runs (FILE): CSV of runs: rounds, goal, timer_hours, min_sep, max_participations, days
        min_sep (B): observed min-sep: least difference of two rounds of a device
        vary (reach|pace|both): parameters to fit; the scenario has the other one
        scale (S): share of population and report goals to simulate
    """
    from fedray.studies.fit import ObservedRun, read_runs, scenario_to_fit
    from fedray.studies.fit import fit_min_sep as fit

    keys = list(overrides or ())
    if runs is not None:
        for flag, value in {"min-sep": min_sep, "max-participations": max_participations}.items():
            if value is not None:
                raise InputError(f"--{flag} is a column of --runs; leave it out")
        for each in keys:
            if (key := each.partition("=")[0].strip()) in COLUMNS:
                raise InputError(
                    f"--set {shown(each)}: --runs has this as {COLUMNS[key]}; leave it out"
                )
        observed = read_runs(runs)
        keys += [f"{key}={getattr(observed[0], name)}" for key, name in COLUMNS.items()]
        value = scenario_to_fit(scenario, keys)
    else:
        value = scenario_to_fit(scenario, keys)
        run = ObservedRun(
            rounds=value.rounds.count,
            goal=value.rounds.report_goal,
            timer_hours=value.participation.timer_hours,
            min_sep=min_sep,
            max_participations=max_participations,
        )
        observed = [run]
    with progress_line("fitting") as show, contextlib.redirect_stdout(sys.stderr):
        found = fit(value, observed, vary, scale, placement_of(place), show)
    for warning in found.warnings:
        print_line(f"fedray: warning: {warning}", err=True)
    print_result(found, as_json)
