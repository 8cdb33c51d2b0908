"""Finds the files that a path gives: each one is listed, is a known mark, or is refused by name.

Whoever names a folder means all data in it, so a file is never passed over for its suffix or for a
link on the way. Marks, which other programs leave beside data, are files and folders whose name
begins with `.` or `_`, and checksums. Every refusal is an OSError, as in `regular_file.py`.
"""

import contextlib
import errno
import filecmp
import hashlib
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fedray.base.file_form import has_rows
from fedray.base.regular_file import check_regular_file
from fedray.base.rounding import bytes_text, counted

_CHECKSUMS = (".crc", ".md5")
_TABLES = {
    "_delta_log": "a Delta table ('_delta_log')",
    "_spark_metadata": "the output of a Spark stream ('_spark_metadata')",
    ".hoodie": "a Hudi table ('.hoodie')",
}
"""Entries of the folder of a table, by which the table says which of its rows count."""
_CHANGES = "_change_data"
_OF_HIVE = re.compile(r"base_\d+(_v\d+)?|(delete_)?delta_\d+_\d+(_\d+)?(_v\d+)?")
"""Folders of a transactional table of Hive."""
_MOST_SHOWN = 5
_BEGINNING_BYTES = 1 << 16


class InputFile(NamedTuple):
    """A file to read."""

    path: Path
    """Path by which it is opened."""
    name: str
    """Path relative to the folder, or the name of a single file."""


class InputFiles(NamedTuple):
    """The files of a path, in order of their names."""

    files: tuple[InputFile, ...]
    """Files to read."""
    marks: tuple[str, ...]
    """Names of skipped files and folders, relative to the folder."""

    def __str__(self) -> str:
        """Returns the files and marks as a phrase."""
        return files_text([file.path.stat().st_size for file in self.files], self.marks)


def input_files(path: Path, *, stays_inside: bool = False, has_levels: bool = False) -> InputFiles:
    """Returns all files at a path. Linked folders and files are followed.

    Args:
        path: a file or a folder.
        stays_inside: whether links that lead out of the folder are refused, as for a folder that a
            stranger may have made.
        has_levels: whether the folders `NAME=VALUE` of a file are columns of its rows, so that
            equal files in different ones are no copies.

    Raises:
        OSError: the path has no files, is part of a table that may hold removed rows, or has a
            file twice, or one that cannot be read; `strerror` names the file and a remedy.
    """
    if not path.is_dir():
        check_regular_file(path)
    scanned: set[Path] = set()
    _refuse_part_of_table(path, scanned)
    if not path.is_dir():
        return InputFiles((InputFile(path, path.name),), ())
    files, marks = [], []
    inside = path if stays_inside else None
    # Each folder with the identities of all folders on the way to it.
    pending: list[tuple[Path, tuple[tuple[int, int], ...]]] = [(path, ())]
    while pending:
        folder, above = pending.pop()
        for entry in _entries(folder, path):
            name = str(Path(entry.path).relative_to(path))
            with naming(name):
                is_folder = entry.is_dir()
                if _is_mark(entry.name, is_folder):
                    marks.append(name)
                    continue
                if inside is not None and not _is_inside(entry.path, inside):
                    raise OSError(errno.EPERM, f"it leads out of {str(path)!r}")
                if entry.is_symlink():
                    _refuse_part_of_table(Path(entry.path), scanned)
                if not is_folder:
                    check_regular_file(Path(entry.path))
                    files.append(InputFile(Path(entry.path), name))
                    continue
                around = (*above, _identity(folder))
                if _identity(entry.path) in around:
                    raise OSError(errno.ELOOP, "it links to a folder around it; remove the link")
                pending.append((Path(entry.path), around))
    if not files:
        skipped = f" but {_marks_text(marks)}" if marks else ""
        raise OSError(errno.ENOENT, f"the folder has no files{skipped}; name one with data")
    # Parts of names are compared, so that the files of a folder follow one another.
    files.sort(key=lambda file: Path(file.name).parts)
    _refuse_copies(files, has_levels)
    return InputFiles(tuple(files), tuple(sorted(marks)))


