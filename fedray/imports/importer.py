"""Makes a trace from a log of any order and size: pyarrow reads it, DuckDB ranks and sorts it.

The first pass over the log (`log.py`) checks every row and stages (device, round, time) on disk.
DuckDB ranks the rounds and sorts the rows, on disk if memory is short. The pass over the sorted
rows numbers the devices, drops copies, finds repeats, and writes the parts. No step holds more than
its batches. No figure depends on a guess: unless it is stated which rounds released a model
(`log_rounds.py`), and what times (`log_times.py`) and repeats mean, the log is refused.
"""

import contextlib
import datetime
import glob
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fedray.base.arrays import Float64Array, Int64Array, UInt32Array
from fedray.base.errors import InputError, RunFailed
from fedray.base.file_digests import FileDigests, ReadFile
from fedray.base.part_done import PartDone
from fedray.base.quiet_duckdb import connected, kept_connections
from fedray.base.rounding import counted
from fedray.imports.log import NO_TIMES, UNRELEASED, UNTIMED, Log, LogLayout, Unused, shown_value
from fedray.imports.log_files import BATCH_ROWS, separator_of, shown_path
from fedray.imports.log_rounds import REMEDY, Numbering, ReleasedRounds, listed, read_rounds_file
from fedray.imports.repeats import REPEATED, Repeats
from fedray.imports.spellings import NO_ID, Spellings, check_spellings
from fedray.trace.files import check_name, first_line
from fedray.trace.ids import ROLES
from fedray.trace.imported import (
    DEVICES_FILE,
    IMPORT_FORMAT,
    IMPORT_VERSION,
    IMPORTED_SCHEMA,
    LOG_ROUNDS_FILE,
    LOG_ROUNDS_SCHEMA,
    NAMES_PER_GROUP,
    REPEATED_SCHEMA,
    TIMED_SCHEMA,
    ImportedTrace,
    LeftOut,
    file_digest,
    hashed_name,
    imported_digest,
)
from fedray.trace.provenance import package_versions
from fedray.trace.schema import columns_digest, part_file, run_digest
from fedray.trace.writer import TraceWriter

PART_ROWS = 1 << 22
LEAST_MEMORY, USUAL_MEMORY = 64, 576
"""Memory of the sort, MiB. 10 million rows need 680; with 576 they take as long, and a whole import
peaks at 1.04 GB instead of 1.16."""
MEMORY_PER_THREAD = 128
"""Memory per thread of the sort, MiB; with less, threads would not get their minimum."""
REPEATS = ("refuse", "once", "each")
_SORTING = "sorting"
"""Directory for rows that do not fit in memory."""
_ROUNDS = (
    "SELECT round, count(*) AS rows, min({time}) AS first, max({time}) AS last, {own} AS own"
    " FROM staged GROUP BY round ORDER BY round"
)
_OWN_TIMES = "count(DISTINCT {time}) >= count(DISTINCT device)"
"""Whether no two devices of a round share a time. Times of batches tell no contributions apart."""
_OWNERS = (
    "SELECT device, min(owner), max(owner) FROM staged GROUP BY device"
    " HAVING min(owner) <> max(owner) ORDER BY device"
)
# Rows that are equal in all columns are interchangeable, so the log's order does not matter.
SORTED = "FROM staged ORDER BY ALL"
Rows = Callable[[str], Iterator[pa.RecordBatch]]
"""Function that answers a query of the staged rows."""


