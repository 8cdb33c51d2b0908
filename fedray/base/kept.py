"""Files of a cache. Each has the digests of its request and of its content, so that no other file
can be mistaken for it.

The first line is JSON with both digests, the rest is the content.
"""

import contextlib
import hashlib
import json
import os
from pathlib import Path

from fedray.base.atomic import replace_file
from fedray.base.regular_file import read_regular_file

MOST_BYTES = 4 << 30
"""Largest entry that is read; the index of data has some 50 bytes per client."""


def cache_folder(name: str) -> Path:
    """Returns the folder `$XDG_CACHE_HOME/fedray/<name>`, by default below `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedray" / name


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
