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


MechanismOption = Annotated[
    Path | None, typer.Option("--mechanism", metavar="FILE", help="Another mechanism than the run's own, as JSON.")
]
ClaimOption = Annotated[Path | None, typer.Option("--claim", metavar="FILE", help="A claim as TOML, to be checked.")]
MultiplierOption = Annotated[float | None, typer.Option(help="Another noise multiplier than the run's own.")]
OwnDeltaOption = Annotated[float | None, typer.Option(help="Another delta than the run's own.")]


@app.command()
def audit(
    trace: TraceArgument,
    claim: ClaimOption = None,
    mechanism: MechanismOption = None,
    noise_multiplier: MultiplierOption = None,
    delta: OwnDeltaOption = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the audit as a page.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Also recompute the digests of all columns.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Audit a trace: participation, exact sensitivities, rho and epsilon; or a claim, statement by statement.

    With --claim the exit code is 1 unless every statement that can be checked holds.
    """
    from fedray.trace.imported import open_trace

    opened = open_trace(trace)
    if verify:
        opened.verify()
    result = _audited(opened, claim, mechanism, noise_multiplier, delta)
    if out is not None:
        from fedray.report.page import write_report

        write_report(opened, result, out)
    if as_json:
        document = result.to_json_in_full() if claim is not None else result.to_json()
        _print_json({**document, "digest_verified": verify})
    else:
        _print_audit(result)
        if claim is not None:
            _print_findings(result)
        if verify:
            typer.echo(f"every column has its recorded digest; the trace is {result.digest}")
    if not result.claim_holds:
        raise typer.Exit(1)


def _audited(opened: Any, claim: Path | None, mechanism: Path | None, noise_multiplier: float | None, delta: float | None) -> Any:
    from fedray.audit.audit import audit_trace
    from fedray.audit.claims import read_claim
    from mechanisms.files import read_strategy

    try:
        strategy = read_strategy(mechanism) if mechanism is not None else None
    except ValueError as error:
        raise InputError(str(error)) from None
    return audit_trace(opened, noise_multiplier, delta, strategy, read_claim(claim) if claim is not None else None)


@app.command(name="import")
def import_(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="A CSV or Parquet file, or a directory of them; in any order.")],
    device_column: Annotated[str, typer.Option(metavar="D", help="Column of the device: a whole number, a string or bytes.")],
    round_column: Annotated[str, typer.Option(metavar="R", help="Column of the round, counted from 0.")],
    rounds: Annotated[int, typer.Option(metavar="N", help="Rounds that released a model.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="New directory for the trace.")],
    file_format: Annotated[str | None, typer.Option("--format", metavar="csv|parquet", help="Default: by the suffix.")] = None,
    leave_out_invalid: Annotated[
        bool, typer.Option("--leave-out-invalid", help="Leave out rows that are no participation, and report them.")
    ] = False,
    memory: Annotated[int, typer.Option(metavar="MiB", help="Memory of the sort; more than that goes to disk.")] = 2048,
    as_json: JsonFlag = False,
) -> None:
    """Make a trace of a log of participations, to be audited."""
    from fedray.trace.importer import import_log

    with _status("importing") as on_status:
        trace = import_log(
            log, device_column, round_column, rounds, out, file_format,
            leave_out_invalid=leave_out_invalid, memory_mebibytes=memory, on_rows=lambda rows: on_status(f"{rows:,} rows read"),
        )  # fmt: skip
    if as_json:
        _print_json({name: value for name, value in trace.run.items() if name != "parts"})
        return
    typer.echo(f"participations  {trace.run['rows']:,} of {trace.run['devices']:,} devices, from {trace.run['rows_read']:,} rows")
    for each in trace.left_out:
        typer.echo(f"left out        {each.rows:,} rows: {each.reason}, such as {each.example}")
    typer.echo(f"trace           {trace.path}")


@app.command()
def report(
    trace: TraceArgument,
    out: Annotated[Path | None, typer.Option(help="The page to write; default: report.html in the trace.")] = None,
    claim: ClaimOption = None,
    mechanism: MechanismOption = None,
    noise_multiplier: MultiplierOption = None,
    delta: OwnDeltaOption = None,
) -> None:
    """Write the self-contained HTML report of a trace."""
    from fedray.report.page import write_report
    from fedray.trace.imported import open_trace
    from fedray.trace.schema import REPORT_FILE

    opened = open_trace(trace)
    result = _audited(opened, claim, mechanism, noise_multiplier, delta)
    typer.echo(str(write_report(opened, result, out or opened.path / REPORT_FILE)))


@app.command()
def reproduce(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="gboard: the runs of Xu et al. 2023, simulated; gboard-privacy: their rho and epsilon, no simulation.",
        ),
    ],
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

    if what == "gboard-privacy":
        if (overrides, out, shards, address) != (None, None, None, None):
            raise InputError("gboard-privacy simulates nothing: leave out --set, --out, --shards and --address")
        _reproduce_privacy(rows, as_json)
        return
    if what != "gboard":
        raise InputError(f"{what!r} is no set of published runs; there are gboard and gboard-privacy")
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


def _reproduce_privacy(rows: str | None, as_json: bool) -> None:
    from fedray.reproduce import GAP_NOTE, privacy_table, published_privacy

    results = published_privacy(rows)
    if as_json:
        _print_json({"note": GAP_NOTE, "rows": [result.to_json() for result in results]})
    else:
        _print_table("Privacy of published runs, recomputed (Xu et al. 2023, table 3)", privacy_table(results))
        typer.echo(GAP_NOTE)
    if not all(result.agrees for result in results):
        raise typer.Exit(1)


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
def canary(
    scenario: Annotated[Path, typer.Argument(metavar="SCENARIO", help="A scenario file.")],
    trace: Annotated[
        Path | None, typer.Option(metavar="TRACE", help="Take the pattern from this trace; default: the scenario is simulated.")
    ] = None,
    coordinates: Annotated[int, typer.Option(metavar="D", help="Parameters of the model; half of them get a canary.")] = 8192,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the scenario, e.g. seed=7.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Check by experiment that the aggregator's noise is what is claimed: canaries in the real aggregator. Exit code 1 if not."""
    from fedray.canary import CONFIDENCE, run_canary
    from fedray.scenario import Scenario

    value = Scenario.from_toml(scenario, overrides or ())
    with _status("running canaries"):
        result = run_canary(value, trace, coordinates)
    if as_json:
        _print_json(result.to_json())
    else:
        typer.echo(f"mechanism  {result.mechanism}, noise multiplier {result.noise_multiplier:g}, {result.rounds:,} rounds")
        typer.echo(f"pattern    rounds {', '.join(map(str, result.pattern))}")
        typer.echo(f"mu         claimed {result.claimed_mu:.4f}, expected of the released rounds {result.expected_mu:.4f}")
        typer.echo(f"           measured {result.mu:.4f} [{result.mu_low:.4f}, {result.mu_high:.4f}] ({100 * CONFIDENCE:g} %)")
        typer.echo(f"signal     {result.signal:.4f} of what it should be; noise {result.noise:.4f}")
        typer.echo(f"p-values   size of the noise {result.noise_p:.3g}, independence of rounds {result.independence_p:.3g}")
        for problem in result.problems:
            typer.echo(f"WRONG      {problem}")
    if result.problems:
        raise typer.Exit(1)


@app.command()
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

    with _status(f"sweeping {value.name}") as on_status, contextlib.redirect_stdout(sys.stderr):
        result = run_sweep(value, scenario, Placement(address=address), has_cache, on_status)
    if out is not None:
        write_results(result, out, sweep_page(result))
    if as_json:
        _print_json(result.to_json())
        return
    _print_table(value.name, sweep_rows(result))
    if len(crossing_rows(result)) > 1:
        _print_table("Crossings", crossing_rows(result))
    if out is not None:
        typer.echo(f"report  {out / 'report.html'}\ntable   {out / 'results.parquet'}")


@app.command()
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
    value = scenario_to_fit(scenario, population, hours[0], rounds, None if scenario is not None else LEAST_GOAL, overrides or ())
    target = Target(epsilon, delta, noise_per_report, buffers)
    with _status("planning") as on_status, contextlib.redirect_stdout(sys.stderr):
        found = make_plan(value, target, hours, seeds, scale, on_progress=on_status)
    if out is not None:
        write_page(plan_page(found), out)
    if as_json:
        _print_json(found.to_json())
    else:
        _print_table("Candidates", plan_rows(found))
        typer.echo(plan_sentence(found))
    if found.best is None:
        raise typer.Exit(1)


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


def _print_findings(result: Any) -> None:
    rows = [["statement", "verdict", "claimed", "found", "should say", "because"]]
    for each in result.findings:
        found = "-" if each.found is None else f"{each.found:.6g}"
        rows.append([each.statement, str(each.verdict), f"{each.claimed:.6g}", found, each.should_say, each.explanation])
    _print_table("The claim", rows)
    for each in result.findings:
        for shown in each.evidence:
            rounds = ", ".join(map(str, shown.rounds[:12])) + (", ..." if len(shown.rounds) > 12 else "")
            typer.echo(f"  {each.statement}: device {shown.device}, rounds {rounds}: {shown.shows}")
    shares = {each.share: each.rho for each in result.device_privacy.quantiles}
    typer.echo(
        f"  rho of the median device {shares[0.5]:.6f}, of 99 % at most {shares[0.99]:.6f}, of all at most {shares[1.0]:.6f}"
    )
    bound = result.frontier.sensitivity
    typer.echo(f"  sensitivity by the frontier of (min-sep, participations) at most {bound:.6f}")
    typer.echo(f"the claim {'holds' if result.claim_holds else 'does not hold'}")


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
