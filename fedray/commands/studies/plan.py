"""`fedray plan`: plan report goal, timer and noise for a target epsilon."""

import contextlib
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from fedray.base.errors import InputError, shown
from fedray.base.rounding import up
from fedray.commands.frame.output import print_line, print_result, refuse_existing, write_shown
from fedray.commands.frame.placing import placement_of
from fedray.commands.frame.progress import progress_line

PLANNED = {
    "participation.timer_hours": "give the timers to try by --timers",
    "privacy.noise_multiplier": "set rounds.report_goal too, or give --noise-per-report",
    "privacy.mechanism": "leave it out; the plan makes a BLT",
}
"""Keys of a scenario that a plan does not read, each with a remedy for setting it."""


def plan(
    scenario: Path | None = None,
    *,
    epsilon: float,
    unit: str = "device",
    overrides: list[str] | None = None,
    place: list[str] | None = None,
    timers: str | None = None,
    noise_per_report: float | None = None,
    seeds: int = 3,
    scale: float = 0.1,
    least: str = "updates",
    out: Path | None = None,
    figures: Path | None = None,
    as_json: bool = False,
) -> None:
    """Plan report goal, timer and noise multiplier for a target epsilon, by simulated min-seps.

    Without SCENARIO, --set must give population.devices and rounds.count. Rounds start as soon as
    they can, unless rounds.min_minutes_between is set; the deadline is rounds.max_days. A plan
    keeps a report goal given by --set, and a noise multiplier given with it; it says whether those
    of a file meet the target. Exit code 1 if no candidate does. An interrupted plan continues when
    it is run again. The first line estimates the candidates and the time; `fedray compare` takes
    two plans.

    Args:
        epsilon (E): largest epsilon allowed, at the scenario's privacy.delta
        unit (device|person): unit whose epsilon that is; a person has the most devices of
            population.owners
        timers (LIST): timers to try, in hours; default: 24,48,72,96 and the file's
        noise_per_report (X): noise multiplier over report goal; default: the file's, or 7/6500 as
            published
        seeds (S): simulated runs of each candidate; their spread is the margin
        scale (S): size of the search's simulations; the plan is confirmed at 1
        least (COST): updates, for the least report goal, or days, for the fastest timer
        out (DIR): new directory for scenario, mechanism, claim, plan and page
    """
    from fedray.base.atomic import write_directory
    from fedray.studies.fit import scenario_to_fit
    from fedray.studies.plan import PUBLISHED, PlanTarget, make_plan, stated_noise
    from fedray.studies.plan_page import plan_files

    # Cheap mistakes are reported before the planner is loaded.
    hours = _hours(timers or "24,48,72,96")
    is_set = {each.partition("=")[0].strip(): each for each in overrides or ()}
    _refuse_planned(is_set)
    refuse_existing(out)
    # Without a file, timer and report goal only complete the scenario.
    other = [] if scenario else [f"participation.timer_hours={hours[0]}", "rounds.report_goal=1"]
    value = scenario_to_fit(scenario, [*other, *(overrides or ())])
    own = None
    if scenario is not None:
        # What remedies change stays as it is in the file, to compare with.
        kept = "rounds.report_goal", "privacy.noise_multiplier", "rounds.count"
        others = [each for key, each in is_set.items() if key not in kept]
        own = scenario_to_fit(scenario, [*others, "training.enabled=false"])
        if timers is None:
            hours = sorted({*hours, own.participation.timer_hours})
    if noise_per_report is None:
        noise_per_report = (own and stated_noise(own)) or PUBLISHED
    goal = value.rounds.report_goal if "rounds.report_goal" in is_set else None
    if goal is not None and "privacy.noise_multiplier" in is_set:
        noise_per_report = value.privacy.noise_multiplier / goal
    target = PlanTarget(
        *(epsilon, value.privacy.delta, noise_per_report),
        report_goal=goal,
        unit=unit,  # pyright: ignore[reportArgumentType]
    )
    with progress_line("planning") as show, contextlib.redirect_stdout(sys.stderr):
        found = make_plan(
            value,
            target,
            hours,
            seeds,
            scale,
            placement_of(place),
            on_progress=show,
            least=least,  # pyright: ignore[reportArgumentType]
            own=own,
        )
    command = f"fedray {shlex.join(sys.argv[1:])}"
    again = _remedy_commands(found, command)
    if out is not None:
        write_directory(out, plan_files(found, command, again))
    write_shown(found, None, figures)
    print_result(found, as_json)
    if out is not None and not as_json:
        print_line(f"files   {', '.join(sorted(str(each) for each in out.iterdir()))}")
    for each in () if as_json else again:
        print_line(f"or      {each}")
    # Scripts see by the exit code that nothing meets the target in the days that were asked for.
    if not found.is_met:
        raise typer.Exit(1)


def _hours(timers: str) -> list[float]:
    try:
        return [float(each) for each in timers.split(",")]
    except ValueError:
        rule = "must be numbers of hours with commas between, such as 24,48"
        raise InputError.of("timers", timers, rule) from None


def _refuse_planned(overrides: Mapping[str, str]) -> None:
    for key, each in overrides.items():
        is_kept = key == "privacy.noise_multiplier" and "rounds.report_goal" in overrides
        if key in PLANNED and not is_kept:
            raise InputError(f"--set {shown(each)}: a plan finds this itself; {PLANNED[key]}")


def _remedy_commands(plan: Any, command: str) -> list[str]:
    """Returns the commands that plan the remedies that were found, in place of a plan's."""
    options = [_options(plan, each) for each in plan.found]
    return [_changed(command, each, place) for place, each in enumerate(options, 2)]


def _changed(command: str, options: Mapping[str, str], place: int) -> str:
    """Returns a command with these settings, as KEY, and options, as --NAME, each once, without
    those whose text is empty; a folder of files gets a number."""
    kept: list[str] = []
    for word in shlex.split(command):
        pair = word.removeprefix("--set=").split("=", 1)
        if kept and kept[-1] in ("--set", *options) and not {kept[-1], pair[0]}.isdisjoint(options):
            kept.pop()
        elif len(pair) == 1 or pair[0] not in options:
            is_folder = "--out" in (*kept[-1:], *pair[:-1])
            kept.append(f"{word}-{place}" if is_folder else word)
    given = {key: each for key, each in options.items() if each}
    pairs = ((k, v) if k[:2] == "--" else ("--set", f"{k}={v}") for k, v in given.items())
    return shlex.join([*kept, *(word for pair in pairs for word in pair)])


def _options(plan: Any, remedy: Any) -> dict[str, str]:
    """Returns the settings and options that plan just this remedy."""
    from fedray.studies.remedies import ONCE, PERSON

    near, rounds = plan.shown, plan.scenario.rounds
    found = {ONCE: "1"} if remedy.key == ONCE else {}
    found |= {"--unit": "person"} if remedy.key == PERSON else {}
    if plan.stated_max_days is not None:
        found |= {"rounds.max_days": f"{rounds.max_days:g}"}
    if near.rounds != rounds.count:
        found |= {"rounds.count": str(near.rounds)}
    found |= {"rounds.count": str(remedy.rounds)} if remedy.rounds else {}
    found |= {"population.devices": str(remedy.devices)} if remedy.devices else {}
    return {
        **found,
        "rounds.report_goal": str(remedy.report_goal or near.report_goal),
        "privacy.noise_multiplier": up(remedy.noise_multiplier or near.noise_multiplier),
        "--timers": f"{remedy.timer_hours or near.timer_hours:g}",
        "--noise-per-report": "",
    }
