"""Audits: audit, report, statement, canary."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedray.base.errors import InputError, one_line
from fedray.commands.output import (
    FiguresOption,
    JsonFlag,
    PageOption,
    QuietFlag,
    TraceArgument,
    TrustFlag,
    print_json,
    print_pieces,
    progress_line,
    scenario_argument,
)

MechanismOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--mechanism",
        metavar="FILE|KIND",
        help="Instead of the run's own: a mechanism as JSON or .npy, or tree, tree-full or "
        "identity. Several may be given.",
    ),
]
ClaimOption = Annotated[
    Path | None,
    typer.Option(
        "--claim", metavar="FILE", help="A claim as TOML, to be checked; docs/audits.md has keys."
    ),
]
MultiplierOption = Annotated[
    float | None, typer.Option(metavar="Z", help="Instead of the run's own; a log has none.")
]
OwnDeltaOption = Annotated[
    float | None, typer.Option(metavar="D", help="Instead of the run's own; a log has 1e-10.")
]
ShowDevicesFlag = Annotated[
    bool,
    typer.Option(
        "--show-devices", help="Name the devices of a log; else they are shown by a keyed hash."
    ),
]


VerifyFlag = Annotated[
    bool | None,
    typer.Option(
        "--verify/--no-verify",
        help="Check the digests of all columns of the trace, or of none; default: of what is read.",
        show_default=False,
    ),
]


def audit(
    trace: TraceArgument,
    claim: ClaimOption = None,
    mechanism: MechanismOption = None,
    noise_multiplier: MultiplierOption = None,
    delta: OwnDeltaOption = None,
    page: PageOption = None,
    figures: FiguresOption = None,
    events: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write what was released as events, ours and those of dp_accounting, with "
            "rho and epsilon by both.",
        ),
    ] = None,
    evidence: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --claim: also write every device and pair of rounds that breaks what is "
            "claimed of participation, as a .csv or .parquet file with a row for each.",
        ),
    ] = None,
    show_devices: ShowDevicesFlag = False,
    verify: VerifyFlag = None,
    quiet: QuietFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Audit a trace: what was observed, what was enforced, what is claimed; or a claim, statement
    by statement.

    With --claim the exit code is 1 unless every statement that can be checked
    holds, and at least one can. A rho or epsilon that is claimed and cannot be
    checked gives 1 too. A log does not show how noise was added, so mechanism
    and noise multiplier of a claim are then taken as they are claimed. Of a
    run of several tasks each trace is audited, and what devices spent over all.
    """
    from fedray.trace.several_tasks import is_of_tasks

    # A run of several tasks has a trace for each, so options about one trace are refused.
    if is_of_tasks(trace):
        from fedray.commands.several_tasks import audit_run_of_tasks

        refused = {
            "claim": claim,
            "mechanism": mechanism,
            "noise_multiplier": noise_multiplier,
            "events": events,
            "evidence": evidence,
            "show_devices": show_devices,
        }
        audit_run_of_tasks(trace, refused, delta, page, figures, verify, as_json)
        return
    if evidence is not None:
        from fedray.audit.claims import read_claim
        from fedray.audit.evidence import check_evidence_file

        check_evidence_file(evidence, read_claim(claim) if claim is not None else None)
    with progress_line("auditing", quiet):
        opened = _opened(trace, verify)
        result = _audited(opened, claim, mechanism, noise_multiplier, delta, show_devices)
    written = {}
    if page is not None:
        from fedray.report.page import write_report

        written["page"] = str(write_report(result, page))
    if figures is not None:
        written["figures"] = _write_figures(result, figures)
    if events is not None:
        written["events"] = str(result.write_events(events))
    if evidence is not None:
        from fedray.audit.evidence import write_evidence

        with progress_line("writing evidence", quiet):
            write_evidence(result, evidence, show_devices)
        written["evidence"] = str(evidence)
    if as_json:
        document = result.to_json_in_full() if claim is not None else result.to_json()
        print_json(
            {
                **document,
                "integrity": opened.integrity,
                # By default only columns that are read are checked, which says nothing of the
                # others.
                "digest_verified": verify is True,
                **written,
            }
        )
    else:
        from fedray.report.table import bullets
        from fedray.report.terminal import audit_text

        print_pieces([*audit_text(result), *bullets([opened.integrity])])
        if evidence is None and any(each.evidence_note for each in result.findings):
            typer.echo("\n--evidence FILE.csv writes all that break the claim")
        if verify:
            typer.echo(f"every column has its recorded digest; the trace is {result.digest}")
        for what, path in written.items():
            typer.echo(f"{what:<8} {path}")
    _exit_by_claim(result)


