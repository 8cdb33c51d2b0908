"""`fedray report`: write the page of a trace or of a trained run."""

from pathlib import Path

import typer

from fedray.commands.auditing import open_checked, open_tasks
from fedray.commands.output import print_json, write_shown
from fedray.commands.progress import progress_line


def report(
    directory: Path,
    *,
    out: Path | None = None,
    figures: Path | None = None,
    verify: bool | None = None,
    as_json: bool = False,
) -> None:
    """Write the page of a trace, of a trained run, or of a run of several tasks.

    The page of a trace is that of `fedray audit --page`, which also takes a claim or another
    mechanism.

    Args:
        directory (DIR): directory of `fedray run`, `fedray import` or `fedray train`
        out (FILE): page to write; default: report.html in DIR
    """
    from fedray.trace.learned_from import is_trained_run
    from fedray.trace.schema import REPORT_FILE
    from fedray.trace.several_tasks import is_of_tasks

    # The page lies where a browser finds it beside the files that it shows.
    page = out or directory / REPORT_FILE
    with progress_line("writing the page"):
        # A trained run has no participations of its own, so nothing of it is audited.
        if is_trained_run(directory):
            written = _page_of_training(directory, page, figures, verify)
        elif is_of_tasks(directory):
            written = write_shown(open_tasks(directory, None, verify)[1], page, figures)
        else:
            written = _page_of_trace(directory, page, figures, verify)
    if as_json:
        print_json(written)
        return
    for path in written.values():
        typer.echo(path)


def _page_of_trace(
    directory: Path, page: Path, figures: Path | None, verify: bool | None
) -> dict[str, str]:
    from fedray.audit.audit import audit_trace

    opened = open_checked(directory, verify)
    return write_shown(audit_trace(opened), page, figures)


def _page_of_training(
    directory: Path, page: Path, figures: Path | None, verify: bool | None
) -> dict[str, str]:
    from fedray.trace.trained import TrainedRun

    return write_shown(open_checked(directory, verify, TrainedRun.open), page, figures)
