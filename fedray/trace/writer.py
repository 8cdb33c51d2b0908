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
from fedray.trace.columns import COLUMNS, LOSS_SCHEMA, arrow_table, columns_named
from fedray.trace.partial import MARK, TOKEN_FILE, PartialDirectory
from fedray.trace.provenance import package_versions
from fedray.trace.schema import (
    FORMAT,
    LOSSES_DIGEST,
    LOSSES_FILE,
    PARTICIPATIONS,
    ROUNDS_FILE,
    RUN_FILE,
    SCHEMA_VERSION,
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
        columns: columns of participations that the run has; outcomes as codes, NaN for no report.

    Returns:
        The part with its bytes and the digests of its values.

    Raises:
        ValueError: a column is unknown, or one that every run has is missing.
    """
    chosen = columns_named(PARTICIPATIONS, columns)
    # The digest depends on the order of the columns, which is that of the file.
    ordered = {each.name: columns[each.name] for each in chosen}
    table = arrow_table(chosen, ordered)
    compression = {each.name: each.compression for each in chosen}
    buffer = io.BytesIO()
    pq.write_table(
        table,
        buffer,
        compression=compression,  # pyright: ignore[reportArgumentType]
        row_group_size=ROW_GROUP,
        # The library's stub knows only a bool here.
        use_dictionary=[each.name for each in chosen if each.texts],  # pyright: ignore[reportArgumentType]
        column_encoding={each.name: each.encoding for each in chosen if not each.texts},
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


def round_columns(records: Sequence[RoundRecord]) -> dict[str, NDArray]:
    """Returns the columns of rounds.parquet, in order, with a row for each of the `records`; the
    state as a code, its position in STATES."""
    columns = {}
    for column in COLUMNS[ROUNDS_FILE]:
        match column.name:
            case "round":
                values = [record.round_index for record in records]
            case "state":
                values = [0 if record.is_committed else 1 for record in records]
            case name:
                values = [getattr(record, name) for record in records]
        columns[column.name] = np.array(values, column.dtype)
    return columns


class TraceWriter(PartialDirectory):
    """An unfinished trace: a directory that gets its final name when everything is written."""

    made_again = (PARTICIPATIONS,)

    def __init__(
        self, directory: str | Path, *, is_resumed: bool = False, replaces: bool = False
    ) -> None:
        super().__init__(directory, RUN_FILE, is_resumed=is_resumed, replaces=replaces)
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
        self._write_table(ROUNDS_FILE, arrow_table(COLUMNS[ROUNDS_FILE], columns))
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
            # A trace that is made of another one has the packages of that one.
            **{"packages": package_versions(), **run},
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
        self._write_table(LOSSES_FILE, arrow_table(COLUMNS[LOSSES_FILE], columns))
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
