"""Reproductions of published results: each module of `scenarios/` with one is a subcommand."""

import contextlib
import importlib
import inspect
import json
import pkgutil
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

from fedray.commands.learning import AddressOption, InProcessFlag, SetOption, backend_of
from fedray.commands.output import (
    FiguresOption,
    JsonFlag,
    QuietFlag,
    ScenariosOption,
    print_json,
    print_pieces,
    progress_line,
    refuse_existing,
)

OutOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="New directory for results.json, report.html, and traces that are kept; an "
        "interrupted study of models continues in its own.",
    ),
]
SHARED: dict[str, dict[str, Any]] = {
    "overrides": {"overrides": SetOption},
    "placement": {"in_process": InProcessFlag, "address": AddressOption},
    "scenario": {"scenario": ScenariosOption},
    # Added to every reproduction, or made here.
    "out": {},
    "on_progress": {},
}
"""Options of the command, by the parameter of a reproduction that they give."""
EVERY: dict[str, Any] = {
    "out": (OutOption, None),
    "figures": (FiguresOption, None),
    "quiet": (QuietFlag, False),
    "as_json": (JsonFlag, False),
}
"""Options of every reproduction, with their defaults; figures only of one that has some."""


@cache
def reproductions() -> Mapping[str, Any]:
    """All reproductions by name, such as gboard-privacy for `scenarios/gboard_privacy.py`."""
    from fedray import scenarios

    found = {}
    for each in pkgutil.iter_modules(scenarios.__path__):
        module = importlib.import_module(f"{scenarios.__name__}.{each.name}")
        if hasattr(module, "REPRODUCTION"):
            found[each.name.replace("_", "-")] = module.REPRODUCTION
    return found


def list_reproductions(context: typer.Context) -> None:
    """Reproduce published results, obtained figures beside the printed ones. Without NAME: list
    the reproductions."""
    if context.invoked_subcommand is None:
        width = max(map(len, reproductions()))
        for name, each in reproductions().items():
            typer.echo(f"{name:<{width}}  {each.description}")


def command_of(name: str) -> Callable[..., None]:
    """Function of a subcommand: its parameters are the options of a reproduction."""
    reproduction = reproductions()[name]
    options = {**_options_of(reproduction.run), **EVERY}
    if not reproduction.has_figures:
        del options["figures"]

    def command(**given: Any) -> None:
        _reproduce(reproduction, given)

    parameters = [
        inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for key, (kind, default) in options.items()
    ]
    command.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    command.__annotations__ = {key: kind for key, (kind, _) in options.items()}
    command.__doc__ = reproduction.description
    return command


def _options_of(run: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """Annotation and default of each option that a reproduction takes."""
    options: dict[str, tuple[Any, Any]] = {}
    for each in inspect.signature(run, eval_str=True).parameters.values():
        shared = SHARED.get(each.name)
        if shared is not None:
            options |= {key: (kind, None) for key, kind in shared.items()}
        else:
            kind, help_text = each.annotation.__origin__, each.annotation.__metadata__[0]
            options[each.name] = Annotated[kind, typer.Option(help=help_text)], each.default
    return options


def _reproduce(reproduction: Any, given: dict[str, Any]) -> None:
    from fedray.report.files import write_figures
    from fedray.runtime.placement import Placement

    out, figures, quiet, as_json = (given.pop(key, None) for key in EVERY)
    # An existing output is refused now, because reproductions take long.
    if not reproduction.is_resumable:
        refuse_existing(out)
    asked = inspect.signature(reproduction.run).parameters
    arguments = {key: value for key, value in given.items() if value is not None}
    if "placement" in asked:
        backend = backend_of(arguments.pop("in_process", None))
        arguments["placement"] = Placement(address=arguments.pop("address", None), backend=backend)
    if "out" in asked:
        arguments["out"] = out
    results: list[Any] = []
    # Ray reports on its workers on stdout, which may have to be JSON only.
    with progress_line("reproducing", quiet) as tell, contextlib.redirect_stdout(sys.stderr):
        if "on_progress" in asked:
            arguments["on_progress"] = tell
        for result in reproduction.run(**arguments):
            results.append(result)
            # At once, so that an error later loses nothing that took long.
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
    # Scripts see by the exit code that a figure contradicts the publication.
    if not all(each.agrees for each in last_of.values()):
        raise typer.Exit(1)


def _write(result: Any, folder: Path) -> None:
    from fedray.report.page import write_page, write_report

    folder.mkdir(parents=True, exist_ok=True)
    write_report(result, folder / "report.html")
    write_page(json.dumps(result.to_json(), indent=2) + "\n", folder / "results.json")


def _print(result: Any, folder: Path | None) -> None:
    from fedray.report.table import Paragraph

    print_pieces(result.tables())
    print_pieces(Paragraph("", each) for each in (*result.notes, result.verdict))
    if folder is not None:
        typer.echo(f"report  {folder / 'report.html'}\nfigures {folder / 'results.json'}")
