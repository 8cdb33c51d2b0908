"""An unfinished directory, named `<directory>.partial` until it is complete.

A lock keeps two processes from writing one directory. A mark shows that fedray made it; no other
directory is ever removed. If its process fails, a directory with a checkpoint is kept for `resume`.
"""

import contextlib
import errno
import fcntl
import itertools
import json
import os
import secrets
import shutil
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from fedray.base.atomic import exchange, sync_directory, write_whole
from fedray.base.errors import FedrayError, InputError, RunFailed
from fedray.base.regular_file import open_regular_file
from fedray.base.storage import local_path
from fedray.trace.checkpoints import CHECKPOINTS, has_checkpoint
from fedray.trace.files import check_name
from fedray.trace.progress import PROGRESS_FILE, ProgressFile
from fedray.trace.schema import DOCUMENT_DIGEST, document_digest

UNFINISHED_FILE = "unfinished.json"
LOCK_FILE = "lock"
TOKEN_FILE = "token"
JOURNAL = "journal"
MARK = "fedray-partial "
"""First words of TOKEN_FILE: the mark of a directory that fedray made and may remove."""


def partial_directory(directory: Path) -> Path:
    """Returns the partial directory of `directory`. Raises InputError for the root, which has no
    name."""
    if not directory.name:
        raise InputError(
            f"{str(directory)!r} has no name, so a trace cannot replace it; give a directory in it"
        )
    return directory.with_name(f"{directory.name}.partial")


def finished_directory(partial: Path) -> Path:
    """Returns the directory that a partial one becomes; other directories are returned
    unchanged."""
    return partial.with_name(partial.name.removesuffix(".partial"))


def with_resume_hint(
    error: Exception | KeyboardInterrupt, directory: Path
) -> Exception | KeyboardInterrupt:
    """Returns an error of the same class with a hint on resuming; for an error of another's code,
    such as a listener, it is a note.

    Args:
        error: error that ended the run.
        directory: the `out` of the run or training.
    """
    kept = "the last checkpoint is kept; continue with"
    hint = f"{kept} `resume={str(directory)!r}`"
    if isinstance(error, KeyboardInterrupt):
        return KeyboardInterrupt(f"interrupted; {hint}")
    if isinstance(error, FedrayError):
        return type(error)(f"{error}; {hint}")
    # Code of another's own means Python.
    error.add_note(f"fedray: {kept} `fedray.resume_run({str(directory)!r})`")
    return error


def new_directory(name: str) -> Path:
    """Returns runs/<name>-<UTC time>, with a number after it if that exists. Raises InputError.

    Its partial directory is made here, so that several runs that start in one second have different
    names.
    """
    base = Path("runs") / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    numbered = (base.with_name(f"{base.name}-{number}") for number in itertools.count(2))
    for directory in itertools.chain([base], numbered):
        if directory.exists():
            continue
        try:
            # Only one process can make it; another that starts at the same time takes the next
            # number.
            partial_directory(directory).mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise InputError(
                f"output {str(directory)!r} cannot be made ({error}); name a writable directory"
            ) from None
        return directory
    raise AssertionError("there is always a next number")


class Lock:
    """A lock on a directory, which the system releases when the process ends in any way.

    partial: the directory, such as a partial one.
    seconds: longest wait for another process; a run is not waited for, since it may take hours.

    Raises InputError if another process holds it, its file is a link or pipe, or the file system
    has no locks, and OSError if the file cannot be made.
    """

    def __init__(self, partial: Path, seconds: float = 0.0) -> None:
        # A pipe under this name would wait for a reader, and a link may lead anywhere.
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        file = partial / LOCK_FILE
        try:
            self._file = os.fdopen(os.open(file, flags, 0o666), "ab")
        except OSError as error:
            if error.errno in (errno.ENXIO, errno.ELOOP):
                raise InputError(f"{str(file)!r} is not a regular file; remove it") from None
            raise
        end = time.monotonic() + seconds
        while not self._is_taken(partial):
            if time.monotonic() >= end:
                self._file.close()
                raise InputError(
                    f"{str(partial)!r} is being written by another process; wait for it, or give "
                    "another directory"
                )
            time.sleep(0.1)

    def _is_taken(self, partial: Path) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            self._file.close()
            raise InputError(
                f"{str(partial)!r} cannot be locked ({error.strerror or error}), so nothing keeps "
                "two processes from writing it; give a directory on a file system with locks"
            ) from None
        return True

    def release(self) -> None:
        """Releases the lock; its file stays, because another process may be waiting for it."""
        self._file.close()


