"""Printing of results, and files that commands write beside them."""

import json
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer

from fedray.base.errors import InputError
from fedray.base.escaped import printable
from fedray.report.table import Paragraph, Piece, Table

WIDTH_OF_FILES = 100
"""Columns of output that goes to a file or a pipe."""


def print_json(document: Any) -> None:
    """Prints a document as JSON, which has no NaN: other programs would refuse it."""
    typer.echo(json.dumps(document, indent=2, allow_nan=False))


def print_pieces(pieces: Iterable[Piece]) -> None:
    """Prints tables, paragraphs and lines one after the other; an empty line follows a table."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH_OF_FILES
    for each in pieces:
        if isinstance(each, Table):
            typer.echo(f"{each.brief().text(width)}\n")
        elif isinstance(each, Paragraph):
            typer.echo(each.wrapped(width))
        else:
            print_line(each)


def print_line(*lines: str, err: bool = False) -> None:
    """Prints lines, with escapes for characters that a terminal would execute."""
    for line in lines:
        typer.echo(printable(line), err=err)


def print_result(result: Any, as_json: bool, **more: Any) -> None:
    """Prints a result as its tables, or as its JSON document with more keys."""
    if as_json:
        print_json({**result.to_json(), **more})
    else:
        print_pieces(result.tables())


def print_files(written: dict[str, str]) -> None:
    """Prints the path of each written file behind the word for it."""
    for word, path in written.items():
        print_line(f"{word:<8} {path}")


def write_shown(result: Any, page: Path | None, figures: Path | None) -> dict[str, str]:
    """Writes the page and the figures that were asked for.

    Args:
        result: a result with a page and figures.
        page: file of the page; None for no page.
        figures: folder of the figures; None for no figures.

    Returns:
        Path of each, by "page" and "figures".
    """
    written = {}
    # Pages and figures load libraries that the command otherwise does not need.
    if page is not None:
        from fedray.report.page import write_report

        written["page"] = str(write_report(result, page))
    if figures is not None:
        from fedray.report.files import write_figures

        write_figures(result, figures)
        written["figures"] = str(figures.absolute())
    return written


def refuse_existing(out: Path | None) -> None:
    """Refuses an output that exists, before the work for it begins.

    Args:
        out: a new directory or file; None for no output.

    Raises:
        InputError: it exists.
    """
    # A link to a missing file is refused too, because writing would follow it.
    if out is not None and (out.exists() or out.is_symlink()):
        raise InputError(f"output {str(out)!r} exists already; name a new one, or remove it first")
