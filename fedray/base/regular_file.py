"""Opens files that a stranger may have made: only regular files, inside a stated directory, up to a
stated size.

A pipe would wait for a writer, a device can be endless or react to being opened, and a symbolic
link may lead to any file of the machine. Every refusal is an OSError whose `strerror` completes
"FILE cannot be read (...)", so that callers report it as they report a missing file.
"""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

MOST_DOCUMENT_BYTES = 1 << 28
"""Largest JSON document of a trace or run that is read."""
MOST_INPUT_BYTES = 4 << 20
"""Largest scenario, claim or mechanism file that is read; a matrix has a file of its own."""
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular_file(
    file: Path, *, inside: Path | None = None, most_bytes: int | None = None
) -> BufferedReader:
    """Opens a regular file for reading; never waits for another process.

    A file can grow after it was opened, and files of /proc have a size of 0: `read_regular_file`
    also bounds the bytes read.

    Args:
        file: its path; symbolic links are followed.
        inside: directory that the file must lie in once all links are resolved; None for anywhere.
        most_bytes: largest size accepted; None for any size.

    Raises:
        OSError: the file is missing, not a regular file, outside the directory, or too large.
    """
    try:
        # Only a link leads elsewhere, and resolving every folder of a path takes longer than
        # reading a small file.
        is_itself = inside is None and not os.path.islink(file)
        real = file if is_itself else os.path.realpath(file, strict=True)
        if inside is not None and not Path(real).is_relative_to(os.path.realpath(inside)):
            raise OSError(errno.EPERM, f"it leads out of {str(inside)!r}")
        # Before it is opened, because opening a device may already have an effect.
        _check(os.stat(real), most_bytes)
        # The path is no link, so a link found here was put there a moment ago.
        handle = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except ValueError as error:  # a path with a null byte or half a character
        raise OSError(errno.EINVAL, f"its path is invalid: {error}") from None
    try:
        # Again, because another file may have taken its place since.
        _check(os.fstat(handle), most_bytes)
    except BaseException:
        os.close(handle)
        raise
    return open(handle, "rb")


def read_regular_file(
    file: Path, most_bytes: int = MOST_DOCUMENT_BYTES, *, inside: Path | None = None
) -> bytes:
    """Returns the content of a regular file, which `open_regular_file` opens; at most one byte more
    than `most_bytes` is read. Raises OSError."""
    with open_regular_file(file, inside=inside, most_bytes=most_bytes) as stream:
        return _content(stream, most_bytes)


def read_input(file: Path) -> bytes:
    """Returns the content of a file that the user names, such as a scenario. It may be a pipe, as
    the shell's `<(...)` and /dev/stdin are, but not endless. Raises OSError."""
    with file.open("rb") as stream:
        return _content(stream, MOST_INPUT_BYTES)


def check_regular_file(
    file: Path, *, inside: Path | None = None, most_bytes: int | None = None
) -> None:
    """Checks a file that a library opens by its path, such as SQLite, as `open_regular_file` does.
    Raises OSError."""
    open_regular_file(file, inside=inside, most_bytes=most_bytes).close()


def _content(stream: BufferedReader, most_bytes: int) -> bytes:
    content = stream.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise _too_large(most_bytes)
    return content


def _check(found: os.stat_result, most_bytes: int | None) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file")
    if most_bytes is not None and found.st_size > most_bytes:
        raise _too_large(most_bytes)


def _too_large(most_bytes: int) -> OSError:
    return OSError(errno.EFBIG, f"it has more than {most_bytes:,} bytes")
