"""What recorded data leaves in the cache: cache."""

import time
from typing import Annotated

import typer

from fedray.commands.output import JsonFlag, print_json, print_table
from fedray.errors import InputError


def cache(
    unused_for: Annotated[
        float | None,
        typer.Option(
            "--delete-unused-for",
            metavar="DAYS",
            help="Delete what no run has opened for so many days; 0: all. Only while nothing runs.",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """List the indexes and copies that were made of data files, and delete old ones.

    They are made again when the data is opened again.
    """
    from fedray.clients.data.cache import cached_contents, delete_content
    from fedray.report.text import TextTable

    if unused_for is not None and not unused_for >= 0:
        raise InputError(f"--delete-unused-for={unused_for:g} must be 0 days or more")
    now, kept, deleted = time.time(), [], []
    for each in cached_contents():
        days = max(0.0, (now - each.used_time) / 86_400)
        row = {"folder": str(each.folder), "mebibytes": each.bytes / 2**20, "unused_days": days}
        is_old = unused_for is not None and days >= unused_for
        (deleted if is_old and delete_content(each.folder) else kept).append(row)
    if as_json:
        print_json({"kept": kept, "deleted": deleted})
        return
    for title, rows in (("Deleted", deleted), ("Kept", kept)):
        cells = [
            [row["folder"], f"{row['mebibytes']:,.1f}", f"{row['unused_days']:.1f}"] for row in rows
        ]
        if rows:
            print_table(TextTable(title, [["folder", "MiB", "days unused"], *cells]))
    for rows, word in ((deleted, "deleted"), (kept, "kept")):
        if rows or word == "kept":
            size = sum(row["mebibytes"] for row in rows)
            typer.echo(f"{size:,.1f} MiB of {len(rows)} data files {word}")
