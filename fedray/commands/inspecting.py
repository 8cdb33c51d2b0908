"""Printing of what `fedray import --inspect` finds."""

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from fedray.commands.log_options import columns_of
from fedray.commands.output import print_json, print_line, print_pieces
from fedray.report.table import Paragraph, Table


def print_inspection(
    log: Path,
    column: list[str] | None,
    where: list[str] | None,
    repeats: str,
    leave_out_invalid: bool,
    rounds: str | None,
    out: Path | None,
    form: dict[str, Any],
    as_json: bool,
) -> None:
    """Prints what a log has and lacks; exits with code 2 if it cannot be imported as it is."""
    from fedray.imports.inspected import inspect_log

    roles = columns_of(column, ("device", "round", "owner", "time"))
    found = inspect_log(log, roles, where or (), repeats, leave_out_invalid, rounds, out, **form)
    if as_json:
        print_json({**asdict(found), "is_importable": found.is_importable})
    else:
        headings = ("column", "type", "distinct", "empty", "examples", "role")
        print_pieces([Table(f"Columns of {log}", headings, found.columns)])
        print_pieces(Paragraph("problem  ", each) for each in found.problems)
        print_pieces(Paragraph("note     ", each) for each in found.notes)
        print_line(f"next     {shlex.join(found.command)}")
    if not found.is_importable:
        raise typer.Exit(2)
