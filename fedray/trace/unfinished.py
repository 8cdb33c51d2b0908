"""An unfinished run on disk, beside where its trace will be: enough to go on after whatever ended it.

    TRACE.partial/
      unfinished.json       what is run: format, scenario, digest
      lock                  held by the process that is at work
      journal/*.npz         settlements in order of attempt, a file per checkpoint
      checkpoint.npz        the rest of the state, and how many journal files belong to it
      ...                   what is written of the trace so far

Files are written whole or not at all, and the checkpoint last, so that what it names is there. Nothing is unpickled.
"""

import fcntl
import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedray.atomic import write_whole
from fedray.errors import CheckpointError, InputError, RunFailed
from fedray.messages import Settlement

UNFINISHED_FILE = "unfinished.json"
CHECKPOINT_FILE = "checkpoint.npz"
LOCK_FILE = "lock"
JOURNAL = "journal"
FORMAT = "fedray-unfinished"
VERSION = 2
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


class Journal:
    """Every settlement of a run, in order: those since the last checkpoint in memory, the others in files."""

    def __init__(self, partial: Path, segments: int = 0) -> None:
        self._folder = partial / JOURNAL
        self._segments = segments
        self._recent: list[Settlement] = []
        self.recent_rows = 0

    @property
    def segments(self) -> int:
        """Files written."""
        return self._segments

    def append(self, settlement: Settlement) -> None:
        """Takes the next settlement."""
        self._recent.append(settlement)
        self.recent_rows += settlement.device_ids.size

    def save(self) -> None:
        """Writes what is in memory as the next file, and forgets it."""
        if not self._recent:
            return
        recent = self._recent
        arrays: dict[str, NDArray] = {name: np.concatenate([getattr(each, name) for each in recent]) for name in _COLUMNS}
        arrays["sizes"] = np.array([each.device_ids.size for each in recent], np.int64)
        arrays["attempts"] = np.array([each.attempt for each in recent], np.int64)
        arrays["rounds"] = np.array([each.round_index for each in recent], np.int64)
        try:
            self._folder.mkdir(exist_ok=True)
        except OSError as error:
            raise RunFailed(f"writing the journal failed ({error.strerror or error}); free space there and run again") from None
        write_whole(self._folder / f"{self._segments:06d}.npz", _npz(arrays), f"the journal in {str(self._folder)!r}")
        self._segments += 1
        self._recent, self.recent_rows = [], 0

    def settlements(self, first_device: int, end_device: int) -> Iterator[tuple[Settlement, ...]]:
        """All settlements, cut to a range of devices; a batch per file, then those in memory. Raises CheckpointError."""
        for segment in range(self._segments):
            arrays = _load(self._folder / f"{segment:06d}.npz")
            edges = np.concatenate([[0], np.cumsum(arrays["sizes"])])
            batch = []
            for place, (attempt, round_index) in enumerate(zip(arrays["attempts"], arrays["rounds"], strict=True)):
                rows = slice(edges[place], edges[place + 1])
                whole = Settlement(int(attempt), int(round_index), *(arrays[name][rows] for name in _COLUMNS))
                batch.append(whole.slice_of_devices(first_device, end_device))
            yield tuple(batch)
        if self._recent:
            yield tuple(settlement.slice_of_devices(first_device, end_device) for settlement in self._recent)


def save_checkpoint(partial: Path, journal: Journal, scenario_digest: str, state: Mapping[str, NDArray]) -> None:
    """Writes the journal, then the state that belongs to it. Raises RunFailed; the checkpoint before stays whole then."""
    journal.save()
    head = {"version": VERSION, "scenario_digest": scenario_digest, "segments": journal.segments}
    arrays = {"head": np.frombuffer(json.dumps(head).encode(), np.uint8), **state}
    write_whole(partial / CHECKPOINT_FILE, _npz(arrays), f"a checkpoint in {str(partial)!r}")


def load_checkpoint(partial: Path, scenario_digest: str) -> tuple[Journal, dict[str, NDArray]]:
    """The journal and state of the last checkpoint. Raises CheckpointError if it is damaged or of another scenario."""
    state = _load(partial / CHECKPOINT_FILE)
    try:
        head = json.loads(state.pop("head").tobytes())
        version, digest, segments = head["version"], head["scenario_digest"], int(head["segments"])
    except (KeyError, ValueError, TypeError):
        raise CheckpointError(f"{partial / CHECKPOINT_FILE} is not a checkpoint; remove the directory and run again") from None
    if version != VERSION:
        raise CheckpointError(f"{partial / CHECKPOINT_FILE} has version {version!r}, this release reads {VERSION}; run again")
    if digest != scenario_digest:
        raise CheckpointError(
            f"{partial / CHECKPOINT_FILE} is of another scenario (digest {digest[:12]}) than this one ({scenario_digest[:12]}); "
            "leave the scenario out, or give the one it was started with"
        )
    return Journal(partial, segments), state


def write_unfinished(partial: Path, scenario: Mapping[str, Any], scenario_digest: str) -> None:
    """Says what is run here."""
    document = {"format": FORMAT, "version": VERSION, "scenario_digest": scenario_digest, "scenario": scenario}
    write_whole(
        partial / UNFINISHED_FILE, (json.dumps(document, indent=1) + "\n").encode(), f"{UNFINISHED_FILE} in {str(partial)!r}"
    )


def read_unfinished(directory: Path) -> tuple[Path, dict[str, Any]]:
    """(directory of the unfinished run, its unfinished.json) for a trace's directory, or for itself. Raises CheckpointError."""
    for partial in (partial_directory(directory), directory):
        file = partial / UNFINISHED_FILE
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(f"{file} cannot be read ({error}); remove the directory and run again") from None
        if not isinstance(document, dict) or document.get("format") != FORMAT or not isinstance(document.get("scenario"), dict):
            raise CheckpointError(f"{file} does not say format={FORMAT!r}; give the directory of a run that did not finish")
        if not (partial / CHECKPOINT_FILE).exists():
            raise CheckpointError(f"{str(partial)!r} has no checkpoint yet; remove it and run again from the start")
        return partial, document
    raise CheckpointError(
        f"{str(directory)!r} has no unfinished run beside it ({partial_directory(directory).name}); name the --out of a run that "
        "was interrupted"
    )


def _npz(arrays: Mapping[str, NDArray]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # pyright: ignore[reportArgumentType]
    return buffer.getvalue()


def _load(file: Path) -> dict[str, NDArray]:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{file} is missing or damaged ({reason}); remove {str(file.parent)!r} and run again") from None
