"""Writes a trace: into a directory beside the final one, renamed at the end. Until then no trace exists under its name."""

import contextlib
import dataclasses
import io
import json
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fedray.atomic import sync_directory, write_whole
from fedray.errors import InputError, RunFailed
from fedray.messages import RoundRecord, ShardPart, TrainingMetrics
from fedray.trace.files import check_name
from fedray.trace.provenance import package_versions
from fedray.trace.schema import (
    DOCUMENT_DIGEST,
    FORMAT,
    METRIC_SCHEMA,
    METRICS_FILE,
    MODEL_FILE,
    OUTCOMES,
    PARTICIPATION_SCHEMA,
    PARTICIPATIONS,
    ROUND_SCHEMA,
    ROUNDS_FILE,
    RUN_FILE,
    SCHEMA_VERSION,
    STATES,
    column_digest,
    columns_digest,
    document_digest,
    part_file,
    run_digest,
)
from fedray.trace.unfinished import LOCK_FILE, Lock, has_checkpoint, partial_directory, remove_unfinished

ROW_GROUP = 1 << 20
TOKEN_FILE = "token"
MARK = "fedray-partial "
"""What TOKEN_FILE begins with: the mark of a directory that we made, and may remove."""


def encode_part(first_device: int, end_device: int, columns: Mapping[str, NDArray]) -> ShardPart:
    """One part as Parquet bytes. Columns as in PARTICIPATION_SCHEMA, in its order, outcomes as codes, NaN for no report."""
    ordered = {name: columns[name] for name in PARTICIPATION_SCHEMA.names}
    table = pa.table([_to_arrow(ordered[field.name], field) for field in PARTICIPATION_SCHEMA], schema=PARTICIPATION_SCHEMA)
    buffer = io.BytesIO()
    pq.write_table(
        table,
        buffer,
        # Times are nearly random: compressing them costs more than it saves.
        compression={field.name: "NONE" if field.name.endswith("_time") else "ZSTD" for field in PARTICIPATION_SCHEMA},  # pyright: ignore[reportArgumentType]
        row_group_size=ROW_GROUP,
        use_dictionary=["outcome"],  # pyright: ignore[reportArgumentType]  (the stub knows bool only)
        column_encoding={
            "round": "PLAIN",
            "device_id": "DELTA_BINARY_PACKED",
            "checkin_time": "BYTE_STREAM_SPLIT",
            "report_time": "BYTE_STREAM_SPLIT",
            "examples": "PLAIN",
        },
        write_page_checksum=True,
    )
    digests = {name: column_digest(name, column) for name, column in ordered.items()}
    return ShardPart(first_device, end_device, table.num_rows, columns_digest(ordered), digests, buffer.getvalue())


def _to_arrow(column: NDArray, field: pa.Field) -> pa.Array:
    if pa.types.is_dictionary(field.type):
        names = OUTCOMES if field.name == "outcome" else STATES
        return pa.DictionaryArray.from_arrays(pa.array(column.astype(np.int8)), pa.array(names))
    missing = np.isnan(column) if field.nullable else None
    return pa.array(column, type=field.type, mask=missing)


def round_columns(records: Sequence[RoundRecord]) -> dict[str, NDArray]:
    """Columns of rounds.parquet, in the schema's order; the state as a code."""
    return {
        "round": np.array([record.round_index for record in records], np.uint32),
        "opened": np.array([record.opened for record in records], np.float64),
        "started": np.array([record.started for record in records], np.float64),
        "closed": np.array([record.closed for record in records], np.float64),
        "selected": np.array([record.selected for record in records], np.uint32),
        "reported": np.array([record.reported for record in records], np.uint32),
        "accepted": np.array([record.accepted for record in records], np.uint32),
        "state": np.array([0 if record.is_committed else 1 for record in records], np.uint8),
        "eligible_estimate": np.array([record.eligible_estimate for record in records], np.uint64),
    }


