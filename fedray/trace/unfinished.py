"""An unfinished run on disk, beside where its trace will be: enough to go on after whatever ended it.

    TRACE.partial/
      unfinished.json                 what is run: format, scenario, digest, and a random name that no other run has
      lock                            held by the process that is at work
      journal/NUMBER.npz              settlements in order of attempt, a file per checkpoint
      checkpoints/NUMBER-DIGEST.npz   the last two checkpoints: the rest of the state
      ...                             what is written of the trace so far

A checkpoint names its run (the SHA-256 of unfinished.json) and the SHA-256 of every journal file that belongs to it; the start of
its own is in its file name. So a file that is damaged, or that belongs to another run, is never taken up; the newest checkpoint
whose files all fit is. Files are written whole or not at all, and the checkpoint last. Nothing is unpickled.
"""

import contextlib
import fcntl
import hashlib
import io
import json
import logging
import secrets
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedray.atomic import sync_directory, write_whole
from fedray.errors import CheckpointError, InputError, RunFailed
from fedray.messages import Settlement
from fedray.parsing import parse_json

UNFINISHED_FILE = "unfinished.json"
LOCK_FILE = "lock"
JOURNAL = "journal"
CHECKPOINTS = "checkpoints"
FORMAT = "fedray-unfinished"
VERSION = 3
GENERATIONS = 2
"""Checkpoints that are kept, so that a damaged newest one costs the work since the one before, not the run."""
_COLUMNS = ("device_ids", "checkin_times", "report_times", "outcomes", "reopen_seconds", "remembers_round")


def partial_directory(directory: Path) -> Path:
    """Where the unfinished run of a trace lives. Raises InputError for the root, which has no name."""
    if not directory.name:
        raise InputError(f"{str(directory)!r} has no name, and can hold no trace; name a directory in it")
    return directory.with_name(f"{directory.name}.partial")


class Lock:
    """Held while a process is at work on an unfinished run; freed by the system when the process ends, however it ends."""

    def __init__(self, partial: Path) -> None:
        self._file = (partial / LOCK_FILE).open("a")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise InputError(
                f"{str(partial)!r} is being written by another process; wait for it, or name another directory"
            ) from None

    def release(self) -> None:
        """Lets go."""
        self._file.close()


def has_checkpoint(partial: Path) -> bool:
    """Whether there is a checkpoint to go on from."""
    try:
        return any((partial / CHECKPOINTS).glob("*.npz"))
    except OSError:  # a name that no directory can have
        return False


def remove_unfinished(directory: Path) -> None:
    """Removes from a finished trace what only an unfinished run needs. What cannot be removed does no harm."""
    for folder in (JOURNAL, CHECKPOINTS):
        shutil.rmtree(directory / folder, ignore_errors=True)
    for name in (UNFINISHED_FILE, LOCK_FILE):
        with contextlib.suppress(OSError):
            (directory / name).unlink(missing_ok=True)


class Journal:
    """Every settlement of a run, in order: those since the last checkpoint in memory, the others in files.

    run: the run's identity, which `write_unfinished` gives. notes: what is to be told of this run in its trace.
    """

    def __init__(self, partial: Path, run: str) -> None:
        self.run = run
        self.notes: list[str] = []
        self.recent_rows = 0
        self._partial = partial
        self._digests: list[bytes] = []
        self._checkpoints: list[Path] = []
        """Those written or taken up by this process, oldest first."""
        self._recent: list[Settlement] = []

    def append(self, settlement: Settlement) -> None:
        """Takes the next settlement."""
        self._recent.append(settlement)
        self.recent_rows += settlement.device_ids.size

    def batches(self) -> Iterator[tuple[Settlement, ...]]:
        """All settlements, a batch per file, then those in memory. Raises CheckpointError for a file that was changed."""
        for number, digest in enumerate(self._digests):
            arrays = _load(self._segment(number), digest.hex())
            edges = np.concatenate([[0], np.cumsum(arrays["sizes"])])
            batch = []
            for place, (attempt, round_index) in enumerate(zip(arrays["attempts"], arrays["rounds"], strict=True)):
                rows = slice(edges[place], edges[place + 1])
                batch.append(Settlement(int(attempt), int(round_index), *(arrays[name][rows] for name in _COLUMNS)))
            yield tuple(batch)
        if self._recent:
            yield tuple(self._recent)

    def settlements(self, first_device: int, end_device: int) -> Iterator[tuple[Settlement, ...]]:
        """The batches, cut to a range of devices."""
        for batch in self.batches():
            yield tuple(settlement.slice_of_devices(first_device, end_device) for settlement in batch)

    def save(self, state: Mapping[str, NDArray]) -> None:
        """Writes a checkpoint: what is in memory as the journal's next file, then the state that belongs to all of them.

        Raises RunFailed; the checkpoints before stay whole then.
        """
        folder = self._partial / CHECKPOINTS
        try:
            for made in (folder, self._partial / JOURNAL):
                if not made.is_dir():
                    made.mkdir()
                    sync_directory(self._partial)
        except OSError as error:
            reason = error.strerror or error
            raise RunFailed(f"a checkpoint cannot be written ({reason}); free space there and run again") from None
        self._save_recent()
        head = {"version": VERSION, "run": self.run, "notes": self.notes}
        digests = np.frombuffer(b"".join(self._digests), np.uint8).reshape(-1, 32)
        content = _npz({"head": np.frombuffer(json.dumps(head).encode(), np.uint8), "journal": digests, **state})
        number = _number(self._checkpoints[-1]) + 1 if self._checkpoints else 0
        file = folder / f"{number:06d}-{hashlib.sha256(content).hexdigest()[:16]}.npz"
        write_whole(file, content, f"a checkpoint in {str(self._partial)!r}")
        self._checkpoints = [*self._checkpoints, file][-GENERATIONS:]
        for other in set(folder.iterdir()) - set(self._checkpoints):
            with contextlib.suppress(OSError):
                other.unlink()

    def take_up(self, checkpoint: Path) -> dict[str, NDArray]:
        """The state of a checkpoint, whose journal this one is from now on. Raises CheckpointError unless all its files fit."""
        state = _load(checkpoint, checkpoint.stem.partition("-")[2])
        try:
            head = json.loads(state.pop("head").tobytes())
            version, run, notes = head["version"], head["run"], [str(note) for note in head["notes"]]
            digests = [row.tobytes() for row in state.pop("journal").reshape(-1, 32)]
        except (KeyError, ValueError, TypeError):
            raise CheckpointError(f"{_short(checkpoint)} is not a checkpoint") from None
        if version != VERSION:
            raise CheckpointError(f"{_short(checkpoint)} has version {version!r}, this release reads {VERSION}")
        if run != self.run:
            raise CheckpointError(f"{_short(checkpoint)} is of another run than {UNFINISHED_FILE} beside it")
        for number, digest in enumerate(digests):
            _check_digest(self._segment(number), digest.hex())
        self._digests, self._checkpoints, self.notes = digests, [checkpoint], notes
        return state

    def _segment(self, number: int) -> Path:
        return self._partial / JOURNAL / f"{number:06d}.npz"

    def _save_recent(self) -> None:
        if not self._recent:
            return
        recent = self._recent
        arrays: dict[str, NDArray] = {name: np.concatenate([getattr(each, name) for each in recent]) for name in _COLUMNS}
        arrays["sizes"] = np.array([each.device_ids.size for each in recent], np.int64)
        arrays["attempts"] = np.array([each.attempt for each in recent], np.int64)
        arrays["rounds"] = np.array([each.round_index for each in recent], np.int64)
        content = _npz(arrays)
        write_whole(self._segment(len(self._digests)), content, f"the journal in {str(self._partial)!r}")
        self._digests.append(hashlib.sha256(content).digest())
        self._recent, self.recent_rows = [], 0


