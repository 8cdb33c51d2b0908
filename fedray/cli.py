"""The `fedray` command: thin; every behaviour is in the package. Exit codes: 0 done, 1 a run failed, 2 bad usage or input."""

import contextlib
import dataclasses
import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from fedray.errors import FedrayError, InputError, RunFailed

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Simulate private cross-device federated learning, and audit what really happened.",
)

# Click's own errors, by way of typer: some releases carry click inside.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
_ClickError: type[Exception] = typer.BadParameter.__mro__[2]

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]
TraceArgument = Annotated[Path, typer.Argument(metavar="TRACE", help="A trace directory, as `fedray run` writes it.")]


@app.command()
def run(
    scenario: Annotated[
        Path | None, typer.Argument(metavar="SCENARIO", help="A scenario file; `fedray scenarios` lists some.", show_default=False)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="New directory for the trace; default: one under runs/.")] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. rounds.report_goal=3000."),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="DIR", help="Go on with an interrupted run: its --out. SCENARIO may be left out."),
    ] = None,
    shards: Annotated[int | None, typer.Option(help="Population shards; default: one per CPU; at most one per 65,536 ids.")] = None,
    address: Annotated[str | None, typer.Option(help="Ray cluster to join: auto, ray://host:port; default: a local one.")] = None,
    checkpoint_seconds: Annotated[
        float, typer.Option(metavar="S", help="Wall-clock seconds between two checkpoints; 0: after every look-ahead window.")
    ] = 30.0,
    as_json: JsonFlag = False,
) -> None:
    """Simulate a scenario, write its trace, audit it, and write its report."""
    from fedray.audit.audit import audit_trace
    from fedray.placement import Placement
    from fedray.report.page import write_report
    from fedray.report.progress import run_progress
    from fedray.scenario import Scenario
    from fedray.simulation import resume as go_on
    from fedray.simulation import simulate
    from fedray.trace.schema import REPORT_FILE

    placement = Placement(shards=shards, address=address, checkpoint_seconds=checkpoint_seconds)
    value = Scenario.from_toml(scenario, overrides or ()) if scenario is not None else None
    if resume is None and value is None:
        raise InputError("SCENARIO is missing; name a scenario file (`fedray scenarios` lists some), or --resume DIR")
    if resume is not None and (out is not None or (value is None and overrides)):
        raise InputError("--resume goes on with a run as it was started: leave out --out, and --set unless SCENARIO is given too")
    # Ray tells of dead workers on stdout, which is the result's.
    with run_progress(is_shown=not as_json) as on_progress, contextlib.redirect_stdout(sys.stderr):
        try:
            if resume is not None:
                trace = go_on(resume, placement, value, on_progress)
            else:
                assert value is not None
                trace = simulate(value, placement, out, on_progress)
        except KeyboardInterrupt as interrupt:
            if not str(interrupt):
                raise
            raise RunFailed(str(interrupt)) from None  # it says how to go on
    audit = audit_trace(trace)
    report = write_report(trace, audit, trace.path / REPORT_FILE)
    if as_json:
        figures = ("wall_seconds", "shard_use", "driver_peak_mebibytes", "restarts")
        _print_json({**audit.to_json(), "report": str(report), **{name: trace.run[name] for name in figures}})
    else:
        _print_audit(audit)
        use = ", ".join(f"{each['peak_mebibytes']:,.0f} MiB" for each in trace.run["shard_use"])
        typer.echo(f"shards  {trace.run['shards']} (peak memory {use}), driver {trace.run['driver_peak_mebibytes']:,.0f} MiB")
        typer.echo(f"trace   {trace.path}\nreport  {report}")
    if trace.run["ended"] != "completed":
        typer.echo(f"fedray: {trace.run['ended']}", err=True)
        raise typer.Exit(1)


