"""Printing of results, and files that commands write beside them."""

import json
import shutil
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import typer

from fedray.base.atomic import write_output
from fedray.base.errors import InputError
from fedray.base.escaped import printable
from fedray.report.subject import UNKNOWN, Subject, shared_subject
from fedray.report.table import FORMS, Paragraph, Piece, Table

WIDTH_OF_FILES = 100
"""Columns of output that goes to a file or a pipe, unless COLUMNS says another number."""

TITLE: ContextVar[str] = ContextVar("title", default="")
"""Heading of the page in place of its own, from `--title`."""
STYLE: ContextVar[str] = ContextVar("style")
"""Style and formats of the figures, from `--style`."""
TABLES: ContextVar[list[Table]] = ContextVar("tables")
"""Tables that the command has printed."""


def run_command(function: Callable[..., Any], given: dict[str, Any]) -> None:
    """Runs a command, and writes its figures and tables as `--style` and `--table` say.

    Args:
        function: function of the command.
        given: its parameters by name, and the common options.

    Raises:
        InputError: no such file or style can be written, or the command printed no table.
    """
    path, style = given.pop("table_file", None), given.pop("style", "")
    TITLE.set(given.pop("title", ""))
    STYLE.set(style)
    TABLES.set([])
    # The work may take hours, so what cannot be written is refused before it.
    if TITLE.get() and given.get("page", TITLE) is None:
        raise InputError.of("title", TITLE.get(), "names a page", "give --page FILE")
    if style not in ("", "wide,svg") and given["figures"] is None:
        raise InputError.of(
            "style", style, "styles figures, which are not written", "give --figures DIR"
        )
    if given.get("figures") is not None:
        from fedray.report.files import parsed_style

        parsed_style(style)
    if path is not None and (path.suffix[1:] not in FORMS or not path.parent.is_dir()):
        rule = "must be NAME.csv, NAME.tex or NAME.md in a directory that exists"
        raise InputError.of("table_file", str(path), rule)
    if path is not None and given.get("as_json"):
        rule = "does not go with `as_json=True`"
        raise InputError.of("table_file", str(path), rule, "leave one out")
    try:
        function(**given)
    finally:
        # A command that found a broken claim ends here too.
        if path is not None:
            _write_tables(path)
    if path is not None and not TABLES.get():
        raise InputError.of("table_file", str(path), "has nothing to hold: no table was printed")


def _write_tables(path: Path) -> None:
    for number, table in enumerate(TABLES.get()):
        file = path.with_stem(f"{path.stem}-{number + 1}") if number else path
        content = table.rendered(path.suffix[1:], file.stem).encode()
        write_output(file, content, f"table {str(file)!r}")
        print_files({"table": str(file.absolute())})


def print_json(document: Any) -> None:
    """Prints a document as JSON, which has no NaN: other programs would refuse it."""
    typer.echo(json.dumps(document, indent=2, allow_nan=False))


def print_pieces(pieces: Iterable[Piece], of: Subject = UNKNOWN) -> None:
    """Prints tables, paragraphs and lines one after the other; an empty line follows a table. The
    facets that all tables share stand once, above the first.

    Args:
        pieces: output in order.
        of: subject of the tables, as far as they have none of their own.
    """
    width = shutil.get_terminal_size((WIDTH_OF_FILES, 0)).columns
    pieces = [each.under(of) if isinstance(each, Table) else each for each in pieces]
    subjects = [each.subject for each in pieces if isinstance(each, Table)]
    shared = shared_subject(subjects) if len(subjects) > 1 else UNKNOWN
    is_said = not shared
    for each in pieces:
        if isinstance(each, Table):
            if not is_said:
                typer.echo(Paragraph("", f"Tables {shared}:").wrapped(width))
                is_said = True
            TABLES.get([]).append(each)
            typer.echo(f"{each.brief().beyond(shared).text(width)}\n")
        elif isinstance(each, Paragraph):
            typer.echo(each.wrapped(width))
        else:
            print_line(each)


def print_line(*lines: str, err: bool = False) -> None:
    """Prints lines, with escapes for characters that a terminal would execute."""
    for line in lines:
        typer.echo(printable(line), err=err)


def print_result(result: Any, as_json: bool, **more: Any) -> None:
    """Prints a result: headline, warnings and tables, or its JSON document with more keys."""
    if as_json:
        print_json({**result.to_json(), **more})
    else:
        warnings = (Paragraph("WARNING: ", each) for each in getattr(result, "warnings", ()))
        said = [Paragraph("", result.headline), *warnings, ""] if result.headline else []
        print_pieces([*said, *result.tables()])


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

        written["page"] = str(write_report(result, page, TITLE.get()))
    if figures is not None:
        from fedray.report.files import write_figures

        write_figures(result, figures, STYLE.get())
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