def load_checkpoint(partial: Path, run: str) -> tuple[Journal, dict[str, NDArray]]:
    """The journal and state of the newest checkpoint that is whole and of this run; one that is passed over is noted and told.

    Raises CheckpointError if there is none.
    """
    files = sorted((partial / CHECKPOINTS).glob("*.npz"), key=_number, reverse=True)
    reasons: list[str] = []
    for file in files:
        journal = Journal(partial, run)
        try:
            state = journal.take_up(file)
        except CheckpointError as error:
            reasons.append(str(error))
            continue
        for reason in reasons:
            note = f"{reason}; the run goes on from {file.name} instead"
            logging.getLogger("fedray").warning("fedray: %s", note)
            journal.notes.append(note)
        return journal, state
    if not reasons:
        raise CheckpointError(f"{str(partial)!r} has no checkpoint yet; remove it and run again from the start")
    before = ", nor can the one before be used" if len(reasons) > 1 else ""
    raise CheckpointError(f"{str(partial)!r} cannot be taken up: {reasons[0]}{before}; remove it and run again")


def write_unfinished(partial: Path, scenario: Mapping[str, Any], scenario_digest: str) -> Journal:
    """Says what is run here; the new run's journal."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "run": secrets.token_hex(16),
        "scenario_digest": scenario_digest,
        "scenario": scenario,
    }
    content = (json.dumps(document, indent=1) + "\n").encode()
    write_whole(partial / UNFINISHED_FILE, content, f"{UNFINISHED_FILE} in {str(partial)!r}")
    return Journal(partial, hashlib.sha256(content).hexdigest())


def read_unfinished(directory: Path) -> tuple[Path, dict[str, Any], str]:
    """The directory of the unfinished run, its unfinished.json, and the run's identity; for a trace's directory, or for itself.

    Raises CheckpointError.
    """
    for partial in (partial_directory(directory), directory):
        file = partial / UNFINISHED_FILE
        try:
            content = file.read_bytes()
            document = parse_json(content)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{file} cannot be read ({error}); remove the directory and run again") from None
        if not isinstance(document, dict) or document.get("format") != FORMAT or not isinstance(document.get("scenario"), dict):
            raise CheckpointError(f"{file} does not say format={FORMAT!r}; give the directory of a run that did not finish")
        if document.get("version") != VERSION:
            raise CheckpointError(f"{file} has version {document.get('version')!r}, this release reads {VERSION}; run again")
        if not has_checkpoint(partial):
            raise CheckpointError(f"{str(partial)!r} has no checkpoint yet; remove it and run again from the start")
        return partial, document, hashlib.sha256(content).hexdigest()
    raise CheckpointError(
        f"{str(directory)!r} has no unfinished run beside it ({partial_directory(directory).name}); name the --out of a run that "
        "was interrupted"
    )


def _number(checkpoint: Path) -> int:
    number = checkpoint.name.partition("-")[0]
    return int(number) if number.isdecimal() else -1


def _npz(arrays: Mapping[str, NDArray]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # pyright: ignore[reportArgumentType]
    return buffer.getvalue()


def _check_digest(file: Path, sha256: str) -> None:
    try:
        with file.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"{_short(file)} cannot be read ({error.strerror or error})") from None
    if not sha256 or not found.startswith(sha256):
        raise CheckpointError(f"{_short(file)} is damaged or of another run: its SHA-256 is not the recorded one")


def _load(file: Path, sha256: str) -> dict[str, NDArray]:
    _check_digest(file, sha256)
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, KeyError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{_short(file)} is no .npz file ({reason})") from None


def _short(file: Path) -> str:
    """A file's name within the unfinished run."""
    return f"{file.parent.name}/{file.name}"
