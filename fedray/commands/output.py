"""How commands print, and the options that several of them share."""

import contextlib
import json
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from fedray.base.errors import InputError
from fedray.report.table import Paragraph, Piece, Table

JsonFlag = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")
]
QuietFlag = Annotated[
    bool,
    typer.Option("--quiet", help="Show no progress; errors are told all the same."),
]
FiguresOption = Annotated[
    Path | None,
    typer.Option(
        "--figures",
        metavar="DIR",
        help="Also write every figure of the page as SVG and CSV into this directory, made if "
        "there is none.",
    ),
]
PageOption = Annotated[
    Path | None,
    typer.Option("--page", metavar="FILE", help="Also write an HTML page, such as page.html."),
]
TraceArgument = Annotated[
    Path,
    typer.Argument(
        metavar="TRACE", help="A trace: the directory that `fedray run` or `fedray import` wrote."
    ),
]


def _scenario_file(name: Path | None) -> Path | None:
    from fedray.scenario.shipped import find_scenario

    return None if name is None else find_scenario(name)


def _scenario_files(names: list[Path] | None) -> list[Path] | None:
    from fedray.scenario.shipped import find_scenario

    return None if names is None else [find_scenario(each) for each in names]


def _shipped_names(begun: str) -> list[str]:
    from fedray.scenario.shipped import shipped_scenario_files

    return [name for name in shipped_scenario_files() if name.startswith(begun)]


def scenario_argument(help_text: str, metavar: str = "SCENARIO") -> Any:
    """An argument that is a scenario's file, or the name of a scenario that ships."""
    return typer.Argument(
        metavar=metavar,
        help=help_text,
        show_default=False,
        callback=_scenario_file,
        autocompletion=_shipped_names,
    )


ScenariosOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--scenario",
        metavar="FILE",
        help="Scenario to use instead of those that ship, by file or name; may be repeated.",
        callback=_scenario_files,
        autocompletion=_shipped_names,
    ),
]


TrustFlag = Annotated[
    bool,
    typer.Option(
        "--trust-code",
        help="Run Python code of a custom availability or task that came with a trace or an "
        "interrupted run.",
    ),
]
RoundsOption = Annotated[int | None, typer.Option("--rounds", metavar="N", help="Rounds n.")]
MinSepOption = Annotated[
    int | None,
    typer.Option(
        "--min-sep", metavar="B", help="Min-sep b: least difference of two rounds of one device."
    ),
]
MaxParticipationsOption = Annotated[
    int | None,
    typer.Option("--max-participations", metavar="K", help="Most participations k of one device."),
]
NoiseMultiplierOption = Annotated[
    float | None,
    typer.Option(
        "--noise-multiplier", metavar="Z", help="Noise multiplier for mu, rho and epsilon."
    ),
]
DeltaOption = Annotated[float, typer.Option("--delta", metavar="D", help="Delta of epsilon.")]


def print_json(document: dict[str, Any]) -> None:
    # NaN is no JSON, and would be refused by other programs.
    typer.echo(json.dumps(document, indent=2, allow_nan=False))


WIDTH_OF_FILES = 100
"""Columns where output goes to a file or a pipe."""


def print_pieces(pieces: Iterable[Piece]) -> None:
    """Prints tables, paragraphs and lines, one after the other; a table is followed by an empty
    line."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH_OF_FILES
    for each in pieces:
        if isinstance(each, Table):
            typer.echo(f"{each.brief().text(width)}\n")
        elif isinstance(each, Paragraph):
            indent = " " * len(each.lead)
            lines = textwrap.fill(
                each.text,
                width,
                initial_indent=each.lead,
                subsequent_indent=indent,
                break_long_words=False,
            )
            typer.echo(lines)
        else:
            typer.echo(each)


@contextlib.contextmanager
def progress_line(title: str, is_quiet: bool) -> Iterator[Callable[[str], None]]:
    """A line on standard error that says how far a long computation is, unless it is to be
    quiet."""
    from fedray.report.progress import study_progress

    with study_progress(title, is_shown=not is_quiet) as tell:
        yield tell


@contextlib.contextmanager
def resumable(
    directory: Path | None, name: str, command: str, is_quiet: bool
) -> Iterator[tuple[Path, Callable[[Any], None]]]:
    """Within: gives a run's directory, and a listener that prints how to continue the run.

    It prints when the run begins. The process may vanish without a word later: Ray ends it if one
    of its own processes dies, and the system if memory runs out.

    Args:
        directory: output directory; None for a new one under runs/.
        name: beginning of the new directory's name.
        command: how the user continues the run, to which the directory is appended.
        is_quiet: whether nothing is printed.
    """
    from fedray.trace.partial import new_directory, partial_directory
    from fedray.wire.messages import DataProgress

    where = directory or new_directory(name)
    is_due = not is_quiet

    def listen(progress: Any) -> None:
        nonlocal is_due
        if is_due and not isinstance(progress, DataProgress):
            is_due = False
            line = f"resume  if this run is cut off: {command} {shlex.quote(str(where))}"
            typer.echo(line, err=True)

    try:
        yield where, listen
    finally:
        # The new directory is still empty if the run ended before it began; so may runs/ be.
        if directory is None:
            with contextlib.suppress(OSError):
                partial_directory(where).rmdir()
                where.parent.rmdir()


def refuse_existing(out: Path | None) -> None:
    """Refuses an output that is there already.

    Args:
        out: a new directory; None for no output.

    Raises:
        InputError: if it exists.
    """
    # A link that leads nowhere is refused too, because writing would follow it.
    if out is not None and (out.exists() or out.is_symlink()):
        raise InputError(
            f"output {str(out)!r} exists already; name a new directory, or remove it first"
        )
