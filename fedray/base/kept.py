"""Files of a cache. Each has the digests of its request and of its content, so that no other file
can be mistaken for it.

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
"""Largest entry that is read; the index of data has some 50 bytes per client."""

SORTS: Mapping[str, str] = {
    "designs": "mechanisms that were optimised",
    "stress": "simulated runs of plans and sweeps, cells of sweeps",
    "digests": "digests of data files",
    "trusted": "notes of Python files that the user ran",
}
"""Folders of entries, with descriptions. Entries for data files lie in further folders beside them
(`clients/data/cache.py`)."""


def cache_folder(name: str) -> Path:
    """Returns the folder `$XDG_CACHE_HOME/fedray/<name>`, by default below `~/.cache`."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification ignores relative paths: a downloaded folder could bring its own cache.
    return (base if base.is_absolute() else Path.home() / ".cache") / "fedray" / name


@dataclass(frozen=True, slots=True)
class KeptEntry:
    """Entry of a cache."""

    files: tuple[Path, ...]
    """Its file, and perhaps a matrix."""
    bytes: int
    """Size of the files."""
    used_time: float
    """Time at which it was last written or read, seconds since 1970."""


def kept_entries(sort: str) -> list[KeptEntry]:
    """Lists the entries of one of the `SORTS`. Raises OSError."""
    by_name: dict[str, list[Path]] = {}
    # Names that begin with a dot are files that are still being written.
    for file in sorted(cache_folder(sort).glob("[!.]*")):
        # The name of a matrix begins with the name of its entry.
        by_name.setdefault(file.stem.partition("-")[0], []).append(file)
    entries = []
    for files in by_name.values():
        stats = [file.stat() for file in files]
        size = sum(each.st_size for each in stats)
        used_time = max(each.st_mtime for each in stats)
        entries.append(KeptEntry(tuple(files), size, used_time))
    return entries


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
    # `fedray cache` shows the time of the last use.
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