class TraceWriter:
    """A trace in the making, under `<directory>.partial`; a context that removes it unless it is finished or can be resumed.

    Raises InputError when the directory exists already, cannot be made, or is written by another process, and when
    `<directory>.partial` is somebody else's: nothing is removed that no writer made.
    """

    def __init__(self, directory: str | Path, *, is_resumed: bool = False) -> None:
        self.directory = Path(os.path.abspath(directory))
        check_name(self.directory)
        self.partial = partial_directory(self.directory)
        self._made: list[Path] = []
        self._is_kept, self._is_discarded = is_resumed, False
        self._parts: list[dict[str, Any]] = []
        self._metrics_digest: str | None = None
        self._lock: Lock | None = None
        try:
            if len(os.fsencode(self.directory.name)) > 200:
                raise OSError("its name is longer than 200 bytes")
            if os.path.lexists(self.directory) and not _is_plain_and_empty(self.directory):
                raise InputError(f"output {str(directory)!r} exists already; name a new directory, or remove it first")
            if os.path.lexists(self.partial):
                _check_ours(self.partial, str(directory), is_resumed)
            if not is_resumed:
                if has_checkpoint(self.partial):
                    raise InputError(
                        f"output {str(directory)!r} has an unfinished run in {str(self.partial)!r}; go on with it by --resume "
                        f"{self.directory.name}, or remove it"
                    )
                self._made = [folder for folder in self.partial.parents if not folder.exists()]
            self.partial.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(self.partial)
            _check_ours(self.partial, str(directory), is_resumed)  # again, now that nobody else is at work in it
            self.token = secrets.token_hex(16)
            """Of this writer: whoever reads it in the partial directory shares its file system."""
            self._write(TOKEN_FILE, f"{MARK}{self.token}".encode())
            self._clear(is_resumed)
            (self.partial / PARTICIPATIONS).mkdir(exist_ok=True)
            for folder in (*self._made, self.partial):  # so that the run outlasts a power cut
                sync_directory(folder.parent)
        except (OSError, RunFailed) as error:
            self.__exit__(None, None, None)
            raise InputError(f"output {str(directory)!r} cannot be made ({error}); name a writable directory") from None
        except InputError:
            self._release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        if not (self._is_kept or (self.can_be_resumed and not self._is_discarded)):
            self._remove()
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    @property
    def can_be_resumed(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return has_checkpoint(self.partial)

    def discard(self) -> None:
        """There is nothing to go on for: no checkpoint is kept."""
        self._is_kept, self._is_discarded = False, True

    def _clear(self, is_resumed: bool) -> None:
        """What a run that ended early has left: all of it, or of a run that is resumed the parts of its trace."""
        for path in [self.partial / PARTICIPATIONS] if is_resumed else list(self.partial.iterdir()):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name not in (LOCK_FILE, TOKEN_FILE):
                path.unlink(missing_ok=True)

    def _remove(self) -> None:
        """Removes what was made, directories above included; those that hold the finished trace stay."""
        if self._lock is not None:  # held until all is gone
            shutil.rmtree(self.partial, ignore_errors=True)
        for folder in self._made:
            with contextlib.suppress(OSError):
                folder.rmdir()

    def add_part(self, part: ShardPart) -> None:
        """Parts may come in any order."""
        name = part_file(part.first_device)
        if part.parquet is not None:  # else its shard has written it
            self._write(name, part.parquet)
        self._parts.append(
            {
                "file": name,
                "first_device": part.first_device,
                "end_device": part.end_device,
                "rows": part.rows,
                "digest": part.digest,
                "columns": dict(part.column_digests),
            }
        )

    def save_model(self, arrays: Mapping[str, NDArray]) -> None:
        """The aggregator's state; replaces the one before."""
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)  # pyright: ignore[reportArgumentType]
        self._write(MODEL_FILE, buffer.getvalue())

    def save_matrix(self, matrix: NDArray[np.float64], sha256: str) -> None:
        """The mechanism's matrix, by its content, so that the trace can be audited alone."""
        buffer = io.BytesIO()
        np.save(buffer, matrix)
        self.save_content(f"{sha256}.npy", buffer.getvalue())

    def save_content(self, name: str, content: bytes) -> None:
        """A file that the scenario names, by its content."""
        self._write(name, content)

    def save_metrics(self, metrics: Sequence[TrainingMetrics]) -> None:
        """One row per committed round, in order."""
        columns = {
            "round": np.array([row.round_index for row in metrics], np.uint32),
            "train_loss": np.array([row.train_loss for row in metrics], np.float64),
            "clipped_share": np.array([row.clipped_share for row in metrics], np.float64),
            "evaluation_loss": np.array([row.evaluation_loss for row in metrics], np.float64),
            "evaluation_accuracy": np.array([row.evaluation_accuracy for row in metrics], np.float64),
        }
        self._metrics_digest = columns_digest(columns)
        arrays = [_to_arrow(columns[field.name], field) for field in METRIC_SCHEMA]
        self._write_table(METRICS_FILE, pa.table(arrays, schema=METRIC_SCHEMA))

    def finish(self, records: Sequence[RoundRecord], run: Mapping[str, Any]) -> Path:
        """Writes rounds and run.json (with `run` in it), then renames the directory. Returns its path."""
        self._parts.sort(key=lambda part: part["first_device"])
        columns = round_columns(records)
        arrays = [_to_arrow(columns[field.name], field) for field in ROUND_SCHEMA]
        self._write_table(ROUNDS_FILE, pa.table(arrays, schema=ROUND_SCHEMA))
        rounds_digest = columns_digest(columns)
        document = {
            "format": FORMAT,
            "schema_version": SCHEMA_VERSION,
            "digest": run_digest([part["digest"] for part in self._parts], rounds_digest),
            "rounds_digest": rounds_digest,
            "metrics_digest": self._metrics_digest,
            **run,
            "packages": package_versions(),
            "parts": self._parts,
        }
        return self.publish(document)

    def publish(self, document: Mapping[str, Any]) -> Path:
        """Writes run.json with the digest of its content, then gives the directory its name. Returns its path."""
        whole = {**document, DOCUMENT_DIGEST: document_digest(document)}
        self._write(RUN_FILE, (json.dumps(whole, indent=1) + "\n").encode())
        self._is_kept = True
        try:
            if self.directory.exists():
                self.directory.rmdir()  # empty: checked at the start
            self.partial.rename(self.directory)
            sync_directory(self.directory.parent)
        except OSError as error:
            raise RunFailed(
                f"the finished trace cannot be named {str(self.directory)!r} ({error}); it is kept whole in "
                f"{str(self.partial)!r}, rename it yourself"
            ) from None
        with contextlib.suppress(OSError):  # the trace is whole; what is left of its making does no harm
            (self.directory / TOKEN_FILE).unlink(missing_ok=True)
        remove_unfinished(self.directory)
        return self.directory

    def _write_table(self, name: str, table: pa.Table) -> None:
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
        self._write(name, buffer.getvalue())

    def _write(self, name: str, content: bytes) -> None:
        write_whole(self.partial / name, content, f"{name} of {str(self.directory)!r}")


