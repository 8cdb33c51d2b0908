"""Checkpoints of an unfinished run: the last two, each with a digest in its name.

    DIRECTORY.partial/checkpoints/NUMBER-DIGEST.npz

A checkpoint records which run it belongs to, and its file name contains the start of its SHA-256.
So a file that is damaged or of another run is never used, and the one before is used instead. Files
are written whole or not at all, and nothing is unpickled.
"""

import contextlib
import hashlib
import io
import json
import logging
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from fedray.base.atomic import sync_directory, write_whole
from fedray.base.errors import CheckpointError, RunFailed, TraceError
from fedray.base.regular_file import open_regular_file

CHECKPOINTS = "checkpoints"
# Raised whenever states change, so that no release misreads the state of another.
VERSION = 16
NPZ_DAMAGE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    AttributeError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)
"""Errors that numpy and zipfile raise for damaged .npz files."""
GENERATIONS = 2
"""Number of checkpoints that are kept: if the newest is damaged, only the work since the one before
is lost."""


def has_checkpoint(partial: Path) -> bool:
    """Returns whether a directory has a checkpoint, complete or not.

    Args:
        partial: directory of an unfinished run.
    """
    try:
        return any((partial / CHECKPOINTS).glob("*.npz"))
    except OSError:
        # The path has a name that no directory can have.
        return False


def check_finished(directory: Path) -> None:
    """Raises TraceError, with how to continue, if a run or training that did not finish is all that
    there is of a directory: its output, or its partial directory."""
    for partial in (directory.parent / f"{directory.name}.partial", directory):
        if has_checkpoint(partial):
            raise TraceError(
                f"{str(directory)!r} did not finish; continue it by "
                f"`fedray.resume_run({str(directory)!r})`, or watch {str(partial)!r} by "
                "`fedray status`"
            )


class Checkpoints:
    """The checkpoints of one run.

    partial: the run's partial directory.
    run: identity of the run, which no other run has.
    notes: notes for the run's result, such as a damaged checkpoint.
    """

    def __init__(self, partial: Path, run: str) -> None:
        self.run = run
        self.notes: list[str] = []
        self._partial = partial
        self._files: list[Path] = []
        """Files that this process wrote or resumed from, oldest first."""

    def save(self, state: Mapping[str, NDArray]) -> None:
        """Writes the next checkpoint, and removes all but the last two.

        Args:
            state: arrays by name.

        Raises:
            RunFailed: the checkpoint cannot be written; earlier ones stay intact.
        """
        folder = self._partial / CHECKPOINTS
        make_folder(folder)
        head = json.dumps({"version": VERSION, "run": self.run, "notes": self.notes}).encode()
        content = npz_bytes({"head": np.frombuffer(head, np.uint8), **state})
        # The number gives the order, and the digest in the name reveals a damaged file.
        number = _number(self._files[-1]) + 1 if self._files else 0
        digest = hashlib.sha256(content).hexdigest()
        file = folder / f"{number:06d}-{digest[:16]}.npz"
        write_whole(file, content, f"a checkpoint in {str(self._partial)!r}")
        self._files = [*self._files, file][-GENERATIONS:]
        # Old ones are removed only now, when the new one is on the disk.
        for other in set(folder.iterdir()) - set(self._files):
            with contextlib.suppress(OSError):
                other.unlink()

    def newest(
        self, check: Callable[[dict[str, NDArray]], None] = lambda state: None
    ) -> dict[str, NDArray]:
        """Returns the state of this run's newest usable checkpoint; skipped ones are noted.

        Args:
            check: function that raises CheckpointError if other files do not match a state.

        Raises:
            CheckpointError: no checkpoint is usable.
        """
        folder = self._partial / CHECKPOINTS
        reasons: list[str] = []
        # Numbers in the names give the order, because file times do not survive a copy.
        for file in sorted(folder.glob("*.npz"), key=_number, reverse=True):
            try:
                state, notes = self._read(file)
                check(state)
            except CheckpointError as error:
                reasons.append(str(error))
                continue
            # The next checkpoint is numbered after this one, even if newer files exist.
            self._files = [file]
            self.notes = notes
            for reason in reasons:
                note = f"{reason}; the run continues from {file.name} instead"
                logging.getLogger("fedray").warning("fedray: %s", note)
                self.notes.append(note)
            return state
        if not reasons:
            raise CheckpointError(
                f"{str(self._partial)!r} has no checkpoint yet; remove it and start the run again"
            )
        before = ", and the one before cannot be used either" if len(reasons) > 1 else ""
        raise CheckpointError(
            f"{str(self._partial)!r} cannot be resumed: {reasons[0]}{before}; remove it and run "
            "again"
        )

    def _read(self, file: Path) -> tuple[dict[str, NDArray], list[str]]:
        state = load_npz(file, file.stem.partition("-")[2])
        try:
            head = json.loads(state.pop("head").tobytes())
            version = head["version"]
            run = head["run"]
            notes = [str(note) for note in head["notes"]]
        except (KeyError, ValueError, TypeError):
            raise CheckpointError(f"{_short(file)} is not a checkpoint") from None
        if version != VERSION:
            raise CheckpointError(
                f"{_short(file)} has version {version!r}, this release reads {VERSION}"
            )
        # A directory may mix copies from two runs.
        if run != self.run:
            raise CheckpointError(
                f"{_short(file)} is of another run than unfinished.json next to it"
            )
        return state, notes


