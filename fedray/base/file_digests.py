"""Digests of files, computed beside the work that reads them."""

import errno
import hashlib
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self, TypedDict

from fedray.base.input_files import InputFile

_CHUNK_BYTES = 1 << 20


class ReadFile(TypedDict):
    """A file that was read, as documents record it."""

    name: str
    """Path relative to the folder that was given, or the name of a single file."""
    bytes: int
    """Size."""
    sha256: str
    """SHA-256 of the content."""


class FileDigests:
    """Computes the digests of files on a thread, while the block reads them.

    Python's lock is free while a digest is computed, and a file that is read twice at about the
    same time comes from the disk once.

    Args:
        files: the files, in the order in which the block reads them.
    """

    def __init__(self, files: Sequence[InputFile]) -> None:
        self._files = files
        self._before = [_state(file) for file in files]
        self._is_stopped = threading.Event()
        self._pool = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        self._found = [self._pool.submit(self._digest, file) for file in self._files]
        return self

    def __exit__(self, *_: object) -> None:
        # A block that failed does not wait for the remaining files.
        self._is_stopped.set()
        self._pool.shutdown(cancel_futures=True)

    def read(self) -> list[ReadFile]:
        """Returns the files once the block has read them, before it ends.

        Raises:
            OSError: a file cannot be read, or has changed since this value was made.
        """
        digests = [each.result() for each in self._found]
        for file, before in zip(self._files, self._before, strict=True):
            if _state(file) != before:
                raise OSError(
                    errno.ESTALE, f"{file.name!r} was changed while it was read; import again"
                )
        return [
            ReadFile(name=file.name, bytes=size, sha256=digest)
            for file, (size, *_), digest in zip(self._files, self._before, digests, strict=True)
        ]

    def _digest(self, file: InputFile) -> str:
        digest = hashlib.sha256()
        with file.path.open("rb", buffering=0) as stream:
            while not self._is_stopped.is_set() and (chunk := stream.read(_CHUNK_BYTES)):
                digest.update(chunk)
        return digest.hexdigest()


def _state(file: InputFile) -> tuple[int, int, int, int]:
    """Returns the size of a file, and values of which any write changes one."""
    found = os.stat(file.path)
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino
