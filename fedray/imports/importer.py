"""Makes a trace of a log: any order, any size, devices of any name. pyarrow reads, DuckDB sorts (on
disk where memory ends).

One pass over the log (`log.py`) checks every row and stages (device, round, time) on disk; the sort
reads that; one pass over what comes out numbers the devices, finds repeated rows, and writes the
parts. No step holds more than its batches. Nothing is guessed that a figure rests on: which rounds
released a model (`log_rounds.py`), what times mean (`log_times.py`) and what repeated rows are is
told, or the log is refused.
"""

import datetime
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fedray.base.errors import InputError, RunFailed
from fedray.base.part_done import PartDone
from fedray.base.quiet_duckdb import connected
from fedray.base.rounding import counted
from fedray.imports.log import (
    BATCH_ROWS,
    Example,
    Log,
    LogLayout,
    Unused,
    read_rounds_file,
    shown_path,
)
from fedray.imports.log_rounds import Numbering
from fedray.trace.files import first_line
from fedray.trace.imported import (
    BY_RANK,
    DEVICES_FILE,
    IMPORT_FORMAT,
    IMPORT_VERSION,
    IMPORTED_SCHEMA,
    LOG_ROUNDS_FILE,
    LOG_ROUNDS_SCHEMA,
    NAMES_PER_GROUP,
    REPEATED,
    REPEATED_SCHEMA,
    TIMED_SCHEMA,
    ImportedTrace,
    LeftOut,
    file_digest,
    imported_digest,
)
from fedray.trace.provenance import package_versions
from fedray.trace.schema import columns_digest, part_file, run_digest
from fedray.trace.writer import TraceWriter

PART_ROWS = 1 << 22
LEAST_MEMORY, USUAL_MEMORY = 64, 576
"""MiB, of the sort. 10 million rows need 680; with 576 they take as long, and a whole import peaks
at 1.04 GB instead of 1.16."""
MOST_TABLED = 1 << 22
"""Largest range of round numbers whose ranks are tabled."""
MEMORY_PER_THREAD = 128
"""MiB; with less, threads of the sort would not get what they hold at least."""
UNRELEASED = "in rounds that released nothing, by the rounds file"
REPEATS = ("refuse", "once", "each")
# pyarrow makes these functions at import, and its stubs do not know them.
_COMPUTE: Any = pc


