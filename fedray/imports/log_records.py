"""Reads a whole log of the times at which devices were eligible or active."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from fedray.base.arrays import BoolArray, Float64Array, Int64Array
from fedray.base.errors import InputError
from fedray.imports.log_files import LogFiles, shown_path
from fedray.imports.log_times import EARLIEST, LATEST, Formats, TimeReader
from fedray.trace.files import first_line

_CLOCK_OFFSET = re.compile(r"([+-])(\d{1,2}):([0-5]\d)")
"""Offset in hours and minutes, such as +05:30."""
LEAST_OFFSET, MOST_OFFSET = -12.0, 14.0
"""Hours from UTC of the zones in use, from Baker Island to Kiribati."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """Columns of a log: the device, and either intervals or moments."""

    device: str = "device"
    """Column of the device: integers or text."""
    start: str = "start"
    """Column of the start of an interval."""
    end: str = "end"
    """Column of the end of an interval."""
    time: str | None = None
    """Column of moments, for a log without intervals."""
    time_unit: str | None = None
    """Unit of numeric times; None if they are Unix times."""
    time_format: Formats = None
    """Format of text times, in directives of strptime, or several; None for ISO 8601."""
    delimiter: str | None = None
    """Character between columns of CSV; None for a comma."""
    state: str | None = None
    """Column that says whether a device was eligible in an interval; None if it always was."""
    zone: str | None = None
    """Column of local time minus the log's clock: numbers of hours, or of minutes if any is beyond
    -12 to 14, or text such as +05:30; None if all devices share a zone."""

    @property
    def times(self) -> dict[str, str]:
        """Columns of times, each with the argument that names it."""
        if self.time is not None:
            return {self.time: "time_column"}
        return {self.start: "start_column", self.end: "end_column"}


class LogRecords(NamedTuple):
    """The rows [R] of a log."""

    device: Int64Array
    """[R]; device numbers from 0, in order of first occurrence."""
    start: Float64Array
    """[R]; seconds since 1970 or since the log's own origin."""
    end: Float64Array
    """[R]; equal to the starts if rows are moments."""
    form: str
    """Form of the times, in words."""
    is_unix: bool
    """Whether the first time, as seconds since 1970, is within the years 2000 to 2100."""
    is_eligible: BoolArray | None = None
    """[R]; whether the device was eligible; None without a column of states."""
    zone_hours: Float64Array | None = None
    """[R]; local time minus the log's clock, hours; None without a column of zones."""


def read_log_records(path: Path, columns: RecordColumns) -> LogRecords:
    """Reads a CSV, JSON Lines or Parquet file, or a directory of files of one format.

    Args:
        path: the file or directory.
        columns: the columns to read.

    Raises:
        InputError: the log cannot be read, lacks a column, or has an empty cell or an interval that
        does not start before it ends.
    """
    name = f"log {shown_path(path)}"
    others = {"state_column": columns.state, "zone_column": columns.zone}
    named = {column: argument for argument, column in others.items() if column is not None}
    arguments = {columns.device: "device_column", **columns.times, **named}
    # Columns are keys here, so a column that is given twice makes them fewer.
    given = sum(each is not None for each in others.values())
    if len(arguments) <= len(columns.times) + given:
        raise InputError(f"column {columns.device!r} is given twice; give different columns")
    files = LogFiles(path, arguments, columns.delimiter)
    table = pa.Table.from_batches(files.batches(), pa.schema(files.types))
    # This is checked before times are read, which need a first row.
    if not table.num_rows:
        raise InputError(f"{name} has no rows; name a log that is not empty")
    if any(column.null_count for column in table.columns):
        raise InputError(
            f"{name} has rows with an empty cell; every row needs {', '.join(arguments)}"
        )
    # A dictionary of text numbers devices of any type in order of first occurrence.
    devices = _cast(table[columns.device], pa.string(), columns.device, name)
    codes = devices.combine_chunks().dictionary_encode().indices
    device = codes.to_numpy().astype(np.int64)
    times, form = [], ""
    for column in columns.times:
        where = f"column {column!r} of {name}"
        reader = TimeReader(where, columns.time_unit, columns.time_format)
        times.append(_seconds(reader, table[column]))
        form = form or reader.form
    start, end = times[0], times[-1]
    # In this form a NaN counts as wrong too.
    wrong = np.flatnonzero(~(start < end))
    if len(times) == 2 and wrong.size:
        first = wrong[0]
        raise InputError(
            f"{name}: row {first + 1} starts at {start[first]:g} and ends at {end[first]:g}; an "
            "interval must start before it ends; correct the row"
        )
    # Numbers that count from an unknown moment have no date.
    is_unix = EARLIEST <= float(start.min()) <= LATEST
    is_eligible = zone_hours = None
    if columns.state is not None:
        is_eligible = _cast(table[columns.state], pa.bool_(), columns.state, name).to_numpy()
    if columns.zone is not None:
        offsets = _cast(table[columns.zone], pa.string(), columns.zone, name)
        zone_hours = _offsets(offsets, f"column {columns.zone!r} of {name}")
    return LogRecords(device, start, end, form, is_unix, is_eligible, zone_hours)


def _offsets(column: pa.ChunkedArray, where: str) -> Float64Array:
    """Returns hours [R] from offsets as text. Raises InputError for one that is no offset."""
    codes = column.combine_chunks().dictionary_encode()
    texts = codes.dictionary.to_pylist()
    hours = dict(zip(texts, map(_offset_of, texts), strict=True))
    # All zones together show the unit of numbers; 0 is the same in both.
    is_minutes = any(not LEAST_OFFSET <= each <= MOST_OFFSET for each in hours.values())
    for text, found in hours.items():
        value = found / 60.0 if is_minutes and ":" not in text else found
        # Zones differ from UTC by quarters of an hour, so that -800 is not an offset in minutes.
        if not (LEAST_OFFSET <= value <= MOST_OFFSET and (4.0 * value).is_integer()):
            raise InputError(
                f"{where} has {text!r}, which is no offset of local time, in quarters of an hour "
                "from -12 to 14 hours; write hours (-5), minutes (-300) or +05:30"
            )
        hours[text] = value
    return np.array([hours[each] for each in texts])[codes.indices.to_numpy()]


def _offset_of(text: str) -> float:
    """Returns the number of hours or minutes in a text; NaN if it is no offset."""
    if found := _CLOCK_OFFSET.fullmatch(text):
        size = int(found[2]) + int(found[3]) / 60.0
        return -size if found[1] == "-" else size
    try:
        return float(text)
    except ValueError:
        return math.nan


def _seconds(reader: TimeReader, column: pa.ChunkedArray) -> Float64Array:
    parts, rows = [], 0
    # The reader needs one array, and a joined one could exceed 2 GB of text.
    for chunk in column.chunks:
        parts.append(reader.seconds(chunk, lambda place, rows=rows: f"row {rows + place + 1}"))
        rows += len(chunk)
    return np.concatenate(parts)


def _cast(column: pa.ChunkedArray, kind: pa.DataType, name: str, log: str) -> pa.ChunkedArray:
    try:
        return column.cast(kind)
    except pa.ArrowException as error:
        words = {pa.int64(): "whole numbers", pa.bool_(): "true or false, or 1 or 0"}
        expected = words.get(kind, "whole numbers or text")
        raise InputError(
            f"column {name!r} of {log} has values that are not {expected} ({first_line(error)}); "
            "correct them"
        ) from None
