"""What data leaves in the cache (`$XDG_CACHE_HOME/fedray/data`, else `~/.cache/fedray/data`).

There is a folder for each content, by its SHA-256, with the index and copies that are faster to
read. It may be deleted whenever nothing runs.
"""

import contextlib
import fcntl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from fedray.atomic import whole_file
from fedray.errors import InputError
from fedray.kept import cache_folder

_IN_THIS_PROCESS = threading.RLock()


@contextlib.contextmanager
def content_cache(digest: str) -> Iterator[Path]:
    """Within: the folder for a content, which no other process changes meanwhile.

    So of several workers on a machine one makes the index, and the others find it.

    Args:
        digest: SHA-256 of the content.

    Raises:
        InputError: it cannot be written.
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
            "there, or name another place by the environment variable XDG_CACHE_HOME"
        ) from None


def made_once(file: Path, make: Callable[[Path], None]) -> Path:
    """A file that is made unless it is there: whole, or not at all.

    Args:
        file: its name.
        make: is told where to write it.

    Raises:
        OSError: it cannot be written.
    """
    if not file.exists():
        with whole_file(file) as new:
            make(new)
    return file
