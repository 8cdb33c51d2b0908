"""Data files from texts of the user: data."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from fedray.commands.output import refuse_existing


def data(
    kind: Annotated[
        Literal["shakespeare"], typer.Argument(metavar="KIND", help="Kind of data: shakespeare.")
    ],
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder with a text file (*.txt) per play.")
    ],
    out: Annotated[
        Path,
        typer.Option(metavar="FILE", help="New Parquet file, for data.file of kind parquet."),
    ] = Path("shakespeare.parquet"),
) -> None:
    """Make a data file from texts: roles of plays as clients, for `fedray reproduce shakespeare`.

    A speech begins with a name in capitals and a tab or full stop. The file has
    the columns client (play and role) and text (80 characters).
    """
    from fedray.clients.data.plays import write_roles

    del kind  # there is one
    refuse_existing(out)
    roles, examples = write_roles(folder, out)
    typer.echo(f"{roles:,} roles with {examples:,} examples\ndata     {out}")
