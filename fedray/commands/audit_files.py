"""Files that an audit writes: page, figures, statement, events, evidence."""

import json
from pathlib import Path
from typing import Any

from fedray.base.errors import InputError
from fedray.commands.progress import progress_line


def write_statement(audit: Any, folder: Path, tuning: Path | None) -> str:
    """Writes the privacy statement of an audit, as Markdown and JSON.

    Args:
        audit: the audit, in which the devices of a log are not named.
        folder: folder of both files, created if it is missing.
        tuning: directory of a grid whose cost is stated; None for no grid.

    Returns:
        Path of the folder.

    Raises:
        InputError: the audit has no noise to state, the grid is of another trace, or the
            folder cannot be written.
    """
    from fedray.audit.privacy_statement import privacy_statement
    from fedray.base.atomic import write_whole

    grid = None
    if tuning is not None:
        from fedray.studies.grid import read_tuning

        grid = read_tuning(tuning, audit.trace)
    found = privacy_statement(audit, grid)
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


def check_evidence(evidence: Path | None, claim: Path | None) -> None:
    """Checks that evidence can be written, before a trace is read for it. Raises InputError."""
    from fedray.audit.claims import read_claim
    from fedray.audit.evidence import check_evidence_file

    if evidence is not None:
        check_evidence_file(evidence, read_claim(claim) if claim is not None else None)


def write_evidence_file(audit: Any, file: Path, show_devices: bool) -> str:
    """Writes every participation that breaks the claim, and returns the path."""
    from fedray.audit.evidence import write_evidence

    with progress_line("writing evidence"):
        write_evidence(audit, file, show_devices)
    return str(file)
