"""What data leaves in the cache (`$XDG_CACHE_HOME/fedray/data`, else `~/.cache/fedray/data`).

There is a folder for each content, by its SHA-256, with the index and copies that are faster to
read. It may be deleted whenever nothing runs; `fedray cache` does so.
"""

import contextlib
import fcntl
import os
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fedray.base.atomic import sync_file, whole_file
from fedray.base.errors import InputError
from fedray.base.kept import cache_folder, keep, read_kept
from fedray.base.regular_file import check_regular_file
from fedray.scenario.data_file import content_digest

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


@dataclass(frozen=True, slots=True)
class CachedContent:
    """What is kept of one content.

    folder: where.
    bytes: size of all files in it.
    used_time: when it was opened last, seconds since 1970.
    """

    folder: Path
    bytes: int
    used_time: float


def cached_contents() -> list[CachedContent]:
    """What is kept of every content, the one that was opened last first.

    Raises:
        InputError: the cache cannot be read.
    """
    found, root = [], cache_folder("data")
    try:
        for lock in root.glob("*/lock"):
            sizes = [file.stat().st_size for file in lock.parent.rglob("*") if file.is_file()]
            # Whoever opens the content empties the lock's file, which sets its time.
            found.append(CachedContent(lock.parent, sum(sizes), lock.stat().st_mtime))
    except OSError as error:
        raise InputError(
            f"the cache {str(root)!r} cannot be read ({error.strerror or error}); see who may "
            "read it"
        ) from None
    return sorted(found, key=lambda each: -each.used_time)


def delete_content(folder: Path) -> bool:
    """Deletes what is kept of a content, unless somebody is opening it now. Whether it is gone.

    Args:
        folder: of a CachedContent.

    Raises:
        InputError: it cannot be deleted.
    """
    try:
        with (folder / "lock").open("rb") as lock:
            # It does not wait, because whoever holds the lock may make a copy that takes long.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
    except BlockingIOError:
        return False
    except OSError as error:
        raise InputError(
            f"the cache {str(folder)!r} cannot be deleted ({error.strerror or error}); see who may "
            "write there"
        ) from None
    return True


def made_once(file: Path, make: Callable[[Path], None]) -> Path:
    """A copy of data that is made unless it is there, whole and unchanged.

    Its SHA-256 is kept beside it. A copy that differs is made again: the digest of the data says
    nothing about it.

    Args:
        file: name of the copy in the folder of its content.
        make: writes the copy to the path that it is given.

    Raises:
        OSError: it cannot be written.
    """
    # Callers hold the lock of the content, so that no other process makes the file meanwhile.
    record = file.with_name(f"{file.name}.sha256")
    # The folder is named by the content, so that no copy of another one is taken for it.
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
    # This brings the directory to the disk too, with the name of the copy.
    keep(record, request, content_digest(file).encode())
    return file


def _is_unchanged(file: Path, record: Path, request: str) -> bool:
    try:
        check_regular_file(file, inside=file.parent)
        # A copy is read again only when its inode has changed, which no program can hide.
        return read_kept(record, request) == content_digest(file).encode()
    except (OSError, ValueError):
        return False
