"""Files that exist whole or not at all, and that survive a power cut.

A file is written under an unpredictable name beside its own, synced to the disk, and then renamed.
There are two kinds of names.

* An *output* is a path that the user gave, such as `--page FILE`. `write_output` and `new_output`
  write where the shell's `>` would: through links, and directly into a device, a pipe or an open
  descriptor such as /dev/stdout, which cannot be replaced.
* Every other name is fedray's own choice: a file of a trace, a ledger or a cache, report.html in a
  trace, a figure in a folder. A stranger may have put a link or a pipe there, so `write_whole`,
  `replace_file` and `whole_file` replace it, and its target stays as it is.
"""

import contextlib
import ctypes
import errno
import os
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

from fedray.base.errors import FedrayError, InputError, RunFailed
from fedray.base.storage import local_path

FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Content = bytes | Callable[[IO[bytes]], None]
"""Content of a file: its bytes, or a function that writes them to a stream."""


MOST_LINKS = 40
"""Longest chain of links that is followed, as in Linux."""


def write_output(file: Path, content: bytes, what: str) -> None:
    """Writes an output, a path that the user gave: a file whole or not at all, also at the end of a
    link; anything else directly, as the shell's `>` does.

    Args:
        file: path; an existing file is replaced.
        content: its content.
        what: name of the output in messages.

    Raises:
        InputError: it cannot be written; a file is then as it was.
        BrokenPipeError: the reader of a pipe has closed it.
    """
    with _refused(what, InputError):
        path = _followed(file)[-1]
        if not _is_direct(path):
            replace_file(path, content)
            return
        with _opened(path) as stream:
            stream.write(content)


@contextlib.contextmanager
def new_output(file: Path) -> Iterator[Path]:
    """Yields a name to write an output under, for a library that wants a path and may seek in it.

    The output gets the content when the block ends, and nothing if it fails. Raises OSError.
    """
    path = _followed(file)[-1]
    if not _is_direct(path):
        with whole_file(path) as new:
            yield new
        return
    with tempfile.TemporaryDirectory(prefix="fedray-") as folder:
        new = Path(folder, "output")
        yield new
        with new.open("rb") as found, _opened(path) as stream:
            shutil.copyfileobj(found, stream, 1 << 22)


def is_taken(file: Path) -> bool:
    """Returns whether an output that must be new exists. A device or a pipe is not taken, because
    writing to it loses nothing, and neither is a link to a missing file."""
    try:
        path = _followed(file)[-1]
    except OSError:  # such as a loop of links
        return True
    return path.is_dir() or (path.exists() and not _is_direct(path))


def write_beside(file: Path, name: Callable[[Path], str], content: bytes, what: str) -> None:
    """Writes a file that belongs to an output, wherever a reader of the output looks for it: beside
    the output and, for a link, beside each path to which it leads.

    Args:
        file: path of the output.
        name: function that returns the file's name from a path of the output.
        content: content of the file.
        what: name of the output in messages.

    Raises:
        InputError: it cannot be written, or the output is a device or a pipe.
    """
    with _refused(what, InputError):
        paths = _followed(file)
        if _is_direct(paths[-1]):
            raise OSError(errno.EINVAL, "another file must lie beside it, so it must be a file")
        for path in paths:
            replace_file(path.with_name(name(path)), content)


def _followed(file: Path) -> list[Path]:
    """Returns the path of an output, and all to which its links lead. Raises OSError."""
    path, paths = local_path(file), []
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "its name has a zero byte")
    for _ in range(MOST_LINKS):
        path = Path(os.path.realpath(path.parent)) / path.name
        paths.append(path)
        if _is_descriptor(path) or not path.is_symlink():
            if _is_direct(path):
                _check_owner(path)
            return paths
        _check_owner(path)
        path = path.parent / path.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _is_direct(path: Path) -> bool:
    """Whether a path of `_followed` is written to directly, since it cannot be replaced."""
    return _is_descriptor(path) or (path.exists() and not path.is_file())


def _is_descriptor(path: Path) -> bool:
    """Whether a path is a descriptor of this process: a link whose file may have lost its name."""
    folders = {os.path.realpath(each) for each in ("/dev/fd", "/proc/self/fd")}
    return str(path.parent) in folders and path.name.isdecimal()


