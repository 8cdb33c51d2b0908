"""`fedray plan`: plan report goal, timer and noise for a target epsilon."""

import contextlib
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from fedray.base.errors import InputError, shown
from fedray.base.rounding import up
from fedray.commands.frame.output import print_line, print_result, refuse_existing, write_shown
from fedray.commands.frame.placing import placement_of
from fedray.commands.frame.progress import progress_line

PLANNED = {
    "rounds.report_goal": "leave it out; docs/timer.md says how to find noise for a given goal",
    "participation.timer_hours": "give the timers to try by --timers",
    "privacy.noise_multiplier": "give it over the report goal by --noise-per-report",
    "privacy.mechanism": "leave it out; the plan makes a BLT",
}
"""Keys of a scenario that a plan does not read, each with a remedy for setting it."""


def plan(
    scenario: Path | None = None,
    *,
    epsilon: float,
    overrides: list[str] | None = None,
    place: list[str] | None = None,
    timers: str = "24,48,72,96",
    noise_per_report: float = 7.0 / 6500.0,
    seeds: int = 3,
    scale: float = 0.1,
    least: str = "updates",
    out: Path | None = None,
    figures: Path | None = None,
    has_cache: bool = True,
    as_json: bool = False,
) -> None:
    """Plan report goal, timer and noise multiplier for a target epsilon, by simulated min-seps.

    Without SCENARIO, --set must give population.devices and rounds.count. Rounds start as soon as
    they can, unless rounds.min_minutes_between is set. Exit code 1 if no candidate meets the
    target. An interrupted plan continues when it is run again.

    Args:
        epsilon (E): largest epsilon allowed, at the scenario's privacy.delta
        timers (LIST): timers to try, in hours, comma-separated
        noise_per_report (X): noise multiplier over report goal; as published by default
        seeds (S): simulated runs of each candidate; their spread is the margin
        scale (S): size of the search's simulations; the plan is confirmed at 1
        least (COST): updates, for the least report goal, or days, for the fastest timer
        out (DIR): new directory for scenario, mechanism, claim, plan and page
    """
    from fedray.base.atomic import write_directory
    from fedray.studies.fit import scenario_to_fit
    from fedray.studies.plan import PlanTarget, make_plan
    from fedray.studies.plan_page import plan_files

    # Cheap mistakes are reported before the planner is loaded.
    hours = _hours(timers)
    _refuse_planned(overrides or ())
    refuse_existing(out)
    # Timer and report goal only complete the scenario: the plan tries its own.
    own = [f"participation.timer_hours={hours[0]}"]
    own += ["rounds.report_goal=1"] if scenario is None else []
    value = scenario_to_fit(scenario, [*own, *(overrides or ())])
    target = PlanTarget(epsilon, value.privacy.delta, noise_per_report)
    with progress_line("planning") as show, contextlib.redirect_stdout(sys.stderr):
        found = make_plan(
            value,
            target,
            hours,
            seeds,
            scale,
            placement_of(place),
            has_cache=has_cache,
            on_progress=show,
            least=least,  # pyright: ignore[reportArgumentType]
        )
    command = f"fedray {shlex.join(sys.argv[1:])}"
    if out is not None:
        write_directory(out, plan_files(found, command))
    write_shown(found, None, figures)
    print_result(found, as_json)
    if out is not None and not as_json:
        print_line(f"files   {', '.join(sorted(str(each) for each in out.iterdir()))}")
    again = shlex.join([f"{each}-2" if each == str(out) else each for each in sys.argv[1:]])
    for each in found.remedies:
        if each.value is not None and not as_json:
            print_line(f"or      fedray {again} {_option(found, each)}")
    # Scripts see by the exit code that no candidate meets the target.
    if found.best is None:
        raise typer.Exit(1)


def _hours(timers: str) -> list[float]:
    try:
        return [float(each) for each in timers.split(",")]
    except ValueError:
        rule = "must be numbers of hours with commas between, such as 24,48"
        raise InputError.of("timers", timers, rule) from None


def _refuse_planned(overrides: Sequence[str]) -> None:
    for each in overrides:
        remedy = PLANNED.get(each.partition("=")[0].strip())
        if remedy is not None:
            raise InputError(f"--set {shown(each)}: a plan finds this itself; {remedy}")


def _option(plan: Any, remedy: Any) -> str:
    """Returns the option by which a remedy is planned."""
    from fedray.studies.plan_page import devices_of

    key, value = remedy.key, remedy.value
    if key == "noise_per_report":
        return f"--noise-per-report {up(value, 6)}"
    if key == "timer_hours":
        return f"--timers {value:g}"
    if key == "rounds.report_goal":
        key, value = "population.devices", devices_of(plan, remedy)
    return f"--set {key}={value:.0f}"
