"""A directory in the making: `<directory>.partial` until it is whole, and then renamed.

A lock keeps two processes from one directory. A mark says that it is ours: nothing is removed that
no writer made. A directory that holds a checkpoint is kept when its process fails, for `resume`.
"""

import contextlib
import fcntl
import itertools
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from fedray.base.atomic import sync_directory, write_whole
from fedray.base.errors import FedrayError, InputError, RunFailed
from fedray.trace.checkpoints import CHECKPOINTS, has_checkpoint
from fedray.trace.files import check_name
from fedray.trace.progress import PROGRESS_FILE, ProgressFile
from fedray.trace.schema import DOCUMENT_DIGEST, document_digest

UNFINISHED_FILE = "unfinished.json"
LOCK_FILE = "lock"
TOKEN_FILE = "token"
JOURNAL = "journal"
MARK = "fedray-partial "
"""First words of TOKEN_FILE: the mark of a directory that we made, and may remove."""


def partial_directory(directory: Path) -> Path:
    """Returns the directory in which `directory` is made. Raises InputError for the root, which has
    no name."""
    if not directory.name:
        raise InputError(
            f"{str(directory)!r} has no name, and can hold no trace; name a directory in it"
        )
    return directory.with_name(f"{directory.name}.partial")


def finished_directory(partial: Path) -> Path:
    """Returns the directory that a partial one becomes; another directory stays as it is."""
    return partial.with_name(partial.name.removesuffix(".partial"))


def with_resume_hint(
    error: FedrayError | KeyboardInterrupt,
    directory: Path,
) -> FedrayError | KeyboardInterrupt:
    """Returns the error with a hint on resuming, in the same class.

    Args:
        error: error that ended the run.
        directory: the `out` of the run.
    """
    hint = f"the last checkpoint is kept; continue with `resume={str(directory)!r}`"
    if isinstance(error, KeyboardInterrupt):
        return KeyboardInterrupt(f"interrupted; {hint}")
    return type(error)(f"{error}; {hint}")


def new_directory(name: str) -> Path:
    """runs/<name>-<UTC time>, with a number behind it where that is taken. Raises InputError.

    Its partial directory is made here, so that of several runs in one second each has a name of
    its own.
    """
    base = Path("runs") / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    numbered = (base.with_name(f"{base.name}-{number}") for number in itertools.count(2))
    for directory in itertools.chain([base], numbered):
        if directory.exists():
            continue
        try:
            # Only one process can make it, so of two that begin at once one takes the next number.
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
    """Held while a process is at work; freed by the system when the process ends, however it
    ends."""

    def __init__(self, partial: Path) -> None:
        # "a" makes the file if need be, and truncates nothing of a process that is at work.
        self._file = (partial / LOCK_FILE).open("a")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise InputError(
                f"{str(partial)!r} is being written by another process; wait for it, or name "
                "another directory"
            ) from None

    def release(self) -> None:
        """Lets go; the file of the lock stays, because another process may wait for it."""
        self._file.close()


