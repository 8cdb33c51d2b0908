"""A log of when devices were eligible, or did something: columns of CSV or Parquet, read whole."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedray.base.errors import InputError
from fedray.imports.log import (
    BATCH_ROWS,
    log_files,
    log_format_of,
    open_csv,
    open_parquet,
    other_separator,
    separator_of,
    shown_path,
)
from fedray.imports.log_times import EARLIEST, LATEST, TimeReader
from fedray.trace.files import DAMAGE, first_line


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """The columns of a log: of the device, and of either intervals, moments or rounds."""

    device: str = "device"
    """Column of the device: whole numbers or text."""
    start: str = "start"
    """Column of when an interval starts."""
    end: str = "end"
    """Column of when an interval ends."""
    time: str | None = None
    """Column of moments; the log then has no intervals."""
    round: str | None = None
    """Column of rounds; the log then has neither intervals nor moments."""
    time_unit: str | None = None
    """Unit of times that are numbers; None where it can be told from them."""
    time_format: str | None = None
    """Format of times that are text, by the directives of strptime; None for ISO 8601."""
    delimiter: str | None = None
    """What stands between the columns of CSV; None for a comma."""
    file_format: str | None = None
    """csv or parquet; None: by the suffix."""

    @property
    def values(self) -> dict[str, str]:
        """The columns beside the device's, each with the argument that names it."""
        if self.round is not None:
            return {self.round: "round_column"}
        if self.time is not None:
            return {self.time: "time_column"}
        return {self.start: "start_column", self.end: "end_column"}


class LogRecords(NamedTuple):
    """The rows [R] of a log.

    device: [R]; numbers from 0, in order of first mention.
    start: [R]; seconds, since 1970 or as the log counts; whole numbers where they are rounds.
    end: [R]; the same; the starts again where rows are moments or rounds.
    form: what the times are, in words.
    is_unix: whether times count from 1970, as those of the years 2000 to 2100 do.
    """

    device: NDArray[np.int64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    form: str
    is_unix: bool


def read_log_records(path: Path, columns: RecordColumns) -> LogRecords:
    """Reads a log.

    Args:
        path: a CSV or Parquet file, or a directory of files of one format.
        columns: what is read.

    Raises:
        InputError: it cannot be read, lacks a column, or has an empty cell or an interval that does
            not start before it ends.
    """
    readers = [
        TimeReader(
            f"column {name!r} of log {shown_path(path)}", columns.time_unit, columns.time_format
        )
        for name in columns.values
    ]
    devices: list[pa.Array] = []
    values: list[list[NDArray[np.float64]]] = [[] for _ in readers]
    try:
        for batch in _batches(path, columns):
            if any(column.null_count for column in batch.columns):
                raise InputError(
                    f"log {shown_path(path)} has rows with an empty cell; every row needs "
                    f"{', '.join([columns.device, *columns.values])}"
                )
            # As text, devices of any type are numbered alike.
            devices.append(batch.column(0).cast(pa.string()))
            for place, reader in enumerate(readers):
                column = batch.column(1 + place)
                found = _rounds(column, path, columns) if columns.round else reader.seconds(column)
                values[place].append(found)
    except DAMAGE as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"log {shown_path(path)} cannot be read ({first_line(error)}); correct that place"
        ) from None
    if not sum(len(part) for part in devices):
        raise InputError(f"log {shown_path(path)} has no rows; name one that has")
    # A dictionary numbers its values in order of first mention.
    together = pa.chunked_array(devices).combine_chunks().dictionary_encode()
    device = together.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    # With a single column the starts are the ends as well.
    start, end = (np.concatenate(values[place]) for place in (0, -1))
    if len(readers) == 2:
        # Written so, a time that is NaN is wrong too.
        wrong = np.flatnonzero(~(start < end))
        if wrong.size:
            raise InputError(
                f"log {shown_path(path)}: row {wrong[0] + 1} starts at {start[wrong[0]]:g} and "
                f"ends at {end[wrong[0]]:g}; an interval starts before it ends, correct it"
            )
    form = readers[0].form
    # Rounds, and numbers that count from anywhere, tell no date.
    is_unix = columns.round is None and EARLIEST <= float(start.min()) <= LATEST
    return LogRecords(device, start, end, form, is_unix)


def _rounds(column: pa.Array, path: Path, columns: RecordColumns) -> NDArray[np.float64]:
    try:
        numbers = column.cast(pa.int64())
    except pa.ArrowException as error:
        raise InputError.of(
            "round_column",
            columns.round,
            f"of log {shown_path(path)} has rounds that are no whole numbers ({first_line(error)})",
            "correct them",
        ) from None
    return numbers.to_numpy(zero_copy_only=False).astype(np.float64)


def _batches(path: Path, columns: RecordColumns) -> Iterator[pa.RecordBatch]:
    files = log_files(path)
    form = log_format_of(files[0], columns.file_format)
    arguments = {columns.device: "device_column", **columns.values}
    # Columns are keys here, so one that is named twice makes them fewer.
    if len(arguments) <= len(columns.values):
        raise InputError(f"column {columns.device!r} is named twice; name others")
    names = list(arguments)
    for file in files:
        if form == "csv":
            separator = separator_of(columns.delimiter)
            found = open_csv(file, [], separator).schema.names
            _check(file, found, arguments, other_separator(file, separator))
            yield from open_csv(file, names, separator)
            continue
        with open_parquet(file) as parquet:
            _check(file, parquet.schema_arrow.names, arguments)
            for batch in parquet.iter_batches(batch_size=BATCH_ROWS, columns=names):
                # Files keep the order of their own columns.
                yield batch.select(names)


def _check(file: Path, names: list[str], arguments: dict[str, str], hint: str = "") -> None:
    """Refuses a log without the columns; the `hint` says what it may have instead."""
    shown_names = ", ".join(map(repr, names[:20]))[:400]
    for column, argument in arguments.items():
        if names.count(column) != 1:
            raise InputError.of(
                argument,
                column,
                f"is the name of {names.count(column)} columns of {shown_path(file)}, which has "
                f"{shown_names}{hint}",
                "name one of them",
            )
