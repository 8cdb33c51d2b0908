"""Files of a cache: each has the digest of what was asked for and of what follows, so that nothing
else is ever taken for it.

The first line is JSON with both digests, the rest is the content.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedray.base.atomic import replace_file
from fedray.base.regular_file import read_regular_file

MOST_BYTES = 4 << 30
"""Largest entry that is read, whole; the index of data has some 50 bytes per client."""


def cache_folder(name: str) -> Path:
    """Where entries of one sort are kept: `$XDG_CACHE_HOME/fedray/<name>`, or below `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedray" / name


SORTS: Mapping[str, str] = {
    "designs": "mechanisms that were optimised",
    "stress": "simulated runs of plans and sweeps, cells of sweeps",
    "digests": "digests of data files",
}
"""Folders of entries, with what they hold. What is kept of data files lies beside them, in
folders (`clients/data/cache.py`)."""


@dataclass(frozen=True, slots=True)
class KeptEntry:
    """An entry of a cache."""

    files: tuple[Path, ...]
    """Its file, and a matrix beside it."""
    bytes: int
    """Their size."""
    used_time: float
    """When it was written or read last, seconds since 1970."""


def kept_entries(sort: str) -> list[KeptEntry]:
    """The entries of one of the `SORTS`. Raises OSError."""
    by_name: dict[str, list[Path]] = {}
    # Names that begin with a dot are files that are still being written.
    for file in sorted(cache_folder(sort).glob("[!.]*")):
        # A matrix is called after its entry.
        by_name.setdefault(file.stem.partition("-")[0], []).append(file)
    entries = []
    for files in by_name.values():
        stats = [file.stat() for file in files]
        used_time = max(each.st_mtime for each in stats)
        entries.append(KeptEntry(tuple(files), sum(each.st_size for each in stats), used_time))
    return entries


def read_kept(file: Path, request: str) -> bytes | None:
    """The content that was kept for a request, or None where nothing was.

    Raises:
        ValueError: with the reason, for a file that cannot be read, or is not what was kept for
            this request.
    """
    try:
        head, _, content = read_regular_file(file, MOST_BYTES).partition(b"\n")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"cannot be read ({error.strerror or error})") from None
    # The head is made anew and compared whole, so that a change of anything is found.
    if head != _head(request, content):
        raise ValueError("is not what was written for this request")
    with contextlib.suppress(OSError):  # so that `fedray cache` knows what is in use
        os.utime(file)
    return content


def keep(file: Path, request: str, content: bytes) -> None:
    """Keeps a content, whole; its directory is made if there is none.

    Args:
        file: the entry of the cache.
        request: digest of what was asked for.
        content: what was found.

    Raises:
        OSError: if it cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, _head(request, content) + b"\n" + content)


def _head(request: str, content: bytes) -> bytes:
    return json.dumps({"request": request, "content": hashlib.sha256(content).hexdigest()}).encode()
