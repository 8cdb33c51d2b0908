"""`fedray audit`: audit a trace, or check a claim."""

import json
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import typer

from fedray.base.errors import InputError, demanded, one_line
from fedray.base.rounding import counted
from fedray.base.storage import fetched
from fedray.commands.frame.auditing import WHOLE, audited, exit_by_claim, open_tasks, print_audit
from fedray.commands.frame.output import (
    print_files,
    print_json,
    print_line,
    print_pieces,
    print_result,
    write_shown,
)
from fedray.commands.frame.progress import progress_line


def audit(
    trace: Path | None = None,
    *,
    sampler: str | None = None,
    assume: Path | None = None,
    rounds: int | None = None,
    claim: Path | None = None,
    until: int | None = None,
    slowest: float | None = None,
    hold: Path | None = None,
    hold_by: str | None = None,
    in_force: Path | None = None,
    history: Path | None = None,
    night: str | None = None,
    gauges: Path | None = None,
    mechanism: list[Path] | None = None,
    noise_multiplier: float | None = None,
    delta: float | None = None,
    page: Path | None = None,
    figures: Path | None = None,
    statement: Path | None = None,
    events: Path | None = None,
    evidence: Path | None = None,
    show_devices: bool = False,
    verify: bool | None = None,
    verbose: bool = False,
    as_json: bool = False,
) -> None:
    """Audit a trace, a training or a sampler: observed, enforced, claimed guarantee; check a claim.

    A training is audited on the trace that it was made from, with its own mechanism and noise.

    The answer is short; --verbose and the page have reasons, evidence and assumptions. With --claim
    the exit code is 1 unless every statement that can be checked holds, and at least one can be; a
    claimed rho or epsilon must be checked. Unless the import settled ids that differ only in
    writing, it must hold with them as one device too. A log does not show how noise was added:
    mechanism and noise multiplier are the claim's. For several tasks, each trace is audited, and
    what all spent.

    A statement gives the guarantee of a run's rules. For a log it gives that of the claimed limits
    under their condition, and without a claim the observed one.

    With --until, the claim is judged for the end of a run that continues: it is kept, in danger or
    lost, with the least changes that keep it. The exit code is 1 unless it is kept.

    Sampler to run instead of a trace:
        sampler (MODULE:OBJECT): rounds of ids, or a function that returns them; its code is run
        assume (TOML): claim that its accountant relies on, which may describe the sampling
        rounds (N): rounds to take from it; default: those of the claim
    Guarantee to audit:
        claim (TOML): claim to check; docs/audit.md has examples
        mechanism (FILE|KIND): mechanism instead of the run's; blt-400, tree, identity; repeatable
        noise_multiplier (Z): noise multiplier instead of the run's
        delta (D): delta of epsilon instead of the run's; a log has 1e-10
    Rounds to come:
        until (ROUNDS): planned number of rounds; will the claim hold after them?
        slowest (HOURS): most hours from one start of a round to the next, which a server keeps;
            without it, a timer limits no round to come
        hold (FILE): list of devices that must wait, to write as .csv or .parquet
        hold_by (KIND): round or time, from which each may come; a time needs --slowest; default:
            that of the list in force, else round
        in_force (TOML): list and rules that the server of a log enforces; docs/live.md
        history (FILE): JSON Lines with a line for each night, to extend; the page shows them
        night (DATE): day of that line, such as 2026-11-29; default: today in UTC
        gauges (FILE): gauges for Prometheus' node_exporter, to write as .prom
    Files to write:
        page (FILE): HTML page of the audit
        figures (DIR): folder for every figure of the page, as SVG and CSV
        statement (DIR): folder for a privacy statement to publish, as Markdown and JSON
        events (FILE): released models as events, with rho and epsilon of two accountants
        evidence (FILE): every participation that breaks the claim, as .csv or .parquet
    Args:
        trace (TRACE|URI): trace, a directory of `fedray run` or `fedray import`
        verbose: print the whole audit
        verify: check every digest, or none; default: of what is read
        show_devices: name the devices of a log, instead of a keyed hash
    """
    from fedray.audit.claims import read_claim
    from fedray.audit.evidence import check_evidence_file, write_evidence
    from fedray.trace.several_tasks import is_of_tasks

    _check_suffix("hold", hold, (".csv", ".parquet"))
    _check_suffix("gauges", gauges, (".prom",))
    # The folder of a sampler's trace is removed at the end.
    trace, claim, _folder = trace_of_sampler(trace, sampler, assume, rounds, claim)
    trace = fetched(trace)
    if is_of_tasks(trace):
        about_one = {
            "--claim": claim,
            "--until": until,
            "--mechanism": mechanism,
            "--noise-multiplier": noise_multiplier,
            "--statement": statement,
            "--events": events,
            "--evidence": evidence,
            "--show-devices": show_devices,
        }
        audit_run_of_tasks(trace, about_one, delta, page, figures, verify, verbose, as_json)
        return
    about_rounds_to_come = {
        "--slowest": slowest,
        "--hold": hold,
        "--hold-by": hold_by,
        "--in-force": in_force,
        "--history": history,
        "--night": night,
        "--gauges": gauges,
    }
    _check_until(until, claim, about_rounds_to_come)
    kept = Kept(hold, _by(hold_by, hold, slowest), history, _day(night, history), gauges)
    if statement is not None and show_devices:
        raise InputError("--statement is for publication; leave out --show-devices")
    if evidence is not None:
        check_evidence_file(evidence, read_claim(claim) if claim is not None else None)
    of = trace, claim, mechanism, noise_multiplier, delta, show_devices, verify
    with progress_line("auditing"):
        opened, result = audited(*of)
    if until is not None:
        for_now = {"--statement": statement, "--events": events, "--evidence": evidence}
        assert claim is not None  # `_check_until` demands it.
        shown = in_force, page, figures, as_json, for_now
        _print_outlook(result, claim, until, slowest, kept, *shown)
        return
    # The page of a long trace takes its time, and its reader wants the verdict.
    if not as_json:
        print_audit(opened, result, claim, evidence is not None, verify is True, verbose)
    written = write_shown(result, page, figures)
    if events is not None:
        written["events"] = str(result.write_events(events))
    if evidence is not None:
        with progress_line("writing evidence"):
            write_evidence(result, evidence, show_devices)
        written["evidence"] = str(evidence)
    # The only file that may be refused comes last.
    if statement is not None:
        try:
            written["statement"] = write_statement(result, statement)
        except InputError as error:
            # The exit code says that the claim fails, whatever else cannot be written.
            if result.claim_holds is not False:
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


