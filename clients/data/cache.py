"""Indexes of data in the cache (`$XDG_CACHE_HOME/fedray/data`, or below `~/.cache`).

There is a folder for each content, named by its SHA-256. It may be deleted while nothing runs.
"""

import contextlib
import fcntl
import threading
from collections.abc import Iterator
from pathlib import Path

from fedray.base.errors import InputError
from fedray.base.kept import cache_folder

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
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _IN_THIS_PROCESS, (folder / "lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    except OSError as error:
        raise InputError(
            f"the cache {str(folder)!r} cannot be written ({error.strerror or error}); free space "
            "there, or set the environment variable XDG_CACHE_HOME to another place"
        ) from None
