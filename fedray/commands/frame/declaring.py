"""Command lines from functions: parameters are arguments and options, docstrings are the help.

Positional parameters are arguments, and keyword-only ones are options. A section of the docstring
describes them, as "name (METAVAR): text"; options of sections other than "Args" are listed under
that heading. `SHARED` describes the parameters that several commands have.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_origin

import typer

from fedray.base.storage import is_of_bucket, local_path
from fedray.commands.frame.output import run_command
from fedray.commands.frame.shared import FLAGS, SHARED

COMMON: dict[str, tuple[Any, Any]] = {"style": (str, "wide,svg"), "table_file": (Path | None, None)}
COMMON |= {"columns": (str, ""), "title": (str, ""), "quiet": (bool, False)}
"""Types and defaults of the options of every command, and of those that write pages or figures, or
print tables."""
WITHOUT_TABLES = ("init", "report")
"""Commands that print none."""
_ENTRY = re.compile(r" {4}(\w+)(?: \((.+?)\))?: (.*)")


class Described(NamedTuple):
    """Description of a parameter."""

    text: str
    """Line of help."""
    metavar: str | None
    """Word for the value; None for the usual one."""
    heading: str | None
    """Heading that lists it; None for the usual one."""


def parsed(doc: str) -> tuple[str, Mapping[str, Described]]:
    """Splits a docstring into the text before its sections, and its descriptions by parameter."""
    lines = doc.splitlines()
    # Only a line with an entry below it is a heading: prose may end with a colon too.
    starts = [i for i, line in enumerate(lines[:-1]) if _is_heading(line, lines[i + 1])]
    first = starts[0] if starts else len(lines)
    return "\n".join(lines[:first]).strip(), dict(_entries(lines[first:]))


def _is_heading(line: str, below: str) -> bool:
    return re.fullmatch(r"\S.*:", line) is not None and _ENTRY.fullmatch(below) is not None


def _entries(lines: list[str]) -> Iterator[tuple[str, Described]]:
    heading = None
    for place, line in enumerate(lines):
        if not line.startswith(" "):
            # "Args" is the usual heading, for which typer has names of its own.
            heading = None if line == "Args:" else line.rstrip(":")
        elif (found := _ENTRY.fullmatch(line)) is not None:
            text = " ".join(each.strip() for each in (found[3], *_continued(lines[place + 1 :])))
            yield found[1], Described(text[0].upper() + text[1:], found[2], heading)


def _continued(lines: list[str]) -> Iterator[str]:
    for line in lines:
        if not line.startswith(" " * 8):
            return
        yield line


def declared(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function for typer, with declarations in place of the annotations.

    Args:
        function: function of a command, whose parameters are all described.
    """
    body, own = parsed(inspect.getdoc(function) or "")
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    return command_of(function, body, parameters, own)


def command_of(
    function: Callable[..., Any],
    text: str,
    parameters: Iterable[inspect.Parameter],
    described: Mapping[str, Described],
) -> Callable[..., Any]:
    """Returns a function for typer.

    Args:
        function: function that the command calls with its parameters by name.
        text: help of the command.
        parameters: arguments, which are positional, and options, which are keyword-only.
        described: their descriptions, in addition to `SHARED`.
    """
    parameters = list(parameters)
    names = {each.name for each in parameters}
    shared = {
        "style": "figures" in names,
        "table_file": function.__name__ not in WITHOUT_TABLES,
        "columns": function.__name__ not in WITHOUT_TABLES,
        "title": "page" in names or function.__name__ == "report",
        "quiet": True,
    }
    for name, (kind, default) in COMMON.items():
        if shared[name]:
            at = {"kind": inspect.Parameter.KEYWORD_ONLY, "default": default, "annotation": kind}
            parameters.append(inspect.Parameter(name, **at))
    known = {**parsed(SHARED)[1], **described}
    # `python -OO` removes docstrings, and the command then has no help.
    if not text:
        known = {each.name: Described("", None, None) for each in parameters} | known
    declarations = [
        each.replace(kind=each.KEYWORD_ONLY, annotation=_declaration(each, known[each.name]))
        for each in parameters
    ]

    # A new function per command, because typer keeps its declarations on it.
    def command(**given: Any) -> None:
        run_command(function, given)

    # Typer reads either of these, depending on its release.
    command.__signature__ = inspect.Signature(declarations)  # pyright: ignore[reportFunctionMemberAccess]
    command.__annotations__ = {each.name: each.annotation for each in declarations}
    command.__doc__ = text
    return command


def _declaration(parameter: inspect.Parameter, described: Described) -> Any:
    kind, complete = parameter.annotation, None
    # The metadata of a parameter is the function that completes it in a shell.
    if get_origin(kind) is Annotated:
        kind, complete = get_args(kind)
    more: dict[str, Any] = {
        "help": described.text,
        "metavar": described.metavar,
        "rich_help_panel": described.heading,
        "autocompletion": complete,
    }
    name = parameter.name
    # Checked before any work, and whatever a command would do with the path.
    if {Path, list[Path]} & {kind, *get_args(kind)}:
        more["callback"] = _place if "URI" in (described.metavar or "") else _local
    if name == "scenario":
        more |= {"callback": _found_scenario, "autocompletion": _shipped_names}
    if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
        is_required = parameter.default is inspect.Parameter.empty
        usual = name.upper() if is_required else f"[{name.upper()}]"
        more["metavar"] = described.metavar or usual
        return Annotated[kind, typer.Argument(show_default=parameter.default is not None, **more)]
    # Underscores of Python become dashes, as in other programs.
    flag = FLAGS.get(name, f"--{name.replace('_', '-')}")
    # A flag that is not given may mean a default of its own, so it can be given either way.
    if kind == bool | None and "/" not in flag:
        flag = f"{flag}/--no-{flag[2:]}"
    is_shown = parameter.default not in (None, inspect.Parameter.empty)
    return Annotated[kind, typer.Option(flag, show_default=is_shown, **more)]


def _place(given: Any) -> Any:
    # A bucket's URI stays as it is: only the command knows what to copy.
    return given if is_of_bucket(given) else _local(given)


def _local(given: Any) -> Any:
    if isinstance(given, Path):
        return local_path(given)
    return [local_path(each) for each in given] if given else given


def _found_scenario(name: Any) -> Any:
    from fedray.scenario.shipped import find_scenario

    return None if name is None else find_scenario(local_path(name))


def _shipped_names(begun: str) -> list[str]:
    from fedray.scenario.shipped import shipped_scenario_files

    return [name for name in shipped_scenario_files() if name.startswith(begun)]