def write_part(part: ShardPart, partial: str, token: str) -> ShardPart:
    """Called by a shard: writes its part into the writer's directory if it sees it, and then leaves the bytes out."""
    directory = Path(partial)
    try:
        if (directory / TOKEN_FILE).read_text() != f"{MARK}{token}":
            return part
    except OSError:
        return part
    assert part.parquet is not None
    name = part_file(part.first_device)
    write_whole(directory / name, part.parquet, f"{name} in {partial!r}")
    return dataclasses.replace(part, parquet=None)


def _check_ours(partial: Path, output: str, is_resumed: bool) -> None:
    """Raises InputError unless the directory is a writer's own, or has nothing in it: nobody else's files may be lost.

    That of a run which is resumed was read before, and may be of a release that had no mark.
    """
    remedy = "move it away, or name another output"
    if partial.is_symlink() or not partial.is_dir():
        raise InputError(f"output {output!r} needs {str(partial)!r}, which is there and is no plain directory; {remedy}")
    if (partial / RUN_FILE).exists():
        raise InputError(f"output {output!r} needs {str(partial)!r}, which holds a finished trace; rename it or {remedy}")
    is_empty = all(path.name == LOCK_FILE and not path.lstat().st_size for path in partial.iterdir())
    if not (is_empty or is_resumed or _is_marked(partial)):
        raise InputError(f"output {output!r} needs {str(partial)!r}, which is there and was not made by fedray; {remedy}")


def _is_marked(partial: Path) -> bool:
    with contextlib.suppress(OSError), (partial / TOKEN_FILE).open("rb") as file:
        return file.read(len(MARK)) == MARK.encode()
    return False


def _is_plain_and_empty(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and not path.is_mount() and not any(path.iterdir())
