"""Data files that a table names: identified by their SHA-256, and never copied into traces."""

import contextlib
import hashlib
import json
import os
import time
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, PrivateAttr, ValidationInfo, model_validator

from fedray.base.errors import InputError, shown
from fedray.base.input_files import input_files, naming
from fedray.base.kept import cache_folder, keep, read_kept
from fedray.base.regular_file import open_regular_file
from fedray.base.table import Table

MOST_DATA_BYTES = 1 << 40
"""Largest size of a data file, which is read once for its digest; larger files are sparse."""
_CLOCK_TICK = 100_000_000
"""Nanoseconds within which two changes of a file may have the same time."""
Digest = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
PLACES = ("file", "vocabulary_file")
"""Keys that hold paths of content; they are not part of a scenario's digest."""


class NamesDataFiles(Table):
    """A table that names data files, each by its path and its SHA-256.

    A path becomes absolute when the table is read, so that workers in other folders and trainings
    from a trace find the file. Tables from a trace or run are not changed: their files are compared
    with the digest only when they are opened (`checked_path`), because a trace can be audited
    without its data. Two tables are equal if everything but their paths is equal.
    """

    table: ClassVar[str] = "data"
    """Name of the table in a scenario, for messages."""
    digest_keys: ClassVar[dict[str, str]]
    """Maps each key that holds a path ("" for no file) to the key that holds the file's digest."""
    _named: set[str] = PrivateAttr(default_factory=set)
    """Paths that the user named. Links in other folders may not lead out of them, because a folder
    that came with a stranger's trace could make any file of this machine data."""

    @model_validator(mode="after")
    def _identify_files(self, info: ValidationInfo) -> Self:
        context: dict[str, Any] = info.context or {}
        if context.get("is_recorded"):
            return self
        for path_key, digest_key in self.digest_keys.items():
            file: str = getattr(self, path_key)
            if not file:
                continue
            path = Path(os.path.realpath(Path(context.get("directory", ".")) / file))
            given: str = getattr(self, digest_key)
            # A copy of a trace's table has that table's digest.
            is_foreign = bool(given) and file in context.get("foreign", ())
            try:
                digest = content_digest(path, stays_inside=is_foreign)
            except OSError as error:
                if given:  # such as that of a trace which is read again elsewhere
                    continue
                raise ValueError(
                    f"{path_key}={file!r} cannot be read ({error.strerror or error}); set it to a "
                    "readable data file"
                ) from None
            # A digest in the file is a promise about the data, so it is never replaced silently.
            if given not in ("", digest):
                raise ValueError(
                    f"{path_key}={file!r} has the sha256 {digest}, not that in {digest_key}; use "
                    f"the file with that digest, or leave {digest_key} out"
                )
            # frozen, and not yet handed out
            object.__setattr__(self, path_key, str(path))
            object.__setattr__(self, digest_key, digest)
            if not is_foreign:
                self._named.add(str(path))
        return self

    @property
    def foreign_places(self) -> set[str]:
        """Paths in this table that came with a trace or run."""
        return {getattr(self, key) for key in self.digest_keys} - self._named

    def checked_path(self, path_key: str) -> Path:
        """Returns the path of a file after checking that it has the recorded content.

        Args:
            path_key: key that names the file.

        Raises:
            InputError: the file cannot be read, or has other content.
        """
        path, digest_key = Path(getattr(self, path_key)), self.digest_keys[path_key]
        wanted = getattr(self, digest_key)
        try:
            # The file may have changed since the table was read, or be another one on this machine.
            digest = content_digest(path, stays_inside=str(path) not in self._named)
        except OSError as error:
            raise InputError(
                f"{self.table}.{path_key}={shown(str(path))} cannot be read "
                f"({error.strerror or error}); put the file with sha256 {wanted} there, or set "
                f"{path_key} to its path"
            ) from None
        if digest != wanted:
            # The message omits the digest: a stranger's trace may name any file of this machine.
            raise InputError(
                f"{self.table}.{path_key}={shown(str(path))} is not the file of this run, which "
                f"has sha256 {wanted}; put that file there"
            )
        return path

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and without_places(self) == without_places(other)

    def __hash__(self) -> int:
        # Only digests are hashed, because equality ignores paths.
        return hash(tuple(getattr(self, key) for key in self.digest_keys.values()))


def content_digest(path: Path, *, stays_inside: bool = False) -> str:
    """Returns the SHA-256 of a file, or of the digests and names of the files in a folder that are
    read (`input_files`).

    A file is read once: the cache holds its digest with its size and the times of its last changes,
    and the file is read again if one of them differs.

    Args:
        path: a file or a folder.
        stays_inside: whether a folder may not have links that lead out of it.

    Raises:
        OSError: a file cannot be read, or its folder is refused by `input_files`.
    """
    if not path.is_dir():
        return _file_digest(path)
    lines = []
    for file, name in input_files(path, stays_inside=stays_inside).files:
        with naming(name):
            # Names are relative, so the digest stays when the folder is moved.
            lines.append(f"{_file_digest(file)}  {name}\n")
    return hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()


def without_places(table: Table) -> dict[str, Any]:
    """Returns the keys of a table but for paths; digests of the files' content remain."""
    return table.model_dump(mode="json", exclude=set(PLACES))


def _file_digest(path: Path) -> str:
    with open_regular_file(path, most_bytes=MOST_DATA_BYTES) as stream:
        return _stream_digest(path, stream)


def _stream_digest(path: Path, stream: BufferedReader) -> str:
    found = os.fstat(stream.fileno())
    # A write changes one of these, so large files are read only once. Programs can set the time of
    # the last modification, but not that of the last change.
    times = [found.st_mtime_ns, found.st_ctime_ns]
    is_settled = time.time_ns() - found.st_ctime_ns > _CLOCK_TICK
    request = json.dumps([str(path), found.st_dev, found.st_ino, found.st_size, *times])
    # A path has one entry, which is replaced when its file changes.
    name = hashlib.sha256(str(path).encode()).hexdigest()[:32]
    entry = cache_folder("digests") / f"{name}.txt"
    try:
        known = read_kept(entry, request)
    except ValueError:  # of the file as it was before
        known = None
    if known is not None:
        return known.decode()
    text = hashlib.file_digest(stream, "sha256").hexdigest()
    # Two changes within a tick of the clock have the same time, so the digest of a file that has
    # just been written is not stored.
    if is_settled:
        with contextlib.suppress(OSError):  # a cache that cannot be written is left alone
            keep(entry, request, text.encode())
    return text
