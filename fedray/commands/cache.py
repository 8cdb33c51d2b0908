"""`fedray cache`: list kept results, and delete old ones."""

from typing import Any

import typer

from fedray.base.errors import InputError
from fedray.commands.output import print_json, print_pieces


def cache(*, unused_for: float | None = None, as_json: bool = False) -> None:
    """List kept results in the user's cache, and delete old ones.

    These are indexes and copies of data files, optimized mechanisms, runs and cells of plans and
    sweeps, and digests of files. All are made again when they are needed. Code whose digest is
    deleted is trusted again once the user names its file in a run.

    Args:
        unused_for (DAYS): days without use after which an entry is deleted; 0: all. Only while
            nothing runs
    """
    from fedray.commands.cached import cleared

    # NaN fails every comparison, so it is refused too.
    if unused_for is not None and not unused_for >= 0:
        raise InputError.of("unused_for", unused_for, "must be 0 days or more")
    found = cleared(unused_for)
    if as_json:
        print_json(found.to_json())
    else:
        _print(found)


def _print(found: Any) -> None:
    from fedray.base.kept import SORTS
    from fedray.report.table import Table

    cells = {
        "folder": lambda row: row.folder,
        "MiB": lambda row: f"{row.mebibytes:,.1f}",
        "days unused": lambda row: f"{row.unused_days:.1f}",
    }
    for word, rows in (("deleted", found.deleted), ("kept", found.kept)):
        if rows:
            print_pieces([Table.of(word.capitalize(), rows, cells)])
    for word, rows in (("deleted", found.deleted), ("kept", found.kept)):
        # An empty cache is worth a line, and an empty deletion is not.
        if rows or word == "kept":
            size = sum(row.mebibytes for row in rows)
            typer.echo(f"{size:,.1f} MiB of {len(rows)} data files {word}")
    for row in found.entries:
        counts = (
            ("deleted", row.deleted, row.deleted_mebibytes),
            ("kept", row.kept, row.kept_mebibytes),
        )
        for word, count, size in counts:
            if count:
                noun = SORTS[row.sort]
                typer.echo(f"{size:,.1f} MiB of {count:,} {noun} {word} in {row.folder}")
