"""An unfinished run on disk, next to its future trace: enough to continue after any failure.

    TRACE.partial/
      unfinished.json                 format, scenario, digest, and a random name that no other run
                                      has
      lock                            held by the process at work
      journal/NUMBER.npz              settlements in order of attempt, a file per checkpoint
      checkpoints/NUMBER-DIGEST.npz   the last two checkpoints: the rest of the state
      ...                             parts of the trace so far

A checkpoint holds the SHA-256 of every journal file that belongs to it, and is written after them.
"""

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedray.base.atomic import write_whole
from fedray.base.errors import CheckpointError, RunFailed
from fedray.base.parsing import parse_json
from fedray.base.regular_file import read_regular_file
from fedray.trace.checkpoints import (
    VERSION,
    Checkpoints,
    check_digest,
    has_checkpoint,
    load_npz,
    make_folder,
    sha256_of,
    write_npz,
)
from fedray.trace.partial import JOURNAL, UNFINISHED_FILE, finished_directory, partial_directory
from fedray.trace.progress import MOST_SHARE
from fedray.trace.schema import RUN_FILE
from fedray.trace.several_tasks import is_of_tasks
from fedray.wire.messages import Settlement, settlements_of_devices

FORMAT = "fedray-unfinished"
CHECKPOINT_ROWS = 1 << 21
"""Number of rows not yet in the journal's files at which a checkpoint is due."""
MARK_SECONDS = 1.0
"""Least time between two marks; they take at most MOST_SHARE of the time."""
_COLUMNS = (
    "device_ids",
    "check_in_times",
    "report_times",
    "outcomes",
    "open_times",
    "remembers_round",
    "forget_times",
    "versions",
)


class Journal:
    """All settlements of a run, in order: those since the last checkpoint in memory, the others in
    files.

    A shard's state is a function of the scenario and the settlements, so a restarted shard is sent
    all of them.

    Args:
        partial: partial directory of the run.
        run: identity of the run, from `write_unfinished`.
    """

    def __init__(self, partial: Path, run: str) -> None:
        self._recent_rows = 0
        self._last_save = time.monotonic()
        self._partial = partial
        self._checkpoints = Checkpoints(partial, run)
        self._digests: list[bytes] = []
        self._recent: list[Settlement] = []
        self._marked: tuple[dict[str, NDArray], int] | None = None
        """A state newer than the last checkpoint, and the number of settlements before it."""
        self._next_mark = 0.0

    @property
    def notes(self) -> list[str]:
        """Notes about this run for its trace, such as a damaged checkpoint that was skipped."""
        return self._checkpoints.notes

    def append(self, settlement: Settlement) -> None:
        """Adds the next `settlement` in memory; `save` writes it to the disk."""
        self._recent.append(settlement)
        self._recent_rows += settlement.device_ids.size

    def batches(self) -> Iterator[tuple[Settlement, ...]]:
        """Yields all settlements, a batch per file, then those in memory.

        Raises CheckpointError if a file was changed.
        """
        for number, digest in enumerate(self._digests):
            arrays = load_npz(self._segment(number), digest.hex())
            # The rows of all settlements in a file are concatenated; `sizes` separates them.
            edges = np.concatenate([[0], np.cumsum(arrays["sizes"])])
            heads = zip(arrays["attempts"], arrays["rounds"], arrays["tasks"], strict=True)
            batch = []
            for place, (attempt, round_index, task) in enumerate(heads):
                rows = slice(edges[place], edges[place + 1])
                columns = (arrays[name][rows] for name in _COLUMNS)
                batch.append(Settlement(int(attempt), int(round_index), *columns, task=int(task)))
            yield tuple(batch)
        if self._recent:
            yield tuple(self._recent)

    def settlements(self, first_device: int, end_device: int) -> Iterator[tuple[Settlement, ...]]:
        """Yields the batches for the devices of one shard only: ids from `first_device` to below
        `end_device`."""
        for batch in self.batches():
            yield settlements_of_devices(batch, first_device, end_device)

    def save_if_due(self, state: Callable[[], Mapping[str, NDArray]], seconds: float) -> None:
        """Saves if enough time has passed, or the journal has grown large; else marks the state
        for `save_marked`, at most once a second.

        Args:
            state: function that returns the argument of `save`.
            seconds: time between two checkpoints, seconds.

        Raises:
            RunFailed: see `save`.
        """
        is_time = time.monotonic() - self._last_save >= seconds
        if is_time or self._recent_rows >= CHECKPOINT_ROWS:
            self.save(state())
            self._last_save = time.monotonic()
        elif (begun := time.monotonic()) >= self._next_mark:
            self._marked = {name: each.copy() for name, each in state().items()}, len(self._recent)
            taken = time.monotonic() - begun
            self._next_mark = begun + max(MARK_SECONDS, taken / MOST_SHARE)

    def save_marked(self) -> None:
        """Saves the marked state of an interrupted run. Raises RunFailed."""
        if self._marked is not None:
            state, before = self._marked
            del self._recent[before:]
            self.save(state)

    def save(self, state: Mapping[str, NDArray]) -> None:
        """Writes the settlements in memory as the journal's next file, then a checkpoint.

        state: state after all settlements so far.

        Raises RunFailed; earlier checkpoints then stay complete.
        """
        # An interruption while this state is written must not write its settlements twice.
        self._marked = None
        # The journal is written first, so that no checkpoint names a file that is not on the disk.
        make_folder(self._partial / JOURNAL)
        self._save_recent()
        digests = np.frombuffer(b"".join(self._digests), np.uint8).reshape(-1, 32)
        self._checkpoints.save({"journal": digests, **state})

    def load(self) -> dict[str, NDArray]:
        """Returns the state of the newest checkpoint with intact files, and continues from it.

        Raises:
            CheckpointError: no checkpoint is usable.
        """
        state = self._checkpoints.newest(self._check_segments)
        # The next saves overwrite journal files that are newer than this checkpoint.
        self._digests = _digests_of(state)
        del state["journal"]
        return state

    def _check_segments(self, state: dict[str, NDArray]) -> None:
        for number, digest in enumerate(_digests_of(state)):
            check_digest(self._segment(number), digest.hex())

    def _segment(self, number: int) -> Path:
        return self._partial / JOURNAL / f"{number:06d}.npz"

    def _save_recent(self) -> None:
        if not self._recent:
            return
        # One array per column for all settlements, because thousands of small ones are slow to
        # read.
        recent = self._recent
        arrays = {name: [getattr(each, name) for each in recent] for name in _COLUMNS}
        heads = {
            "sizes": [each.device_ids.size for each in recent],
            "attempts": [each.attempt for each in recent],
            "rounds": [each.round_index for each in recent],
            "tasks": [each.task for each in recent],
        }
        arrays |= {name: [np.array(head, np.int64)] for name, head in heads.items()}
        segment = self._segment(len(self._digests))
        what = f"the journal in {str(self._partial)!r}"
        write_whole(segment, lambda stream: write_npz(stream, arrays), what)
        try:
            self._digests.append(bytes.fromhex(sha256_of(segment)))
        except CheckpointError as error:
            raise RunFailed(f"{what}: {error}; check the disk, then resume the run") from None
        self._recent = []
        self._recent_rows = 0