def import_log(
    log: str | Path,
    device_column: str | Sequence[str],
    round_column: str,
    rounds: int | None,
    out: str | Path,
    file_format: str | None = None,
    *,
    renumber: bool = False,
    rounds_file: str | Path | None = None,
    repeats: str = "refuse",
    time_column: str | None = None,
    time_unit: str | None = None,
    time_format: str | None = None,
    time_zone: str | None = None,
    where: Sequence[str] = (),
    delimiter: str | None = None,
    leave_out_invalid: bool = False,
    memory_mebibytes: int = USUAL_MEMORY,
    on_progress: Callable[[str], None] = lambda text: None,
) -> ImportedTrace:
    """Imports a CSV or Parquet file, or a directory of them, as the trace `out`.

    Which rounds released a model is said in one of three ways. Without it, or if the log
    contradicts it, the log is refused: rounds: the log's rounds 0 .. rounds-1 all did; each must
    occur. renumber: all rounds that occur in the log did, in order of their numbers, and no others.
    rounds_file: a list, in order of release (a number per line, or CSV or Parquet, with times if
    there is a column of them); rows in other rounds released nothing, are left out, and reported.

    Args:
        log: the file or directory.
        device_column: whole numbers, strings or bytes (of CSV always strings); of several columns,
            a device is each combination.
        round_column: whole numbers.
        file_format: csv or parquet; by the suffix if None.
        repeats: what rows of one device in one round again are. "refuse": not known, so the log is
            refused. "once": records of one contribution. "each": contributions of their own.
        time_column: ISO 8601, timestamps or Unix numbers (`log_times.py`).
        time_unit: of numbers, if it cannot be told.
        time_format: of other text, by the directives of strptime, such as "%d.%m.%Y %H:%M".
        time_zone: of times without an offset from UTC, such as "Europe/Berlin"; UTC if None.
        where: conditions "COLUMN=VALUE" of rows that are participations; several of one column mean
            any of them.
        delimiter: between columns of CSV, if not a comma.
        leave_out_invalid: leave out rows without a device or a round, and report them, instead of
            refusing the log. What rests on the trace is then unchecked, as they may be
            participations.
        memory_mebibytes: of the sort; files take the rest.
        on_progress: told how far the import is.

    Returns:
        The trace, open and checked as any that is read.

    Raises:
        InputError: the log, or what is said of it, cannot be the record of a run; nothing is left
            behind.
        RunFailed: the disk is full or fails.
    """
    if not LEAST_MEMORY <= memory_mebibytes <= 1 << 20:
        raise InputError.of(
            "memory_mebibytes",
            memory_mebibytes,
            f"must be from {LEAST_MEMORY} to {1 << 20} MiB",
            f"{USUAL_MEMORY} is usual",
        )
    if repeats not in REPEATS:
        raise InputError.of("repeats", repeats, f"is none of {', '.join(REPEATS)}")
    of_times = {"time_unit": time_unit, "time_format": time_format, "time_zone": time_zone}
    stray = next((name for name, value in of_times.items() if value is not None), None)
    # A rounds file may have times where the log has none.
    if stray is not None and time_column is None and rounds_file is None:
        raise InputError.of(
            stray,
            of_times[stray],
            "tells how times are written, and there are none",
            "name their column by time_column, or leave it out",
        )
    # Parquet opens no such name, so it is refused before the work and not after it.
    _check_name(out)
    layout = LogLayout(
        devices=(device_column,) if isinstance(device_column, str) else tuple(device_column),
        round=round_column,
        time=time_column,
        time_unit=time_unit,
        time_format=time_format,
        time_zone=time_zone,
        where=tuple(where),
        file_format=file_format,
        delimiter=delimiter,
    )
    released = read_rounds_file(Path(rounds_file), layout) if rounds_file is not None else None
    numbering = Numbering(rounds, renumber, released)
    source = Log(Path(log), layout, numbering, on_progress)
    with TraceWriter(out) as writer:
        # Both lie in the directory in the making, so that a failure removes them with it.
        staged = writer.partial / "staged.parquet"
        sorting = writer.partial / "sorting"
        source.stage(staged)
        _check_staged(source, leave_out_invalid)
        log_rounds = numbering.finish(str(log))
        origin = _origin(source)
        # The memory that reading took is given back, because DuckDB's sort may need all of it.
        pa.default_memory_pool().release_unused()
        parts = _Parts(writer, log_rounds, numbering, origin, repeats)
        # Second pass: rows come in order of device, so that parts can be written as they come.
        for batch in _sorted(staged, sorting, memory_mebibytes):
            parts.add(batch)
            rows = source.rows - source.filtered_rows
            on_progress(PartDone(f"{parts.rows:,} of {rows:,} rows sorted", parts.rows, rows))
        # Neither belongs to the trace, and both may be as large as the log.
        staged.unlink()
        shutil.rmtree(sorting, ignore_errors=True)
        entries = parts.finish()
        # Only the sort brings repeated rows together, so this cannot be refused earlier.
        if parts.repeated and repeats == "refuse":
            raise InputError(
                f"log {str(log)!r} has {parts.repeated:,} rows of {REPEATED} (such as "
                f"{parts.example}), each of which may count: "
                "give `repeats='once'` if they are repeated records of one contribution, or "
                "`repeats='each'` if a device contributed more than once to a round"
            )
        listed_times = None
        if released is not None and released.seconds is not None:
            listed_times = released.seconds - origin
        rounds_digest = parts.write_rounds(listed_times)
        # Examples are hashed under this digest, so the names must be written first.
        devices_digest = file_digest(writer.partial / DEVICES_FILE)
        left_out = _left_out(source, parts, repeats, devices_digest)
        document = {
            "format": IMPORT_FORMAT,
            "version": IMPORT_VERSION,
            "digest": run_digest([entry["digest"] for entry in entries], str(log_rounds.size)),
            "devices_digest": devices_digest,
            "rounds_digest": rounds_digest,
            "log": str(log),
            "device_columns": list(layout.devices),
            "round_column": round_column,
            "where": list(layout.where),
            "numbering": numbering.how,
            "rounds_file": None if rounds_file is None else str(rounds_file),
            "rounds": int(log_rounds.size),
            "empty_rounds": numbering.empty_rounds,
            "rounds_out_of_order": parts.rounds_out_of_order,
            "repeats": repeats,
            "repeated_rows": parts.repeated,
            "times": _times(source, origin),
            "rows_read": source.rows,
            "filtered_rows": source.filtered_rows,
            "rows": sum(entry["rows"] for entry in entries),
            "devices": parts.devices,
            "left_out": [asdict(each) for each in left_out],
            "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "packages": package_versions(),
            "parts": entries,
        }
        return ImportedTrace.open(writer.publish(document))


