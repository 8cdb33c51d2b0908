"""Runs and scenarios: run, fit, scenarios."""

import contextlib
import itertools
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from fedray.base.errors import CheckpointError, InputError, RunFailed
from fedray.base.part_done import PartDone
from fedray.commands.learning import (
    AddressOption,
    AggregatorGpusOption,
    CheckpointOption,
    InProcessFlag,
    SetOption,
    TensorboardOption,
    TrainersOption,
    WorkerTimeoutOption,
    backend_of,
)
from fedray.commands.output import (
    FiguresOption,
    JsonFlag,
    QuietFlag,
    TrustFlag,
    print_json,
    print_pieces,
    progress_line,
    resumable,
    scenario_argument,
)
from fedray.commands.populations import fit_log
from fedray.commands.several_tasks import print_run_of_tasks


def run(
    scenario: Annotated[
        Path | None,
        scenario_argument("A scenario: a file, or a name that `fedray scenarios` lists."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="New directory for the trace; default: one under runs/.")
    ] = None,
    overrides: SetOption = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            metavar="DIR",
            help="Go on with an interrupted run: its --out. SCENARIO may be left out.",
        ),
    ] = None,
    in_process: InProcessFlag = None,
    shards: Annotated[
        int | None,
        typer.Option(help="Population shards; default: one per CPU; at most one per 65,536 ids."),
    ] = None,
    trainers: TrainersOption = None,
    address: AddressOption = None,
    checkpoint_seconds: CheckpointOption = 30.0,
    trust_code: TrustFlag = False,
    worker_timeout: WorkerTimeoutOption = 600.0,
    aggregator_gpus: AggregatorGpusOption = 0.0,
    tensorboard: TensorboardOption = None,
    quiet: QuietFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Simulate a scenario, train its model, write its trace, audit it, and write its report."""
    # Imports are inside the commands, so that those without Ray and torch start at once.
    from fedray.audit.audit import audit_trace
    from fedray.report.event_files import event_files
    from fedray.report.page import write_report
    from fedray.report.progress import both, run_progress
    from fedray.report.terminal import audit_text, training_text
    from fedray.runs.pipeline import (
        is_unfinished_run_of_tasks,
        resume_run,
        resume_tasks,
        run_scenario,
        run_tasks,
    )
    from fedray.runs.sustainable import check_sustainable
    from fedray.runtime.placement import Placement
    from fedray.scenario import SeveralTasks
    from fedray.scenario.several_tasks import read_scenario
    from fedray.trace.schema import REPORT_FILE
    from fedray.trace.several_tasks import TasksRun

    placement = Placement(
        shards=shards,
        trainers=trainers,
        backend=backend_of(in_process),
        address=address,
        checkpoint_seconds=checkpoint_seconds,
        worker_timeout_seconds=worker_timeout,
        aggregator_gpus=aggregator_gpus,
    )
    # An interrupted run knows its scenario, so that none need be given with --resume.
    value = None
    if scenario is not None:
        value = read_scenario(scenario, overrides or (), trust_code=trust_code)
    if resume is None and value is None:
        raise InputError(
            "SCENARIO is missing; name a scenario file (`fedray scenarios` lists some), or "
            "--resume DIR"
        )
    if resume is None and value is not None:
        # A run that cannot finish is refused before any word of compiling.
        check_sustainable(value)
    if tensorboard is not None and isinstance(value, SeveralTasks):
        raise InputError(
            "--tensorboard would write the curves of several tasks over one another; leave it out, "
            "and write those of one by `fedray train DIR/NAME --tensorboard`"
        )
    if resume is not None and (out is not None or (value is None and overrides)):
        raise InputError(
            "--resume goes on with a run as it was started: leave out --out, and --set unless "
            "SCENARIO is given too"
        )
    how = "fedray run --resume"
    with (
        run_progress(is_shown=not quiet) as show,
        event_files(tensorboard) as write,
        resumable(resume or out, value.name if value else "", how, quiet) as (directory, say),
        contextlib.redirect_stdout(sys.stderr),  # Ray tells of dead workers there
    ):
        on_progress = both(say, both(show, write))
        if resume is not None:
            # The directory says what was run, because a scenario may be left out.
            is_of_tasks = is_unfinished_run_of_tasks(resume)
            if value is not None and is_of_tasks != isinstance(value, SeveralTasks):
                raise CheckpointError(
                    f"{str(resume)!r} is of another scenario than the one that was given: one of "
                    "them has several tasks; leave the scenario out"
                )
            go_on: Any = resume_tasks if is_of_tasks else resume_run
            trace = go_on(resume, placement, value, on_progress, trust_code=trust_code)
        else:
            assert value is not None
            on_start = None
            if not quiet:
                _say_compiling()
                # Whoever reads that the population is too small can end the run before it takes
                # long.
                on_start = partial(_say_supply, value)
            start: Any = run_tasks if isinstance(value, SeveralTasks) else run_scenario
            trace = start(value, placement, directory, on_progress, on_start)
    # Runs of several tasks have audits and pages of their own.
    if isinstance(trace, TasksRun):
        print_run_of_tasks(trace, as_json)
        return
    audit = audit_trace(trace)
    report, problem = None, ""
    try:
        report = str(write_report(trace, audit, trace.path / REPORT_FILE))
    except InputError as error:  # such as a full disk: the trace is whole all the same
        problem = (
            f"the trace {str(trace.path)!r} is whole, but has no page: {error}; `fedray report` "
            "writes it later"
        )
    trained = trace.trained
    if as_json:
        figures = ("wall_seconds", "shard_use", "driver_peak_mebibytes", "restarts")
        document = {**audit.to_json(), "report": report}
        document |= {name: trace.run[name] for name in figures}
        document["training"] = trained.to_json() if trained is not None else None
        print_json(document)
    else:
        if trained is not None:
            print_pieces(training_text("Training", trained))
        print_pieces(audit_text(audit))
        use = ", ".join(f"{each['peak_mebibytes']:,.0f} MiB" for each in trace.run["shard_use"])
        driver = f"{trace.run['driver_peak_mebibytes']:,.0f} MiB"
        typer.echo(f"shards  {trace.run['shards']} (peak memory {use}), driver {driver}")
        typer.echo(f"trace   {trace.path}\nreport  {report or '-'}")
    # It is raised after the printing, so that what was computed is not lost.
    if problem:
        raise RunFailed(problem)
    # The audit of a starved run holds, but scripts must see that rounds are missing.
    if trace.run["ended"].startswith("starved"):
        typer.echo(f"fedray: {trace.run['ended']}", err=True)
        raise typer.Exit(1)


def _say_compiling() -> None:
    """What the first run of a version of the code waits for."""
    from fedray.clients.availability.habit import is_compiled

    if not is_compiled():
        typer.echo("compiling  once for this version of the code; it takes a minute", err=True)


def _say_supply(scenario: Any) -> None:
    """How many devices are eligible, before a run that may be long."""
    from fedray.clients.availability.supply import eligible_at_once
    from fedray.scenario.several_tasks import tasks_of

    tasks = [task.scenario for task in tasks_of(scenario)]
    # Population and availability are common to all tasks.
    supply, devices = eligible_at_once(tasks[0]), tasks[0].population.devices
    target = sum(task.rounds.wanted_at_once for task in tasks)
    what = "a round selects" if tasks[0].rounds.buffer is None else "at most so many train at once:"
    if len(tasks) > 1:
        what = f"{len(tasks)} tasks together want at once"
    typer.echo(
        f"supply  {supply.mean:,} of {devices:,} devices are eligible at once, "
        f"{supply.least:,} to "
        f"{supply.most:,} over the first week, timers aside; {what} {target:,}"
        + ("; that many are never there at once" if supply.most < target else ""),
        err=True,
    )


_LOG = "Of a log of your own system"


def fit(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[LOG|SCENARIO]",
            help="A log: a CSV or Parquet file, or a directory of them. With an observed min-sep: "
            "a scenario, by file or name; else give --population, --timer, --rounds.",
        ),
    ] = None,
    device_column: Annotated[
        str | None,
        typer.Option(metavar="D", rich_help_panel=_LOG, help="Its device; default: device."),
    ] = None,
    start_column: Annotated[
        str | None,
        typer.Option(
            metavar="S",
            rich_help_panel=_LOG,
            help="Of intervals of eligibility: when one starts; default: start.",
        ),
    ] = None,
    end_column: Annotated[
        str | None,
        typer.Option(metavar="E", rich_help_panel=_LOG, help="When it ends; default: end."),
    ] = None,
    time_column: Annotated[
        str | None,
        typer.Option(
            metavar="T",
            rich_help_panel=_LOG,
            help="Of check-ins, or with --timer of participations: when one was.",
        ),
    ] = None,
    round_column: Annotated[
        str | None,
        typer.Option(
            metavar="R",
            rich_help_panel=_LOG,
            help="Of participations without times: the round. Give --timer and --days.",
        ),
    ] = None,
    days: Annotated[
        float | None,
        typer.Option(
            metavar="DAYS",
            rich_help_panel=_LOG,
            help="That all rounds of --round-column together took; they are taken as evenly "
            "spaced.",
        ),
    ] = None,
    time_unit: Annotated[
        str | None,
        typer.Option(
            metavar="UNIT",
            rich_help_panel=_LOG,
            help="Of times that are numbers which do not count from 1970, but from the midnight "
            "before a Monday: seconds, milliseconds, microseconds or nanoseconds.",
        ),
    ] = None,
    time_format: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT",
            rich_help_panel=_LOG,
            help="Of times that are text but not ISO 8601, such as '%d.%m.%Y %H:%M'.",
        ),
    ] = None,
    delimiter: Annotated[
        str | None,
        typer.Option(
            metavar="C", rich_help_panel=_LOG, help="Between columns of CSV; default: a comma."
        ),
    ] = None,
    file_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="csv|parquet",
            rich_help_panel=_LOG,
            help="Default: by the suffix.",
        ),
    ] = None,
    utc_offset: Annotated[
        str,
        typer.Option(
            metavar="HOURS|unknown",
            rich_help_panel=_LOG,
            help="The devices' local time minus the log's clock; unknown: it is fitted.",
        ),
    ] = "0",
    seed: Annotated[
        int, typer.Option(metavar="N", rich_help_panel=_LOG, help="Of the simulated devices.")
    ] = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=_LOG,
            help="Write the fitted tables as TOML, ready for a scenario.",
        ),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", rich_help_panel=_LOG, help="A page: measured beside simulated."
        ),
    ] = None,
    figures: FiguresOption = None,
    min_sep: Annotated[
        int | None,
        typer.Option(
            "--min-sep",
            metavar="B",
            help="Observed min-sep: the gap, least difference of two rounds of one device.",
        ),
    ] = None,
    rounds_between: Annotated[
        int | None,
        typer.Option(
            metavar="M",
            help="The same as rounds strictly between, as published (MinS); B is M + 1.",
        ),
    ] = None,
    population: Annotated[
        int | None, typer.Option(metavar="P", help="Devices in the population.")
    ] = None,
    timer: Annotated[
        float | None,
        typer.Option(
            metavar="HOURS",
            help="Participation timer, hours; of a log: it is one of participations.",
        ),
    ] = None,
    rounds: Annotated[int | None, typer.Option(metavar="N", help="Committed rounds.")] = None,
    report_goal: Annotated[
        int | None, typer.Option(metavar="G", help="Reports that close a round; default: 6500.")
    ] = None,
    vary: Annotated[
        str, typer.Option(metavar="KEY", help="What is fitted: reach or checkins.")
    ] = "reach",
    scale: Annotated[
        float,
        typer.Option(
            metavar="S",
            help="Shrink population and report goal: 0.1 is ten times as fast and 1-2 % off.",
        ),
    ] = 0.1,
    tolerance: Annotated[
        float, typer.Option(metavar="T", help="Relative error of min-sep at which the search ends.")
    ] = 0.01,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the scenario."),
    ] = None,
    quiet: QuietFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Fit availability to a log of your devices, or reach to an observed min-sep.

    A log has intervals of eligibility (device, start, end), check-ins (device,
    time) or participations (device, time or round). The habits of its devices
    are found by simulated moments, with 95 % intervals. With --min-sep or
    --rounds-between the reach (or check-in rate) is found at which simulated
    runs have it.

    Example: fedray fit log.csv --start-column since --end-column until --out
    habits.toml --page fit.html
    """
    if min_sep is None and rounds_between is None and file is not None:
        # No log is TOML: a scenario was given, and what was observed was forgotten.
        if file.suffix.lower() == ".toml":
            raise InputError(
                f"{str(file)!r} is a scenario; give what was observed, by --min-sep B or "
                "--rounds-between M, or name a log"
            )
        if (population, rounds, report_goal) != (None, None, None):
            raise InputError(
                "--population, --rounds and --report-goal are for an observed min-sep; give "
                "--min-sep B or --rounds-between M, or leave them out"
            )
        columns = {
            "device": device_column,
            "start": start_column,
            "end": end_column,
            "time": time_column,
            "round": round_column,
            "time_unit": time_unit,
            "time_format": time_format,
            "delimiter": delimiter,
            "file_format": file_format,
        }
        fit_log(
            file,
            columns,
            utc_offset=utc_offset,
            timer=timer,
            days=days,
            seed=seed,
            overrides=overrides or [],
            out=out,
            page=page,
            figures=figures,
            quiet=quiet,
            as_json=as_json,
        )
        return
    # What follows is about an observed min-sep, where options of logs would have no effect.
    of_log = {
        "--device-column": device_column,
        "--start-column": start_column,
        "--end-column": end_column,
        "--time-column": time_column,
        "--round-column": round_column,
        "--days": days,
        "--time-unit": time_unit,
        "--time-format": time_format,
        "--delimiter": delimiter,
        "--format": file_format,
        "--out": out,
        "--page": page,
        "--figures": figures,
    }
    stray = [name for name, value in of_log.items() if value is not None]
    if stray:
        raise InputError(f"{', '.join(stray)}: only a log has these; leave them out")
    from fedray.mechanisms.participation import gap_of
    from fedray.scenario.shipped import find_scenario
    from fedray.studies.fit import MOST_RUNS, fit_min_sep, scenario_to_fit

    if (min_sep is None) == (rounds_between is None):
        raise InputError(
            "give what was observed: a log, or either --min-sep B, the gap, or --rounds-between "
            "M, as published"
        )
    # Publications count the rounds between two participations, which are one fewer than the gap.
    gap = min_sep if min_sep is not None else gap_of(rounds_between or 0)
    keys = {"reach": "population.reach", "checkins": "rounds.max_checkins_per_hour"}
    if vary not in keys:
        raise InputError(f"--vary {vary!r} is not one of {', '.join(keys)}")
    # Here and not for the argument, which may be a log.
    scenario = None if file is None else find_scenario(file)
    value = scenario_to_fit(scenario, population, timer, rounds, report_goal, overrides or ())
    with progress_line(f"fitting {vary}", quiet) as on_status:
        counted = itertools.count(1)

        def tell_run(run: Any) -> None:
            text = f"{run.value:g} gives min-sep {run.min_sep_text}"
            # The search may need fewer runs, so that the time left is told as an upper bound.
            on_status(PartDone(text, next(counted), MOST_RUNS, is_least=True))

        found = fit_min_sep(
            value,
            gap,
            keys[vary],
            scale,
            tolerance,
            on_run=tell_run,
        )
    document = {**found.to_json(), "scale": scale}
    if as_json:
        print_json(document)
        return
    print_pieces(found.tables())
    typer.echo(
        f"{found.key}={found.best.value:g}  gives min-sep {found.best.min_sep} for {gap} "
        f"({100 * found.relative_error:+.1f} %)"
    )


def scenarios(as_json: JsonFlag = False) -> None:
    """List the scenarios that ship with fedray: name, file, description."""
    from fedray.scenario.shipped import shipped_scenarios

    rows = [
        {"name": path.stem, "file": str(path), "description": scenario.description}
        for path, scenario in shipped_scenarios()
    ]
    if as_json:
        print_json({"scenarios": rows})
        return
    for row in rows:
        typer.echo("  ".join(row.values()))