def write_unfinished(partial: Path, document: Mapping[str, Any]) -> str:
    """Writes unfinished.json, the description of an unfinished run.

    Args:
        partial: directory of the unfinished run.
        document: everything that a resumed run needs, as JSON.

    Returns:
        Identity of the run, which differs from that of any other run, even of the same scenario.
    """
    # The random name distinguishes runs of the same scenario.
    head = {"format": FORMAT, "version": VERSION, "run": secrets.token_hex(16)}
    content = (json.dumps({**head, **document}, indent=1) + "\n").encode()
    write_whole(partial / UNFINISHED_FILE, content, f"{UNFINISHED_FILE} in {str(partial)!r}")
    # The identity is a digest of the content, so an edited file matches no checkpoint.
    return hashlib.sha256(content).hexdigest()


def read_unfinished(directory: Path) -> tuple[Path, dict[str, Any], str]:
    """Returns the partial directory of an unfinished run, its unfinished.json and the run's
    identity.

    directory: output of the run, or its partial directory.

    Raises CheckpointError.
    """
    # A user may give the intended output, or the partial directory.
    for partial in (partial_directory(directory), directory):
        file = partial / UNFINISHED_FILE
        try:
            content = read_regular_file(file)
            document = parse_json(content)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{file} cannot be read ({error}); remove the directory and run again"
            ) from None
        is_ours = isinstance(document, dict) and document.get("format") == FORMAT
        if not is_ours or not isinstance(document.get("scenario"), dict):
            raise CheckpointError(
                f"{file} has no format = {FORMAT!r}; give the directory of a run that did not "
                "finish"
            )
        if document.get("version") != VERSION:
            raise CheckpointError(
                f"{file} has version {document.get('version')!r}, this release reads {VERSION}; "
                "run again"
            )
        if not has_checkpoint(partial):
            raise CheckpointError(
                f"{str(partial)!r} has no checkpoint yet; start the run again, which replaces it"
            )
        return partial, document, hashlib.sha256(content).hexdigest()
    # For a training, callers give the partial directory.
    wanted = finished_directory(directory)
    raise CheckpointError(
        f"{str(wanted)!r} has no unfinished run next to it ({partial_directory(wanted).name}); "
        "give the directory of an interrupted run"
    )


def has_begun(directory: Path) -> bool:
    """Whether a run at `directory`, its output or partial directory, is complete or has a
    checkpoint."""
    is_complete = is_of_tasks(directory) or (directory / RUN_FILE).exists()
    folders = (partial_directory(directory), directory)
    return is_complete or any(has_checkpoint(folder) for folder in folders)


def _digests_of(state: Mapping[str, NDArray]) -> list[bytes]:
    try:
        return [row.tobytes() for row in state["journal"].reshape(-1, 32)]
    except (KeyError, ValueError):
        raise CheckpointError(
            "the checkpoint does not record which journal it belongs to"
        ) from None
