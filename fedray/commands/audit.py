"""`fedray audit`: audit a trace, or check a claim."""

from pathlib import Path

from fedray.base.errors import InputError, one_line
from fedray.commands.audit_files import (
    check_evidence,
    write_evidence_file,
    write_statement,
)
from fedray.commands.audit_sampler import trace_of_sampler
from fedray.commands.auditing import audited, exit_by_claim, print_audit
from fedray.commands.output import print_files, print_json, print_line, write_shown
from fedray.commands.progress import progress_line


def audit(
    trace: Path | None = None,
    *,
    sampler: str | None = None,
    assume: Path | None = None,
    rounds: int | None = None,
    claim: Path | None = None,
    mechanism: list[Path] | None = None,
    noise_multiplier: float | None = None,
    delta: float | None = None,
    page: Path | None = None,
    figures: Path | None = None,
    statement: Path | None = None,
    tuning: Path | None = None,
    events: Path | None = None,
    evidence: Path | None = None,
    show_devices: bool = False,
    verify: bool | None = None,
    verbose: bool = False,
    as_json: bool = False,
) -> None:
    """Audit a trace, a training or a sampler: observed, enforced, claimed guarantee; check a claim.

    A training is audited on the trace that it was made from, with its own mechanism and noise.

    The answer is short; --verbose and the page have reasons, evidence and assumptions. With
    --claim the exit code is 1 unless every statement that can be checked holds, and at least
    one can be checked; a claimed rho or epsilon must be checked. A log does not show how noise was
    added, so mechanism and noise multiplier are then taken from the claim. For a run of several
    tasks, each trace is audited, and the privacy that devices spent over all tasks.

    A statement gives the guarantee of a run's rules. For a log it gives that of the claimed limits
    under their condition, and without a claim the observed one.

    Sampler to run instead of a trace:
        sampler (MODULE:OBJECT): rounds of ids, or a function that returns them; its code is run
        assume (TOML): claim that its accountant relies on, which may describe the sampling
        rounds (N): rounds to take from it; default: those of the claim
    Guarantee to audit:
        claim (TOML): claim to check; docs/audit.md has examples
        mechanism (FILE|KIND): mechanism instead of the run's; blt-400, tree, identity; repeatable
        noise_multiplier (Z): noise multiplier instead of the run's
        delta (D): delta of epsilon instead of the run's; a log has 1e-10
    Files to write:
        page (FILE): HTML page of the audit
        figures (DIR): folder for every figure of the page, as SVG and CSV
        statement (DIR): folder for a privacy statement to publish, as Markdown and JSON
        tuning (DIR): training grid on this trace, whose cost the statement gives
        events (FILE): released models as events, with rho and epsilon of two accountants
        evidence (FILE): every participation that breaks the claim, as .csv or .parquet
    Args:
        verbose: print the whole audit
        show_devices: name the devices of a log, instead of a keyed hash
    """
    from fedray.commands.audit_tasks import audit_run_of_tasks
    from fedray.trace.several_tasks import is_of_tasks

    # The folder of a sampler's trace is removed when this function returns.
    trace, claim, _folder = trace_of_sampler(trace, sampler, assume, rounds, claim)
    if is_of_tasks(trace):
        about_one = {
            "--claim": claim,
            "--mechanism": mechanism,
            "--noise-multiplier": noise_multiplier,
            "--statement": statement,
            "--tuning": tuning,
            "--events": events,
            "--evidence": evidence,
            "--show-devices": show_devices,
        }
        audit_run_of_tasks(trace, about_one, delta, page, figures, verify, verbose, as_json)
        return
    if statement is not None and show_devices:
        raise InputError("--statement is for publication; leave out --show-devices")
    if tuning is not None and statement is None:
        raise InputError("--tuning is a line of the statement; give --statement DIR")
    check_evidence(evidence, claim)
    with progress_line("auditing"):
        opened, result = audited(
            trace, claim, mechanism, noise_multiplier, delta, show_devices, verify
        )
    written = write_shown(result, page, figures)
    if events is not None:
        written["events"] = str(result.write_events(events))
    if evidence is not None:
        written["evidence"] = write_evidence_file(result, evidence, show_devices)
    if not as_json:
        print_audit(opened, result, claim, "evidence" in written, verify is True, verbose)
    # The only file that may be refused comes last.
    if statement is not None:
        try:
            written["statement"] = write_statement(result, statement, tuning)
        except InputError as error:
            # The exit code says that the claim fails, whatever else cannot be written.
            if result.claim_holds:
                raise
            print_line(f"fedray: {one_line(str(error))}", err=True)
    if as_json:
        document = result.to_json_in_full() if claim is not None else result.to_json()
        # By default, columns that are not read are not checked.
        checked = {"integrity": opened.integrity, "digest_verified": verify is True}
        print_json({**document, **checked, **written})
    else:
        print_files(written)
    exit_by_claim(result)
