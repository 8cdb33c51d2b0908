"""Run of a reproduction, and its results as text, JSON and files."""

import contextlib
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import typer

from fedray.commands.output import print_json, print_line, print_pieces, refuse_existing
from fedray.commands.placing import placement_of
from fedray.commands.progress import progress_line
from fedray.report.files import write_figures
from fedray.report.page import write_page, write_report
from fedray.report.table import Paragraph


def reproduce(reproduction: Any, given: dict[str, Any]) -> None:
    """Runs a reproduction, writes its results as they come, and prints the last ones.

    Args:
        reproduction: a Reproduction.
        given: options by parameter; None for one that was not given.

    Raises:
        Exit: a result contradicts the publication.
    """
    out, as_json = given.pop("out"), given.pop("as_json")
    figures = given.pop("figures", None)
    # An existing output is refused now, because reproductions take long.
    if not reproduction.is_resumable:
        refuse_existing(out)
    arguments = {name: value for name, value in given.items() if value is not None}
    parameters = inspect.signature(reproduction.run).parameters
    if "placement" in parameters:
        arguments["placement"] = placement_of(arguments.pop("place", None))
    if "out" in parameters:
        arguments["out"] = out
    results: list[Any] = []
    # Ray prints reports about workers on stdout, which may have to be only JSON.
    with progress_line("reproducing") as show, contextlib.redirect_stdout(sys.stderr):
        if "on_progress" in parameters:
            arguments["on_progress"] = show
        for result in reproduction.run(**arguments):
            results.append(result)
            # Each result is written at once, so that a later error does not lose it.
            if out is not None:
                _write(result, out / result.folder)
            if figures is not None:
                write_figures(result, figures / result.folder)
    last_of = {each.folder: each for each in results}
    if as_json:
        print_json(results[-1].document)
    else:
        for folder, result in last_of.items():
            _print(result, out and out / folder)
    if not all(each.agrees for each in last_of.values()):
        raise typer.Exit(1)


def _write(result: Any, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_report(result, folder / "report.html")
    write_page(json.dumps(result.to_json(), indent=2) + "\n", folder / "results.json")


def _print(result: Any, folder: Path | None) -> None:
    print_pieces(result.tables())
    print_pieces(Paragraph("", each) for each in (*result.notes, result.verdict))
    if folder is not None:
        print_line(f"report  {folder / 'report.html'}", f"figures {folder / 'results.json'}")
