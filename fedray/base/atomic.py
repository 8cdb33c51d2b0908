"""Files that are there whole or not at all, and that outlast a power cut.

A file is written under a name that nobody can guess, beside its own, brought to the disk, and then
renamed. A name that is a symbolic link is replaced; what it points to is left alone.
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

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


Content = bytes | Callable[[IO[bytes]], None]
"""What a file is to have: its bytes, or what writes them to a stream."""


def write_whole(
    file: Path, content: Content, what: str, error: type[FedrayError] = RunFailed
) -> None:
    """Writes a file whole or not at all.

    Args:
        file: its path; what was there is replaced.
        content: all that it is to have.
        what: how messages name it.
        error: the class of what is raised.

    Raises:
        error: it cannot be written; the file is then as it was.
    """
    try:
        replace_file(file, content)
    except OSError as problem:
        remedy = "name a place that can be written"
        if problem.errno in _FULL:
            remedy = "free space there and run again"
        raise error(f"{what} cannot be written ({problem.strerror or problem}); {remedy}") from None


def replace_file(file: Path, content: Content) -> None:
    """Writes `content` to a `file` whole or not at all, and brings it to the disk.

    Whoever reads the file at any moment, even after a power cut, finds all of the old content or
    all of the new. Raises OSError.
    """
    new = _new_name(file)
    try:
        # O_EXCL and O_NOFOLLOW: a link that somebody put under this name is never written through.
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        with open(handle, "wb") as stream:
            if isinstance(content, bytes):
                stream.write(content)
            else:
                content(stream)
            stream.flush()
            # Before the new name, or a power cut could leave the name with no content.
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
    """A name to write a file under, such as by a library that wants a path.

    The file gets the name `file` when the block ends, and is removed if it fails. Unlike
    `replace_file`, it is not brought to the disk. Raises OSError.
    """
    new = _new_name(file)
    try:
        yield new
        new.replace(file)
    except BaseException:
        # An interruption leaves nothing half-written either.
        new.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def whole_directory(directory: Path) -> Iterator[Path]:
    """A new directory to fill, which gets the name `directory` when the block ends, and is removed
    if it fails. Raises OSError."""
    new = _new_name(directory)
    new.mkdir(parents=True)
    try:
        yield new
        new.rename(directory)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def write_directory(directory: Path, files: Mapping[str, bytes]) -> None:
    """Writes files, by name, into a new directory. Raises InputError if it exists already, or
    cannot be written."""
    what = f"output {str(directory)!r}"
    # A link that leads nowhere is there too.
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


def sync_file(file: Path) -> None:
    """Brings the content of a `file` to the disk. Raises OSError."""
    handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_directory(directory: Path) -> None:
    """Brings the names in a `directory` to the disk, without which a file that was renamed may have
    its old name after a power cut. Raises OSError."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _new_name(file: Path) -> Path:
    """A hidden name beside the file: in the same file system, so that a rename is one step."""
    # File systems take names of 255 bytes.
    return file.with_name(f".{file.name[:180]}.{secrets.token_hex(8)}.new")
