"""Makes a trace of a log: any order, any size, devices of any name. pyarrow reads, DuckDB sorts (on disk where memory ends).

One pass over the log checks every row and stages (device, round) on disk; the sort reads that; one pass over what comes out numbers
the devices, finds repeated rows, and writes the parts. No step holds more than its batches. Rows that are no participation are
counted by reason and refused, or left out if asked.
"""

import datetime
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from fedray.errors import InputError, RunFailed
from fedray.trace.files import first_line
from fedray.trace.imported import (
    DEVICES_FILE,
    IMPORT_FORMAT,
    IMPORT_VERSION,
    IMPORTED_SCHEMA,
    NAMES_PER_GROUP,
    ImportedTrace,
    LeftOut,
    file_digest,
    imported_digest,
)
from fedray.trace.provenance import package_versions
from fedray.trace.schema import part_file, run_digest
from fedray.trace.writer import TraceWriter

PART_ROWS = 1 << 22
BATCH_ROWS = 1 << 20
MOST_ROUNDS = 2**32 - 1
LEAST_MEMORY = 64
"""MiB, of the sort."""
REPEATED = "the same device in the same round again"
_FORMATS = {".csv": "csv", ".gz": "csv", ".bz2": "csv", ".zst": "csv", ".parquet": "parquet", ".pq": "parquet"}
_COMPUTE: Any = pc  # its functions are made at import; stubs do not know them


def import_log(
    log: str | Path,
    device_column: str,
    round_column: str,
    rounds: int,
    out: str | Path,
    file_format: str | None = None,
    *,
    leave_out_invalid: bool = False,
    memory_mebibytes: int = 2048,
    on_rows: Callable[[int], None] | None = None,
) -> ImportedTrace:
    """Imports a CSV or Parquet file, or a directory of them, as the trace `out` of `rounds` released rounds (counted from 0).

    device_column: whole numbers, strings or bytes; of CSV always strings. round_column: whole numbers. Repeated rows count once,
    and are reported. Rows without a device, or whose round is none of 0 .. rounds-1, are refused, or left out and reported.
    memory_mebibytes: of the sort; files take the rest. Raises InputError, RunFailed.
    """
    if not 1 <= rounds <= MOST_ROUNDS:
        raise InputError(f"rounds={rounds} must be from 1 to {MOST_ROUNDS}; it is how many rounds released a model")
    if not LEAST_MEMORY <= memory_mebibytes <= 1 << 20:
        raise InputError(f"--memory={memory_mebibytes} must be from {LEAST_MEMORY} to {1 << 20} MiB; 2048 is usual")
    source = _Log(Path(log), file_format, device_column, round_column, rounds, on_rows)
    with TraceWriter(out) as writer:
        staged, sorting = writer.partial / "staged.parquet", writer.partial / "sorting"
        source.stage(staged)
        if source.left_out and not leave_out_invalid:
            raise InputError(_refusal(source))
        parts = _Parts(writer)
        for devices, indices in _sorted(staged, sorting, memory_mebibytes):
            parts.add(devices, indices)
        staged.unlink()
        shutil.rmtree(sorting, ignore_errors=True)
        entries, devices, repeated = parts.finish()
        if not entries:
            raise InputError(
                f"log {str(log)!r} has no participation ({source.rows} rows); nothing was released that could be audited"
            )
        left_out = [*source.left_out.values(), *([repeated] if repeated is not None else [])]
        document = {
            "format": IMPORT_FORMAT,
            "version": IMPORT_VERSION,
            "digest": run_digest([entry["digest"] for entry in entries], str(rounds)),
            "devices_digest": file_digest(writer.partial / DEVICES_FILE),
            "log": str(log),
            "device_column": device_column,
            "round_column": round_column,
            "rounds": rounds,
            "rows_read": source.rows,
            "rows": sum(entry["rows"] for entry in entries),
            "devices": devices,
            "left_out": [asdict(each) for each in left_out],
            "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "packages": package_versions(),
            "parts": entries,
        }
        return ImportedTrace.open(writer.publish(document))


def _refusal(source: "_Log") -> str:
    reasons = "; ".join(f"{each.rows:,} {each.reason} (such as {each.example})" for each in source.left_out.values())
    return (
        f"log {str(source.path)!r} has rows that are no participation: {reasons}; correct the log or --rounds={source.rounds}, "
        "or leave them out, reported, by --leave-out-invalid"
    )


