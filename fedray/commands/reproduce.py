"""`fedray reproduce`: each module of `scenarios/` with a reproduction is a subcommand."""

import contextlib
import importlib
import inspect
import json
import pkgutil
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import typer

from fedray.base.nearest import did_you_mean
from fedray.commands.frame.declaring import Described, command_of
from fedray.commands.frame.group import Command, Commands
from fedray.commands.frame.output import (
    print_json,
    print_line,
    print_pieces,
    refuse_existing,
    write_shown,
)
from fedray.commands.frame.placing import placement_of
from fedray.commands.frame.progress import progress_line
from fedray.report.table import Paragraph

OUT = Described("New directory: results.json, report.html, kept traces", "DIR", None)


@cache
def reproductions() -> Mapping[str, Any]:
    """Returns all reproductions by name."""
    from fedray import scenarios

    # Modules are imported only for their names and descriptions, on demand.
    found = {}
    for each in pkgutil.iter_modules(scenarios.__path__):
        module = importlib.import_module(f"{scenarios.__name__}.{each.name}")
        if hasattr(module, "REPRODUCTION"):
            found[module.REPRODUCTION.name] = module.REPRODUCTION
    return found


def list_reproductions(context: typer.Context) -> None:
    """Reproduce published results beside the printed ones; without NAME, list them with times."""
    if context.invoked_subcommand is None:
        known = reproductions()
        width = max(map(len, known), default=0)
        longest = max((len(each.time) for each in known.values()), default=0)
        for name, each in known.items():
            print_line(f"{name:<{width}}  {each.time:>{longest}}  {each.description}")


def subcommand_of(name: str) -> Callable[..., None]:
    """Returns the function of a subcommand, whose parameters are the options of a reproduction."""
    reproduction = reproductions()[name]
    options = [_option(each.name, each.kind, each.default) for each in reproduction.options]
    described = {each.name: Described(each.help, None, None) for each in reproduction.options}
    described["out"] = OUT
    if reproduction.has_overrides:
        options.append(_option("overrides", list[str] | None, None))
    if reproduction.has_placement:
        options.append(_option("place", list[str] | None, None))
    options.append(_option("out", Path | None, None))
    if reproduction.has_figures:
        options.append(_option("figures", Path | None, None))
    options.append(_option("as_json", bool, False))
    text = reproduction.description
    return command_of(lambda **given: reproduce(reproduction, given), text, options, described)


def _option(name: str, kind: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def reproduce(reproduction: Any, given: dict[str, Any]) -> None:
    """Runs a reproduction, writes its results as they come, and prints the last ones.

    Args:
        reproduction: a Reproduction.
        given: options of the command by parameter.

    Raises:
        Exit: a result contradicts the publication.
    """
    out, as_json = given.pop("out"), given.pop("as_json")
    overrides, place = given.pop("overrides", None) or (), given.pop("place", None)
    figures = given.pop("figures", None)
    # An existing output is refused now, because reproductions take long.
    if not reproduction.is_resumable:
        refuse_existing(out)
    placement = placement_of(place)
    result: Any = None
    # Ray prints reports about workers on stdout, which may have to be only JSON.
    with progress_line("reproducing") as show, contextlib.redirect_stdout(sys.stderr):
        found = reproduction.results(
            out=out, overrides=overrides, placement=placement, on_progress=show, **given
        )
        for result in found:
            # Each result is written at once, so that a later error does not lose it.
            if out is not None:
                _write(result, out)
            write_shown(result, None, figures)
    if as_json:
        print_json(result.document)
    else:
        _print(result, out)
    if not result.agrees:
        raise typer.Exit(1)


def _write(result: Any, folder: Path) -> None:
    from fedray.report.page import write_own_page

    folder.mkdir(parents=True, exist_ok=True)
    write_own_page(result.page(), folder / "report.html")
    write_own_page(json.dumps(result.to_json(), indent=2) + "\n", folder / "results.json")


def _print(result: Any, folder: Path | None) -> None:
    print_pieces(result.tables())
    print_pieces(Paragraph("", each) for each in (*result.notes, result.verdict))
    if folder is not None:
        print_line(f"report  {folder / 'report.html'}", f"figures {folder / 'results.json'}")


class Reproductions(Commands):
    """The subcommands of `reproduce`, each of which is a module that is imported on demand."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(reproductions())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        known = reproductions()
        if cmd_name not in known:
            remedy = did_you_mean(cmd_name, known, f"choose from {', '.join(known)}")
            ctx.fail(f"unknown reproduction {cmd_name!r}; {remedy}")
        if cmd_name not in self.commands:
            # An app of one command is that command.
            app = typer.Typer(add_completion=False, rich_markup_mode=None)
            function = subcommand_of(cmd_name)
            app.command(cmd_name, cls=Command, short_help=function.__doc__)(function)
            self.commands[cmd_name] = typer.main.get_command(app)
        return self.commands[cmd_name]

    def _hint(self, option: str, ctx: Any) -> str | None:
        if option == "--place":
            return f"No such option: --place; {ctx.invoked_subcommand} has no runs to place"
        return super()._hint(option, ctx)