class PartialDirectory:
    """A context in which `directory` is made; it removes its work unless that is published or can
    be resumed.

    directory: gets its name when `publish` is called.
    partial: directory of the work; beside `directory` by default.
    document_file: the file that `publish` writes last; a partial directory that has it is complete.

    Raises InputError when the directory exists already, cannot be made, or is written by another
    process, and when `partial` is not ours.
    """

    made_again: ClassVar[tuple[str, ...]] = ()
    """Folders that a resumed run makes again from the start."""

    def __init__(
        self,
        directory: str | Path,
        document_file: str,
        *,
        is_resumed: bool = False,
        partial: Path | None = None,
    ) -> None:
        self.directory = Path(os.path.abspath(directory))
        check_name(self.directory)
        self.partial = partial or partial_directory(self.directory)
        self.progress = ProgressFile(self.partial)
        """Progress for watchers; without `begin` no file is written."""
        self._document_file = document_file
        self._made: list[Path] = []
        # A resumed run has a checkpoint, which a failure in here must not remove.
        self._is_kept = is_resumed
        self._is_discarded = False
        self._lock: Lock | None = None
        output = str(directory)
        try:
            # File systems take names of 255 bytes, and ours get endings.
            if len(os.fsencode(self.directory.name)) > 200:
                raise OSError("its name is longer than 200 bytes")
            if os.path.lexists(self.directory) and not _is_plain_and_empty(self.directory):
                raise InputError(
                    f"output {output!r} exists already; name a new directory, or remove it first"
                )
            # This comes before anything is made, so that a refusal leaves nothing behind.
            if os.path.lexists(self.partial):
                self._check_ours(output, is_resumed)
            if not is_resumed:
                if has_checkpoint(self.partial):
                    raise InputError(
                        f"output {output!r} has an unfinished run in {str(self.partial)!r}; resume "
                        "it, or remove it"
                    )
                # Parents that are made now are removed again if nothing comes of the run.
                self._made = [path for path in self.partial.parents if not path.exists()]
            self.partial.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(self.partial)
            # Again, now that no other process is at work in it.
            self._check_ours(output, is_resumed)
            self.token = secrets.token_hex(16)
            """This writer's token: who reads it in the partial directory shares its file system."""
            self._write(TOKEN_FILE, f"{MARK}{self.token}".encode())
            self._clear(is_resumed)
            for name in self.made_again:
                (self.partial / name).mkdir(exist_ok=True)
            # The names of new directories must be on the disk too, or the run would not outlast a
            # power cut.
            for folder in (*self._made, self.partial):
                sync_directory(folder.parent)
        except (OSError, RunFailed) as error:
            # The work so far is removed, unless it has a checkpoint.
            self.__exit__(None, None, None)
            raise InputError(
                f"output {output!r} cannot be made ({error}); name a writable directory"
            ) from None
        except InputError:
            # Nothing is removed after a refusal, since the directory may not be ours.
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
        """Whether a checkpoint exists, so that a failure leaves the directory as it is."""
        return has_checkpoint(self.partial)

    def discard(self) -> None:
        """Marks the work as useless: it is removed at the end, checkpoints too."""
        self._is_kept = False
        self._is_discarded = True

    def save_content(self, name: str, content: bytes) -> None:
        """Writes a file that the scenario names.

        Args:
            name: made of its digest, so that equal files are one.
            content: its bytes.
        """
        self._write(name, content)

    def publish(self, document: Mapping[str, Any]) -> Path:
        """Writes the document with the digest of its content, then gives the directory its name.

        Returns its path. Raises RunFailed; the work is then kept.
        """
        # The document is written last: a directory that has it is whole, whatever its name.
        whole = {**document, DOCUMENT_DIGEST: document_digest(document)}
        text = json.dumps(whole, indent=1) + "\n"
        self._write(self._document_file, text.encode())
        self._is_kept = True
        self.progress.stop()
        try:
            if self.directory.exists():
                # The directory is empty; this was checked at the start.
                self.directory.rmdir()
            self.partial.rename(self.directory)
            sync_directory(self.directory.parent)
        except OSError as error:
            raise RunFailed(
                f"what was finished cannot be named {str(self.directory)!r} ({error}); it is kept "
                f"whole in {str(self.partial)!r}, rename it yourself"
            ) from None
        # The trace is complete by now; the remains of its making do no harm.
        with contextlib.suppress(OSError):
            (self.directory / TOKEN_FILE).unlink(missing_ok=True)
        _remove_unfinished(self.directory)
        return self.directory

    def _write(self, name: str, content: bytes) -> None:
        write_whole(self.partial / name, content, f"{name} of {str(self.directory)!r}")

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _clear(self, is_resumed: bool) -> None:
        """Removes the remains of a run that ended early; for a resumed run, the parts that it makes
        again."""
        # The folder changes while it is walked, so its names are listed first.
        for path in list(self.partial.iterdir()):
            if is_resumed and path.name not in self.made_again:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name not in (LOCK_FILE, TOKEN_FILE):
                path.unlink(missing_ok=True)

    def _remove(self) -> None:
        """Removes the work, and the directories above it that were made and are empty."""
        # The lock is held until all is gone, so that no other process begins there.
        if self._lock is not None:
            shutil.rmtree(self.partial, ignore_errors=True)
        for folder in self._made:
            with contextlib.suppress(OSError):
                folder.rmdir()

    def _check_ours(self, output: str, is_resumed: bool) -> None:
        """Raises InputError unless the directory is a writer's own, or has nothing in it.

        That of a run which is resumed was read before, and may be of a release without a mark.
        """
        partial = self.partial
        remedy = "move it away, or name another output"
        needs = f"output {output!r} needs {str(partial)!r}"
        if partial.is_symlink() or not partial.is_dir():
            raise InputError(f"{needs}, which is there and is no plain directory; {remedy}")
        if (partial / self._document_file).exists():
            raise InputError(f"{needs}, which holds a finished trace; rename it or {remedy}")
        # A process that was stopped between making the directory and its mark left only a lock.
        is_empty = all(
            path.name == LOCK_FILE and not path.lstat().st_size for path in partial.iterdir()
        )
        if not (is_empty or is_resumed or _is_marked(partial)):
            raise InputError(f"{needs}, which is there and was not made by fedray; {remedy}")


def _remove_unfinished(directory: Path) -> None:
    """Removes what only an unfinished run needs. What cannot be removed does no harm."""
    for folder in (JOURNAL, CHECKPOINTS):
        shutil.rmtree(directory / folder, ignore_errors=True)
    left_by_killed_writers = directory.glob(f".{PROGRESS_FILE}.*.new")
    names = (UNFINISHED_FILE, LOCK_FILE, PROGRESS_FILE)
    for file in (*(directory / name for name in names), *left_by_killed_writers):
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)


def _is_marked(partial: Path) -> bool:
    with contextlib.suppress(OSError), (partial / TOKEN_FILE).open("rb") as file:
        return file.read(len(MARK)) == MARK.encode()
    return False


def _is_plain_and_empty(path: Path) -> bool:
    # A link or a mount point cannot make room for the directory that is renamed.
    is_plain = path.is_dir() and not path.is_symlink() and not path.is_mount()
    return is_plain and not any(path.iterdir())