def _check_name(out: str | Path) -> None:
    try:
        os.fspath(out).encode()
    except UnicodeEncodeError:
        raise InputError(
            f"output {str(out)!r} is a name that is not UTF-8, which cannot be opened; name another"
        ) from None


def _check_staged(source: Log, leave_out_invalid: bool) -> None:
    """Raises InputError for rows that are no participation and may not be left out."""
    if source.no_row_taken():
        raise InputError(source.no_row_taken())
    if not source.left_out and not source.staged_rows:
        raise InputError(
            f"log {str(source.path)!r} has no participation ({source.rows:,} rows, "
            f"{source.numbering.unreleased_rows:,} of them in "
            "rounds that the rounds file does not have); nothing was released that could be audited"
        )
    if not source.left_out or (leave_out_invalid and not source.out_of_range):
        return
    unusable = source.left_out.values()
    reasons = "; ".join(
        f"{counted(each.rows, 'row')} {each.reason} (such as {each.example})" for each in unusable
    )
    # Rows beyond the stated rounds are participations, so leaving them out would hide some.
    if source.out_of_range:
        remedy = (
            "they are participations like others, so they are not left out: correct the "
            "number of rounds, or number the rounds that occur by `renumber=True`, or list those "
            "that released a model by `rounds_file='released.csv'`"
        )
    else:
        remedy = (
            "correct the log; or leave them out, reported, by leave_out_invalid=True, and what "
            "rests on the trace is unchecked, since they may be participations"
        )
    raise InputError(f"log {str(source.path)!r} has rows that cannot be used: {reasons}; {remedy}")


def _left_out(source: Log, parts: "_Parts", repeats: str, devices_digest: str) -> list[LeftOut]:
    """What run.json says of rows that are not in the trace, and whether they may be
    participations."""
    numbering = source.numbering
    found = [each.recorded(devices_digest) for each in source.left_out.values()]
    if numbering.unreleased_rows:
        example = f"rounds {numbering.unreleased}"
        rows = numbering.unreleased_rows
        found.append(LeftOut(UNRELEASED, rows, example, may_be_participation=False))
    if parts.example is not None and repeats == "once":
        repeated = Unused(REPEATED, parts.repeated, parts.example)
        found.append(repeated.recorded(devices_digest, may_be_participation=False))
    return found


def _origin(source: Log) -> float:
    """The first time of log and rounds file, from which the trace counts."""
    released = source.numbering.released
    listed = released.seconds if released is not None else None
    first_listed = np.inf if listed is None else float(listed.min())
    first = min(source.first_second, first_listed)
    # Without any times it is infinite, and nothing will be counted from it.
    return first if np.isfinite(first) else 0.0


def _times(source: Log, origin: float) -> dict[str, Any] | None:
    """What run.json says of times: the column, what its values are, and which moment is 0."""
    released = source.numbering.released
    listed_form = None
    has_listed = released is not None and released.seconds is not None
    if released is not None and has_listed:
        listed_form = released.form
    if source.times is None and not has_listed:
        return None
    return {
        "column": source.layout.time if source.times is not None else None,
        "form": source.times.form if source.times is not None else None,
        "rounds_file_form": listed_form,
        "origin": origin,
    }


