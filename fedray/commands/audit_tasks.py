"""`fedray audit` of a run of several tasks."""

from pathlib import Path
from typing import Any

from fedray.base.errors import InputError
from fedray.commands.auditing import WHOLE, open_tasks
from fedray.commands.output import print_files, print_json, print_line, print_pieces, write_shown


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
    written = write_shown(audit, page, figures)
    if as_json:
        print_json({**audit.to_json(), "digest_verified": verify is True, **written})
        return
    print_pieces([*tasks_text(audit, verbose), *(() if verbose else (WHOLE,))])
    if verify:
        print_line(f"every column has its recorded digest; the run is {opened.digest}")
    print_files(written)