def import_log(
    log: str | Path,
    device_column: str | Sequence[str],
    round_column: str,
    rounds: int | None,
    out: str | Path,
    *,
    renumber: bool = False,
    rounds_file: str | Path | None = None,
    repeats: str = "refuse",
    owner_column: str | None = None,
    time_column: str | None = None,
    time_unit: str | None = None,
    time_format: str | Sequence[str] | None = None,
    time_zone: str | None = None,
    where: Sequence[str] = (),
    delimiter: str | None = None,
    leave_out_invalid: bool = False,
    join_ids: bool | None = None,
    keep_ids: Sequence[str] = (),
    memory_mebibytes: int = USUAL_MEMORY,
    on_progress: Callable[[str], None] = lambda text: None,
) -> ImportedTrace:
    """Imports a CSV, JSON Lines or Parquet file, or a directory of them, as the trace `out`.

    One of three arguments states which rounds released a model; a log that contradicts it is
    refused. rounds: all of the log's rounds 0 .. rounds-1; each must occur. renumber: all rounds
    that occur in the log, in order of their numbers, and no others. rounds_file: those in a list in
    order of release (a number per line, or a format of logs, perhaps with a column of times); rows
    in other rounds are left out and reported.

    Args:
        log: the file or directory. All files in a directory are read but for known marks
            (`input_files.py`), and folders `round=3` are columns of strings.
        device_column: column of integers, strings or bytes (strings in CSV); bytes that are all
            text are strings. With several columns, each combination is a device.
        round_column: column of integers.
        repeats: meaning of further rows of one device in one round, except exact copies, which are
            dropped (`repeats.py`). "refuse": unknown, so the log is refused. "once": records of one
            contribution. "each": separate contributions.
        owner_column: column of the person who owns the device: integers, strings or bytes. Then an
            audit has figures per person too. A device with two owners is refused.
        time_column: column of ISO 8601 text, timestamps or Unix numbers (`log_times.py`).
        time_unit: unit of numbers that are not Unix times.
        time_format: format of other text, as strptime has it ("%d.%m.%Y %H:%M"), or several.
        time_zone: zone of times without an offset from UTC, such as "Europe/Berlin"; UTC if None.
        where: conditions "COLUMN=VALUE" for rows that are participations; several for one column
            mean any of them.
        delimiter: character between columns of CSV; a comma if None.
        leave_out_invalid: whether to leave out and report rows without a device or a round, instead
            of refusing the log. Claims are then unchecked, because such rows may be participations.
        join_ids: whether ids that differ only in writing (`fedray.trace.ids`) are one device, or
            owner, under the first of its spellings. With None, a log with such ids is refused.
        keep_ids: texts that name a device, or an owner, though they look like a missing id, such as
            "NULL". Rows with other such ids have no device.
        memory_mebibytes: memory of the sort; beyond that it uses the disk.
        on_progress: receives lines of progress.

    Returns:
        The trace, opened and checked.

    Raises:
        InputError: the log or an argument cannot describe a run; nothing is left behind.
        RunFailed: the disk is full or fails, or there is too little memory.
    """
    check_memory(memory_mebibytes)
    layout = LogLayout(
        devices=(device_column,) if isinstance(device_column, str) else tuple(device_column),
        round=round_column,
        owner=owner_column,
        time=time_column,
        time_unit=time_unit,
        time_format=time_format,
        time_zone=time_zone,
        where=tuple(where),
        delimiter=delimiter,
    )
    numbering = checked_numbering(layout, repeats, out, rounds, renumber, rounds_file)
    source = Log(Path(log), layout, numbering, on_progress)
    with TraceWriter(out) as writer, writing(Path(out)):
        # The file is in the partial directory, so that a failure removes it too.
        staged = writer.partial / "staged.parquet"
        files = _staged(source, staged)
        answers = Answers(repeats, leave_out_invalid, join_ids, keep_ids, memory_mebibytes)
        document = written_trace(source, files, staged, writer, answers, rounds_file, on_progress)
        # It is no part of the trace, and may be as large as the log.
        staged.unlink()
        return ImportedTrace.open(writer.publish(document))


@dataclass(frozen=True, slots=True)
class Answers:
    """What the caller of an import said about its rows, and the memory of the sort."""

    repeats: str
    leave_out_invalid: bool
    join_ids: bool | None
    keep_ids: Sequence[str]
    memory_mebibytes: int