class _Log:
    """A log's valid rows, batch by batch; what is not valid is counted in `left_out`, by reason."""

    def __init__(
        self, path: Path, file_format: str | None, device: str, round_: str, rounds: int, on_rows: Callable[[int], None] | None
    ) -> None:
        self.path, self.rounds, self.rows = path, rounds, 0
        self.left_out: dict[str, LeftOut] = {}
        self._device, self._round, self._on_rows = device, round_, on_rows
        self._columns = [device, round_]
        self._files = _files(path)
        self._is_csv = _format_of(self._files[0], file_format) == "csv"
        schema = self._csv(self._files[0], []).schema if self._is_csv else _parquet(self._files[0]).schema_arrow
        names = schema.names
        for what, column in (("--device-column", device), ("--round-column", round_)):
            if names.count(column) > 1:
                raise InputError(
                    f"{what}={column!r} is the name of {names.count(column)} columns of {str(path)!r}; rename one of them"
                )
            if column not in names:
                raise InputError(f"{what}={column!r} is not a column of {str(path)!r}; it has {', '.join(names[:20])}")
        if device == round_:
            raise InputError(f"--device-column and --round-column are both {device!r}; name two columns")
        self._types = [pa.string() if self._is_csv else schema.field(name).type for name in (device, round_)]
        self.schema = pa.schema([pa.field("device", self._device_type()), pa.field("round", pa.uint32())])

    def stage(self, file: Path) -> None:
        """Writes the valid rows to a Parquet file. Raises InputError for logs that cannot be read, RunFailed for a full disk."""
        try:
            with pq.ParquetWriter(file, self.schema, compression="lz4", use_dictionary=False) as writer:
                for batch in self._batches():
                    writer.write_batch(batch)
        except OSError as error:  # reading has errors of its own
            raise RunFailed(f"staging the log in {str(file)!r} failed ({first_line(error)}); free space there") from None

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._read():
                self.rows += batch.num_rows
                yield self._valid(batch.column(self._device), batch.column(self._round))
                if self._on_rows is not None:
                    self._on_rows(self.rows)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise InputError(f"log {str(self.path)!r} cannot be read ({first_line(error)}); correct that place") from None

    def _read(self) -> Iterator[pa.RecordBatch]:
        if self._is_csv:
            for file in self._files:
                yield from self._csv(file, self._columns)
            return
        for file in self._files:
            with _parquet(file) as parquet:
                found = [
                    parquet.schema_arrow.field(name).type if name in parquet.schema_arrow.names else None for name in self._columns
                ]
                if found != self._types:
                    raise InputError(
                        f"log {str(file)!r} has the columns {', '.join(self._columns)} as {found}, {str(self._files[0])!r} as "
                        f"{self._types}; bring all files to one form"
                    )
                yield from parquet.iter_batches(batch_size=BATCH_ROWS, columns=self._columns)

    def _csv(self, file: Path, columns: list[str]) -> arrow_csv.CSVStreamingReader:
        """Reads columns as text; all of them, of any type, where none are named."""
        try:
            return arrow_csv.open_csv(
                file,
                read_options=arrow_csv.ReadOptions(block_size=16 << 20),
                convert_options=arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(columns, pa.string()),
                    include_columns=columns,
                    null_values=[""],
                    strings_can_be_null=True,
                ),
            )
        except (pa.ArrowException, OSError, KeyError) as error:
            raise InputError(f"log {str(file)!r} cannot be read as CSV ({first_line(error)}); correct it") from None

    def _device_type(self) -> pa.DataType:
        kind = _plain(self._types[0])
        if pa.types.is_unsigned_integer(kind):
            return pa.uint64()
        if pa.types.is_signed_integer(kind):
            return pa.int64()
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return pa.string()
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
            return pa.binary()
        raise InputError(f"--device-column={self._device!r} is of type {kind}; devices are whole numbers, strings or bytes")

    def _valid(self, devices: pa.Array, rounds: pa.Array) -> pa.RecordBatch:
        devices, rounds = _decoded(devices), _decoded(rounds)
        numbers, is_whole = _whole_numbers(rounds, self._round)
        named = devices.cast(self.schema.field("device").type)
        named.validate(full=True)  # text that is not UTF-8 would be sorted wrongly
        has_name = named.is_valid().to_numpy(zero_copy_only=False)
        if not pa.types.is_integer(named.type):
            has_name &= _COMPUTE.fill_null(_COMPUTE.binary_length(named), 0).to_numpy(zero_copy_only=False) > 0
        checks = (
            ("have no device", ~has_name),
            ("have no round", ~rounds.is_valid().to_numpy(zero_copy_only=False)),
            ("have a round that is no whole number", ~is_whole),
            ("have a negative round", numbers < 0),
            (f"have a round beyond rounds-1={self.rounds - 1}", numbers >= self.rounds),
        )
        is_valid = np.ones(len(numbers), np.bool_)
        for reason, fails in checks:
            self._leave_out(reason, np.flatnonzero(fails & is_valid), devices, rounds)
            is_valid &= ~fails
        if is_valid.all():
            return pa.record_batch([named, pa.array(numbers.astype(np.uint32))], schema=self.schema)
        kept = pa.array(np.flatnonzero(is_valid))
        return pa.record_batch([named.take(kept), pa.array(numbers[is_valid].astype(np.uint32))], schema=self.schema)

    def _leave_out(self, reason: str, places: np.ndarray, devices: pa.Array, rounds: pa.Array) -> None:
        if not places.size:
            return
        first = int(places[0])
        before = self.left_out.get(reason)
        example = before.example if before else f"device {_shown(devices[first])}, round {_shown(rounds[first])}"
        self.left_out[reason] = LeftOut(reason, (before.rows if before else 0) + int(places.size), example)