def is_locked(partial: Path) -> bool:
    """Returns whether a process of this machine works at a partial directory, as far as /proc says.
    Unlike an attempt to take the lock, this cannot disturb a process that starts."""
    try:
        inode = (partial / LOCK_FILE).stat().st_ino
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return False
    return any(
        line.split()[5].endswith(f":{inode}") for line in locks.splitlines() if "->" not in line
    )


class PartialDirectory:
    """A context in which `directory` is made; on exit it removes the work unless it was published
    or can be resumed.

    directory: final path of the directory, which `publish` gives it.
    partial: directory of the work; by default next to `directory`.
    document_file: file that `publish` writes last; a partial directory that has it is complete.
    replaces: whether `publish` replaces a finished `directory`, which stays as it is until then.

    Raises InputError if the directory already exists, cannot be made, or is being written by
    another process, and if fedray did not make `partial`.
    """

    made_again: ClassVar[tuple[str, ...]] = ()
    """Folders that a resumed run writes again from the start."""

    def __init__(
        self,
        directory: str | Path,
        document_file: str,
        *,
        is_resumed: bool = False,
        partial: Path | None = None,
        replaces: bool = False,
    ) -> None:
        # A relative path would change its meaning with the working directory.
        self.directory = Path(os.path.abspath(local_path(directory)))
        check_name(self.directory)
        self.partial = partial or partial_directory(self.directory)
        self.progress = ProgressFile(self.partial)
        """Progress for watchers; no file is written before `begin`."""
        self._document_file = document_file
        self._made: list[Path] = []
        # A resumed run has a checkpoint, which a failure in this constructor must not remove.
        self._is_kept = is_resumed
        # A link keeps its target, so it cannot be replaced.
        self._replaces = replaces and self.directory.is_dir() and not self.directory.is_symlink()
        self._is_discarded = False
        self._lock: Lock | None = None
        output = str(directory)
        try:
            # File systems limit names to 255 bytes, and fedray adds suffixes.
            if len(os.fsencode(self.directory.name)) > 200:
                raise OSError("its name is longer than 200 bytes")
            is_taken = os.path.lexists(self.directory) and not self._replaces
            if is_taken and not _is_plain_and_empty(self.directory):
                raise InputError(
                    f"output {output!r} exists already; give a new directory, or remove this one"
                )
            # This is checked before anything is made, so that a refusal leaves nothing behind.
            if os.path.lexists(self.partial):
                self._check_ours(output, is_resumed)
            if not is_resumed:
                if has_checkpoint(self.partial):
                    raise InputError(
                        f"output {output!r} has an unfinished run in {str(self.partial)!r}; resume "
                        "it, or remove it"
                    )
                # Parents that are made now are removed again if the run fails.
                self._made = [path for path in self.partial.parents if not path.exists()]
            self.partial.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(self.partial)
            # This is checked again, now that no other process can change it.
            self._check_ours(output, is_resumed)
            self.token = secrets.token_hex(16)
            """This writer's token; a process that can read it there shares the file system."""
            self._write(TOKEN_FILE, f"{MARK}{self.token}".encode())
            self._clear(is_resumed)
            for name in self.made_again:
                (self.partial / name).mkdir(exist_ok=True)
            # The names of new directories must be synced too, or the run would not survive a power
            # failure.
            for folder in (*self._made, self.partial):
                sync_directory(folder.parent)
        except (OSError, RunFailed) as error:
            # The work so far is removed, unless it has a checkpoint.
            self.__exit__(None, None, None)
            raise InputError(
                f"output {output!r} cannot be made ({error}); name a writable directory"
            ) from None
        except InputError:
            # Nothing is removed after a refusal, since fedray may not have made the directory.
            self._release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        is_kept_to_resume = self.can_be_resumed and not self._is_discarded
        if not (self._is_kept or is_kept_to_resume):
            self._remove()
        elif self.partial.exists():
            self.progress.end()
        self._release()

    @property
    def can_be_resumed(self) -> bool:
        """Whether a checkpoint exists, so that the directory is kept after a failure."""
        return has_checkpoint(self.partial)

    def discard(self) -> None:
        """Marks the work as useless, so that it is removed on exit, with its checkpoints."""
        self._is_kept = False
        self._is_discarded = True

    def save_content(self, name: str, content: bytes) -> None:
        """Writes a file that the scenario names.

        Args:
            name: name that contains its digest, so that equal files are stored once.
            content: bytes of the file.
        """
        self._write(name, content)

    def publish(self, document: Mapping[str, Any]) -> Path:
        """Writes the document with its content's digest, then gives the directory its final name.

        Returns the final path. Raises RunFailed, after which the work is kept.
        """
        # The document is written last, so a directory that has it is complete, whatever its name.
        whole = {**document, DOCUMENT_DIGEST: document_digest(document)}
        text = json.dumps(whole, indent=1) + "\n"
        self._write(self._document_file, text.encode())
        self._is_kept = True
        self.progress.stop()
        try:
            if self._replaces:
                # With a mark, the old directory may be removed later if this process ends here.
                shutil.copyfile(self.partial / TOKEN_FILE, self.directory / TOKEN_FILE)
                exchange(self.partial, self.directory)
            elif self.directory.exists():
                # The directory is empty; this was checked at the start.
                self.directory.rmdir()
            # Renaming is atomic, so no reader ever sees half a directory.
            if not self._replaces:
                self.partial.rename(self.directory)
            sync_directory(self.directory.parent)
        except OSError as error:
            raise RunFailed(
                f"the finished directory cannot be named {str(self.directory)!r} ({error}); rename "
                f"{str(self.partial)!r}, which is complete"
            ) from None
        # The trace is complete, so remains of the unfinished run are harmless.
        with contextlib.suppress(OSError):
            (self.directory / TOKEN_FILE).unlink(missing_ok=True)
        _remove_unfinished(self.directory)
        if self._replaces:
            shutil.rmtree(self.partial, ignore_errors=True)
        return self.directory

    def _write(self, name: str, content: bytes) -> None:
        write_whole(self.partial / name, content, f"{name} of {str(self.directory)!r}")

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _clear(self, is_resumed: bool) -> None:
        """Removes the remains of a run that ended early or, for a resumed run, the parts that it
        writes again."""
        # The loop changes the folder, so its names are listed first.
        for path in list(self.partial.iterdir()):
            if is_resumed and path.name not in self.made_again:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name not in (LOCK_FILE, TOKEN_FILE):
                path.unlink(missing_ok=True)

    def _remove(self) -> None:
        """Removes the work, and empty directories above it that were made for it."""
        # The lock is held until everything is removed, so that no other process starts there.
        if self._lock is not None:
            shutil.rmtree(self.partial, ignore_errors=True)
        for folder in self._made:
            with contextlib.suppress(OSError):
                folder.rmdir()

    def _check_ours(self, output: str, is_resumed: bool) -> None:
        """Raises InputError unless fedray made the directory, or it is empty.

        The directory of a resumed run was read before, and may be from a release without a mark.
        """
        partial = self.partial
        remedy = "move it away, or give another output"
        needs = f"output {output!r} needs {str(partial)!r}"
        if partial.is_symlink() or not partial.is_dir():
            raise InputError(f"{needs}, which exists and is not a plain directory; {remedy}")
        # What an interrupted replacement left is marked: the old directory, or the new one.
        is_left = self._replaces and _is_marked(partial)
        if (partial / self._document_file).exists() and not is_left:
            raise InputError(f"{needs}, which holds a finished trace; rename it or {remedy}")
        # A process that was stopped between making the directory and its mark left only a lock.
        is_empty = all(
            path.name == LOCK_FILE and not path.lstat().st_size for path in partial.iterdir()
        )
        if not (is_empty or is_resumed or _is_marked(partial)):
            raise InputError(f"{needs}, which exists and was not made by fedray; {remedy}")


def _remove_unfinished(directory: Path) -> None:
    """Removes files that only an unfinished run needs. Any that cannot be removed are harmless."""
    for folder in (JOURNAL, CHECKPOINTS):
        shutil.rmtree(directory / folder, ignore_errors=True)
    left_by_killed_writers = directory.glob(f".{PROGRESS_FILE}.*.new")
    names = (UNFINISHED_FILE, LOCK_FILE, PROGRESS_FILE)
    for file in (*(directory / name for name in names), *left_by_killed_writers):
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)


def _is_marked(partial: Path) -> bool:
    with contextlib.suppress(OSError), open_regular_file(partial / TOKEN_FILE) as file:
        return file.read(len(MARK)) == MARK.encode()
    return False


def _is_plain_and_empty(path: Path) -> bool:
    # A link or a mount point cannot be replaced by the renamed directory.
    is_plain = path.is_dir() and not path.is_symlink() and not path.is_mount()
    return is_plain and not any(path.iterdir())