def written_trace(
    source: Log,
    files: Sequence[ReadFile],
    staged: Path,
    writer: TraceWriter,
    answers: Answers,
    rounds_file: str | Path | None,
    on_progress: Callable[[str], None],
) -> dict[str, Any]:
    """Writes all files of the trace but run.json from staged rows, and returns the content of that.

    Args:
        source: the log, with the counts of all its rows.
        files: its files.
        staged: file of its staged rows, or a folder of such files.
        writer: the trace.
        answers: what the caller said.
        rounds_file, on_progress: as `import_log` has them.

    Raises:
        InputError: the rows cannot be the participations of a run.
        RunFailed: the disk is full or fails, or there is too little memory.
    """
    leave_out_invalid = answers.leave_out_invalid
    check_staged(source, leave_out_invalid)

    def asked(query: str, views: Mapping[str, Path]) -> Iterator[pa.RecordBatch]:
        return queried(query, views, answers.memory_mebibytes)

    ids = Spellings(source, asked, staged, answers.keep_ids, answers.join_ids)
    # Two answers change rows, and owners are compared; else the sorted devices do.
    is_early = answers.join_ids or leave_out_invalid or source.layout.owner is not None
    if is_early:
        _settle(ids, staged, source, leave_out_invalid)
    parts = _sorted(source, ids, writer, answers.repeats, on_progress)
    if not is_early:
        _settle(ids, writer.partial / DEVICES_FILE, source, leave_out_invalid)
    # Neither is part of the trace.
    ids.remove()
    shutil.rmtree(writer.partial / _SORTING, ignore_errors=True)
    _check_repeats(parts, str(source.path))
    return _document(source, files, ids, parts, rounds_file)


def _settle(ids: Spellings, file: Path, source: Log, leave_out_invalid: bool) -> None:
    """Reads the ids in a file. Raises InputError if they may be one device, or mean none, and the
    caller has not said so."""
    ids.read(file)
    check_spellings(ids, str(source.path))
    ids.count_missing()
    check_staged(source, leave_out_invalid)


def _sorted(
    source: Log,
    ids: Spellings,
    writer: TraceWriter,
    repeats: str,
    on_progress: Callable[[str], None],
) -> "_Parts":
    """Writes the parts of the trace and the names of the devices from the sorted rows."""
    if source.layout.owner is not None:
        check_owners(ids.rows)
    # DuckDB may need all the memory that reading used.
    pa.default_memory_pool().release_unused()
    parts = _Parts(writer, source.schema, LogRounds(ids.rows, source, repeats), repeats)
    for batch in ids.rows(SORTED):
        parts.add(batch)
        line = f"{parts.rows:,} of {source.staged_rows:,} rows sorted"
        on_progress(PartDone(line, parts.rows, source.staged_rows))
    parts.finish()
    return parts


def _check_repeats(parts: "_Parts", log: str) -> None:
    """Raises InputError for repeats of unknown meaning. Only the sort brings repeated rows
    together, so they cannot be refused earlier."""
    repeated = parts.repeats.repeated
    if repeated.rows and parts.meaning == "refuse":
        raise InputError(
            f"log {log!r} has {counted(repeated.rows, 'row')} {REPEATED} (such as "
            f"{repeated}), each of which may count: "
            "give `repeats='once'` if they are repeated records of one contribution, or "
            "`repeats='each'` if a device contributed more than once to a round"
        )


def _document(
    source: Log,
    files: Sequence[ReadFile],
    ids: Spellings,
    parts: "_Parts",
    rounds_file: str | Path | None,
) -> dict[str, Any]:
    """Returns the content of run.json, and writes the file of the log's rounds, whose digest it
    has.

    Args:
        source: the log.
        files: files that were read.
        ids: spellings of its ids.
        parts: parts of the trace, all of which are written.
        rounds_file: as `import_log` has it.
    """
    layout, log_rounds, repeated = source.layout, parts.log_rounds, parts.repeats.repeated
    # This digest is the key of hashed examples, so the names must be written first.
    devices_digest = file_digest(parts.folder / DEVICES_FILE)
    of_repeated = repeated.recorded(devices_digest, may_be_participation=False)
    left_out = _left_out(source, parts.repeats.copied, devices_digest)
    if repeated.rows and parts.meaning == "once":
        left_out.append(of_repeated)
    n = log_rounds.numbers.size
    return {
        "format": IMPORT_FORMAT,
        "version": IMPORT_VERSION,
        "digest": run_digest([entry["digest"] for entry in parts.entries], str(n)),
        "devices_digest": devices_digest,
        "rounds_digest": log_rounds.write(parts.folder / LOG_ROUNDS_FILE),
        "log": str(source.path),
        "files": [
            {**each, "name": _name_without_units(each["name"], layout, devices_digest)}
            for each in files
        ],
        "file_rows": source.file_rows,
        "skipped_files": [
            _name_without_units(each, layout, devices_digest) for each in source.found.marks
        ],
        "device_columns": list(layout.devices),
        "round_column": layout.round,
        "where": list(layout.where),
        "numbering": source.numbering.how,
        "rounds_file": None if rounds_file is None else str(rounds_file),
        "rounds": n,
        "empty_rounds": log_rounds.empty,
        "rounds_out_of_order": log_rounds.late.size,
        "repeats": parts.meaning,
        "repeated_rows": repeated.rows,
        **({"repeated_examples": of_repeated.example} if repeated.rows else {}),
        "times": _times(source, log_rounds.origin),
        "rows_read": source.rows,
        "filtered_rows": source.filtered_rows,
        "rows": sum(entry["rows"] for entry in parts.entries),
        "devices": parts.devices,
        **({} if layout.owner is None else {"owner_column": layout.owner}),
        **ids.recorded(parts.devices),
        **({"sparse_rounds": log_rounds.sparse} if log_rounds.sparse else {}),
        "left_out": [asdict(each) for each in left_out],
        "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "packages": package_versions(),
        "parts": parts.entries,
    }


def checked_numbering(
    layout: LogLayout,
    repeats: str,
    out: str | Path,
    rounds: int | None = None,
    renumber: bool = False,
    rounds_file: str | Path | None = None,
) -> Numbering:
    """Checks arguments of an import before its log is read, and returns the numbering of rounds.

    Args:
        layout: format and columns of the log.
        repeats, out, rounds, renumber, rounds_file: as `import_log` has them.

    Raises:
        InputError: an argument is wrong, or the rounds file cannot be read.
    """
    if repeats not in REPEATS:
        raise InputError.of("repeats", repeats, f"is none of {', '.join(REPEATS)}")
    names = ("time_unit", "time_format", "time_zone")
    stray = next((name for name in names if getattr(layout, name) is not None), None)
    # A rounds file may have times if the log has none.
    if stray is not None and layout.time is None and rounds_file is None:
        rule = "describes times, but there are none"
        remedy = "give their column as time_column, or leave it out"
        raise InputError.of(stray, getattr(layout, stray), rule, remedy)
    # The name is checked before any work is done.
    check_name(Path(out))
    released = None if rounds_file is None else _released(Path(rounds_file), layout)
    return Numbering(rounds, renumber, released)


def _released(file: Path, layout: LogLayout) -> ReleasedRounds:
    times = layout.time_reader(f"times of rounds_file={str(file)!r}")
    separator = separator_of(layout.delimiter)
    return read_rounds_file(file, separator, layout.round, layout.time, times)


def _staged(source: Log, staged: Path) -> list[ReadFile]:
    """Stages the rows of a log, and returns the files that had them."""
    with FileDigests(source.found.files) as digests:
        source.stage(staged)
        return read_digests(source, digests)


def read_digests(source: Log, digests: FileDigests) -> list[ReadFile]:
    """Returns the files of a log with their digests. Raises InputError if one cannot be read, or
    has changed since `digests` was made."""
    try:
        return digests.read()
    except OSError as error:
        problem = error.strerror or error
        raise InputError(f"log {shown_path(source.path)} cannot be read: {problem}") from None