def _opened(trace: Path, verify: bool | None) -> Any:
    from fedray.trace.imported import open_trace

    # By default a column is checked when it is read; --verify checks all of them besides.
    opened = open_trace(trace, verify=verify is not False)
    if verify:
        opened.verify()
    return opened


def _write_figures(result: Any, directory: Path) -> str:
    """Where they were written."""
    from fedray.report.files import write_figures

    write_figures(result, directory)
    return str(directory.absolute())


def _exit_by_claim(result: Any) -> None:
    """Ends with 1 where a claim does not pass, and tells on stderr whether it is broken or cannot
    be checked."""
    from fedray.audit.findings import Verdict

    # Scripts rely on the exit code.
    if result.claim_holds:
        return
    told = "does not pass"
    if {each.verdict for each in result.findings} <= {Verdict.HOLDS, Verdict.UNCHECKED}:
        told = "cannot be checked, and nothing of it is found broken"
    line = f"fedray: the claim {told}: {result.claim_sentence}. {result.incompleteness}"
    typer.echo(one_line(line), err=True)
    raise typer.Exit(1)


def _audited(
    opened: Any,
    claim: Path | None,
    mechanisms: list[Path] | None,
    noise_multiplier: float | None,
    delta: float | None,
    show_devices: bool,
) -> Any:
    from fedray.audit.audit import audit_trace
    from fedray.audit.claims import read_claim
    from fedray.studies.design import mechanism_over

    strategies = [mechanism_over(each, opened.committed_rounds) for each in mechanisms or ()]
    claimed = read_claim(claim) if claim is not None else None
    return audit_trace(opened, noise_multiplier, delta, strategies, claimed, show_devices)


