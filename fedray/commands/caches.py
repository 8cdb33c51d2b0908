"""What is kept in the user's cache: cache."""

import time
from typing import Annotated, Any

import typer

from fedray.base.errors import InputError
from fedray.base.kept import SORTS, cache_folder, kept_entries
from fedray.commands.output import JsonFlag, print_json, print_pieces


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
    """List what is kept, and delete what is old: indexes and copies of data files, optimised
    mechanisms, runs and cells of plans and sweeps, digests of files.

    All of it is made again when it is needed again.
    """
    from fedray.clients.data.cache import cached_contents, delete_content
    from fedray.report.table import Table

    if unused_for is not None and not unused_for >= 0:
        raise InputError.of("unused_for", unused_for, "must be 0 days or more")
    now, kept, deleted = time.time(), [], []
    for each in cached_contents():
        # A clock that was set back makes files of the future, which count as used now.
        days = max(0.0, (now - each.used_time) / 86_400)
        row = {"folder": str(each.folder), "mebibytes": each.bytes / 2**20, "unused_days": days}
        is_old = unused_for is not None and days >= unused_for
        # What another process is opening just now stays, and is listed as kept.
        (deleted if is_old and delete_content(each.folder) else kept).append(row)
    entries = [_entries(sort, unused_for, now) for sort in SORTS]
    if as_json:
        print_json({"kept": kept, "deleted": deleted, "entries": entries})
        return
    for title, rows in (("Deleted", deleted), ("Kept", kept)):
        cells = [
            [row["folder"], f"{row['mebibytes']:,.1f}", f"{row['unused_days']:.1f}"] for row in rows
        ]
        if rows:
            print_pieces([Table.headed(title, [["folder", "MiB", "days unused"], *cells])])
    for rows, word in ((deleted, "deleted"), (kept, "kept")):
        # That nothing is kept is worth a line, and that nothing was deleted is not.
        if rows or word == "kept":
            size = sum(row["mebibytes"] for row in rows)
            typer.echo(f"{size:,.1f} MiB of {len(rows)} data files {word}")
    for row in entries:
        for word in ("deleted", "kept"):
            if row[word]:
                size = f"{row[f'{word}_mebibytes']:,.1f} MiB"
                typer.echo(
                    f"{size} of {row[word]:,} {SORTS[row['sort']]} {word} in {row['folder']}"
                )


def _entries(sort: str, unused_for: float | None, now: float) -> dict[str, Any]:
    """How many entries of a sort are kept and deleted; deletes the old ones."""
    row = {"sort": sort, "folder": str(cache_folder(sort))}
    counts = {"kept": 0, "kept_mebibytes": 0.0, "deleted": 0, "deleted_mebibytes": 0.0}
    try:
        for each in kept_entries(sort):
            is_old = unused_for is not None and now - each.used_time >= 86_400 * unused_for
            if is_old:
                for file in each.files:
                    # Another process may have deleted it meanwhile.
                    file.unlink(missing_ok=True)
            word = "deleted" if is_old else "kept"
            counts[word] += 1
            counts[f"{word}_mebibytes"] += each.bytes / 2**20
    except OSError as error:
        raise InputError(
            f"the cache {row['folder']!r} cannot be read or cleared ({error.strerror or error}); "
            "see who may write there"
        ) from None
    return row | counts