def _name_without_units(name: str, layout: LogLayout, devices_digest: str) -> str:
    """Returns the name of a file with hashes of devices and owners in the names of its folders."""
    parts = []
    for part in name.split("/"):
        key, _, value = part.partition("=")
        is_unit = unquote(key) in (*layout.devices, layout.owner) and value
        hashed = f"{key}={hashed_name(unquote(value), devices_digest)}"
        parts.append(hashed if is_unit else part)
    return "/".join(parts)


def check_staged(source: Log, leave_out_invalid: bool) -> None:
    """Raises InputError if rows are not participations and may not be left out, or lack times."""
    source.check_conditions()
    if source.time_problem:
        raise InputError(source.time_problem)
    name = f"log {str(source.path)!r}"
    # Rows beyond the stated rounds are participations, so they must not be left out.
    if source.left_out and (source.out_of_range or not leave_out_invalid):
        reasons = "; ".join(
            f"{counted(each.rows, 'row')} {each.reason} (such as {each})"
            for each in source.left_out.values()
        )
        remedy = (
            "correct the log; or leave them out with `leave_out_invalid=True`, but then no claim "
            "can be checked, because they may be participations"
        )
        if any(each.endswith(NO_ID) for each in source.left_out):
            remedy += "; `keep_ids=NULL` says that NULL names one"
        if UNTIMED in source.left_out:
            remedy = f"correct the log; or {NO_TIMES}"
        if source.out_of_range:
            remedy = (
                "rows beyond the given rounds are participations too: correct the number of "
                f"rounds, or {REMEDY}"
            )
        raise InputError(f"{name} has rows that cannot be used: {reasons}; {remedy}")
    if not source.staged_rows:
        raise InputError(
            f"{name} has no participation ({source.rows:,} rows, {source.unreleased_rows:,} of "
            "them in rounds that the rounds file does not have), so there is nothing to audit; "
            "give a log with participations"
        )


def check_owners(rows: Rows) -> None:
    """Raises InputError if a device of the staged rows has two owners."""
    batches = list(rows(_OWNERS))
    for first in (batch for batch in batches if batch.num_rows):
        device, *owners = (shown_value(column[0]) for column in first.columns)
        count = counted(sum(batch.num_rows for batch in batches), "such device")
        raise InputError(
            f"device {device} has the owners {' and '.join(owners)} in the log ({count}), but a "
            "device belongs to one person; correct the log, or name a device by both columns, "
            "which are then one unit"
        )


def _left_out(source: Log, copied: Unused, devices_digest: str) -> list[LeftOut]:
    found = [each.recorded(devices_digest) for each in source.left_out.values()]
    if source.unreleased_rows:
        numbers = source.unreleased_rounds
        example = f"rounds {listed(numbers, numbers.size)}"
        rows = source.unreleased_rows
        found.append(LeftOut(UNRELEASED, rows, example, may_be_participation=False))
    if copied.rows:
        found.append(copied.recorded(devices_digest, may_be_participation=False))
    return found


def _times(source: Log, origin: float) -> dict[str, Any] | None:
    """Returns the entry of run.json on times; None if log and rounds file have no times."""
    released = source.numbering.released
    listed_form = (released.form or None) if released is not None else None
    form = source.times.form if source.times is not None else None
    if form is None and listed_form is None:
        return None
    # Listed times only widen the log's own.
    read = source.times or released
    step, doubts = (read.step, [*read.doubts]) if read else (0.0, [])
    return {
        "column": source.layout.time,
        "form": form,
        "rounds_file_form": listed_form,
        "origin": origin,
        **({"step": step} if step else {}),
        **({"doubts": doubts} if doubts else {}),
    }


def check_memory(mebibytes: int) -> None:
    """Raises InputError for a memory of the sort that is out of range."""
    if not LEAST_MEMORY <= mebibytes <= 1 << 20:
        rule = f"must be from {LEAST_MEMORY} to {1 << 20} MiB"
        raise InputError.of("memory_mebibytes", mebibytes, rule, f"{USUAL_MEMORY} is usual")


