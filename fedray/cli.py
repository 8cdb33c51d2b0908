"""The `fedray` command, which is thin: every behaviour is in the package."""

import contextlib
import os
import pkgutil
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

import typer

from fedray import __version__, commands
from fedray.base.storage import COPIES
from fedray.commands.frame.declaring import declared
from fedray.commands.frame.exit_codes import exit_code, prepare_streams
from fedray.commands.frame.group import Command, Commands
from fedray.commands.frame.output import IS_QUIET
from fedray.commands.reproduce import Reproductions, list_reproductions
from fedray.runtime.session import one_session

_HOMES = {
    each.name.rpartition(".")[2]: each.name
    for each in pkgutil.walk_packages(commands.__path__, "fedray.commands.")
}
GROUPS: dict[str, list[Callable[..., None]]] = {
    # A study may be deleted, and its command with it.
    heading: [
        getattr(import_module(_HOMES[name]), name) for name in names.split() if name in _HOMES
    ]
    for heading, names in (
        ("Simulate and train", "run train compare compare_mechanisms answer"),
        ("Audit", "import_ audit verify budget report calibrate forecast canary audit_model"),
        ("Design mechanisms and runs", "optimize mechanism stress plan sweep"),
        ("Model populations", "population fit_log fit_min_sep"),
        ("Files and running jobs", "init schema status"),
    )
}
"""Commands by the heading that lists them."""
REPRODUCE = "Published results"
"""Heading of `fedray reproduce`."""

# Click keeps these lines as they are, and the README explains them.
FIRST = """\
fedray init mine.toml                                # a scenario with comments
fedray run mine.toml --out mine                      # simulates, trains and audits it
fedray run quickstart --place address=auto --out en  # on a Ray cluster
fedray import log.csv --inspect                      # your log, before an audit
fedray stress mine --estimated 90 --epsilon 6        # the cost of a wrong min-sep"""
"""The first commands of a new user, which the README has too."""

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Rich would draw boxes around the help, and importing it takes longer than all the rest.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Simulate private cross-device federated learning, and audit what really happened."
    f"\n\n\b\n{FIRST}",
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"fedray {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress, only errors.")] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    # Set for every command, because tests run several in one process.
    IS_QUIET.set(quiet)


def _summary(function: Callable[..., Any]) -> str:
    """Returns the first paragraph of a docstring on one line, which click would cut."""
    return " ".join((function.__doc__ or "").partition("\n\n")[0].split())


# The order here is that of the help, from the first run to the last resort.
for _heading, _functions in GROUPS.items():
    for _each in _functions:
        # The keyword `import` is no name of a function, so its function is called `import_`.
        _name = _each.__name__.rstrip("_").replace("_", "-")
        _add = app.command(_name, cls=Command, short_help=_summary(_each), rich_help_panel=_heading)
        _add(declared(_each))

# A reproduction is a subcommand, because each has options of its own.
_reproduce = typer.Typer(
    cls=Reproductions,
    invoke_without_command=True,
    subcommand_metavar="[NAME] [OPTIONS]",
    rich_markup_mode=None,
)
_reproduce.callback()(list_reproductions)
app.add_typer(
    _reproduce,
    name="reproduce",
    short_help=_summary(list_reproductions),
    rich_help_panel=REPRODUCE,
)


def main() -> None:
    """The console script: runs the command, and ends the process with its exit code."""
    code = command()
    # The command is done and its output printed: a signal now would only change the exit code.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    # What was printed holds, even if a temporary copy cannot be removed.
    with contextlib.suppress(OSError):
        COPIES.close()
    # The interpreter would abort while a thread of torch or Arrow is in C++ code, and end by SIGINT
    # instead of this code after an interrupted `exec`, of which imports make many.
    os._exit(code)


def command() -> int:
    """Runs the command of `sys.argv`, turns errors into one line, and returns the exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    prepare_streams()
    # In its standalone mode, click would print errors and end the process itself.
    return exit_code(one_session()(lambda: app(standalone_mode=False)))


def _interrupt(number: int, frame: Any) -> None:
    """Treats a termination as an interruption, so that no half-written file stays behind."""
    raise KeyboardInterrupt
