"""The `fedray` command: thin; every behaviour is in the package. Exit codes: 0 done, 1 a run failed, 2 bad usage or input."""

import contextlib
import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from fedray.errors import FedrayError, InputError

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
    scenario: Annotated[Path, typer.Argument(metavar="SCENARIO", help="A scenario file; `fedray scenarios` lists some.")],
    out: Annotated[Path | None, typer.Option(help="New directory for the trace; default: one under runs/.")] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. rounds.report_goal=3000."),
    ] = None,
    shards: Annotated[int | None, typer.Option(help="Population shards; default: one per CPU; at most one per 65,536 ids.")] = None,
    address: Annotated[str | None, typer.Option(help="Ray cluster to join: auto, ray://host:port; default: a local one.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Simulate a scenario, write its trace, audit it, and write its report."""
    from fedray.audit.audit import audit_trace
    from fedray.placement import Placement
    from fedray.report.page import write_report
    from fedray.report.progress import run_progress
    from fedray.scenario import Scenario
    from fedray.simulation import simulate
    from fedray.trace.schema import REPORT_FILE

    value = Scenario.from_toml(scenario, overrides or ())
    placement = Placement(shards=shards, address=address)
    with run_progress(value, is_shown=not as_json) as on_progress:
        trace = simulate(value, placement, out, on_progress)
    audit = audit_trace(trace)
    report = write_report(trace, audit, trace.path / REPORT_FILE)
    if as_json:
        _print_json({**audit.to_json(), "report": str(report), "wall_seconds": trace.run["wall_seconds"]})
    else:
        _print_audit(audit)
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
