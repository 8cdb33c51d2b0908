"""`fedray reproduce`: each module of `scenarios/` with a reproduction is a subcommand."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import typer

from fedray.commands.declaring import command_of
from fedray.commands.described_options import Described
from fedray.commands.output import print_line

GIVEN: Mapping[str, tuple[str, Any]] = {
    "overrides": ("overrides", list[str] | None),
    "placement": ("place", list[str] | None),
    "scenario": ("scenario", list[Path] | None),
}
"""Options of the command and their types, by the parameter of a reproduction that they give."""
MADE = ("out", "on_progress")
"""Parameters of a reproduction that the command gives itself."""
OUT = Described("New directory: results.json, report.html, kept traces", "DIR", None)


@cache
def reproductions() -> Mapping[str, Any]:
    """Returns all reproductions by name, such as gboard-privacy for `gboard_privacy.py`."""
    from fedray import scenarios

    # Modules are imported only for their names and descriptions, on demand.
    found = {}
    for each in pkgutil.iter_modules(scenarios.__path__):
        module = importlib.import_module(f"{scenarios.__name__}.{each.name}")
        if hasattr(module, "REPRODUCTION"):
            found[each.name.replace("_", "-")] = module.REPRODUCTION
    return found


def list_reproductions(context: typer.Context) -> None:
    """Reproduce published results beside the printed ones; without NAME, list what there is."""
    if context.invoked_subcommand is None:
        width = max(map(len, reproductions()))
        for name, each in reproductions().items():
            print_line(f"{name:<{width}}  {each.description}")


def subcommand_of(name: str) -> Callable[..., None]:
    """Returns the function of a subcommand, whose parameters are the options of a reproduction."""
    from fedray.commands.reproduced import reproduce

    reproduction = reproductions()[name]
    options: list[inspect.Parameter] = []
    described = {"out": OUT}
    for each in inspect.signature(reproduction.run, eval_str=True).parameters.values():
        if each.name in GIVEN:
            # The command makes one value of several options, such as the placement.
            options.append(_option(*GIVEN[each.name], None))
        elif each.name not in MADE:
            options.append(_option(each.name, each.annotation.__origin__, each.default))
            described[each.name] = Described(each.annotation.__metadata__[0], None, None)
    options.append(_option("out", Path | None, None))
    if reproduction.has_figures:
        options.append(_option("figures", Path | None, None))
    options.append(_option("as_json", bool, False))
    text = reproduction.description
    return command_of(lambda **given: reproduce(reproduction, given), text, options, described)


def _option(name: str, kind: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