def _sorted(staged: Path, folder: Path, memory_mebibytes: int) -> Iterator[pa.RecordBatch]:
    """The rows of a staged log in order of (device, round, time), batch by batch."""
    import duckdb

    most_threads = memory_mebibytes // MEMORY_PER_THREAD
    threads = max(1, min(os.cpu_count() or 1, most_threads))
    settings: dict[str, Any] = {
        "memory_limit": f"{memory_mebibytes}MiB",
        "temp_directory": str(folder),
        "threads": threads,
    }
    try:
        with connected(settings) as connection:
            relation = connection.read_parquet(str(staged))
            # Equal rows in all columns are the same, so the order does not depend on the log's.
            by_all_columns = ", ".join(relation.columns)
            found = relation.order(by_all_columns).to_arrow_reader(BATCH_ROWS)
            assert found is not None
            yield from found
    except (duckdb.Error, pa.ArrowException, RuntimeError, OSError) as error:
        # DuckDB turns the user's Ctrl-C into an error of its own.
        if isinstance(error, duckdb.InterruptException) or "interrupted" in str(error).lower():
            raise KeyboardInterrupt from None
        raise RunFailed(
            f"sorting in {shown_path(folder)} failed ({first_line(error)}); free disk space there, "
            "or give more than "
            f"memory_mebibytes={memory_mebibytes}"
        ) from None


class _Ranks:
    """Places of numbers among sorted ones: from a table where their range allows one, which is ten
    times as fast as searching."""

    def __init__(self, numbers: NDArray[np.int64]) -> None:
        self._numbers = numbers
        self._table: NDArray[np.uint32] | None = None
        if numbers.size and numbers[-1] - numbers[0] < MOST_TABLED:
            span = int(numbers[-1] - numbers[0])
            self._table = np.zeros(span + 1, np.uint32)
            self._table[numbers - numbers[0]] = np.arange(numbers.size)

    def of(self, numbers: NDArray[np.int64]) -> NDArray[np.uint32]:
        """The places [N] of some of the numbers, in any order; all of them must be among those that
        were given."""
        if self._table is None:
            return np.searchsorted(self._numbers, numbers).astype(np.uint32)
        return self._table[numbers - self._numbers[0]]


