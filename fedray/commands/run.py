"""`fedray run`: simulate a scenario, train its model, audit its trace."""

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import typer

from fedray.base.errors import FedrayError, InputError, RunFailed
from fedray.base.storage import Bucket, is_of_bucket
from fedray.commands.budget import day_of, say_if_same
from fedray.commands.frame.output import print_json, print_line, print_pieces
from fedray.commands.frame.placing import placement_of
from fedray.commands.frame.progress import IS_QUIET, progress_of_run
from fedray.commands.frame.run_start import read_checked, say_compiling, say_supply


def run(
    scenario: Path | None = None,
    *,
    out: Path | None = None,
    overrides: list[str] | None = None,
    resume: Path | None = None,
    place: list[str] | None = None,
    trust_code: bool = False,
    tensorboard: Path | None = None,
    ensure: Path | None = None,
    ledger: Path | None = None,
    start: str | None = None,
    as_json: bool = False,
) -> None:
    """Simulate a scenario, train its model, write its trace, and audit it.

    An interrupted run that continues knows its scenario. With SCENARIO, `--resume DIR` also starts
    a run that has no checkpoint yet, and prints one that is complete: jobs may repeat the command.

    Args:
        out (DIR|URI): new directory for the trace, or its URI in a bucket; default: one under runs/
        resume (DIR|URI): directory of an interrupted run to continue
        ledger (LEDGER): budget of devices over runs, which the run may not exceed
        start (DAY): day on which the run starts in the ledger (UTC); default: today
    """
    # Imports are inside the commands, so that those without Ray and torch start at once.
    from fedray.audit.claims import read_claim
    from fedray.runs.budgeted import reserved
    from fedray.runs.ensured import guard_of
    from fedray.runs.pipeline import complete_run, ensured_claim, recorded_scenario
    from fedray.scenario import SeveralTasks
    from fedray.trace.several_tasks import TasksRun
    from fedray.trace.stored import StoredRun
    from fedray.trace.unfinished import has_begun

    day = day_of(start)
    placement = placement_of(place)
    checked = value = guard = None
    claim = None if ensure is None else read_claim(ensure)
    if scenario is not None:
        checked = read_checked(scenario, overrides or (), trust_code)
        value = checked.scenario
        # A run that continues is checked as it was started.
        guard = None if claim is None else guard_of(claim, checked)
    if tensorboard is not None and isinstance(value, SeveralTasks):
        raise InputError(
            "--tensorboard would write the curves of several tasks over one another; leave it out, "
            "and write those of one task by `fedray train DIR/NAME --tensorboard`"
        )
    if resume is not None and (out is not None or (value is None and overrides)):
        raise InputError(
            "--resume continues a run as it was started; leave out --out, and --set unless "
            "SCENARIO is given too"
        )
    name = value.name if value is not None else ""
    charged = [] if ledger is None else ["--ledger", str(ledger)]
    command = shlex.join(["fedray", "run", *charged, "--resume"])
    where, stored, uri = resume or out, None, None
    if where is not None and is_of_bucket(where):
        stored = StoredRun(Bucket(where), resume is not None, may_start=value is not None)
        where, uri = stored.directory, stored.uri
    with stored or contextlib.nullcontext():
        of_run = progress_of_run(where, name, command, tensorboard, uri)
        with (
            of_run as (directory, listen),
            contextlib.redirect_stdout(sys.stderr),  # Ray prints reports about dead workers
        ):
            # A run that starts again before its first checkpoint keeps its reservation.
            is_resumed = resume is not None
            reserve: Any = partial(
                reserved, ledger, start=day, placement=placement, is_resumed=is_resumed
            )
            trace = None
            if is_resumed and value is not None:
                trace = complete_run(directory, value)
            if trace is not None:
                ensured_claim(directory, claim)
            is_new = trace is None
            if trace is None and is_resumed and (value is None or has_begun(directory)):
                claim = ensured_claim(directory, claim)
                # This refuses the training of a finished trace.
                kept = recorded_scenario(directory)
                held = reserve(kept, claim=claim)
                trace = _continued(directory, placement, value, listen, trust_code, held)
            if trace is None:
                reserve = partial(reserve, claim=claim)
                trace = _started(checked, placement, directory, listen, reserve, guard)
        show = print_run_of_tasks if isinstance(trace, TasksRun) else print_run
        try:
            with stored.named() if stored else contextlib.nullcontext():
                show(trace, as_json)
        finally:
            # With its page, which is written when the run is shown.
            if stored and is_new:
                stored.publish()
            # Last: a charge that fails loses nothing, and a killed process has not charged a run
            # that is nowhere, whose reservation would be gone.
            if ledger is not None:
                _charge(ledger, trace, day)


def _charge(ledger: Path, trace: Any, day: Any) -> None:
    from fedray.runs.budgeted import charge_run

    try:
        say_if_same(charge_run(ledger, trace, day))
    except FedrayError as error:
        again = ["fedray", "budget", str(ledger), "--add", str(trace.path)]
        again += [] if day is None else ["--start", day.isoformat()]
        raise RunFailed(
            f"the run is complete but not charged: {error}; charge it by `{shlex.join(again)}`"
        ) from None


def _started(
    checked: Any,
    placement: Any,
    directory: Path,
    listen: Callable[[Any], None],
    reserve: Any,
    guard: Any,
) -> Any:
    from fedray.runs.pipeline import run_checked

    if checked is None:
        raise InputError("SCENARIO is missing; name a file or a scenario of `fedray init --list`")
    if not IS_QUIET.get():
        say_compiling()
    # A run that might exceed the budget is refused here, before anything starts.
    with reserve(checked.scenario, worst=checked.worst) as begun:

        def on_start() -> None:
            begun()
            # A user who reads that the population is too small can end the run early.
            if not IS_QUIET.get():
                say_supply(checked.scenario)

        return run_checked(checked.scenario, placement, directory, listen, on_start, guard)


