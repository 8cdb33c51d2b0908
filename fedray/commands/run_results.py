"""Results of `fedray run`: the audit, the page, and the paths."""

from collections.abc import Iterator
from typing import Any

import typer

from fedray.base.errors import InputError, RunFailed
from fedray.commands.output import print_json, print_line, print_pieces

_COSTS = ("wall_seconds", "shard_use", "driver_peak_mebibytes", "restarts")


def print_run(trace: Any, as_json: bool) -> None:
    """Audits the trace of a run, writes its page, and prints both.

    Raises:
        RunFailed: the page could not be written.
        Exit: the run starved.
    """
    from fedray.audit.audit import audit_trace
    from fedray.report.page import write_report
    from fedray.report.terminal import short_audit_text, training_text
    from fedray.studies.answers_page import tables_without_privacy, written_answers
    from fedray.trace.schema import REPORT_FILE

    audit = audit_trace(trace)
    report, problem = None, ""
    try:
        report = str(write_report(audit, trace.path / REPORT_FILE))
    except InputError as error:
        problem = _without_page(trace.path, error)
    trained, answers = trace.trained, None
    if "analytics" in trace.scenario:
        answers = written_answers(audit)
    if as_json:
        document = {**audit.to_json(), "report": report, **_costs(trace.run)}
        document["training"] = trained and trained.to_json()
        if answers is not None:
            document["question"] = answers.to_json()
        print_json(document)
    else:
        if answers is not None:
            print_pieces(tables_without_privacy(answers))
        if trained is not None:
            print_pieces(training_text("Training", trained))
        print_pieces(short_audit_text(audit))
        print_line(f"trace   {trace.path}", f"report  {report or '-'}")
        if answers is not None:
            print_line(f"answers {trace.path / 'answer.html'}")
    _exit_by({"": trace}, problem)


def print_run_of_tasks(found: Any, as_json: bool) -> None:
    """Audits a run of several tasks, a TasksRun; writes its pages, and prints all of it.

    Raises RunFailed if a page could not be written, Exit if a task starved.
    """
    from fedray.audit.several_tasks import audit_tasks
    from fedray.report.terminal import tasks_text, training_text
    from fedray.studies.answers_page import tables_without_privacy, written_evaluations

    audit = audit_tasks(found)
    reports, problem = dict[str, str](), ""
    try:
        reports |= _pages_of_tasks(found, audit)
    except InputError as error:
        problem = _without_page(found.path, error)
    trained = {name: trace.trained for name, trace in found.traces.items()}
    answers, unanswered = written_evaluations(audit)
    if as_json:
        # The page of the whole run has a key of its own.
        document = {**audit.to_json(), "report": reports.pop("", None), "reports": reports}
        models = {name: each and each.to_json() for name, each in trained.items()}
        asked = {name: each.to_json() for name, each in answers.items()}
        print_json({**document, **_costs(found.document), "training": models, "questions": asked})
    else:
        for name, each in trained.items():
            if each is not None:
                print_pieces(training_text(f"Training of task {name}", each))
        for name, each in answers.items():
            print_pieces([f"Evaluation by task {name}", *tables_without_privacy(each)])
        print_pieces([*unanswered, *tasks_text(audit)])
        for name, trace in found.traces.items():
            print_line(f"trace   {trace.path} (task {name})")
        print_line(f"run     {found.path}", f"report  {reports.get('', '-')}")
    _exit_by(found.traces, problem)


def _pages_of_tasks(found: Any, audit: Any) -> Iterator[tuple[str, str]]:
    """Writes the page of each task, then that of the whole run; yields names and paths."""
    from fedray.report.page import write_report
    from fedray.trace.schema import REPORT_FILE

    for name, each in audit.audits.items():
        yield name, str(write_report(each, each.path / REPORT_FILE))
    yield "", str(write_report(audit, found.path / REPORT_FILE))


def _costs(run: Any) -> dict[str, Any]:
    return {name: run[name] for name in _COSTS}


def _without_page(path: Any, error: InputError) -> str:
    return f"{str(path)!r} is complete but lacks a page: {error}; `fedray report` writes it later"


def _exit_by(traces: dict[str, Any], problem: str) -> None:
    # Raised after the printing, so that no result is lost.
    if problem:
        raise RunFailed(problem)
    ended = {name: trace.run["ended"] for name, trace in traces.items()}
    starved = {name: text for name, text in ended.items() if text.startswith("starved")}
    for name, text in starved.items():
        print_line(f"fedray: task {name}: {text}" if name else f"fedray: {text}", err=True)
    # The traces are complete, but scripts must see that rounds are missing.
    if starved:
        raise typer.Exit(1)