class _Parts:
    """Takes rows in order of (device, round, time); writes parts of whole devices, and the devices'
    names.

    repeats: one of REPEATS. With "each", rows of one device in one round again stay. With "once",
        they become one participation that has the first and the last of their times.
    """

    def __init__(
        self,
        writer: TraceWriter,
        log_rounds: NDArray[np.int64],
        numbering: Numbering,
        origin: float,
        repeats: str,
    ) -> None:
        self.devices = self.rows = self.repeated = 0
        self.example: Example | None = None
        """A repeated row."""
        self.rounds_out_of_order = 0
        """Rounds whose participations are all earlier than those of the round before."""
        self._writer = writer
        self._log_rounds = log_rounds
        self._origin = origin
        self._repeats = repeats
        self._ranks = _Ranks(log_rounds) if numbering.how == BY_RANK else None
        self._entries: list[dict[str, Any]] = []
        self._last: tuple[pa.Scalar, int] | None = None
        """Name and round of the last row."""
        self._pending: list[tuple[NDArray, ...]] = []
        """Columns of rows that are not written yet; no batch of them is empty."""
        self._pending_rows = 0
        self._first_device = 0
        self._schema = IMPORTED_SCHEMA
        # Infinite times stand for rounds without a time.
        self._first_times = np.full(log_rounds.size, np.inf)
        self._last_times = np.full(log_rounds.size, -np.inf)
        self._names: pq.ParquetWriter | None = None
        self._pending_names: list[pa.Array] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Takes the next rows [B], which follow those before in order of (device, round, time)."""
        if not batch.num_rows:
            return
        names = batch.column(0)
        rounds = batch.column(1).to_numpy(zero_copy_only=False)
        # Rows come sorted, so a device, and a repeated row, is known by the row before.
        is_new = np.ones(len(names), np.bool_)
        differs = _COMPUTE.not_equal(names[1:], names[:-1])
        is_new[1:] = differs.to_numpy(zero_copy_only=False)
        is_again = np.zeros(len(names), np.bool_)
        # The first row's neighbour is the last one of the batch before.
        if self._last is not None:
            is_new[0] = names[0] != self._last[0]
            is_again[0] = not is_new[0] and int(rounds[0]) == self._last[1]
        is_again[1:] = ~is_new[1:] & (rounds[1:] == rounds[:-1])
        self._last = names[len(names) - 1], int(rounds[-1])
        # Ranks are known only after the first pass; other numbers were made ours in it.
        ours = self._ranks.of(rounds) if self._ranks is not None else rounds
        if is_again.any():
            place = int(np.flatnonzero(is_again)[0])
            number = int(self._log_rounds[ours[place]])
            self.example = self.example or Example(names[place], str(number))
            self.repeated += int(is_again.sum())
        # Devices are numbered in order of their names: the first row of each raises the number.
        ids = self.devices - 1 + np.cumsum(is_new)
        self.devices = int(ids[-1]) + 1
        self.rows += len(names)
        first_rows = pa.array(np.flatnonzero(is_new))
        self._add_names(names.take(first_rows))
        columns = [ids.astype(np.uint64), ours]
        if batch.num_columns > 2:
            self._schema = REPEATED_SCHEMA if self._repeats == "once" else TIMED_SCHEMA
            seconds = batch.column(2).to_numpy(zero_copy_only=False) - self._origin
            columns.append(seconds)
            # A round occurs many times in a batch, for which plain assignment would keep one value.
            np.minimum.at(self._first_times, ours, seconds)
            np.maximum.at(self._last_times, ours, seconds)
        if self._repeats != "each":
            columns = self._joined(columns, np.flatnonzero(~is_again))
        if not columns[0].size:
            return
        self._pending.append(tuple(columns))
        self._pending_rows += columns[0].size
        if self._pending_rows > PART_ROWS:
            self._write_parts(is_last=False)

    def _joined(self, columns: list[NDArray], first: NDArray[np.int64]) -> list[NDArray]:
        """One row for each participation, whose first rows are at the places `first`."""
        joined = [column[first] for column in columns]
        if self._schema is REPEATED_SCHEMA:
            # Times sort last, so the row before the next participation has the latest.
            ends = np.append(first, columns[0].size)
            latest = columns[-1][ends - 1]
            # The batch may begin with further rows of the participation before it.
            if ends[0] > 0:
                self._pending[-1][-1][-1] = latest[0]
            joined.append(latest[1:])
        return joined

    def finish(self) -> list[dict[str, Any]]:
        """Writes what is left, and returns the entries of all parts for run.json."""
        if self._pending:
            self._write_parts(is_last=True)
        self._write_names(is_last=True)
        if self._names is not None:
            self._names.close()
        return self._entries

    def write_rounds(self, listed_times: NDArray[np.float64] | None) -> str:
        """Writes what is known of the rounds; listed_times [n]: of the rounds file. Returns the
        columns' digest."""
        has_times = np.isfinite(self._first_times)
        first = np.where(has_times, self._first_times, np.nan)
        last = np.where(has_times, self._last_times, np.nan)
        # Comparisons with NaN are false, so rounds without times are never out of order.
        is_earlier = last[1:] < first[:-1]
        self.rounds_out_of_order = int(is_earlier.sum())
        listed = np.full(first.size, np.nan) if listed_times is None else listed_times
        values = (self._log_rounds, first, last, listed)
        columns = dict(zip(LOG_ROUNDS_SCHEMA.names, values, strict=True))
        arrays = [pa.array(column, mask=np.isnan(column)) for column in columns.values()]
        file = self._writer.partial / LOG_ROUNDS_FILE
        table = pa.table(arrays, schema=LOG_ROUNDS_SCHEMA)
        self._guarded(
            lambda: pq.write_table(table, file, compression="zstd", write_page_checksum=True)
        )
        return columns_digest(columns)

    def _write_parts(self, is_last: bool) -> None:
        """Writes parts of whole devices, of PART_ROWS rows or a little less; their edges do not
        depend on how rows come."""
        pending = list(zip(*self._pending, strict=True))
        self._pending = []
        # Column by column, each freed as it is joined: else every row would be held twice.
        columns = [np.concatenate(pending.pop(0)) for _ in range(len(pending))]
        while columns[0].size > PART_ROWS:
            ids = columns[0]
            # The device at the edge goes into the next part whole.
            end = int(np.searchsorted(ids, ids[PART_ROWS]))
            # A part holds whole devices, so one with more rows than a part has a part of its own.
            if not end:
                end = int(np.searchsorted(ids, ids[0], side="right"))
            # This device may have further rows in the next batch.
            if end == ids.size:
                break
            self._write_part([column[:end] for column in columns])
            columns = [column[end:] for column in columns]
        if is_last and columns[0].size:
            self._write_part(columns)
        # A copy, because a slice would keep the whole array alive.
        self._pending = [tuple(column.copy() for column in columns)]
        self._pending_rows = columns[0].size

    def _write_part(self, written: list[NDArray]) -> None:
        """Columns of all rows of some devices."""
        ids = written[0]
        name = part_file(self._first_device)
        # Ids have no gaps, so the next part begins right behind this one.
        end_device = int(ids[-1]) + 1
        # Ids are sorted, so their differences take a bit or two each.
        encoding = {"device_id": "DELTA_BINARY_PACKED", "round": "PLAIN"}
        self._guarded(
            lambda: pq.write_table(
                pa.table(written, schema=self._schema),
                self._writer.partial / name,
                compression="zstd",
                use_dictionary=False,
                column_encoding=encoding,
                write_page_checksum=True,
            )
        )
        entry = {
            "file": name,
            "first_device": self._first_device,
            "end_device": end_device,
            "rows": int(ids.size),
            "digest": imported_digest(written[0], written[1]),
        }
        times = dict(zip(self._schema.names[2:], written[2:], strict=True))
        if times:
            entry["times_digest"] = columns_digest(times)
        self._entries.append(entry)
        self._first_device = end_device

    def _add_names(self, names: pa.Array) -> None:
        # The type of the names is known with the first batch.
        if self._names is None:
            schema = pa.schema([pa.field("device", names.type)])
            self._names = self._guarded(
                lambda: pq.ParquetWriter(
                    self._writer.partial / DEVICES_FILE,
                    schema,
                    compression="zstd",
                    use_dictionary=False,
                    write_page_checksum=True,
                )
            )
        self._pending_names.append(names)
        if sum(map(len, self._pending_names)) >= NAMES_PER_GROUP:
            self._write_names(is_last=False)

    def _write_names(self, is_last: bool) -> None:
        if self._pending_names:
            names = pa.concat_arrays(self._pending_names)
        else:
            # Without a batch no type is known, and nothing will be written.
            names = pa.array([], pa.string())
        # Row groups have the same size but for the last one, so that the place of a device's name
        # follows from its id.
        whole_groups = len(names) // NAMES_PER_GROUP * NAMES_PER_GROUP
        whole = len(names) if is_last else whole_groups
        for start in range(0, whole, NAMES_PER_GROUP):
            group = names[start : min(start + NAMES_PER_GROUP, whole)]
            writer = self._names
            assert writer is not None
            self._guarded(
                lambda group=group, writer=writer: writer.write_table(
                    pa.table({"device": group}), NAMES_PER_GROUP
                )
            )
        self._pending_names = [names[whole:]]

    def _guarded(self, write: Callable[[], Any]) -> Any:
        try:
            return write()
        except OSError as error:
            where = str(self._writer.directory)
            raise RunFailed(
                f"writing the trace {where!r} failed ({error.strerror or error}); free space there "
                "and import again"
            ) from None