def _check_owner(path: Path) -> None:
    """Raises OSError for a link or a pipe that another user put into a folder that all can write,
    such as /tmp. Linux refuses to follow it there, but a rename at its target would not ask."""
    folder, found = path.parent.stat(), path.lstat()
    is_shared = folder.st_mode & stat.S_ISVTX and folder.st_mode & stat.S_IWOTH
    if is_shared and found.st_uid not in (os.geteuid(), folder.st_uid):
        raise OSError(errno.EACCES, "another user put it into a folder that all users can write")


def _opened(path: Path) -> IO[bytes]:
    """Opens a path of `_followed` that is written to directly. Raises OSError."""
    if _is_descriptor(path):
        # Lines that were printed before stand before the content.
        for printed in (sys.stdout, sys.stderr):
            printed.flush()
        # A copy: to open the path again would overwrite a file from its start.
        handle = os.dup(int(path.name))
    elif path.is_socket():
        raise OSError(errno.ENXIO, "it is a socket")
    else:
        handle = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NOCTTY)
    return open(handle, "wb")


def write_whole(
    file: Path, content: Content, what: str, error: type[FedrayError] = RunFailed
) -> None:
    """Writes a file whole or not at all. A link of this name is replaced, and not followed.

    Args:
        file: path; an existing file is replaced.
        content: its content.
        what: name of the file in messages.
        error: class of the error.

    Raises:
        error: the file cannot be written; it is then as it was.
    """
    with _refused(what, error):
        replace_file(file, content)


def make_directory(directory: Path, what: str) -> None:
    """Makes a directory and its parents, unless it is there. Raises InputError about `what`."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = error.strerror or error
        raise InputError(f"{what} cannot be made a directory ({problem}); name another") from None


@contextlib.contextmanager
def _refused(what: str, error: type[FedrayError]) -> Iterator[None]:
    """Turns an OSError within the context into an `error` about `what`."""
    try:
        yield
    # Not a failure: the command ends as others do whose reader has gone.
    except BrokenPipeError:
        raise
    except OSError as problem:
        remedy = "name a place that can be written"
        if problem.errno in FULL_DISK:
            remedy = "free space there and run again"
        if isinstance(problem, IsADirectoryError):
            remedy = "name a file in it"
        raise error(f"{what} cannot be written ({problem.strerror or problem}); {remedy}") from None


def replace_file(file: Path, content: Content) -> None:
    """Writes a file whole or not at all, and syncs it to the disk. Raises OSError.

    A reader at any moment, even after a power cut, finds all of the old content or all of the new.
    """
    file = local_path(file)
    with whole_file(file) as new:
        # O_EXCL and O_NOFOLLOW: a link planted under this name is never written through.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        handle = os.open(new, flags, _own_mode(file) or 0o666)
        with open(handle, "wb") as stream:
            if isinstance(content, bytes):
                stream.write(content)
            else:
                content(stream)
            stream.flush()
            # Synced before the rename, or a power cut could leave the name with no content.
            os.fsync(handle)
    sync_directory(file.parent)


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
        if mode := _own_mode(file):
            new.chmod(mode)
        new.replace(file)
    # An interruption leaves nothing half-written either.
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise


def _own_mode(file: Path) -> int | None:
    """Returns the permissions of a file of this user, which a new content keeps; None without."""
    with contextlib.suppress(OSError):
        found = file.lstat()
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
            return stat.S_IMODE(found.st_mode)
    return None


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


def exchange(new: Path, old: Path) -> None:
    """Exchanges two directories of one file system in one step. A file system that cannot (NFS)
    gets two steps: for the moment between them there is no `old`, only `new`, which is complete.

    Raises OSError.
    """
    # Python has no function for it.
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    here, in_one_step = -100, 2
    if rename is not None:
        if not rename(here, os.fsencode(new), here, os.fsencode(old), in_one_step):
            return
        if ctypes.get_errno() not in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    aside = _new_name(old)
    old.rename(aside)
    new.rename(old)
    aside.rename(new)


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