def _check_until(until: int | None, claim: Path | None, about_it: dict[str, Any]) -> None:
    """Raises InputError if options about rounds to come lack what they need."""
    given = [flag for flag, value in about_it.items() if value is not None]
    if until is None and given:
        raise InputError(f"{given[0]} is about rounds to come; give --until ROUNDS too")
    if until is not None and claim is None:
        raise InputError("--until judges a claim at the end of a run; give --claim too")


def _check_suffix(argument: str, file: Path | None, suffixes: tuple[str, ...]) -> None:
    """Raises InputError if a file to write has a suffix that its readers do not take."""
    if file is not None and file.suffix not in suffixes:
        rule = f"must end with {' or '.join(suffixes)}"
        raise InputError.of(argument, str(file), rule, "rename the file")


class Kept(NamedTuple):
    """Files that an outlook leaves beside its page."""

    hold: Path | None
    """List of the devices that must wait."""
    hold_by: Any
    """Meaning of its values, as the option says."""
    history: Path | None
    """Nights of the claim."""
    day: date
    """Day of tonight's line in the history."""
    gauges: Path | None
    """Gauges for Prometheus."""


def _by(hold_by: str | None, hold: Path | None, slowest: float | None) -> Any:
    """Returns the meaning of the values of a list to write; None if it is not given. Raises
    InputError."""
    if hold_by is None:
        return None
    if hold is None:
        raise InputError("--hold-by is about a list of devices; give --hold FILE too")
    if hold_by not in ("round", "time"):
        raise InputError.of("hold_by", hold_by, "must be round or time")
    if hold_by == "time" and slowest is None:
        raise InputError("--hold-by time needs the pace of rounds; give --slowest HOURS too")
    return f"first_{hold_by}"


def _day(night: str | None, history: Path | None) -> date:
    """Returns the day of a night, or today. Raises InputError."""
    if night is None:
        return datetime.now(UTC).date()
    if history is None:
        raise InputError("--night is a line of a history; give --history FILE too")
    try:
        return date.fromisoformat(night)
    except ValueError:
        rule = "must be a date such as 2026-11-29"
        raise InputError.of("night", night, rule, "correct it, or leave it out") from None


