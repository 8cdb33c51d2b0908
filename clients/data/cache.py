"""Indexes and copies of data in the cache (`$XDG_CACHE_HOME/fedray/data`, or below `~/.cache`).

There is a folder for each content, named by its SHA-256, with the index and copies that are faster
to read. It may be deleted while nothing runs.
"""

import contextlib
import fcntl
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from fedray.base.atomic import sync_file, whole_file
from fedray.base.errors import InputError
from fedray.base.kept import cache_folder, keep, read_kept
from fedray.base.regular_file import check_regular_file
from fedray.scenario.data_file import content_digest

_IN_THIS_PROCESS = threading.RLock()


@contextlib.contextmanager
def content_cache(digest: str) -> Iterator[Path]:
    """Yields the folder for a content, locked against other processes.

    Only one of several workers on a machine then builds the index.

    Args:
        digest: SHA-256 of the content.

    Raises:
        InputError: the cache cannot be written.
    """
    folder = cache_folder("data") / digest
    remedy = "free space there, or set the environment variable XDG_CACHE_HOME to another place"
    with _refused(folder, "written", remedy):
        folder.mkdir(parents=True, exist_ok=True)
        with _IN_THIS_PROCESS, (folder / "lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder


@contextlib.contextmanager
def _refused(path: Path, action: str, remedy: str) -> Iterator[None]:
    """Raises InputError for an OSError."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"the cache {str(path)!r} cannot be {action} ({error.strerror or error}); {remedy}"
        ) from None


def made_once(file: Path, make: Callable[[Path], None]) -> Path:
    """Makes a copy of data unless a complete and unchanged one exists, and returns its path.

    Args:
        file: path of the copy in the folder of its content.
        make: function that writes the copy to a path.

    Raises:
        OSError: the copy cannot be written.
    """
    # Callers hold the lock of the content, so no other process makes the file meanwhile. The digest
    # of the data covers no copy, so each copy has a digest beside it.
    record = file.with_name(f"{file.name}.sha256")
    # The folder's name is the content's digest, so a copy of another content is never accepted.
    request = f"copy {file.relative_to(cache_folder('data'))}"
    if os.path.lexists(file):
        if _is_unchanged(file, record, request):
            return file
        warnings.warn(
            f"the copy {str(file)!r} is damaged or changed; it is made again", stacklevel=2
        )
    with whole_file(file) as new:
        make(new)
        sync_file(new)
    # This also syncs the directory, with the name of the copy.
    keep(record, request, content_digest(file).encode())
    return file


def _is_unchanged(file: Path, record: Path, request: str) -> bool:
    try:
        check_regular_file(file, inside=file.parent)
        # A copy is read again only if its inode has changed, which no program can hide.
        return read_kept(record, request) == content_digest(file).encode()
    except (OSError, ValueError):
        return False