def _parquet(file: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file, pre_buffer=False)  # else the whole file would be read ahead
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"log {str(file)!r} cannot be read as Parquet ({first_line(error)}); correct it") from None


def _decoded(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _shown(value: pa.Scalar) -> str:
    plain = value.as_py()
    return "missing" if plain is None else repr(plain.hex() if isinstance(plain, bytes) else plain)[:60]


def _whole_numbers(rounds: pa.Array, name: str) -> tuple[np.ndarray, np.ndarray]:
    """(numbers [N] int64, which of them are whole [N]); -1 and False where there is none."""
    kind = rounds.type
    if pa.types.is_integer(kind):
        largest = 2**62
        if pa.types.is_uint64(kind):  # far beyond any round; else it would not fit
            rounds = _COMPUTE.min_element_wise(rounds, pa.scalar(largest, pa.uint64()), skip_nulls=False)
        return _COMPUTE.fill_null(rounds.cast(pa.int64()), -1).to_numpy(zero_copy_only=False), np.ones(len(rounds), np.bool_)
    if pa.types.is_floating(kind):
        values = _COMPUTE.fill_null(rounds.cast(pa.float64()), -1.0).to_numpy(zero_copy_only=False)
        is_whole = np.isfinite(values) & (values == np.trunc(values))
        return np.where(is_whole, np.clip(values, -1.0, 2.0**62), -1.0).astype(np.int64), is_whole
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        trimmed = _COMPUTE.fill_null(_COMPUTE.utf8_trim_whitespace(rounds), "-1")
        is_whole = _COMPUTE.match_substring_regex(trimmed, r"^-?[0-9]{1,18}$")
        numbers = _COMPUTE.if_else(is_whole, trimmed, "-1").cast(pa.int64())
        return numbers.to_numpy(zero_copy_only=False), is_whole.to_numpy(zero_copy_only=False)
    raise InputError(f"--round-column={name!r} is of type {kind}; rounds are whole numbers")


def _sorted(staged: Path, folder: Path, memory_mebibytes: int) -> Iterator[tuple[pa.Array, np.ndarray]]:
    """The rows of a staged log in order of (device, round), batch by batch."""
    import duckdb

    settings: dict[str, Any] = {"memory_limit": f"{memory_mebibytes}MiB", "temp_directory": str(folder)}
    try:
        with duckdb.connect(config=settings) as connection:
            connection.execute("SET enable_progress_bar = false")  # standard output is ours
            found = connection.read_parquet(str(staged)).order("device, round").to_arrow_reader(BATCH_ROWS)
            assert found is not None
            for batch in found:
                yield batch.column(0), batch.column(1).to_numpy(zero_copy_only=False)
    except (duckdb.Error, pa.ArrowException, RuntimeError) as error:
        if isinstance(error, duckdb.InterruptException) or "interrupted" in str(error).lower():
            raise KeyboardInterrupt from None
        raise RunFailed(
            f"sorting in {str(folder)!r} failed ({first_line(error)}); free disk space there, or give more --memory"
        ) from None


class _Parts:
    """Takes rows in order of (device, round); writes parts of whole devices, and the devices' names."""

    def __init__(self, writer: TraceWriter) -> None:
        self._writer = writer
        self._entries: list[dict[str, Any]] = []
        self._devices = 0
        self._last: tuple[pa.Scalar, int] | None = None
        """Name and round of the last row."""
        self._ids: list[np.ndarray] = []
        self._rounds: list[np.ndarray] = []
        self._rows, self._first = 0, 0
        self._repeated, self._example = 0, ""
        self._names: pq.ParquetWriter | None = None
        self._pending_names: list[pa.Array] = []

    def add(self, names: pa.Array, rounds: np.ndarray) -> None:
        """The next rows [B]."""
        if not len(names):
            return
        is_new = np.ones(len(names), np.bool_)
        is_new[1:] = _COMPUTE.not_equal(names[1:], names[:-1]).to_numpy(zero_copy_only=False)
        is_again = np.zeros(len(names), np.bool_)
        if self._last is not None:
            is_new[0] = names[0] != self._last[0]
            is_again[0] = not is_new[0] and int(rounds[0]) == self._last[1]
        is_again[1:] = ~is_new[1:] & (rounds[1:] == rounds[:-1])
        if is_again.any():
            place = int(np.flatnonzero(is_again)[0])
            self._example = self._example or f"device {_shown(names[place])}, round {int(rounds[place])}"
            self._repeated += int(is_again.sum())
        self._last = names[len(names) - 1], int(rounds[-1])
        ids = self._devices - 1 + np.cumsum(is_new)
        self._devices = int(ids[-1]) + 1
        self._add_names(names.take(pa.array(np.flatnonzero(is_new))))
        self._ids.append(ids[~is_again].astype(np.uint64))
        self._rounds.append(rounds[~is_again])
        self._rows += self._ids[-1].size
        if self._rows >= PART_ROWS:
            self._write_part(is_last=False)

    def finish(self) -> tuple[list[dict[str, Any]], int, LeftOut | None]:
        """(entries of the parts, devices, repeated rows)."""
        self._write_part(is_last=True)
        self._write_names(is_last=True)
        if self._names is not None:
            self._names.close()
        return self._entries, self._devices, LeftOut(REPEATED, self._repeated, self._example) if self._repeated else None

    def _write_part(self, is_last: bool) -> None:
        """All rows but, unless they are the last, those of the last device, which may go on."""
        ids, rounds = np.concatenate([np.empty(0, np.uint64), *self._ids]), np.concatenate([np.empty(0, np.uint32), *self._rounds])
        end = ids.size if is_last else int(np.searchsorted(ids, ids[-1]))
        self._ids, self._rounds, self._rows = [ids[end:]], [rounds[end:]], ids.size - end
        if not end:
            return
        ids, rounds = ids[:end], rounds[:end]
        name, end_device = part_file(self._first), int(ids[-1]) + 1
        self._guarded(
            lambda: pq.write_table(
                pa.table([ids, rounds], schema=IMPORTED_SCHEMA),
                self._writer.partial / name,
                compression="zstd",
                use_dictionary=False,
                column_encoding={"device_id": "DELTA_BINARY_PACKED", "round": "PLAIN"},
                write_page_checksum=True,
            )
        )
        self._entries.append(
            {
                "file": name,
                "first_device": self._first,
                "end_device": end_device,
                "rows": end,
                "digest": imported_digest(ids, rounds),
            }
        )
        self._first = end_device

    def _add_names(self, names: pa.Array) -> None:
        if self._names is None:
            schema = pa.schema([pa.field("device", names.type)])
            self._names = self._guarded(
                lambda: pq.ParquetWriter(
                    self._writer.partial / DEVICES_FILE, schema, compression="zstd", use_dictionary=False, write_page_checksum=True
                )
            )
        self._pending_names.append(names)
        if sum(map(len, self._pending_names)) >= NAMES_PER_GROUP:
            self._write_names(is_last=False)

    def _write_names(self, is_last: bool) -> None:
        names = pa.concat_arrays(self._pending_names) if self._pending_names else pa.array([], pa.string())
        whole = len(names) if is_last else len(names) // NAMES_PER_GROUP * NAMES_PER_GROUP
        for start in range(0, whole, NAMES_PER_GROUP):
            group, writer = names[start : min(start + NAMES_PER_GROUP, whole)], self._names
            assert writer is not None
            self._guarded(lambda group=group, writer=writer: writer.write_table(pa.table({"device": group}), NAMES_PER_GROUP))
        self._pending_names = [names[whole:]]

    def _guarded(self, write: Callable[[], Any]) -> Any:
        try:
            return write()
        except OSError as error:
            where = str(self._writer.directory)
            raise RunFailed(
                f"writing the trace {where!r} failed ({error.strerror or error}); free space there and import again"
            ) from None


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(f"log {str(path)!r} is not there; name a CSV or Parquet file, or a directory of them")
    found = sorted(file for file in path.rglob("*") if file.suffix.lower() in _FORMATS and file.is_file())
    kinds = Counter(_FORMATS[file.suffix.lower()] for file in found)
    if not found:
        raise InputError(f"log {str(path)!r} holds no .csv or .parquet file; name a file, or a directory of them")
    if len(kinds) > 1:
        raise InputError(f"log {str(path)!r} holds both CSV and Parquet files; keep those of one format in it")
    return found


def _format_of(file: Path, given: str | None) -> str:
    if given is not None and given not in ("csv", "parquet"):
        raise InputError(f"--format={given!r} is not csv or parquet")
    found = given or _FORMATS.get(file.suffix.lower())
    if found is None:
        raise InputError(f"log {str(file)!r} has no suffix that tells its format; give --format csv or --format parquet")
    return found
