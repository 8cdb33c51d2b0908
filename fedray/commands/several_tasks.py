"""What run, audit and report do with several tasks."""

from pathlib import Path
from typing import Any

import typer

from fedray.base.errors import InputError, RunFailed
from fedray.commands.output import print_json, print_pieces


def print_run_of_tasks(found: Any, as_json: bool) -> None:
    """Audits a run of several tasks, writes its pages, and prints all of it.

    Args:
        found: a TasksRun.
        as_json: whether one JSON object is printed.
    """
    from fedray.audit.several_tasks import audit_tasks
    from fedray.report.page import write_report
    from fedray.report.terminal import tasks_text, training_text
    from fedray.trace.schema import REPORT_FILE

    audit = audit_tasks(found)
    reports: dict[str, str] = {}
    problem = ""
    try:
        for name, each in audit.audits.items():
            reports[name] = str(write_report(each, each.path / REPORT_FILE))
        # The empty name stands for the page of the run as a whole.
        reports[""] = str(write_report(audit, found.path / REPORT_FILE))
    except InputError as error:  # such as a full disk: the traces are whole all the same
        problem = (
            f"the run {str(found.path)!r} is whole, but has not all pages: {error}; `fedray "
            "report` writes them later"
        )
    trained = {name: trace.trained for name, trace in found.traces.items()}
    if as_json:
        # The page of the whole run stands apart from those of its tasks.
        document = {**audit.to_json(), "report": reports.pop("", None), "reports": reports}
        figures = ("wall_seconds", "shard_use", "driver_peak_mebibytes", "restarts")
        document |= {name: found.document[name] for name in figures}
        document["training"] = {
            name: each.to_json() if each is not None else None for name, each in trained.items()
        }
        print_json(document)
    else:
        for name, each in trained.items():
            if each is not None:
                title = f"Training of task {name}"
                print_pieces(training_text(title, each))
        print_pieces(tasks_text(audit))
        for name, trace in found.traces.items():
            typer.echo(f"trace   {trace.path} (task {name})")
        typer.echo(f"run     {found.path}\nreport  {reports.get('', '-')}")
    # It is raised after the printing, so that what was computed is not lost.
    if problem:
        raise RunFailed(problem)
    ended = {name: trace.run["ended"] for name, trace in found.traces.items()}
    starved = {name: each for name, each in ended.items() if each.startswith("starved")}
    for name, each in starved.items():
        typer.echo(f"fedray: task {name}: {each}", err=True)
    # The traces are whole, but scripts must see that rounds are missing.
    if starved:
        raise typer.Exit(1)


def audit_run_of_tasks(
    directory: Path,
    refused: dict[str, Any],
    delta: float | None,
    page: Path | None,
    figures: Path | None,
    verify: bool | None,
    as_json: bool,
) -> None:
    """Audits the traces of several tasks and their composition.

    Args:
        directory: of the run.
        refused: options that are about one trace alone, by their names; None or empty where they
            were not given.
        delta: of every epsilon, instead of the run's own.
        page: where the page is written; None for none.
        figures: where its figures are written; None for nowhere.
        verify: whether all digests are checked, or none; None for those of what is read.
        as_json: whether one JSON object is printed.
    """
    from fedray.report.terminal import tasks_text

    opened, audit = _audited(directory, refused, delta, verify)
    written = _write(audit, page, figures)
    if as_json:
        print_json({**audit.to_json(), "digest_verified": verify is True, **written})
        return
    print_pieces(tasks_text(audit))
    if verify:
        typer.echo(f"every column has its recorded digest; the run is {opened.digest}")
    for what, path in written.items():
        typer.echo(f"{what:<8} {path}")


def pages_of_tasks(
    directory: Path,
    refused: dict[str, Any],
    delta: float | None,
    out: Path | None,
    figures: Path | None,
    verify: bool | None,
) -> dict[str, str]:
    """Writes the page of a run of several tasks.

    Args:
        directory: of the run.
        refused: see `audit_run_of_tasks`.
        delta: of every epsilon, instead of the run's own.
        out: the page; None for report.html in the directory.
        figures: where its figures are written; None for nowhere.
        verify: see `audit_run_of_tasks`.

    Returns:
        Where the page and the figures are, by "page" and "figures".
    """
    from fedray.trace.schema import REPORT_FILE

    _, audit = _audited(directory, refused, delta, verify)
    return _write(audit, out or directory / REPORT_FILE, figures)


def _audited(
    directory: Path, refused: dict[str, Any], delta: float | None, verify: bool | None
) -> tuple[Any, Any]:
    from fedray.audit.several_tasks import audit_tasks
    from fedray.trace.several_tasks import TasksRun

    opened = TasksRun.open(directory, verify is not False)
    # Flags that were not given are False, and other options None or empty.
    given = [name for name, value in refused.items() if value]
    if given:
        first = next(iter(opened.traces))
        raise InputError(
            f"--{given[0].replace('_', '-')} is about one trace, and {str(directory)!r} has "
            f"those of several tasks; leave it out, or name one, such as {str(directory / first)!r}"
        )
    if verify:
        opened.verify()
    return opened, audit_tasks(opened, delta)


def _write(audit: Any, out: Path | None, figures: Path | None) -> dict[str, str]:
    """What was written, and where."""
    from fedray.report.files import write_figures
    from fedray.report.page import write_report

    written = {}
    if out is not None:
        written["page"] = str(write_report(audit, out))
    if figures is not None:
        write_figures(audit, figures)
        written["figures"] = str(figures.absolute())
    return written