@contextlib.contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Within: a disk that fails is named with the directory of the trace. Raises RunFailed."""
    try:
        with kept_connections():
            yield
    # Errors of reading the log have other types by now.
    except OSError as error:
        raise RunFailed(
            f"writing the trace {shown_path(directory)} failed ({error.strerror or error}); free "
            "disk space there and import again"
        ) from None


def queried(
    query: str, views: Mapping[str, Path], memory_mebibytes: int
) -> Iterator[pa.RecordBatch]:
    """Yields DuckDB's answer to a query of Parquet files; excess rows go to disk.

    Args:
        query: query in SQL.
        views: files, or folders of files, by the names of their views, in directories where files
            may be written.
        memory_mebibytes: memory of the query.

    Raises RunFailed.
    """
    # The import takes a tenth of a second.
    import duckdb

    folder = next(iter(views.values())).with_name(_SORTING)
    most_threads = memory_mebibytes // MEMORY_PER_THREAD
    settings: dict[str, Any] = {
        "memory_limit": f"{memory_mebibytes}MiB",
        "temp_directory": str(folder),
        "threads": max(1, min(os.cpu_count() or 1, most_threads)),
    }
    try:
        with connected(settings) as connection:
            # DuckDB would read file names as patterns.
            for name, file in views.items():
                some = glob.escape(str(file)) + ("/*.parquet" if file.is_dir() else "")
                connection.read_parquet(some).create_view(name)
            yield from connection.sql(query).to_arrow_reader(BATCH_ROWS)
    except (duckdb.Error, pa.ArrowException, RuntimeError, OSError) as error:
        # DuckDB turns the user's Ctrl-C into its own error.
        if isinstance(error, duckdb.InterruptException) or "interrupted" in str(error).lower():
            raise KeyboardInterrupt from None
        raise RunFailed(
            f"sorting in {shown_path(folder)} failed ({first_line(error)}); free disk space there, "
            f"or raise memory_mebibytes={memory_mebibytes}"
        ) from None


class LogRounds:
    """The rounds of the trace: their numbers in the log, and their times.

    Args:
        rows: function that answers a query of the staged rows.
        source: the log; InputError is raised if it contradicts the stated rounds.
        repeats: meaning of repeats, one of REPEATS.
    """

    def __init__(self, rows: Rows, source: Log, repeats: str) -> None:
        time = "time" if source.times is not None else "NULL::DOUBLE"
        # Only with "each" does a copy that is none hide a contribution.
        own = _OWN_TIMES.format(time=time) if repeats == "each" else "true"
        seen = pa.Table.from_batches(rows(_ROUNDS.format(time=time, own=own)))
        staged = seen["round"].to_numpy()
        self.numbers = source.numbering.log_rounds(staged, str(source.path))
        """The log's numbers of rounds 0 .. n-1, [n]."""
        self._has_places = source.numbering.released is not None
        n = self.numbers.size
        self.empty = n - staged.size
        """Number of rounds without a participation in this log, which released a model too."""
        # Rounds of a rounds file may lack participations, so their positions have gaps.
        places = self.places(staged)
        # First and last times of participations, and listed times; NaN if unknown.
        times = np.full((3, n), np.nan)
        times[0, places] = seen["first"].to_numpy()
        times[1, places] = seen["last"].to_numpy()
        released = source.numbering.released
        if released is not None and released.seconds is not None:
            times[2] = released.seconds
        first = float(np.fmin.reduce(times, axis=None))
        self.origin = 0.0 if np.isnan(first) else first
        """First time in the log or the rounds file, which is time 0 of the trace."""
        first_times, last_times, _ = self._times = times - self.origin
        # Comparisons with NaN are false.
        self.is_timed_apart = first_times < last_times
        """Whether equal rows of a round are copies, since its rows have more than one time, [n]."""
        self.is_timed_apart[places] &= seen["own"].to_numpy()
        # Rounded times may be equal for contributions of their own.
        self.is_timed_apart &= source.times is None or not source.times.step
        counts = seen["rows"].to_numpy()
        is_few = np.zeros(n, np.bool_)
        is_few[places] = 10 * counts < np.median(counts)
        self.is_few = is_few
        """Whether a round has so few rows that it may have been abandoned, [n]."""
        few = self.numbers[is_few]
        self.sparse = ""
        """Note on these rounds; empty without, and with a rounds file."""
        # A list says which rounds released a model, however few rows they have.
        if few.size and released is None:
            self.sparse = (
                f"{counted(few.size, 'round')} with under a tenth of the median's rows "
                f"({listed(few, few.size)}); if abandoned, list the others, which released a model."
            )
        # Rounds without times have no place in the order.
        known = np.flatnonzero(~np.isnan(first_times))
        self.late = known[1:][last_times[known[1:]] < first_times[known[:-1]]]
        """Rounds that ended before the previous round began."""

    def places(self, staged: Int64Array) -> UInt32Array:
        """Returns the round numbers in the trace of staged round numbers [N]."""
        if self._has_places:
            return staged.astype(np.uint32)
        return np.searchsorted(self.numbers, staged).astype(np.uint32)

    def release_times(self) -> Float64Array:
        """Returns the last time of each round, in the log's seconds, [n]; NaN if unknown."""
        return self.origin + self._times[1]

    def write(self, file: Path) -> str:
        """Writes the rounds to a file of the trace, and returns the digest of its columns."""
        values = (self.numbers, *self._times)
        columns = dict(zip(LOG_ROUNDS_SCHEMA.names, values, strict=True))
        arrays = [pa.array(column, mask=np.isnan(column)) for column in values]
        table = pa.table(arrays, schema=LOG_ROUNDS_SCHEMA)
        pq.write_table(table, file, compression="zstd", write_page_checksum=True)
        return columns_digest(columns)