@app.command()
def audit(
    trace: TraceArgument,
    noise_multiplier: Annotated[float | None, typer.Option(help="Another noise multiplier than the run's own.")] = None,
    delta: Annotated[float | None, typer.Option(help="Another delta than the run's own.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Also recompute the digests of all columns.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Audit a trace: participation, exact sensitivities, rho and epsilon. Needs the trace alone."""
    from fedray.audit.audit import audit_trace
    from fedray.trace.reader import Trace

    opened = Trace.open(trace)
    if verify:
        opened.verify()
    result = audit_trace(opened, noise_multiplier, delta)
    if as_json:
        _print_json({**result.to_json(), "digest_verified": verify})
    else:
        _print_audit(result)
        if verify:
            typer.echo(f"every column has its recorded digest; the trace is {result.digest}")


@app.command()
def report(
    trace: TraceArgument,
    out: Annotated[Path | None, typer.Option(help="The page to write; default: report.html in the trace.")] = None,
) -> None:
    """Write the self-contained HTML report of a trace."""
    from fedray.audit.audit import audit_trace
    from fedray.report.page import write_report
    from fedray.trace.reader import Trace
    from fedray.trace.schema import REPORT_FILE

    opened = Trace.open(trace)
    typer.echo(str(write_report(opened, audit_trace(opened), out or opened.path / REPORT_FILE)))


@app.command()
def reproduce(
    what: Annotated[str, typer.Argument(metavar="gboard", help="Which published runs: gboard (Xu et al. 2023).")],
    rows: Annotated[
        str | None, typer.Option(metavar="LIST", help="Locales or rows, comma-separated: en-GB,otf-de-DE; default: all.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key in every scenario, e.g. seed=7.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="New directory for the traces, results.json and report.html.")] = None,
    shards: Annotated[int | None, typer.Option(help="Population shards; default: one per CPU.")] = None,
    address: Annotated[str | None, typer.Option(help="Ray cluster to join; default: a local one.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Simulate published runs at full size: observed beside published min-sep, participations, rho and epsilon."""
    from fedray.placement import Placement
    from fedray.report.page import render_reproduction, write_page
    from fedray.reproduce import reproduce_gboard, table_rows

    if what != "gboard":
        raise InputError(f"{what!r} is no set of published runs; there is gboard")
    if out is not None and out.exists():
        raise InputError(f"output {str(out)!r} exists already; name a new directory, or remove it first")
    placement = Placement(shards=shards, address=address)
    documents: list[dict[str, Any]] = []
    table: list[list[str]] = []
    with _status("simulating") as on_status, contextlib.redirect_stdout(sys.stderr):

        def keep(results: list[Any]) -> None:
            """After every row, so that what took long is not lost with what comes after."""
            on_status(f"{results[-1].name} done, min-sep {results[-1].min_sep.observed:g}")
            documents[:], table[:] = [result.to_json() for result in results], table_rows(results)
            if out is not None:
                note = "Full-size simulations of the published federated runs of Gboard's language models; one reach per locale."
                write_page(render_reproduction("Gboard runs, reproduced", note, table, documents), out / "report.html")
                write_page(json.dumps(documents, indent=2) + "\n", out / "results.json")

        reproduce_gboard(rows, overrides or (), out, placement, keep)
    if as_json:
        _print_json({"runs": documents})
    else:
        _print_table("Observed / published (Xu et al. 2023)", table)
        if out is not None:
            typer.echo(f"report  {out / 'report.html'}\nfigures {out / 'results.json'}")


@app.command()
def fit(
    min_sep: Annotated[int, typer.Option("--min-sep", metavar="B", help="Observed min-sep.")],
    scenario: Annotated[
        Path | None, typer.Argument(metavar="[SCENARIO]", help="A scenario file; else give --devices, --timer, --rounds.")
    ] = None,
    devices: Annotated[int | None, typer.Option(metavar="N", help="Devices in the population.")] = None,
    timer: Annotated[float | None, typer.Option(metavar="HOURS", help="Participation timer, hours.")] = None,
    rounds: Annotated[int | None, typer.Option(metavar="N", help="Committed rounds.")] = None,
    report_goal: Annotated[int | None, typer.Option(metavar="G", help="Reports that close a round; default: 6500.")] = None,
    vary: Annotated[str, typer.Option(metavar="KEY", help="What is fitted: reach or checkins.")] = "reach",
    scale: Annotated[
        float, typer.Option(metavar="S", help="Shrink population and report goal: 0.1 is ten times as fast and 1-2 % off.")
    ] = 0.1,
    tolerance: Annotated[float, typer.Option(metavar="T", help="Relative error of min-sep at which the search ends.")] = 0.01,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the scenario.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Find the reach (or check-in rate) at which simulated runs have an observed min-sep."""
    from fedray.fit import fit_min_sep, scenario_to_fit

    keys = {"reach": "population.reach", "checkins": "rounds.max_checkins_per_hour"}
    if vary not in keys:
        raise InputError(f"--vary {vary!r} is not one of {', '.join(keys)}")
    value = scenario_to_fit(scenario, devices, timer, rounds, report_goal, overrides or ())
    with _status(f"fitting {vary}") as on_status:
        found = fit_min_sep(
            value, min_sep, keys[vary], scale, tolerance, on_run=lambda run: on_status(f"{run.value:g} gives min-sep {run.min_sep}")
        )
    if as_json:
        _print_json({**dataclasses.asdict(found), "relative_error": found.relative_error, "scale": scale})
        return
    _print_table(
        "Runs",
        [[keys[vary], "min-sep", "max part."], *([f"{r.value:g}", str(r.min_sep), str(r.max_participations)] for r in found.runs)],
    )
    typer.echo(
        f"{found.key}={found.best.value:g}  gives min-sep {found.best.min_sep} for {min_sep} ({100 * found.relative_error:+.1f} %)"
    )


RoundsOption = Annotated[int | None, typer.Option("--rounds", metavar="N", help="Rounds n.")]
MinSepOption = Annotated[
    int | None, typer.Option("--min-sep", metavar="B", help="Min-sep b: least difference of two rounds of one device.")
]
MaxParticipationsOption = Annotated[
    int | None, typer.Option("--max-participations", metavar="K", help="Most participations k of one device.")
]
NoiseMultiplierOption = Annotated[
    float, typer.Option("--noise-multiplier", metavar="Z", help="Noise multiplier for mu, rho and epsilon.")
]
DeltaOption = Annotated[float, typer.Option("--delta", metavar="D", help="Delta of epsilon.")]


@app.command()
def optimize(
    kind: Annotated[
        str,
        typer.Argument(metavar="KIND", help="blt, banded, banded-toeplitz, band-fhu, bisr, dense, tree, tree-full or identity."),
    ],
    rounds: RoundsOption = None,
    min_sep: MinSepOption = None,
    max_participations: MaxParticipationsOption = None,
    buffers: Annotated[int | None, typer.Option(metavar="D", help="Buffers of a blt; default: 4.")] = None,
    bands: Annotated[
        int | None, typer.Option(metavar="B", help="Bands; default: min-sep; for band-fhu and bisr those of least loss.")
    ] = None,
    objective: Annotated[str | None, typer.Option(metavar="max|rms", help="Which loss; default: max for blt, else rms.")] = None,
    targets: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="JSON list of weighted outcomes (rounds, min_sep, max_participations, weight) for a blt."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the mechanism as JSON (a matrix beside it as .npy).")
    ] = None,
    noise_multiplier: NoiseMultiplierOption = 1.0,
    delta: DeltaOption = 1e-10,
    has_cache: Annotated[bool, typer.Option("--cache/--no-cache", help="Keep and reuse results under ~/.cache/fedray.")] = True,
    as_json: JsonFlag = False,
) -> None:
    """Optimise a noise mechanism for (rounds, min-sep, max participations), or for weighted outcomes; or build one."""
    from fedray.design import find_mechanism, read_request

    request = read_request(kind, rounds, min_sep, max_participations, buffers, bands, objective, targets)
    with _status(f"optimising {kind}") as on_progress:
        found = find_mechanism(request, noise_multiplier, delta, out, has_cache, on_progress)
    if as_json:
        _print_json(found.to_json())
        return
    _print_figures(found.figures)
    for other in found.others:
        _print_figures(other)
    if out is not None:
        typer.echo(f"mechanism  {out}")


@app.command()
def mechanism(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A mechanism as JSON; `fedray optimize --out` writes one.")],
    rounds: RoundsOption = None,
    min_sep: MinSepOption = None,
    max_participations: MaxParticipationsOption = None,
    noise_multiplier: NoiseMultiplierOption = 1.0,
    delta: DeltaOption = 1e-10,
    as_json: JsonFlag = False,
) -> None:
    """Loss, sensitivity, rho and epsilon of a mechanism at any setting."""
    from fedray.design import evaluate_mechanism

    figures = evaluate_mechanism(file, rounds, min_sep, max_participations, noise_multiplier, delta)
    if as_json:
        _print_json(figures.to_json())
    else:
        _print_figures(figures)


@app.command()
def scenarios() -> None:
    """List the scenarios that ship with fedray."""
    from fedray.scenario import shipped_scenarios

    for path, scenario in shipped_scenarios():
        typer.echo(f"{path}  {scenario.description}")


@app.command()
def schema() -> None:
    """Print the JSON schema of scenario files."""
    from fedray.scenario import Scenario

    _print_json(Scenario.model_json_schema())


def _print_json(document: dict[str, Any]) -> None:
    typer.echo(json.dumps(document, indent=2, allow_nan=False))


def _print_table(title: str, rows: list[list[str]]) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    table = Table(*rows[0], box=SIMPLE, title=title, title_justify="left")
    for row in rows[1:]:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 150).print(table)


def _print_figures(figures: Any) -> None:
    width = max(len(what) for what, _ in figures.rows())
    for what, value in figures.rows():
        typer.echo(f"  {what:<{width}}  {value}")
    typer.echo("")


@contextlib.contextmanager
def _status(title: str) -> Iterator[Callable[[str], None]]:
    """A line on standard error that says how far a long computation is, where somebody may be watching."""
    from rich.console import Console

    console = Console(stderr=True)
    with console.status(title) as status:
        yield lambda text: status.update(f"{title}: {text}")


def _print_audit(result: Any) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 110)
    participation = Table(box=SIMPLE, title=f"Audit of {result.path}", title_justify="left", show_header=False)
    for row in result.participation_rows():
        participation.add_row(*row)
    head, *body = result.mechanism_rows()
    mechanisms = Table(*head, box=SIMPLE)
    for row in body:
        mechanisms.add_row(*row)
    console.print(participation, mechanisms, sep="")
    if result.trained_with_scaled_noise:
        console.print("The model was trained on a sample of each cohort with noise to scale; the privacy is the full cohort's.\n")


def main() -> None:
    """The console script: turns errors into one line and an exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(_exit_code(lambda: app(standalone_mode=False)))


def _interrupt(number: int, frame: Any) -> None:
    """A termination is an interruption, so that nothing half-written stays behind."""
    raise KeyboardInterrupt


def _exit_code(command: Callable[[], Any]) -> int:
    try:
        code = command()
        return _interrupted() if code == 130 else code if isinstance(code, int) else 0
    except SystemExit as done:  # Ray's handler of SIGTERM
        return _interrupted() if done.code == signal.SIGTERM else int(done.code or 0)
    except InputError as error:
        return _fail(str(error), 2)
    except FedrayError as error:
        return _fail(str(error), 1)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(_message(error), err=True)
            return 2
        return _fail(f"{_message(error).rstrip('.')}; see --help", 2)
    except _ClickError as error:
        return _fail(_message(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()


def _interrupted() -> int:
    return _fail("interrupted; what is written is written whole or not at all", 1)


def _message(error: Any) -> str:
    return error.format_message()


def _fail(message: str, code: int) -> int:
    typer.echo(f"fedray: {' '.join(message.split())}", err=True)
    return code