def _continued(
    directory: Path,
    placement: Any,
    value: Any,
    listen: Callable[[Any], None],
    trust_code: bool,
    held: Any,
) -> Any:
    from fedray.runs.pipeline import resume_run

    with held as begun:

        def heard(progress: Any) -> None:
            begun()
            listen(progress)

        return resume_run(directory, placement, value, heard, trust_code=trust_code)


_COSTS = ("wall_seconds", "shard_use", "driver_peak_mebibytes", "restarts")


def print_run(trace: Any, as_json: bool) -> None:
    """Audits the trace of a run, prints the audit, and writes its page.

    Raises:
        RunFailed: the page could not be written.
        Exit: the run starved, a release was refused, or its claim does not hold.
    """
    from fedray.audit.auditing import audit_trace
    from fedray.commands.frame.auditing import exit_by_claim
    from fedray.report.page import write_own_page
    from fedray.report.table import Paragraph
    from fedray.report.terminal import short_audit_text, training_text
    from fedray.runs.answers_page import tables_without_privacy, written_answers
    from fedray.trace.schema import REPORT_FILE

    audit = audit_trace(trace)
    trained, answers = trace.trained, None
    if "analytics" in trace.scenario:
        answers = written_answers(audit)
    # The page of a long run takes its time, and its reader wants the verdict.
    if not as_json:
        if answers is not None:
            print_pieces(
                [Paragraph("", answers.headline), *tables_without_privacy(answers)], answers.of
            )
        if trained is not None:
            print_pieces(training_text("Training", trained), trained.of)
        print_pieces(short_audit_text(audit), audit.of)
        print_line(f"trace   {trace.path}")
    report, problem = None, ""
    try:
        beside = {} if answers is None else {"The answers to the question": "answer.html"}
        report = str(write_own_page(audit.page(), trace.path / REPORT_FILE, beside=beside))
    except InputError as error:
        problem = _without_page(trace.path, error)
    if as_json:
        document = {**audit.to_json(), "report": report, **_costs(trace.run)}
        document["training"] = None if trained is None else trained.to_json()
        if answers is not None:
            document["question"] = answers.to_json()
        print_json(document)
    else:
        print_line(f"report  {report or '-'}")
        if answers is not None:
            print_line(f"answers {trace.path / 'answer.html'}")
    _exit_by({"": trace}, problem)
    exit_by_claim(audit)


def print_run_of_tasks(found: Any, as_json: bool) -> None:
    """Audits a run of several tasks, a TasksRun; prints all of it, and writes its pages.

    Raises RunFailed if a page could not be written, Exit if a task starved.
    """
    from fedray.audit.several_tasks import audit_tasks
    from fedray.report.table import Paragraph
    from fedray.report.terminal import tasks_text, training_text
    from fedray.runs.answers_page import tables_without_privacy, written_evaluations

    audit = audit_tasks(found)
    trained = {name: trace.trained for name, trace in found.traces.items()}
    answers, unanswered = written_evaluations(audit)
    if not as_json:
        for name, each in trained.items():
            if each is not None:
                print_pieces(training_text(f"Training of task {name}", each), each.of)
        for name, each in answers.items():
            said = Paragraph("", f"Evaluation by task {name}. {each.headline}")
            print_pieces([said, *tables_without_privacy(each)], each.of)
        print_pieces([*unanswered, *tasks_text(audit)], audit.of)
        for name, trace in found.traces.items():
            print_line(f"trace   {trace.path} (task {name})")
        print_line(f"run     {found.path}")
    reports, problem = dict[str, str](), ""
    try:
        reports |= _pages_of_tasks(found, audit)
    except InputError as error:
        problem = _without_page(found.path, error)
    if as_json:
        # The page of the whole run has a key of its own.
        document = {**audit.to_json(), "report": reports.pop("", None), "reports": reports}
        models = {name: None if each is None else each.to_json() for name, each in trained.items()}
        asked = {name: each.to_json() for name, each in answers.items()}
        print_json({**document, **_costs(found.document), "training": models, "questions": asked})
    else:
        print_line(f"report  {reports.get('', '-')}")
    _exit_by(found.traces, problem)


def _pages_of_tasks(found: Any, audit: Any) -> Iterator[tuple[str, str]]:
    """Writes the page of each task, then that of the whole run; yields names and paths."""
    from fedray.report.page import write_own_page
    from fedray.trace.schema import REPORT_FILE

    for name, each in audit.audits.items():
        asks = each.answers is not None and (each.path / "answer.html").exists()
        beside = {"The answers to the question": "answer.html"} if asks else {}
        yield name, str(write_own_page(each.page(), each.path / REPORT_FILE, beside=beside))
    yield "", str(write_own_page(audit.page(), found.path / REPORT_FILE))


def _costs(run: Any) -> dict[str, Any]:
    return {name: run[name] for name in _COSTS}


def _without_page(path: Any, error: InputError) -> str:
    return f"{str(path)!r} is complete but lacks a page: {error}; `fedray report` writes it later"


def _exit_by(traces: dict[str, Any], problem: str) -> None:
    # Raised after the printing, so that no result is lost.
    if problem:
        raise RunFailed(problem)
    ended = {name: trace.run["ended"] for name, trace in traces.items()}
    cut = {n: text for n, text in ended.items() if text.startswith(("starved", "refused"))}
    for name, text in cut.items():
        print_line(f"fedray: task {name}: {text}" if name else f"fedray: {text}", err=True)
    # The traces are complete, but scripts must see that rounds are missing.
    if cut:
        raise typer.Exit(1)
