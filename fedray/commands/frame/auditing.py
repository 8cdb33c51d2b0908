"""Steps of the commands that audit a trace or show its page."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from fedray.base.errors import one_line
from fedray.commands.frame.output import print_line, print_pieces

WHOLE = "--verbose and --page FILE give reasons, evidence, comparisons and assumptions"


def open_checked(
    directory: Path, verify: bool | None, opens: Callable[[Path, bool], Any] | None = None
) -> Any:
    """Opens a trace, and checks its digests as `--verify` asks.

    Args:
        directory: directory of the trace.
        verify: True checks all digests now, None those of columns that are read, False none.
        opens: function that opens another kind of result; its second argument is whether digests
            are checked as columns are read. None for a trace.
    """
    from fedray.trace.imported import open_trace

    opened = (opens or open_trace)(directory, verify is not False)
    if verify:
        opened.verify()
    return opened


def open_tasks(directory: Path, delta: float | None, verify: bool | None) -> tuple[Any, Any]:
    """Opens and audits a run of several tasks; returns both."""
    from fedray.audit.several_tasks import audit_tasks
    from fedray.trace.several_tasks import TasksRun

    opened = open_checked(directory, verify, TasksRun.open)
    return opened, audit_tasks(opened, delta)


def audited(
    trace: Path,
    claim: Path | None,
    mechanisms: list[Path] | None,
    noise_multiplier: float | None,
    delta: float | None,
    show_devices: bool,
    verify: bool | None,
) -> tuple[Any, Any]:
    """Opens and audits a trace as the options of `fedray audit` say; returns both. Of a training,
    its trace is audited with the mechanism and noise that it was trained with."""
    from fedray.audit.auditing import audit_trace
    from fedray.audit.claims import read_claim
    from fedray.runs.design import mechanism_over
    from fedray.trace.learned_from import is_trained_run, opened_training

    trained = None
    if is_trained_run(trace):
        trained, found, _ = opened_training(trace)
        trace = found.path
        print_line(f"training {trained.path}, as it was trained on the trace {trace}", err=True)
    opened = open_checked(trace, verify)
    # A kind such as tree is built for the number of rounds of this trace.
    strategies = [mechanism_over(each, opened.committed_rounds) for each in mechanisms or ()]
    claimed = read_claim(claim) if claim is not None else None
    options = (noise_multiplier, delta, strategies, claimed, show_devices)
    return opened, audit_trace(opened, *options, trained=trained)


def exit_by_claim(audit: Any) -> None:
    """Ends the command with 1 unless the claim passes, on which scripts rely."""
    if audit.claim_holds is False:
        text = one_line(f"fedray: {audit.verdict} {audit.incompleteness} {audit.left_out_bound}")
        # On a terminal the verdict is on the screen already.
        if not sys.stdout.isatty():
            print_line(text, err=True)
        raise typer.Exit(1)


def print_audit(
    trace: Any,
    audit: Any,
    claim: Path | None,
    has_evidence: bool,
    is_verified: bool,
    verbose: bool,
) -> None:
    """Prints an audit, and with `verbose` also how the trace was checked."""
    from fedray.report.table import bullets
    from fedray.report.terminal import audit_text, short_audit_text

    if verbose:
        print_pieces([*audit_text(audit), *bullets([trace.integrity])], audit.of)
    else:
        print_pieces([*short_audit_text(audit), WHOLE], audit.of)
    if not has_evidence and any(len(e.evidence) < e.broken_by for e in audit.findings):
        typer.echo("\n--evidence FILE.csv writes every participation that breaks the claim")
    if audit.needs_noise and claim is not None:
        command = shlex.join(["fedray", "calibrate", str(audit.path), "--claim", str(claim)])
        print_line("", f"{command} finds the noise that the claim needs")
    if is_verified:
        print_line(f"every column has its recorded digest; the trace is {audit.digest}")