def make_folder(folder: Path) -> None:
    """Makes a `folder` of a partial directory, unless it exists, and syncs its name to the disk.
    Raises RunFailed."""
    try:
        if not folder.is_dir():
            folder.mkdir()
            sync_directory(folder.parent)
    except OSError as error:
        reason = error.strerror or error
        raise RunFailed(
            f"a checkpoint cannot be written ({reason}); free space there and run again"
        ) from None


def prefixed(prefix: str, state: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """Returns the `state` of one part with a `prefix` before each name, as it is stored in the
    state of the whole; `under` is the inverse."""
    return {f"{prefix}{name}": each for name, each in state.items()}


def under(prefix: str, state: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """Returns the arrays whose names begin with a prefix, without it: the state of one part."""
    return {name[len(prefix) :]: each for name, each in state.items() if name.startswith(prefix)}


def npz_bytes(arrays: Mapping[str, NDArray]) -> bytes:
    """Returns named `arrays` as the content of an .npz file, so that its digest is known before it
    is written."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # pyright: ignore[reportArgumentType]
    return buffer.getvalue()


def write_npz(stream: IO[bytes], arrays: Mapping[str, Sequence[NDArray]]) -> None:
    """Writes an .npz file of named arrays, each given as consecutive pieces of one type."""
    with zipfile.ZipFile(stream, "w") as archive:
        for name, pieces in arrays.items():
            # Sizes are written after the data, so room for 64 bits is reserved in advance.
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                # One array is joined at a time, because all together would need their memory again.
                np.lib.format.write_array(member, np.concatenate(pieces), allow_pickle=False)


def sha256_of(file: Path) -> str:
    """Returns the SHA-256 of a `file`, in hexadecimal. Raises CheckpointError."""
    try:
        with open_regular_file(file) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(
            f"{_short(file)} cannot be read ({error.strerror or error})"
        ) from None


def check_digest(file: Path, sha256: str) -> None:
    """Raises CheckpointError unless the SHA-256 of a `file`, in hexadecimal, begins with `sha256`.
    An empty `sha256` matches no file."""
    if not sha256 or not sha256_of(file).startswith(sha256):
        raise CheckpointError(
            f"{_short(file)} is damaged or of another run: its SHA-256 is not the recorded one"
        )


def load_npz(file: Path, sha256: str) -> dict[str, NDArray]:
    """Returns the arrays of a `file` by name, if its SHA-256 begins with `sha256`; nothing is
    unpickled. Raises CheckpointError."""
    check_digest(file, sha256)
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except NPZ_DAMAGE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{_short(file)} is not an .npz file ({reason})") from None


def _number(checkpoint: Path) -> int:
    number = checkpoint.name.partition("-")[0]
    # Names that fedray did not give sort before all checkpoints.
    return int(number) if number.isdecimal() else -1


def _short(file: Path) -> str:
    """Returns a file's name within the unfinished run."""
    return f"{file.parent.name}/{file.name}"
