"""What commands print, and the options that several of them share."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from fedray.rounding import down, up

JsonFlag = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")
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
TraceArgument = Annotated[
    Path,
    typer.Argument(
        metavar="TRACE", help="A trace: the directory that `fedray run` or `fedray import` wrote."
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
    typer.echo(json.dumps(document, indent=2, allow_nan=False))


WIDTH_OF_FILES = 100
"""Columns where output goes to a file or a pipe."""


def print_table(title: str, rows: list[list[str]], first_is_head: bool = True) -> None:
    """Prints a table as wide as the terminal, and an empty line.

    A table that does not fit is printed row by row, so that nothing is cut.
    """
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(
        width=None if sys.stdout.isatty() else WIDTH_OF_FILES,
        highlight=False,
        markup=False,
        emoji=False,
    )
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    if sum(widths) + 3 * len(widths) + 1 > console.width:
        _print_records(title, rows, first_is_head)
        return
    if title:
        print_text("", title)
    table = Table(box=SIMPLE, show_header=first_is_head)
    for head in rows[0]:
        table.add_column(Text(head) if first_is_head else "", no_wrap=True)
    for row in rows[1:] if first_is_head else rows:
        table.add_row(*map(Text, row))
    console.print(table)


def _print_records(title: str, rows: list[list[str]], first_is_head: bool) -> None:
    """A block per row: its first cell, then a line per cell with its heading, wrapped."""
    import shutil
    import textwrap

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH_OF_FILES
    if title:
        print_text("", title)
    heads = rows[0] if first_is_head else [""] * len(rows[0])
    for row in rows[1:] if first_is_head else rows:
        typer.echo(f"  {row[0]}")
        for head, cell in list(zip(heads, row, strict=True))[1:]:
            if cell:
                lead = f"    {head}: " if head else "    "
                # Digests, numbers and paths stay whole even where they are longer than a line.
                typer.echo(
                    textwrap.fill(
                        cell,
                        max(width, 40),
                        initial_indent=lead,
                        subsequent_indent="      ",
                        break_long_words=False,
                        break_on_hyphens=False,
                    )
                )
    typer.echo("")


def print_text(lead: str, text: str) -> None:
    """Prints a paragraph, wrapped to the width, with what leads it in front."""
    import shutil
    import textwrap

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH_OF_FILES
    indent = " " * len(lead)
    typer.echo(
        textwrap.fill(
            text, width, initial_indent=lead, subsequent_indent=indent, break_long_words=False
        )
    )


def print_figures(figures: Any) -> None:
    width = max(len(what) for what, _ in figures.rows())
    for what, value in figures.rows():
        typer.echo(f"  {what:<{width}}  {value}")
    typer.echo("")


@contextlib.contextmanager
def status_line(title: str) -> Iterator[Callable[[str], None]]:
    """A line on standard error that says how far a long computation is, where somebody may be
    watching."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    with console.status(Text(title)) as status:
        yield lambda text: status.update(Text(f"{title}: {text}"))


def print_audit(result: Any) -> None:
    """Left-out rows, participation, the guarantees of each mechanism, the comparison, the claim,
    and what it rests on."""
    for each in result.left_out:
        print_text("left out  ", f"{each.rows:,} rows {each.reason}, such as {each.example}")
    if result.filtered_rows:
        print_text(
            "left out  ",
            f"{result.filtered_rows:,} rows that do not meet the conditions of the import",
        )
    if result.incompleteness:
        print_text(
            "WARNING   ",
            f"{result.incompleteness} The figures below are of what is left, and no upper bounds.",
        )
    print_table(
        f"Audit of {result.path}",
        [list(row) for row in result.participation_rows()],
        first_is_head=False,
    )
    print_guarantees(result)
    if result.mechanisms:
        _print_what_to_rest_on(result.mechanisms[0])
    else:
        typer.echo(
            "No mechanism is known, so there are no privacy figures: give --mechanism FILE and "
            "--noise-multiplier Z, or --claim FILE."
        )
    if result.claim is not None:
        print_text("claimed   ", f"{result.mechanisms[0].claimed.reason}.")
    if result.utility:
        typer.echo("")
        basis = result.utility_basis.name
        print_table(
            f"Error of the prefix sums when each mechanism has the same rho ({basis} "
            "participation)",
            result.utility_rows(),
        )
        from mechanisms.comparison import NOT_COMPARABLE

        print_text("", NOT_COMPARABLE)
    if result.findings:
        print_findings(result)
    typer.echo("\nWhat these figures rest on")
    for each in result.assumptions:
        print_text("  * ", each)