def _print_outlook(
    audit: Any,
    claim: Path,
    until: int,
    slowest: float | None,
    kept: Kept,
    in_force: Path | None,
    page: Path | None,
    figures: Path | None,
    as_json: bool,
    for_now: dict[str, Any],
) -> None:
    """Prints whether the claim of an audit will hold after the last planned round, and ends with 1
    unless it will.

    Args:
        audit: audit of the released rounds.
        claim: file of the claim.
        until: planned number of rounds.
        slowest: most hours from one start of a round to the next.
        kept: files beside the page.
        in_force: file of the rules in force of a log, if any.
        page: file of the page, if any.
        figures: folder of the figures, if any.
        as_json: whether to print one JSON object.
        for_now: options about the released rounds only, by flag; they must not be given.
    """
    from fedray.audit.live.in_force import read_in_force
    from fedray.audit.live.outlook import State, look_ahead

    given = [flag for flag, value in for_now.items() if value is not None]
    if given:
        raise InputError(f"{given[0]} is about the released rounds; leave it out, or --until")
    with progress_line("looking ahead"):
        enforced = None if in_force is None else read_in_force(in_force)
        outlook = look_ahead(audit, until, slowest, enforced, kept.hold_by, str(claim))
    if not as_json:
        print_result(outlook, as_json=False)
    # Devices of a simulated population may not have come yet.
    if enforced is not None and outlook.waiting.warning is not None:
        print_line(f"fedray: {outlook.waiting.warning}", err=True)
    outlook, written = _recorded(outlook, kept)
    written |= write_shown(outlook, page, figures)
    if as_json:
        print_json({**outlook.to_json(), **written})
    else:
        print_files(written)
    if outlook.state is not State.KEPT:
        raise typer.Exit(1)


def _recorded(outlook: Any, kept: Kept) -> tuple[Any, dict[str, str]]:
    """Writes the list of devices that must wait, the gauges and tonight's line of the history.

    Returns:
        The outlook with its nights, and the paths of the files, by the names of their options.

    Raises:
        InputError: the list cannot be made, the history is damaged or of another deployment, or a
            file cannot be written.
    """
    from fedray.audit.live.nights import history_with
    from fedray.base.atomic import write_output
    from fedray.runtime.gauges import CLAIM, OF_A_CLAIM, exposition

    written = {}
    night = outlook.night_of(kept.day)
    # A list or a history that is refused leaves all files of the night before as they are.
    hold = None if kept.hold is None else outlook.hold(kept.hold_by)
    history = None if kept.history is None else history_with(kept.history, night)
    if hold is not None:
        written["hold"] = str(kept.hold)
        _write_hold(outlook, hold, kept.hold)
    elif kept.hold is not None:
        # The exit code says that the claim is not kept, whatever else cannot be written.
        reason = f"is not written, as no change keeps {outlook.what_is_kept}"
        print_line(f"fedray: --hold {kept.hold} {reason}", err=True)
    if kept.gauges is not None:
        values = {**night.gauges, "judged_seconds": time.time()}
        labels = {"trace": str(outlook.path), "claim": outlook.claim_file}
        text = exposition(CLAIM, labels, OF_A_CLAIM, values)
        write_output(kept.gauges, text.encode(), f"gauges {str(kept.gauges)!r}")
        written["gauges"] = str(kept.gauges)
    if history is not None and kept.history is not None:
        history.write(kept.history)
        outlook = replace(outlook, nights=history.nights)
        written["history"] = str(kept.history)
    return outlook, written


def _write_hold(outlook: Any, hold: Any, file: Any) -> None:
    """Writes a list of devices that must wait, and says which change it is of, and whether it names
    none."""
    from fedray.scenario.hold import read_hold, write_hold

    before = 0
    # A file that is no list is replaced all the same.
    with suppress(InputError):
        before = len(read_hold(file).device_ids)
    write_hold(file, hold)
    change = outlook.advised
    if change is not None and change.first is not None and len(change.kinds) > 1:
        rule = f"the rule of the change {' + '.join(change.kinds)}"
        print_line(f"fedray: {file} keeps {outlook.what_is_kept} only with {rule}", err=True)
    elif not len(hold.device_ids):
        reason = f"{outlook.what_is_kept} is kept without a list in force"
        if change is not None:
            reason = f"the change {' + '.join(change.kinds)} needs no list"
        replaced = f"; {counted(before, 'device')} on it before may come back" if before else ""
        print_line(f"fedray: {file} names no device, as {reason}{replaced}", err=True)


