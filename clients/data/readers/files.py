"""Files of one data set: a single file, or those of a folder, with the split that each belongs
to."""

import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from fedray.clients.data.readers.reader import Damaged
from fedray.scenario.data_file import files_below

_OF_HUGGING_FACE = re.compile(r"(?P<split>.+)-\d{5}-of-\d{5}")


def split_files(path: Path, suffixes: Sequence[str]) -> list[tuple[str, Path]]:
    """(split, file) of every file with such a suffix, in order of their names.

    In a folder, a file in a folder of its own belongs to the split of that folder's name, as LEAF
    has it (`train/all_data_0.json`); one whose name is `<split>-00000-of-00002.<suffix>`, as
    Hugging Face has it, to that split; others, and a single file, to the split "".

    Args:
        path: the file, or the folder.
        suffixes: such as ".json".

    Raises:
        Damaged: there is none.
    """
    if not path.is_dir():
        return [("", path)]
    files = [file for file in files_below(path) if file.suffix.lower() in suffixes]
    if not files:
        raise Damaged(f"{path.name}: the folder has no file {' or '.join(suffixes)}")
    return [(_split_of(file, path), file) for file in files]


def read_only_sqlite(path: Path, table: str) -> sqlite3.Connection:
    """A connection that reads one table of a file and nothing else, and may pass from thread to
    thread.

    Args:
        path: the file.
        table: its name; a view of that name, which may compute without end, is refused.

    Raises:
        sqlite3.Error: it cannot be opened.
    """
    connection = sqlite3.connect(read_only_uri(path), uri=True, check_same_thread=False)

    def allowed(action: int, name: str | None, _: object, __: object, view: str | None) -> int:
        is_select = action == sqlite3.SQLITE_SELECT
        is_of_table = action == sqlite3.SQLITE_READ and name == table
        fits = view is None and (is_select or is_of_table)
        return sqlite3.SQLITE_OK if fits else sqlite3.SQLITE_DENY

    # The file may be a stranger's, whose views, functions and virtual tables are code.
    connection.set_authorizer(allowed)
    return connection


def read_only_uri(path: Path) -> str:
    """A SQLite file that nobody changes, as SQLite names it.

    `immutable` tells SQLite that it needs neither locks nor a journal.

    Args:
        path: the file.
    """
    return f"{path.resolve().as_uri()}?mode=ro&immutable=1"


def _split_of(file: Path, folder: Path) -> str:
    named = _OF_HUGGING_FACE.fullmatch(file.stem)
    if named is not None:
        return named["split"]
    return file.parent.name if file.parent != folder else ""