def report(
    trace: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE",
            help="A trace, or a trained run: the directory that `fedray run`, `fedray import` or "
            "`fedray train` wrote.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The page to write; default: report.html in that directory."
        ),
    ] = None,
    claim: ClaimOption = None,
    mechanism: MechanismOption = None,
    noise_multiplier: MultiplierOption = None,
    delta: OwnDeltaOption = None,
    figures: FiguresOption = None,
    show_devices: ShowDevicesFlag = False,
    verify: VerifyFlag = None,
    quiet: QuietFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Write the self-contained HTML page of a trace's audit, or of a trained run.

    It is the page of `fedray audit --page`, in the trace unless --out names a
    file, without the audit's text. With --claim the exit code is that of the
    audit. A trained run has a page of its metrics, which no audit is part of.
    """
    from fedray.report.page import write_report
    from fedray.trace.learned_from import is_trained_run
    from fedray.trace.schema import REPORT_FILE
    from fedray.trace.several_tasks import is_of_tasks

    # A trained run has no participations of its own, so that nothing of it is audited.
    if is_trained_run(trace):
        # What an audit is asked has no meaning for a trained run, so it is refused if it is given.
        options = {
            "claim": claim,
            "mechanism": mechanism,
            "noise_multiplier": noise_multiplier,
            "delta": delta,
            # A flag that was not given is False, and has to count as not given.
            "show_devices": show_devices or None,
        }
        given = [name for name, value in options.items() if value is not None]
        _print_written(_report_trained(trace, out, figures, verify, given), as_json)
        return
    if is_of_tasks(trace):
        from fedray.commands.several_tasks import pages_of_tasks

        refused = {
            "claim": claim,
            "mechanism": mechanism,
            "noise_multiplier": noise_multiplier,
            "show_devices": show_devices,
        }
        _print_written(pages_of_tasks(trace, refused, delta, out, figures, verify), as_json)
        return
    with progress_line("auditing", quiet):
        opened = _opened(trace, verify)
        result = _audited(opened, claim, mechanism, noise_multiplier, delta, show_devices)
    written = {"page": str(write_report(result, out or opened.path / REPORT_FILE))}
    if figures is not None:
        written["figures"] = _write_figures(result, figures)
    _print_written(written, as_json)
    _exit_by_claim(result)


def _print_written(written: dict[str, str], as_json: bool) -> None:
    if as_json:
        print_json(written)
        return
    for path in written.values():
        typer.echo(path)


def _report_trained(
    directory: Path, out: Path | None, figures: Path | None, verify: bool | None, given: list[str]
) -> dict[str, str]:
    """Writes the page of a trained run.

    Args:
        directory: of the trained run.
        out: the page; None for the one in the directory.
        figures: directory of the figures; None for none.
        verify: whether to check all digests, none, or those of what is read.
        given: options that were used, and are of audits.

    Returns:
        Where the page and the figures are, by "page" and "figures".
    """
    from fedray.report.files import write_figures
    from fedray.report.page import write_report
    from fedray.trace.schema import REPORT_FILE
    from fedray.trace.trained import TrainedRun

    if given:
        flag = f"--{given[0].replace('_', '-')}"
        raise InputError(
            f"{str(directory)!r} is a trained run, and {flag} is about the audit of a trace; leave "
            "it out, or give the trace"
        )
    trained = TrainedRun.open(directory, verify is not False)
    if verify:
        trained.verify()
    written = {"page": str(write_report(trained, out or directory / REPORT_FILE))}
    if figures is not None:
        write_figures(trained, figures)
        written["figures"] = str(figures.absolute())
    return written


def statement(
    trace: TraceArgument,
    claim: ClaimOption = None,
    mechanism: MechanismOption = None,
    noise_multiplier: MultiplierOption = None,
    delta: OwnDeltaOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Directory for statement.md and statement.json, made if there is none; default: "
            "the trace.",
        ),
    ] = None,
    verify: VerifyFlag = None,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", help="Show no progress, and of the statement only where it was written."
        ),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Write a privacy statement that can be published, as Markdown and JSON: every line with its
    evidence.

    It states the enforced guarantee where that is known, else the claimed one,
    else the observed one, for the run's own mechanism, the one that is claimed,
    or the one of --mechanism. With --claim the exit code is that of the audit.
    """
    from fedray.audit.privacy_statement import privacy_statement

    with progress_line("auditing", quiet):
        opened = _opened(trace, verify)
        result = _audited(opened, claim, mechanism, noise_multiplier, delta, False)
    found = privacy_statement(result)
    folder = out or opened.path
    _write_statement(found, folder)
    if as_json:
        print_json(found.to_json())
    else:
        if not quiet:
            typer.echo(found.to_markdown())
        typer.echo(f"statement  {folder / 'statement.md'}\n           {folder / 'statement.json'}")
    _exit_by_claim(result)


def _write_statement(found: Any, folder: Path) -> None:
    import json

    from fedray.base.atomic import write_whole

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(
            f"--out {str(folder)!r} is no directory that can be made ({reason}); name another"
        ) from None
    document = json.dumps(found.to_json(), indent=2, allow_nan=False) + "\n"
    for name, content in (("statement.md", found.to_markdown()), ("statement.json", document)):
        write_whole(folder / name, content.encode(), f"{name} in {str(folder)!r}", InputError)


def canary(
    scenario: Annotated[Path, scenario_argument("A scenario, by file or name.")],
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="TRACE",
            help="Take the pattern from this trace; default: the scenario is simulated.",
        ),
    ] = None,
    coordinates: Annotated[
        int | None,
        typer.Option(
            metavar="D",
            help="Parameters of the model, half of them with a canary; default: 8192, or 256 where "
            "devices add the noise.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override a key of the scenario, e.g. seed=7."
        ),
    ] = None,
    verify: VerifyFlag = None,
    trust_code: TrustFlag = False,
    quiet: QuietFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Check by experiment that the aggregator's noise is what is claimed: canaries in the real
    aggregator. Exit code 1 if not."""
    from fedray.scenario import Scenario
    from fedray.studies.canary import run_canary

    if verify is not None and trace is None:
        raise InputError(
            "--verify and --no-verify are about a recorded trace; name it by --trace, or leave "
            "them out"
        )
    value = Scenario.from_toml(scenario, overrides or (), trust_code=trust_code)
    opened = _opened(trace, verify) if trace is not None else None
    with progress_line("running canaries", quiet) as on_status:
        result = run_canary(value, opened, coordinates, on_progress=on_status)
    if as_json:
        print_json(result.to_json())
    else:
        print_pieces(result.tables())
    if result.problems:
        raise typer.Exit(1)