@contextlib.contextmanager
def naming(name: str) -> Iterator[None]:
    """Adds the `name` of a file to the message of an OSError."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"{name!r}: {error.strerror or error}") from None


def files_text(sizes: Sequence[int], marks: Sequence[str]) -> str:
    """Returns a phrase on files that were found: `2 files, 61 MB`, and the first skipped marks.

    Args:
        sizes: sizes of the files in bytes.
        marks: names of the marks.
    """
    text = f"{counted(len(sizes), 'file')}, {bytes_text(sum(sizes))}"
    return f"{text}; {_marks_text(marks)}" if marks else text


def _marks_text(marks: Sequence[str]) -> str:
    some = ", ".join(map(repr, marks[:_MOST_SHOWN]))
    more = ", ..." if len(marks) > _MOST_SHOWN else ""
    return f"{counted(len(marks), 'skipped mark')} ({some}{more})"


def _entries(folder: Path, root: Path) -> list[os.DirEntry[str]]:
    with naming(str(folder.relative_to(root))), os.scandir(folder) as found:
        entries = list(found)
        # Before marks are skipped, as the files that say which rows were removed are marks.
        kind = _table_kind(folder, entries)
    if kind:
        raise _table(kind, folder)
    return entries


def _table_kind(folder: Path, entries: Sequence[os.DirEntry[str]]) -> str:
    """Returns the format of the table whose folder has these entries, and the entry that shows it;
    empty if it is no table."""
    names = {entry.name for entry in entries}
    for name in sorted(names & _TABLES.keys()):
        return _TABLES[name]
    for entry in entries:
        # Each partition of a Hudi table has a file `.hoodie_partition_metadata`.
        if entry.name.startswith(".hoodie"):
            return f"a Hudi table ({entry.name!r})"
        if entry.name == "metadata" and entry.is_dir():
            for name in os.listdir(entry):
                if ".metadata.json" in name:
                    return f"an Iceberg table ('metadata/{name}')"
    of_hive = sorted(name for name in names if _OF_HIVE.fullmatch(name))
    # A single `base_1` is the state of the table.
    if len(of_hive) > 1 or (of_hive and not of_hive[0].startswith("base")):
        return f"a transactional table of Hive ({of_hive[-1]!r})"
    return _uncommitted(folder, names)


def _uncommitted(folder: Path, names: set[str]) -> str:
    """Returns what a folder is if transactions of Databricks removed a file from it, or did not
    finish one; empty if all of its files count."""
    transactions = sorted(each for each in names if each.startswith(("_committed_", "_started_")))
    if not transactions:
        return ""
    added: set[str] = set()
    for name in (each for each in transactions if each.startswith("_committed_")):
        try:
            found = json.loads((folder / name).read_bytes())
            added.update(found["added"])
            is_removed = bool(found["removed"])
        # Whatever else it holds, it does not say that all files count.
        except (OSError, ValueError, KeyError, TypeError):
            is_removed = True
        if is_removed:
            return f"the output of transactions ({name!r})"
    others = (each for each in names - added if not (folder / each).is_dir())
    is_unfinished = any(not _is_mark(each, is_folder=False) for each in others)
    return f"the output of transactions ({transactions[0]!r})" if is_unfinished else ""


def _refuse_part_of_table(path: Path, scanned: set[Path]) -> None:
    """Raises OSError if a file or folder is a part of a table, or a link to one.

    Args:
        path: the file or folder.
        scanned: folders that are known to be no tables, which grow; links may share one.
    """
    for each in {os.path.abspath(path), os.path.realpath(path)}:
        folder = Path(each)
        if _CHANGES in folder.parts:
            raise _table(f"the history of a Delta table ({_CHANGES!r})", folder)
        is_part = not folder.is_dir()
        while folder != folder.parent and folder.parent not in scanned:
            is_part |= "=" in folder.name or folder.name == "data"
            is_part |= _OF_HIVE.fullmatch(folder.name) is not None
            folder = folder.parent
            # Everything below the folder of such a table is of the table.
            kinds = [kind for name, kind in _TABLES.items() if os.path.isdir(folder / name)]
            # A folder above may be closed to this user.
            with contextlib.suppress(OSError):
                if is_part:
                    with os.scandir(folder) as found:
                        kinds.append(_table_kind(folder, list(found)))
                    scanned.add(folder)
            for kind in filter(None, kinds):
                raise _table(kind, folder)
            is_part = False


def _table(kind: str, folder: Path) -> OSError:
    return OSError(
        errno.EINVAL,
        f"{str(folder)!r} is {kind}, whose files may hold removed rows; export the present "
        "state of the table first",
    )


def _is_mark(name: str, is_folder: bool) -> bool:
    # A level of a partitioned folder is named after any column: `_day=2026-09-01`.
    is_level = is_folder and "=" in name
    is_checksum = not is_folder and name.lower().endswith(_CHECKSUMS)
    return name.startswith(".") or (name.startswith("_") and not is_level) or is_checksum


def _is_inside(path: str, folder: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def _identity(path: str | Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _refuse_copies(files: Sequence[InputFile], has_levels: bool) -> None:
    """Raises OSError if two files have the same rows, as whoever copies a file by mistake would
    count its rows twice."""
    sizes = [file.path.stat().st_size for file in files]
    counts = Counter(sizes)
    # Parts of one export may all have one size, and then differ in their beginnings.
    alike: dict[tuple[int, bytes, frozenset[str]], list[InputFile]] = defaultdict(list)
    for file, size in zip(files, sizes, strict=True):
        if counts[size] == 1:
            continue
        folders = Path(file.name).parts[:-1] if has_levels else ()
        levels = frozenset(each for each in folders if "=" in each)
        with naming(file.name):
            with file.path.open("rb") as stream:
                beginning = hashlib.blake2b(stream.read(_BEGINNING_BYTES)).digest()
            others = alike[size, beginning, levels]
            copied = [each for each in others if filecmp.cmp(file.path, each.path, shallow=False)]
        # Exports write a file for each of their parts, however many of them have no rows.
        if copied and has_rows(file.path):
            raise OSError(
                errno.EEXIST,
                f"the folder holds a file twice: {copied[0].name!r} and {file.name!r} have the "
                "same content; remove one of them",
            )
        others.append(file)
