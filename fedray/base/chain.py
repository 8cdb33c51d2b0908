"""An append-only file of JSON lines, each with the SHA-256 of itself and of the line before.

A line that was edited, moved, inserted or removed no longer fits its neighbours. A chain cannot
show that its last lines are missing, nor that all digests were computed again from a changed line
on: compare its head, the digest of its last line, with one that was kept elsewhere.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedray.base.atomic import replace_file
from fedray.base.errors import InputError
from fedray.base.regular_file import read_regular_file

_MOST_BYTES = 1 << 30
_ENCODER = json.JSONEncoder(sort_keys=True)


def read_chain(file: Path) -> list[dict[str, Any]]:
    """Returns the lines of a chain, with `digest` and `previous` of each.

    Raises:
        InputError: a line does not fit; the message has its number.
        OSError: the file cannot be read, or is a link, pipe or device.
    """
    # Appending would replace a link by a second chain, and leave the first one behind.
    if file.is_symlink():
        raise OSError("it is a symbolic link, not a regular file")
    content = read_regular_file(file, _MOST_BYTES)
    entries: list[dict[str, Any]] = []
    for number, line in enumerate(content.splitlines(keepends=True), 1):
        try:
            entry = json.loads(line)
            is_whole = line == _line(entry) and entry["previous"] == _head(entries)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            entry, is_whole = {}, False
        if not is_whole:
            raise InputError(
                f"{str(file)!r}, line {number}: it was edited, cut, moved, or its line before was "
                "removed, so nothing from there on can be relied on; restore the file from a copy"
            )
        entries.append(entry)
    return entries


def append_to_chain(
    file: Path, before: Sequence[Mapping[str, Any]], new: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Appends all lines or no line, and returns the whole chain. Raises OSError.

    Args:
        file: file of the chain; it need not exist if there are no lines before.
        before: its present lines, as `read_chain` returned them.
        new: contents of the new lines.
    """
    entries = [dict(each) for each in before]
    for content in new:
        entry = {**content, "previous": _head(entries)}
        entries.append({**entry, "digest": _digest(entry)})
    # The file is small, so it is replaced as a whole: no crash can leave half a line.
    replace_file(file, b"".join(map(_line, entries)))
    return entries


def _head(entries: Sequence[Mapping[str, Any]]) -> str:
    return entries[-1]["digest"] if entries else "0" * 64


def _line(entry: Any) -> bytes:
    """Returns the only form in which an entry may stand in the file."""
    content = {key: value for key, value in entry.items() if key != "digest"}
    return _encoded({**content, "digest": _digest(content)}) + b"\n"


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(_encoded(content)).hexdigest()


def _encoded(content: Mapping[str, Any]) -> bytes:
    return _ENCODER.encode(content).encode()
