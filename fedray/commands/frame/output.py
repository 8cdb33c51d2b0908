"""Printing of results, and files that commands write beside them."""

import csv
import json
import re
import shutil
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from fedray.base.atomic import make_directory, write_output
from fedray.base.errors import InputError
from fedray.base.escaped import printable
from fedray.base.rounding import given as shown
from fedray.report.subject import UNKNOWN, Subject, shared_subject
from fedray.report.table import FORMS, Paragraph, Piece, Table

WIDTH_OF_FILES = 100
"""Columns of output that goes to a file or a pipe, unless COLUMNS says another number."""

# Every command may show progress, and functions of commands need no parameter for it.
IS_QUIET: ContextVar[bool] = ContextVar("is_quiet", default=False)
"""Whether progress is hidden, by `--quiet` before the command or behind it."""
TITLE: ContextVar[str] = ContextVar("title", default="")
"""Heading of the page in place of its own, from `--title`."""
STYLE: ContextVar[str] = ContextVar("style")
"""Style and formats of the figures, from `--style`."""
TABLES: ContextVar[list[Table]] = ContextVar("tables")
"""Tables that the command has printed."""
SETTINGS = {"epsilon": "target epsilon", "rho": "target rho", "delta": "delta"}
"""Words of captions for options that are settings of every figure of a command."""
WITHOUT_TARGET = ("budget",)
"""Commands whose epsilon is no target; their tables say what it is."""
REFERENCES = "references.bib"
"""File with the works that LaTeX tables name, beside them."""


def run_command(function: Callable[..., Any], given: dict[str, Any]) -> None:
    """Runs a command, and writes its figures and tables as `--style` and `--table` say.

    Args:
        function: function of the command.
        given: its parameters by name, and the common options.

    Raises:
        InputError: no such file or style can be written, or the command printed no table.
        Exit: the command ended with an exit code; its cause is the mistake in the file's options.
    """
    if given.pop("quiet", False):
        IS_QUIET.set(True)
    path, style = given.pop("table_file", None), given.pop("style", "")
    columns = given.pop("columns", "")
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
    if path is not None and path.suffix[1:] not in FORMS:
        raise InputError.of("table_file", str(path), "must be NAME.csv, NAME.tex or NAME.md")
    if columns and path is None:
        rule = "chooses columns of a file of tables, which is not written"
        raise InputError.of("columns", columns, rule, "give --table FILE")
    if path is not None and given.get("as_json"):
        rule = "does not go with `as_json=True`"
        raise InputError.of("table_file", str(path), rule, "leave one out")
    if path is not None:
        make_directory(path.parent, f"{str(path.parent)!r} of --table")
    settings = {
        word: shown(value) if isinstance(value, float) else str(value)
        for name, word in SETTINGS.items()
        if function.__name__ not in WITHOUT_TARGET
        if (value := given.get(name)) is not None
    }
    problem = ended = None
    try:
        function(**given)
    except typer.Exit as done:
        ended = done
    finally:
        # What was printed before an error is written too.
        if path is not None:
            problem = _write_tables(path, columns, settings)
    if ended is not None:
        # A broken claim or a missed plan decides the exit code; `Command` prints the mistake.
        raise ended from problem
    if problem is not None:
        raise problem


def _write_tables(path: Path, columns: str, settings: dict[str, str]) -> InputError | None:
    """Writes the tables that the command has printed, and returns the mistake in `path` or
    `columns`. Tables with wrong columns are written with all, because the command may have taken
    hours."""
    tables = TABLES.get()
    if not tables:
        rule = "has nothing to hold: no table was printed"
        return InputError.of("table_file", str(path), rule)
    chosen, problem = _chosen(tables, columns) if columns else (tables, None)
    written = []
    for number, table in enumerate(chosen):
        file = path.with_stem(f"{path.stem}-{number + 1}") if number else path
        written.append(_with_settings(table, settings))
        content = written[-1].rendered(path.suffix[1:], file.stem, _cited(written[-1]))
        write_output(file, content.encode(), f"table {str(file)!r}")
        print_files({"table": str(file.absolute())})
    if path.suffix == ".tex":
        _add_references(path.with_name(REFERENCES), written)
    return problem