def write_statement(audit: Any, folder: Path) -> str:
    """Writes the privacy statement of an audit, as Markdown and JSON.

    Args:
        audit: the audit, in which the devices of a log are not named.
        folder: folder of both files, created if it is missing.

    Returns:
        Path of the folder.

    Raises:
        InputError: the audit has no noise to state, or the folder cannot be written.
    """
    from fedray.audit.privacy_statement import privacy_statement
    from fedray.base.atomic import write_whole

    found = privacy_statement(audit)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = f"cannot be made ({error.strerror or error})"
        raise InputError.of("statement", str(folder), reason, "name another folder") from None
    # Publication needs both forms: one for people, one for programs.
    document = json.dumps(found.to_json(), indent=2, allow_nan=False) + "\n"
    for name, content in (("statement.md", found.to_markdown()), ("statement.json", document)):
        write_whole(folder / name, content.encode(), f"{name} in {str(folder)!r}", InputError)
    return str(folder)


def trace_of_sampler(
    trace: Path | None,
    sampler: str | None,
    assume: Path | None,
    rounds: int | None,
    claim: Path | None,
) -> tuple[Path, Path | None, TemporaryDirectory | None]:
    """Returns the trace to audit, the claim to check, and the folder of a trace that was made.

    Args:
        trace: trace of the command; without a sampler it is returned as it is.
        sampler: sampler to run, as module:object.
        assume: claim about the sampler.
        rounds: number of rounds; None for that of the claim.
        claim: claim about the trace.

    Raises:
        InputError: options contradict each other, or the sampler fails.
    """
    if sampler is None:
        if assume is not None or rounds is not None:
            raise InputError("--assume and --rounds are about a sampler; give --sampler too")
        if trace is None:
            raise InputError("TRACE is missing; name a trace, or give --sampler and --assume")
        return trace, claim, None
    if trace is not None or claim is not None:
        raise InputError("--sampler makes its own trace; leave out TRACE, and --claim for --assume")
    from fedray.audit.claims import read_claim
    from fedray.imports.sampler import record_sampler

    claimed = read_claim(demanded("assume", assume, "must be given with --sampler"))
    rule = "must be given, because the claim has no `rounds`"
    count = demanded("rounds", claimed.rounds if rounds is None else rounds, rule)
    if count < 1:
        raise InputError.of("rounds", count, "must be at least 1")
    folder = TemporaryDirectory(prefix="fedray-sampler-")
    with progress_line("sampling"):
        made = record_sampler(sampler, count, Path(folder.name))
    return made.path, assume, folder


def audit_run_of_tasks(
    directory: Path,
    about_one: dict[str, Any],
    delta: float | None,
    page: Path | None,
    figures: Path | None,
    verify: bool | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """Audits the traces of several tasks and their composition.

    Args:
        directory: directory of the run.
        about_one: options that are about one trace, by flag; they must not be given.
        delta: delta of every epsilon; None for that of the run.
        page: file of the page, if any.
        figures: folder of the figures, if any.
        verify: see `open_checked`.
        verbose: whether to print whole audits.
        as_json: whether to print one JSON object.
    """
    from fedray.report.terminal import tasks_text

    # Refused before the traces are read, which may take long.
    given = [flag for flag, value in about_one.items() if value]
    if given:
        raise InputError(
            f"{given[0]} is about one trace, and {str(directory)!r} has the traces of several "
            f"tasks; leave it out, or name the trace of one, as {str(directory / 'TASK')!r}"
        )
    opened, audit = open_tasks(directory, delta, verify)
    if not as_json:
        print_pieces([*tasks_text(audit, verbose), *(() if verbose else (WHOLE,))], audit.of)
        if verify:
            print_line(f"every column has its recorded digest; the run is {opened.digest}")
    written = write_shown(audit, page, figures)
    if as_json:
        print_json({**audit.to_json(), "digest_verified": verify is True, **written})
    else:
        print_files(written)
