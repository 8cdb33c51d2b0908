"""Files that exist whole or not at all, and that survive a power cut.

A file is written under an unpredictable name beside its own, synced to the disk, and then renamed.
A name that is a symbolic link is replaced; its target stays as it is.
"""

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

from fedray.base.errors import FedrayError, InputError, RunFailed
from fedray.base.storage import local_path

FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Content = bytes | Callable[[IO[bytes]], None]
"""Content of a file: its bytes, or a function that writes them to a stream."""


def write_whole(
    file: Path, content: Content, what: str, error: type[FedrayError] = RunFailed
) -> None:
    """Writes a file whole or not at all.

    Args:
        file: path; an existing file is replaced.
        content: its content.
        what: name of the file in messages.
        error: class of the error.

    Raises:
        error: the file cannot be written; it is then as it was.
    """
    try:
        replace_file(file, content)
    except OSError as problem:
        remedy = "name a place that can be written"
        if problem.errno in FULL_DISK:
            remedy = "free space there and run again"
        raise error(f"{what} cannot be written ({problem.strerror or problem}); {remedy}") from None


def replace_file(file: Path, content: Content) -> None:
    """Writes a file whole or not at all, and syncs it to the disk. Raises OSError.

    A reader at any moment, even after a power cut, finds all of the old content or all of the new.
    """
    file = local_path(file)
    new = _new_name(file)
    try:
        # O_EXCL and O_NOFOLLOW: a link planted under this name is never written through.
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        with open(handle, "wb") as stream:
            if isinstance(content, bytes):
                stream.write(content)
            else:
                content(stream)
            stream.flush()
            # Synced before the rename, or a power cut could leave the name with no content.
            os.fsync(handle)
        new.replace(file)
        sync_directory(file.parent)
    # An interruption leaves nothing half-written either.
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise


@contextlib.contextmanager
def whole_file(file: Path) -> Iterator[Path]:
    """Yields a name to write a file under, for a library that wants a path. Raises OSError.

    The file gets the name `file` when the block ends, and is removed if it fails. Unlike
    `replace_file`, it is not synced to the disk.
    """
    file = local_path(file)
    new = _new_name(file)
    try:
        yield new
        new.replace(file)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def whole_directory(directory: Path) -> Iterator[Path]:
    """Yields a new directory, which gets the name `directory` when the block ends, and is removed
    if it fails. Raises OSError."""
    directory = local_path(directory)
    new = _new_name(directory)
    new.mkdir(parents=True)
    try:
        yield new
        new.rename(directory)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def write_directory(directory: Path, files: Mapping[str, bytes]) -> None:
    """Writes files, by name, into a new directory.

    Raises:
        InputError: the directory exists or cannot be written.
    """
    directory = local_path(directory)
    what = f"output {str(directory)!r}"
    # A dangling link exists too.
    if os.path.lexists(directory):
        raise InputError(f"{what} exists already; name a new directory, or remove it first")
    try:
        with whole_directory(directory) as new:
            for name, content in files.items():
                write_whole(new / name, content, what, InputError)
        sync_directory(directory.parent)
    except OSError as error:
        raise InputError(
            f"{what} cannot be written ({error.strerror or error}); name a writable directory"
        ) from None


def sync_directory(directory: Path) -> None:
    """Syncs the names in a directory to the disk: without it, a renamed file may have its old name
    after a power cut. Raises OSError."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _new_name(file: Path) -> Path:
    # Hidden, and beside the file: a rename within a file system is one step. Names have at most 255
    # bytes.
    return file.with_name(f".{file.name[:180]}.{secrets.token_hex(8)}.new")
