"""Files of one data set, and their splits; and SQLite files from strangers."""

import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from fedray.scenario.data_file import files_below
from .reader import Damaged

_OF_HUGGING_FACE = re.compile(r"(?P<split>.+)-\d{5}-of-\d{5}")


def split_files(path: Path, suffixes: Sequence[str]) -> list[tuple[str, Path]]:
    """Returns (split, file) of every file with one of the suffixes, in order of their names.

    In a folder, a file `<split>-00000-of-00002.<suffix>` belongs to that split, as for Hugging
    Face. A file in a subfolder belongs to the split of that name (`train/part_0.parquet`). Others,
    and a single file, belong to the split "".

    Raises:
        Damaged: the folder has no such file.
    """
    if not path.is_dir():
        return [("", path)]
    files = [file for file in files_below(path) if file.suffix.lower() in suffixes]
    if not files:
        raise Damaged(f"{path.name}: the folder has no file {' or '.join(suffixes)}")
    return [(_split_of(file, path), file) for file in files]


def read_only_sqlite(path: Path, table: str) -> sqlite3.Connection:
    """Returns a connection that reads only one table of a file, in any thread.

    Raises:
        sqlite3.Error: the file cannot be opened.
    """
    # A file that nothing changes needs no lock or journal.
    uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
    connection = sqlite3.connect(uri, uri=True, check_same_thread=False)

    def allowed(action: int, name: str | None, _: object, __: object, view: str | None) -> int:
        is_select = action == sqlite3.SQLITE_SELECT
        is_of_table = action == sqlite3.SQLITE_READ and name == table
        # A view with the name of the table could compute without end.
        fits = view is None and (is_select or is_of_table)
        return sqlite3.SQLITE_OK if fits else sqlite3.SQLITE_DENY

    # Views, functions and virtual tables in a stranger's file are code.
    connection.set_authorizer(allowed)
    return connection


def _split_of(file: Path, folder: Path) -> str:
    named = _OF_HUGGING_FACE.fullmatch(file.stem)
    if named is not None:
        return named["split"]
    return file.parent.name if file.parent != folder else ""
