"""Files of one data set, and their splits; and SQLite files from strangers."""

import re
import sqlite3
from collections.abc import Collection
from lzma import LZMAError
from pathlib import Path

from fedray.base.file_form import form_of
from fedray.base.input_files import input_files
from .reader import Damaged, damage

_OF_HUGGING_FACE = re.compile(r"(?P<split>.+)-\d{5}-of-\d{5}(\..*)?")


def split_files(path: Path, split: str, held_out_split: str) -> dict[str, list[Path]]:
    """Returns the files of each split in order of their names; all files of a folder are in one.

    In a folder, a file `<split>-00000-of-00002.<suffix>` belongs to that split, as for Hugging
    Face. A file in a subfolder belongs to the split of that name (`train/part_0.parquet`). If the
    table names no split and none is called `train` or `test`, all files and a single file belong
    to the split "".

    Args:
        path: a file or a folder.
        split, held_out_split: splits that the table names, or "".

    Raises:
        Damaged: the folder is refused by `input_files`, has a file that is not Parquet, or one
            that is in no split beside others that are.
    """
    if not path.is_dir():
        return {"": [path]}
    with damage(path.name, OSError):
        files = input_files(path).files
    for file in files:
        with damage(f"{path.name}: {file.name!r}", OSError, EOFError, LZMAError):
            form = form_of(file.path)
            if form.content != "Parquet":
                raise Damaged(f"{path.name}: {file.name!r} is not Parquet; convert or remove it")
    given = {split, held_out_split} - {""}
    known = given or {"train", "test"}
    splits = {file: _split_of(Path(file.name), known) for file in files}
    # Folders of other names only store the parts of one split.
    if not given and known.isdisjoint(splits.values()):
        return {"": [file.path for file in files]}
    found: dict[str, list[Path]] = {}
    for file, of_file in splits.items():
        if not of_file:
            raise Damaged(
                f"{path.name}: {file.name!r} is in no split, but other files are; move it into "
                "the folder of a split"
            )
        found.setdefault(of_file, []).append(file.path)
    return found


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


def _split_of(name: Path, known: Collection[str]) -> str:
    """Returns the split of a file by its name in a folder; empty for none."""
    named = _OF_HUGGING_FACE.fullmatch(name.name)
    if named is not None:
        return named["split"]
    # A split may have folders of its own: `train/2026-09/part_0.parquet`.
    return next((part for part in name.parts[:-1] if part in known), name.parent.name)
