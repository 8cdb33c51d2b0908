"""The cost of wrong guesses: stress, plan."""

import contextlib
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fedray.base.errors import InputError, shown
from fedray.commands.output import (
    FiguresOption,
    JsonFlag,
    QuietFlag,
    print_json,
    print_pieces,
    progress_line,
    refuse_existing,
    scenario_argument,
)


def _cache_option(what: str) -> Any:
    return typer.Option("--cache/--no-cache", help=f"Keep and reuse {what} under ~/.cache/fedray.")


def _shipped_sweeps(begun: str) -> list[str]:
    from fedray.studies.sweep.sweep import shipped_sweeps

    return [name for name in shipped_sweeps() if name.startswith(begun)]


def stress(
    sweep: Annotated[
        str | None,
        typer.Argument(
            metavar="[SWEEP]",
            help="A shipped sweep, or a TOML file; none: list those that ship.",
            autocompletion=_shipped_sweeps,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="New directory for results.parquet, results.json and report.html."
        ),
    ] = None,
    figures: FiguresOption = None,
    address: Annotated[
        str | None, typer.Option(help="Ray cluster to join; default: a local one.")
    ] = None,
    has_cache: Annotated[bool, _cache_option("cells and mechanisms")] = True,
    quiet: QuietFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Sweep settings or simulated runs, and compare in each how well mechanisms do. An
    interrupted sweep continues when it is run again."""
    from fedray.runtime.placement import Placement
    from fedray.studies.sweep.sweep import Sweep, find_sweep, shipped_sweeps

    if sweep is None:
        described = {
            name: Sweep.from_toml(path)[0].description for name, path in shipped_sweeps().items()
        }
        if as_json:
            rows = [{"name": name, "description": text} for name, text in described.items()]
            print_json({"sweeps": rows})
            return
        for name, text in described.items():
            typer.echo(f"{name}  {text}")
        return
    value, scenario = find_sweep(sweep)
    # An output that exists is refused now, because the sweep takes long.
    refuse_existing(out)
    # What takes long to load is loaded once the request is known to be possible.
    from fedray.report.files import write_figures
    from fedray.studies.sweep.run import run_sweep, write_results

    with (
        progress_line(f"sweeping {value.name}", quiet) as on_status,
        contextlib.redirect_stdout(sys.stderr),
    ):
        result = run_sweep(value, scenario, Placement(address=address), has_cache, on_status)
    # Warnings go to stderr, so that JSON stands alone on stdout.
    for warning in result.warnings:
        typer.echo(f"fedray: warning: {warning}", err=True)
    if out is not None:
        write_results(result, out, result.page())
    if figures is not None:
        write_figures(result, figures)
    if as_json:
        print_json(result.to_json())
        return
    print_pieces(result.tables())
    if out is not None:
        typer.echo(f"report  {out / 'report.html'}\ntable   {out / 'results.parquet'}")


_PLANNED = {
    "rounds.report_goal": "leave it out; docs/timer.md tells how noise is found for a given goal",
    "participation.timer_hours": "give the timers to try by --timers",
    "privacy.noise_multiplier": "give it over the report goal by --noise-per-report",
    "privacy.mechanism": "leave it out, or give the buffers of its BLT by --buffers",
}
"""Keys of a scenario that a plan does not read, with what to do in place of setting them."""


def plan(
    epsilon: Annotated[float, typer.Option(metavar="E", help="Largest epsilon allowed.")],
    scenario: Annotated[
        Path | None,
        scenario_argument(
            "A scenario, by file or name, whose other keys hold; else give --population, --rounds.",
            "[SCENARIO]",
        ),
    ] = None,
    population: Annotated[
        int | None, typer.Option(metavar="P", help="Devices in the population.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(metavar="N", help="Rounds to commit.")] = None,
    delta: Annotated[
        float | None,
        typer.Option(
            metavar="D", help="Delta of epsilon; default: that of the scenario, else 1e-10."
        ),
    ] = None,
    noise_per_report: Annotated[
        float,
        typer.Option(
            metavar="X", help="Noise multiplier over report goal; default: 7 / 6500, as published."
        ),
    ] = 7.0 / 6500.0,
    timers: Annotated[
        str, typer.Option(metavar="LIST", help="Timers to try, hours, comma-separated.")
    ] = "24,48,72,96",
    rounds_per_day: Annotated[
        float | None,
        typer.Option(
            metavar="R", help="Most rounds per day; default: each starts as soon as it can."
        ),
    ] = None,
    buffers: Annotated[
        int, typer.Option(metavar="D", help="Buffers of the BLT that the plan uses.")
    ] = 4,
    seeds: Annotated[
        int,
        typer.Option(
            metavar="S", help="Simulated runs of each candidate; their spread is the margin."
        ),
    ] = 3,
    scale: Annotated[
        float,
        typer.Option(
            metavar="S",
            help="Size of the simulations of the search; the plan is confirmed at full size.",
        ),
    ] = 0.1,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="New directory for scenario.toml, mechanism.json, claim.toml, plan.json and "
            "report.html.",
        ),
    ] = None,
    figures: FiguresOption = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the scenario."),
    ] = None,
    has_cache: Annotated[bool, _cache_option("simulations and mechanisms")] = True,
    quiet: QuietFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Plan report goal, timer and noise multiplier for a target, by simulated min-seps. Exit code 1
    if nothing meets it. An interrupted plan continues when it is run again."""
    from fedray.base.atomic import write_directory
    from fedray.report.files import write_figures
    from fedray.studies.fit import scenario_to_fit
    from fedray.studies.plan import PlanTarget, make_plan
    from fedray.studies.plan_page import plan_files

    try:
        hours = [float(each) for each in timers.split(",")]
    except ValueError:
        raise InputError.of(
            "timers", timers, "must be numbers of hours with commas between, such as 24,48"
        ) from None
    if scenario is None and (population is None or rounds is None):
        raise InputError("--population and --rounds must be given, or a scenario file")
    if rounds_per_day is not None and not 0 < rounds_per_day <= 1440:
        raise InputError.of(
            "rounds_per_day",
            rounds_per_day,
            "must be above 0 and at most 1440",
            "leave it out for the fastest pace",
        )
    for each in overrides or ():
        remedy = _PLANNED.get(each.partition("=")[0].strip())
        if remedy is not None:
            raise InputError(f"--set {shown(each)}: a plan finds this itself; {remedy}")
    refuse_existing(out)
    # Scenarios know a pace as the least time between two rounds, in minutes.
    pace = (
        []
        if rounds_per_day is None
        else [f"rounds.min_minutes_between={1440.0 / rounds_per_day!r}"]
    )
    # Timer and report goal only make the scenario whole: the plan tries its own.
    value = scenario_to_fit(
        scenario,
        population,
        hours[0],
        rounds,
        None if scenario is not None else 1,
        [*pace, *(overrides or ())],
    )
    own_delta = value.privacy.delta if delta is None else delta
    target = PlanTarget(epsilon, own_delta, noise_per_report, buffers)
    with progress_line("planning", quiet) as on_status, contextlib.redirect_stdout(sys.stderr):
        found = make_plan(
            value, target, hours, seeds, scale, has_cache=has_cache, on_progress=on_status
        )
    if out is not None:
        write_directory(out, plan_files(found, f"fedray {shlex.join(sys.argv[1:])}"))
    if figures is not None:
        write_figures(found, figures)
    if as_json:
        print_json(found.to_json())
    else:
        print_pieces(found.tables())
        if out is not None:
            typer.echo(f"files   {', '.join(sorted(str(each) for each in out.iterdir()))}")
    # Scripts see by the exit code that no candidate meets the target.
    if found.best is None:
        raise typer.Exit(1)
