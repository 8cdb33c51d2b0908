"""What a wrong guess costs: stress, plan."""

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedray.commands.output import (
    DeltaOption,
    JsonFlag,
    print_json,
    print_table,
    status_line,
)
from fedray.errors import InputError


def stress(
    sweep: Annotated[
        str | None, typer.Argument(metavar="[SWEEP]", help="A shipped sweep, or a TOML file; none: list those that ship.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="New directory for results.parquet, results.json and report.html.")
    ] = None,
    address: Annotated[str | None, typer.Option(help="Ray cluster to join; default: a local one.")] = None,
    has_cache: Annotated[bool, typer.Option("--cache/--no-cache", help="Keep and reuse cells under ~/.cache/fedray.")] = True,
    as_json: JsonFlag = False,
) -> None:
    """Sweep settings or simulated runs, and see how mechanisms fare that were made for a guess. May be interrupted, and goes on."""
    from fedray.placement import Placement
    from fedray.stress.sweep import Sweep, find_sweep, shipped_sweeps

    if sweep is None:
        for name, path in shipped_sweeps().items():
            typer.echo(f"{name}  {Sweep.from_toml(path)[0].description}")
        return
    value, scenario = find_sweep(sweep)
    if out is not None and out.exists():
        raise InputError(f"output {str(out)!r} exists already; name a new directory, or remove it first")
    from fedray.stress.page import crossing_rows, sweep_page, sweep_rows
    from fedray.stress.run import run_sweep, write_results

    with status_line(f"sweeping {value.name}") as on_status, contextlib.redirect_stdout(sys.stderr):
        result = run_sweep(value, scenario, Placement(address=address), has_cache, on_status)
    if out is not None:
        write_results(result, out, sweep_page(result))
    if as_json:
        print_json(result.to_json())
        return
    print_table(value.name, sweep_rows(result))
    crossings = crossing_rows(result)
    if len(crossings) > 1:
        print_table("Crossings", crossings)
    if out is not None:
        typer.echo(f"report  {out / 'report.html'}\ntable   {out / 'results.parquet'}")


def plan(
    epsilon: Annotated[float, typer.Option(metavar="E", help="Most epsilon.")],
    population: Annotated[int | None, typer.Option(metavar="P", help="Devices.")] = None,
    rounds: Annotated[int | None, typer.Option(metavar="N", help="Rounds.")] = None,
    scenario: Annotated[Path | None, typer.Option(metavar="FILE", help="A scenario whose other keys hold.")] = None,
    delta: DeltaOption = 1e-10,
    noise_per_report: Annotated[
        float, typer.Option(metavar="X", help="Noise multiplier over report goal; default: 7 / 6500, as published.")
    ] = 7.0 / 6500.0,
    timers: Annotated[str, typer.Option(metavar="LIST", help="Timers to try, hours, comma-separated.")] = "24,48,72,96",
    buffers: Annotated[int, typer.Option(metavar="D", help="Buffers of the blt that is planned for.")] = 4,
    seeds: Annotated[int, typer.Option(metavar="S", help="Simulated runs of each candidate.")] = 3,
    scale: Annotated[float, typer.Option(metavar="S", help="Size of the simulations.")] = 0.1,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the plan as a page.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the scenario.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Plan report goal, timer and noise multiplier for a target, by simulated min-seps. Exit code 1 if nothing meets it."""
    from fedray.fit import scenario_to_fit
    from fedray.report.page import write_page
    from fedray.stress.page import plan_page, plan_rows, plan_sentence
    from fedray.stress.plan import LEAST_GOAL, Target, make_plan

    try:
        hours = [float(each) for each in timers.split(",")]
    except ValueError:
        raise InputError(f"--timers={timers!r} must be numbers of hours with commas between, such as 24,48") from None
    if scenario is None and (population is None or rounds is None):
        raise InputError("--population and --rounds must be given, or --scenario FILE")
    value = scenario_to_fit(scenario, population, hours[0], rounds, None if scenario is not None else LEAST_GOAL, overrides or ())
    target = Target(epsilon, delta, noise_per_report, buffers)
    with status_line("planning") as on_status, contextlib.redirect_stdout(sys.stderr):
        found = make_plan(value, target, hours, seeds, scale, on_progress=on_status)
    if as_json:
        print_json(found.to_json())
    else:
        print_table("Candidates", plan_rows(found))
        typer.echo(plan_sentence(found))
    if out is not None:
        write_page(plan_page(found), out)
    if found.best is None:
        raise typer.Exit(1)
