"""Writes a trace to a partial directory, which is renamed at the end, so that a trace is complete
as soon as it exists under its name."""

import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fedray.base.atomic import write_whole
from fedray.trace.partial import MARK, TOKEN_FILE, PartialDirectory
from fedray.trace.provenance import package_versions
from fedray.trace.schema import (
    BUFFERED_SCHEMA,
    FORMAT,
    LOSS_SCHEMA,
    LOSSES_DIGEST,
    LOSSES_FILE,
    OUTCOMES,
    OWNER,
    PARTICIPATION_SCHEMA,
    PARTICIPATIONS,
    ROUND_SCHEMA,
    ROUNDS_FILE,
    RUN_FILE,
    SCHEMA_VERSION,
    STATES,
    column_digest,
    columns_digest,
    part_file,
    run_digest,
)
from fedray.wire.messages import ClassCounts, Losses, RoundRecord, ShardPart

ROW_GROUP = 1 << 20


def encode_part(first_device: int, end_device: int, columns: Mapping[str, NDArray]) -> ShardPart:
    """Encodes one part as Parquet bytes.

    Args:
        first_device: smallest permitted id.
        end_device: one above the largest permitted id.
        columns: columns of PARTICIPATION_SCHEMA, or of BUFFERED_SCHEMA with versions, and perhaps
            OWNER; outcomes as codes, NaN for no report.

    Returns:
        The part with its bytes and the digests of its values.
    """
    schema = BUFFERED_SCHEMA if "version" in columns else PARTICIPATION_SCHEMA
    schema = schema.append(OWNER) if OWNER.name in columns else schema
    # The digest depends on the order of the columns, which is that of the schema.
    ordered = {name: columns[name] for name in schema.names}
    arrays = [_to_arrow(ordered[field.name], field) for field in schema]
    table = pa.table(arrays, schema=schema)
    # Times are nearly random, so compressing them costs more than it saves.
    compression = {name: "NONE" if name.endswith("_time") else "ZSTD" for name in schema.names}
    buffer = io.BytesIO()
    pq.write_table(
        table,
        buffer,
        compression=compression,  # pyright: ignore[reportArgumentType]
        row_group_size=ROW_GROUP,
        use_dictionary=["outcome"],  # pyright: ignore[reportArgumentType]  (the stub knows bool only)
        # Sorted ids differ little, and byte-stream split groups the similar upper bytes of times.
        column_encoding={
            "round": "PLAIN",
            "device_id": "DELTA_BINARY_PACKED",
            "checkin_time": "BYTE_STREAM_SPLIT",
            "report_time": "BYTE_STREAM_SPLIT",
            "examples": "PLAIN",
            **({"version": "PLAIN"} if "version" in columns else {}),
            **({OWNER.name: "DELTA_BINARY_PACKED"} if OWNER.name in columns else {}),
        },
        write_page_checksum=True,
    )
    # Readers of a few columns check only the digests of these.
    digests = {name: column_digest(name, column) for name, column in ordered.items()}
    return ShardPart(
        first_device,
        end_device,
        table.num_rows,
        columns_digest(ordered),
        digests,
        buffer.getvalue(),
    )


def _to_arrow(column: NDArray, field: pa.Field) -> pa.Array:
    if pa.types.is_dictionary(field.type):
        names = OUTCOMES if field.name == "outcome" else STATES
        return pa.DictionaryArray.from_arrays(pa.array(column.astype(np.int8)), pa.array(names))
    missing = np.isnan(column) if field.nullable else None
    return pa.array(column, type=field.type, mask=missing)


def round_columns(records: Sequence[RoundRecord]) -> dict[str, NDArray]:
    """Returns the columns of rounds.parquet in the schema's order, with a row for each of the
    `records`; the state as a code, its position in STATES."""
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


class TraceWriter(PartialDirectory):
    """An unfinished trace: a directory that gets its final name when everything is written."""

    made_again = (PARTICIPATIONS,)

    def __init__(self, directory: str | Path, *, is_resumed: bool = False) -> None:
        super().__init__(directory, RUN_FILE, is_resumed=is_resumed)
        self._parts: list[dict[str, Any]] = []
        self._losses: dict[int, Losses] = {}
        """Losses of histories by the part's first device."""
        self.class_counts: ClassCounts | None = None
        """Participations by class of devices in all parts so far."""

    def add_part(self, part: ShardPart) -> None:
        """Adds a `part`, and writes it unless its shard has. Parts may come in any order."""
        name = part_file(part.first_device)
        # A part without bytes was written by its shard, which shares the file system.
        if part.parquet is not None:
            self._write(name, part.parquet)
        if part.losses is not None:
            self._losses[part.first_device] = part.losses
        if part.classes is not None:
            before = self.class_counts
            self.class_counts = part.classes if before is None else before + part.classes
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

    def finish(self, records: Sequence[RoundRecord], run: Mapping[str, Any]) -> Path:
        """Writes rounds and run.json, then gives the directory its final name.

        Args:
            records: every attempt at a round, in order of time.
            run: further keys of run.json.

        Returns:
            The directory's path.
        """
        # Shards finish in any order, and the digest of the run must not depend on it.
        self._parts.sort(key=lambda part: part["first_device"])
        columns = round_columns(records)
        arrays = [_to_arrow(columns[field.name], field) for field in ROUND_SCHEMA]
        self._write_table(ROUNDS_FILE, pa.table(arrays, schema=ROUND_SCHEMA))
        # Digests depend on values only, so another Parquet writer would give the same.
        rounds_digest = columns_digest(columns)
        losses_digest = self._write_losses() if self._losses else None
        part_digests = [part["digest"] for part in self._parts]
        document = {
            "format": FORMAT,
            "schema_version": SCHEMA_VERSION,
            "digest": run_digest(part_digests, rounds_digest, losses_digest),
            "rounds_digest": rounds_digest,
            **({LOSSES_DIGEST: losses_digest} if losses_digest is not None else {}),
            **run,
            "packages": package_versions(),
            "parts": self._parts,
        }
        return self.publish(document)

    def _write_losses(self) -> str:
        """Writes the losses of all parts, and returns the digest of the file."""
        # Losses are sorted by device (invariant 7), and parts come in any order.
        parts = [self._losses[first_device] for first_device in sorted(self._losses)]
        columns = {
            name: np.concatenate(arrays)
            for name, arrays in zip(LOSS_SCHEMA.names, zip(*parts, strict=True), strict=True)
        }
        arrays = [_to_arrow(columns[field.name], field) for field in LOSS_SCHEMA]
        self._write_table(LOSSES_FILE, pa.table(arrays, schema=LOSS_SCHEMA))
        return columns_digest(columns)

    def _write_table(self, name: str, table: pa.Table) -> None:
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
        self._write(name, buffer.getvalue())


def write_part(part: ShardPart, partial: str, token: str) -> ShardPart:
    """Writes a shard's part to the writer's directory if visible here, and drops the bytes.

    Args:
        part: part with its bytes.
        partial: path of the directory on the driver's machine.
        token: content of the writer's token file; the same path on another machine has another
            token.

    Returns:
        The part without bytes if it was written; otherwise the unchanged part, which must be sent.
    """
    directory = Path(partial)
    try:
        # A directory with the same path on another machine has another token.
        if (directory / TOKEN_FILE).read_text() != f"{MARK}{token}":
            return part
    except OSError:
        return part
    # The token is this writer's, so the shard shares its file system.
    assert part.parquet is not None
    name = part_file(part.first_device)
    write_whole(directory / name, part.parquet, f"{name} in {partial!r}")
    return dataclasses.replace(part, parquet=None)