class _Parts:
    """Writes rows sorted by (device, round, time) as parts of whole devices, and devices' names.

    Args:
        writer: the trace.
        staged: columns of the rows.
        log_rounds: the rounds.
        meaning: meaning of repeats, one of REPEATS. With "each", they are kept. With "once", they
            become one participation with the first and the last of their times. Copies are dropped.
    """

    def __init__(
        self, writer: TraceWriter, staged: pa.Schema, log_rounds: LogRounds, meaning: str
    ) -> None:
        self.devices = self.rows = 0
        """Numbers of devices and rows so far."""
        self.entries: list[dict[str, Any]] = []
        """Entries of the parts for run.json."""
        self.repeats = Repeats(log_rounds.numbers, log_rounds.is_timed_apart)
        """Copies and repeats among the rows."""
        self.log_rounds, self.meaning = log_rounds, meaning
        self.folder = writer.partial
        """Directory of the files."""
        names = [field for field in staged if field.name in ROLES.values()]
        self._names = _Names(self.folder / DEVICES_FILE, pa.schema(names))
        self._pending: list[tuple[NDArray, ...]] = []
        """Batches of columns that are not written yet, without empty ones."""
        self._pending_rows = 0
        self._first_device = 0
        self._schema = IMPORTED_SCHEMA

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds the next rows [B]."""
        if not batch.num_rows:
            return
        rounds = self.log_rounds.places(batch.column("round").to_numpy())
        is_new, is_copy, is_again = self.repeats.found(batch, rounds)
        # Devices are numbered in order of their names; the first row of each increments the number.
        ids = self.devices - 1 + np.cumsum(is_new)
        self.devices = int(ids[-1]) + 1
        self.rows += batch.num_rows
        self._names.add(batch.select(self._names.columns).filter(pa.array(is_new)))
        columns = [ids.astype(np.uint64), rounds]
        if "time" in batch.schema.names:
            self._schema = REPEATED_SCHEMA if self.meaning == "once" else TIMED_SCHEMA
            columns.append(batch.column("time").to_numpy() - self.log_rounds.origin)
        columns = [column[~is_copy] for column in columns]
        if columns[0].size and self.meaning != "each":
            columns = self._joined(columns, np.flatnonzero(~is_again[~is_copy]))
        if not columns[0].size:
            return
        self._pending.append(tuple(columns))
        self._pending_rows += columns[0].size
        if self._pending_rows > PART_ROWS:
            self._write_parts(is_last=False)

    def finish(self) -> None:
        """Writes the remaining rows and names."""
        if self._pending:
            self._write_parts(is_last=True)
        self._names.close()

    def _joined(self, columns: list[NDArray], first: Int64Array) -> list[NDArray]:
        """Returns one row per participation, whose first rows are at the positions `first`."""
        joined = [column[first] for column in columns]
        if self._schema is REPEATED_SCHEMA:
            # Times sort last, so the row before the next participation has the latest.
            ends = np.append(first, columns[0].size)
            latest = columns[-1][ends - 1]
            # The batch may begin with further rows of the previous batch's last participation.
            if ends[0] > 0:
                self._pending[-1][-1][-1] = latest[0]
            joined.append(latest[1:])
        return joined

    def _write_parts(self, is_last: bool) -> None:
        """Writes parts of whole devices, of at most PART_ROWS rows if a device has no more.

        Where parts end does not depend on the batches.
        """
        pending = list(zip(*self._pending, strict=True))
        self._pending = []
        # Each column is freed when it is joined, so that not all rows are in memory twice.
        columns = [np.concatenate(pending.pop(0)) for _ in range(len(pending))]
        while columns[0].size > PART_ROWS:
            ids = columns[0]
            # The device at the edge goes into the next part as a whole, unless it is the only one.
            end = int(np.searchsorted(ids, ids[PART_ROWS]))
            end = end or int(np.searchsorted(ids, ids[0], side="right"))
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

    def _write_part(self, columns: list[NDArray]) -> None:
        ids = columns[0]
        name = part_file(self._first_device)
        pq.write_table(
            pa.table(columns, schema=self._schema),
            self.folder / name,
            compression="zstd",
            use_dictionary=False,
            # Sorted ids differ so little that they need a bit or two each.
            column_encoding={"device_id": "DELTA_BINARY_PACKED", "round": "PLAIN"},
            write_page_checksum=True,
        )
        # Ids have no gaps, so the next part begins with the next id.
        end_device = int(ids[-1]) + 1
        entry = {
            "file": name,
            "first_device": self._first_device,
            "end_device": end_device,
            "rows": int(ids.size),
            "digest": imported_digest(ids, columns[1]),
        }
        times = dict(zip(self._schema.names[2:], columns[2:], strict=True))
        if times:
            entry["times_digest"] = columns_digest(times)
        self.entries.append(entry)
        self._first_device = end_device


class _Names:
    """Writes names in row groups of NAMES_PER_GROUP, so that positions follow from ids."""

    def __init__(self, file: Path, schema: pa.Schema) -> None:
        self.columns = schema.names
        """The device, and the owner if owners are known."""
        self._pending = schema.empty_table()
        self._writer = pq.ParquetWriter(
            file,
            schema,
            compression="zstd",
            use_dictionary=False,
            write_page_checksum=True,
        )

    def add(self, names: pa.RecordBatch) -> None:
        self._pending = pa.concat_tables([self._pending, pa.Table.from_batches([names])])
        while len(self._pending) >= NAMES_PER_GROUP:
            self._write_group()

    def close(self) -> None:
        if len(self._pending):
            self._write_group()
        self._writer.close()

    def _write_group(self) -> None:
        # One chunk, because the bytes of the file, and so its digest, depend on the chunks.
        group = self._pending[:NAMES_PER_GROUP].combine_chunks()
        self._writer.write_table(group, NAMES_PER_GROUP)
        self._pending = self._pending[NAMES_PER_GROUP:]
