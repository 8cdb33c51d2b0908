"""What commands print, and the options that several of them share."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]
TraceArgument = Annotated[Path, typer.Argument(metavar="TRACE", help="A trace directory, as `fedray run` writes it.")]
RoundsOption = Annotated[int | None, typer.Option("--rounds", metavar="N", help="Rounds n.")]
MinSepOption = Annotated[
    int | None, typer.Option("--min-sep", metavar="B", help="Min-sep b: least difference of two rounds of one device.")
]
MaxParticipationsOption = Annotated[
    int | None, typer.Option("--max-participations", metavar="K", help="Most participations k of one device.")
]
NoiseMultiplierOption = Annotated[
    float, typer.Option("--noise-multiplier", metavar="Z", help="Noise multiplier for mu, rho and epsilon.")
]
DeltaOption = Annotated[float, typer.Option("--delta", metavar="D", help="Delta of epsilon.")]


def print_json(document: dict[str, Any]) -> None:
    typer.echo(json.dumps(document, indent=2, allow_nan=False))


def print_table(title: str, rows: list[list[str]]) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text  # what users named may look like markup

    table = Table(*(Column(Text(cell)) for cell in rows[0]), box=SIMPLE, title=Text(title), title_justify="left")
    for row in rows[1:]:
        table.add_row(*map(Text, row))
    Console(width=None if sys.stdout.isatty() else 150).print(table)


def print_figures(figures: Any) -> None:
    width = max(len(what) for what, _ in figures.rows())
    for what, value in figures.rows():
        typer.echo(f"  {what:<{width}}  {value}")
    typer.echo("")


@contextlib.contextmanager
def status_line(title: str) -> Iterator[Callable[[str], None]]:
    """A line on standard error that says how far a long computation is, where somebody may be watching."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    with console.status(Text(title)) as status:
        yield lambda text: status.update(Text(f"{title}: {text}"))


def print_audit(result: Any) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 110)
    participation = Table(box=SIMPLE, title=f"Audit of {result.path}", title_justify="left", show_header=False)
    for row in result.participation_rows():
        participation.add_row(*row)
    head, *body = result.mechanism_rows()
    mechanisms = Table(*head, box=SIMPLE)
    for row in body:
        mechanisms.add_row(*row)
    console.print(participation, mechanisms, sep="")
    if result.trained_with_scaled_noise:
        console.print("The model was trained on a sample of each cohort with noise to scale; the privacy is the full cohort's.\n")


def print_findings(result: Any) -> None:
    rows = [["statement", "verdict", "claimed", "found", "should say", "because"]]
    for each in result.findings:
        found = "-" if each.found is None else f"{each.found:.6g}"
        rows.append(
            [
                each.statement,
                str(each.verdict),
                "-" if each.claimed is None else f"{each.claimed:.6g}",
                found,
                each.should_say,
                each.explanation,
            ]
        )
    print_table("The claim", rows)
    for each in result.findings:
        for shown in each.evidence:
            rounds = ", ".join(map(str, shown.rounds[:12])) + (", ..." if len(shown.rounds) > 12 else "")
            typer.echo(f"  {each.statement}: device {shown.device}, rounds {rounds}: {shown.shows}")
    shares = {each.share: each.rho for each in result.device_privacy.quantiles}
    typer.echo(
        f"  rho of the median device {shares[0.5]:.6f}, of 99 % at most {shares[0.99]:.6f}, of all at most {shares[1.0]:.6f}"
    )
    bound = result.frontier.sensitivity
    typer.echo(f"  sensitivity by the frontier of (min-sep, participations) at most {bound:.6f}")
    typer.echo(result.claim_sentence)