def _chosen(tables: list[Table], columns: str) -> tuple[list[Table], InputError | None]:
    """Returns the tables that have some of the columns, with these columns, and None; or all tables
    and the mistake in the columns."""

    def has(name: str) -> bool:
        return any(each.place_of(name) is not None or name in each.shared for each in headed)

    headed = [each for each in tables if each.has_heading]
    heads = dict.fromkeys(name for each in headed for name in each.columns)
    # Quotes hold a heading with commas together, as in CSV.
    quoted = [e.strip() for e in next(csv.reader([columns], skipinitialspace=True))]
    names = quoted if '"' in columns else []
    parts = [] if names else columns.split(",")
    # A heading may have commas itself, as in "rho, (b, k)".
    while parts:
        texts = (",".join(parts[:end]).strip() for end in range(len(parts), 0, -1))
        name = next((text for text in texts if has(text)), parts[0].strip())
        names.append(name)
        parts = parts[name.count(",") + 1 :]
    unknown = [each for each in names if not has(each)]
    found = [each for table in headed if (each := table.chosen(names)).columns]
    if unknown or not found:
        lacks = f"has no column {unknown[0]!r}" if unknown else "has only columns that are notes"
        rule = f"{lacks} (tables were written with all columns)"
        remedy = f"choose from {', '.join(heads)}"
        return tables, InputError.of("columns", columns, rule, remedy)
    for table in headed:
        own = table.chosen(names)
        if own.columns and (mixed := own.mixed):
            rule = f"hides in which {mixed[0]} rows differ (tables were written with all columns)"
            wider = (name for name in table.columns if not table.chosen([*names, name]).mixed)
            remedy = f"add the column {next(wider, 'that says it')!r}"
            return tables, InputError.of("columns", columns, rule, remedy)
    return found, None


def _with_settings(table: Table, settings: dict[str, str]) -> Table:
    """Returns a table whose title also has the settings of the command that its caption lacks;
    delta only beside an epsilon."""
    said = " ".join((table.caption, *table.notes))
    names = " ".join((said, *table.columns, *(row[0] for row in table.rows)))
    more = [
        f"{word} {text}"
        for word, text in settings.items()
        if not re.search(rf"\b{word.rpartition(' ')[2]} {re.escape(text)}(?!\.?\d)", said)
        and (word != "delta" or "epsilon" in names)
    ]
    return replace(table, title=", ".join(filter(None, (table.title, *more))))


def _cited(table: Table) -> str:
    """Returns a line of LaTeX that cites the work of each kind of mechanism; empty without any."""
    from fedray.report.works import keys_of_kinds

    keys = keys_of_kinds([table])
    said = "; ".join(f"{kind}~\\cite{{{key}}}" for kind, key in keys.items())
    return f"Mechanisms: {said}." if said else ""


def _add_references(file: Path, tables: list[Table]) -> None:
    """Adds the works that tables name, and fedray, to a file of BibTeX, whose content stays."""
    from fedray.report.works import FEDRAY, works_named

    try:
        before = file.read_text(encoding="utf-8") if file.is_file() else ""
    except (OSError, ValueError) as error:
        raise InputError(
            f"{str(file)!r} cannot be read ({error}); move it, or name another folder"
        ) from None
    entries = {**works_named(tables), "fedray": FEDRAY}
    missing = [entry for key, entry in entries.items() if f"{{{key}," not in before]
    if missing:
        parts = [before.rstrip("\n"), *(each.rstrip("\n") for each in missing)]
        text = "\n\n".join(filter(None, parts)) + "\n"
        write_output(file, text.encode(), f"references {str(file)!r}")
        print_files({"works": str(file.absolute())})


def print_json(document: Any) -> None:
    """Prints a document as JSON, which has no NaN: other programs would refuse it."""
    typer.echo(json.dumps(document, indent=2, allow_nan=False))


def print_pieces(pieces: Iterable[Piece], of: Subject = UNKNOWN) -> None:
    """Prints tables, paragraphs and lines one after the other; an empty line follows a table. The
    facets that all tables share stand once, above the first.

    Args:
        pieces: output in order.
        of: subject of the tables, as far as they lack their own.
    """
    width = shutil.get_terminal_size((WIDTH_OF_FILES, 0)).columns
    pieces = [each.under(of) if isinstance(each, Table) else each for each in pieces]
    subjects = [each.subject for each in pieces if isinstance(each, Table)]
    shared = shared_subject(subjects) if len(subjects) > 1 else UNKNOWN
    is_said = not shared
    explained: set[tuple[str, str]] = set()
    for each in pieces:
        if isinstance(each, Table):
            if not is_said:
                typer.echo(Paragraph("", f"Tables {shared}:").wrapped(width))
                is_said = True
            TABLES.get([]).append(each)
            table = each.brief().beyond(shared)
            # A terminal shows all tables together, and so each explanation once.
            new = tuple(entry for entry in table.legend if entry not in explained)
            explained.update(table.explained)
            typer.echo(f"{replace(table, legend=new).text(width)}\n")
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