def print_guarantees(result: Any) -> None:
    """The guarantees of every mechanism of an audit, a table each."""
    for mechanism in result.mechanisms:
        noise = mechanism.noise_multiplier
        known = f"noise multiplier {noise!r}" if noise is not None else "without noise multiplier"
        print_table(
            f"{mechanism.name}, {known}, delta {mechanism.observed.delta:g}",
            result.guarantee_rows(mechanism),
        )


def _print_what_to_rest_on(mechanism: Any) -> None:
    print_text(
        "",
        "observed limits: what holds for every trace with this min-sep and this many "
        "participations.",
    )
    print_text(
        "observed  ",
        f"is a statement about {mechanism.observed.scope}; {mechanism.observed.reason}.",
    )
    enforced = mechanism.enforced
    if enforced.sensitivity is None:
        print_text("enforced  ", f"is not known: {enforced.reason}.")
    elif enforced.may_rest_on:
        print_text(
            "enforced  ",
            f"holds for {enforced.scope}; a guarantee may rest on it. Why: {enforced.reason}.",
        )
    else:
        print_text("enforced  ", f"cannot be rested on by itself: {enforced.reason}.")


def print_findings(result: Any) -> None:
    """The claim: verdicts first, then every statement, its evidence, and the distribution over
    devices."""
    typer.echo("")
    print_text("", result.claim_sentence)
    typer.echo("")
    rows = [["statement", "verdict", "claimed", "found", "should say", "because"]]
    for each in result.findings:
        rows.append(
            [
                each.statement,
                str(each.verdict),
                _claimed(each),
                _found(each),
                each.should_say,
                each.explanation,
            ]
        )
    print_table("The claim", rows)
    for each in result.findings:
        if each.evidence_note:
            print_text("  ", f"{each.statement}: {each.evidence_note}")
        for shown in each.evidence:
            rounds = ", ".join(map(str, shown.rounds[:12])) + (
                ", ..." if len(shown.rounds) > 12 else ""
            )
            print_text(
                "  ", f"{each.statement}: device {shown.device}, rounds {rounds}: {shown.shows}"
            )
    privacy = result.device_privacy
    if privacy is not None:
        shares = {each.share: up(each.rho, 6) for each in privacy.quantiles}
        print_text(
            "  ",
            f"observed, in this trace only: rho of the median device {shares[0.5]}, of 99 % at "
            f"most {shares[0.99]}, of all at most "
            f"{shares[1.0]}",
        )
    if result.frontier is not None:
        bound = up(result.frontier.sensitivity, 6)
        print_text(
            "  ",
            "observed, in this trace only: sensitivity by the frontier of (min-sep, "
            f"participations) at most {bound}",
        )


def _claimed(finding: Any) -> str:
    return (
        finding.claimed
        if isinstance(finding.claimed, str)
        else ""
        if finding.claimed is None
        else repr(finding.claimed)
    )


def _found(finding: Any) -> str:
    """What was found; losses are rounded up, spans of time down, counts are whole."""
    if finding.found is None or isinstance(finding.found, str):
        return finding.found or ""
    if finding.statement in ("rho", "epsilon"):
        return up(finding.found, 6)
    return (
        down(finding.found, 4) if finding.statement == "timer_hours" else f"{finding.found:,.10g}"
    )
