"""`fedray data`: make a data file from texts of the user."""

from pathlib import Path
from typing import Literal

from fedray.commands.output import print_line, refuse_existing


def data(
    kind: Literal["shakespeare"], folder: Path, *, out: Path = Path("shakespeare.parquet")
) -> None:
    """Make a data file from texts: roles of plays as clients, for `fedray reproduce shakespeare`.

    A speech begins with a name in capitals and a tab or full stop. The file has the columns client
    (play and role) and text (80 characters).

    Args:
        kind: kind of data: shakespeare
        folder (DIR): folder with a text file (*.txt) per play
        out (FILE): new Parquet file, for data.file of kind parquet
    """
    from fedray.clients.data.plays import write_roles

    del kind  # plays are the only kind
    refuse_existing(out)
    roles, examples = write_roles(folder, out)
    print_line(f"{roles:,} roles with {examples:,} examples", f"data     {out}")
