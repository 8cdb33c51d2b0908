"""Everything that is kept in the user's cache, and deletion of old entries."""

import time
from dataclasses import dataclass

from fedray.base.document import Document
from fedray.base.errors import InputError
from fedray.base.kept import SORTS, cache_folder, kept_entries
from fedray.clients.data.cache import cached_contents, delete_content

_DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class KeptContent:
    """A kept data file."""

    folder: str
    """Its folder."""
    mebibytes: float
    """Its size in MiB."""
    unused_days: float
    """Days since it was opened last."""


@dataclass(slots=True)
class KeptEntries:
    """Kept entries of one sort."""

    sort: str
    """Which entries: designs, stress, digests, trusted."""
    folder: str
    """Their folder."""
    kept: int = 0
    """Number of entries."""
    kept_mebibytes: float = 0.0
    """Their size in MiB."""
    deleted: int = 0
    """Number of entries that were deleted now."""
    deleted_mebibytes: float = 0.0
    """The size of these in MiB."""


@dataclass(frozen=True, slots=True)
class Cache(Document):
    """The content of the cache."""

    kept: list[KeptContent]
    """Data files that are kept."""
    deleted: list[KeptContent]
    """Data files that were deleted now."""
    entries: list[KeptEntries]
    """Everything else that is kept, sort by sort."""


def cleared(unused_for: float | None) -> Cache:
    """Deletes old entries, and returns the content of the cache.

    Args:
        unused_for: least age of an entry to delete, in days since its last use; None for no
            deletion.

    Raises:
        InputError: the cache cannot be read or cleared.
    """
    now = time.time()
    kept: list[KeptContent] = []
    deleted: list[KeptContent] = []
    for each in cached_contents():
        # A clock that was set back leaves times in the future, which count as used now.
        days = max(0.0, (now - each.used_time) / _DAY_SECONDS)
        size = each.bytes / 2**20
        row = KeptContent(str(each.folder), size, days)
        is_old = unused_for is not None and days >= unused_for
        # A content that another process is opening stays, and is listed as kept.
        (deleted if is_old and delete_content(each.folder) else kept).append(row)
    # No entry is older than infinite.
    oldest = now - _DAY_SECONDS * (float("inf") if unused_for is None else unused_for)
    return Cache(kept, deleted, [_cleared(sort, oldest) for sort in SORTS])


def _cleared(sort: str, oldest: float) -> KeptEntries:
    """Deletes the entries of a sort that were last used at a time or before."""
    row = KeptEntries(sort, str(cache_folder(sort)))
    try:
        for each in kept_entries(sort):
            if each.used_time > oldest:
                row.kept += 1
                row.kept_mebibytes += each.bytes / 2**20
                continue
            for file in each.files:
                # Another process may have deleted it meanwhile.
                file.unlink(missing_ok=True)
            row.deleted += 1
            row.deleted_mebibytes += each.bytes / 2**20
    except OSError as error:
        raise InputError(
            f"the cache {row.folder!r} cannot be read or cleared ({error.strerror or error}); "
            "check its permissions"
        ) from None
    return row
