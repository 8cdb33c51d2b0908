"""Files that an audit writes: page, figures, statement, events, evidence."""

import json
from pathlib import Path
from typing import Any

from fedray.base.errors import InputError
from fedray.commands.progress import progress_line


def write_tasks_page(audit: Any, page: Path | None, figures: Path | None) -> dict[str, str]:
    """Writes the page and the figures of a run of several tasks.

    Args:
        audit: audit of the run.
        page: file of the page; None for no page.
        figures: folder of the figures; None for no figures.

    Returns:
        Path of each, by "page" and "figures".
    """
    from fedray.report.files import write_figure_files
    from fedray.report.several_tasks import tasks_figures, write_tasks_report

    written = {}
    if page is not None:
        written["page"] = str(write_tasks_report(audit, page))
    if figures is not None:
        write_figure_files(tasks_figures(audit), figures)
        written["figures"] = str(figures.absolute())
    return written


def write_audit_page(
    trace: Any, audit: Any, page: Path | None, figures: Path | None
) -> dict[str, str]:
    """Writes the page and the figures of an audit.

    Args:
        trace: the audited trace.
        audit: its audit.
        page: file of the page; None for no page.
        figures: folder of the figures; None for no figures.

    Returns:
        Path of each, by "page" and "figures".
    """
    from fedray.report.files import write_figures
    from fedray.report.page import write_report

    written = {}
    if page is not None:
        written["page"] = str(write_report(trace, audit, page))
    if figures is not None:
        write_figures(trace, audit, figures)
        written["figures"] = str(figures.absolute())
    return written


def write_statement(trace: Any, audit: Any, folder: Path) -> str:
    """Writes the privacy statement of an audit, as Markdown and JSON.

    Args:
        trace: the audited trace.
        audit: its audit, which names no devices.
        folder: folder of both files, created if it does not exist.

    Returns:
        Path of the folder.

    Raises:
        InputError: there is no privacy to state, or the folder cannot be written.
    """
    from fedray.audit.statement import privacy_statement
    from fedray.base.atomic import write_whole

    found = privacy_statement(trace, audit)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = f"cannot be made ({error.strerror or error})"
        raise InputError.of("statement", str(folder), reason, "name another folder") from None
    document = json.dumps(found.to_json(), indent=2, allow_nan=False) + "\n"
    for name, content in (("statement.md", found.to_markdown()), ("statement.json", document)):
        write_whole(folder / name, content.encode(), f"{name} in {str(folder)!r}", InputError)
    return str(folder)


def check_evidence(evidence: Path | None, claim: Path | None) -> None:
    """Checks that evidence can be written, before a trace is read for it. Raises InputError."""
    from fedray.audit.claims import read_claim
    from fedray.audit.evidence import check_evidence_file

    if evidence is not None:
        check_evidence_file(evidence, read_claim(claim) if claim is not None else None)


def write_evidence_file(trace: Any, audit: Any, file: Path, show_devices: bool) -> str:
    """Writes every participation that breaks the claim, and returns the path.

    Args:
        trace: the audited trace.
        audit: its audit, with a claim.
        file: file to write.
        show_devices: whether devices of a log are named.
    """
    from fedray.audit.evidence import write_evidence

    with progress_line("writing evidence"):
        write_evidence(trace, audit, file, show_devices)
    return str(file)
