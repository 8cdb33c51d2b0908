"""Files of a cache. Each has the digests of its request and of its content, so that no other file
can be mistaken for it.

The first line is JSON with both digests, the rest is the content.
"""

import contextlib
import hashlib
import json
import os
import stat
from pathlib import Path

from fedray.base.atomic import replace_file
from fedray.base.regular_file import read_regular_file

MOST_BYTES = 4 << 30
"""Largest entry that is read; the index of data has some 50 bytes per client."""


def cache_folder(name: str) -> Path:
    """Returns the folder `$XDG_CACHE_HOME/fedray/<name>`, by default below `~/.cache`; if that
    cannot be written, below a private folder for temporary files.

    Compiled code and trust are kept there, so it is never a folder that others could have filled.
    """
    # A relative folder could come with files of a stranger; the XDG specification ignores it too.
    given = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):
        return Path(given, "fedray", name)
    home = os.path.expanduser("~/.cache")
    if can_write(home):
        return Path(home, "fedray", name)
    private = Path(os.environ.get("TMPDIR") or "/tmp", f"fedray-{os.geteuid()}")
    with contextlib.suppress(OSError):
        private.mkdir(mode=0o700)
    with contextlib.suppress(OSError):
        found = private.lstat()
        is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        if private.is_absolute() and is_own and not found.st_mode & 0o022:
            return private / name
    # The home of users without one: nothing is kept.
    return Path("/nonexistent/fedray", name)


def can_write(folder: str) -> bool:
    """Returns whether a path is absolute and this user can write in the folder, or make it."""
    if not os.path.isabs(folder):
        return False
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    return os.access(folder, os.W_OK | os.X_OK)


def read_kept(file: Path, request: str) -> bytes | None:
    """Reads the content kept for a request; None if the file does not exist.

    Raises:
        ValueError: reason why the file cannot be read, or does not fit the request.
    """
    try:
        entry = read_regular_file(file, MOST_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"cannot be read ({error.strerror or error})") from None
    head, _, content = entry.partition(b"\n")
    # The whole head is compared, so that a change of any byte is noticed.
    if head != _head(request, content):
        raise ValueError("is not what was written for this request")
    # Old entries can then be found by their time, and deleted.
    with contextlib.suppress(OSError):
        os.utime(file)
    return content


def keep(file: Path, request: str, content: bytes) -> None:
    """Writes an entry, whole or not at all. Raises OSError.

    Args:
        file: the entry; its directory is created.
        request: digest of the request.
        content: result of the request.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, _head(request, content) + b"\n" + content)


def _head(request: str, content: bytes) -> bytes:
    digest = hashlib.sha256(content).hexdigest()
    return json.dumps({"request": request, "content": digest}).encode()
