"""Reads a log of participations batch by batch: checks rows, names devices and converts times."""

import datetime
import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fedray.base.arrays import BoolArray, Float64Array, Int64Array
from fedray.base.errors import InputError, shown
from fedray.base.periods import PERIODS
from fedray.imports.log_files import (
    WHOLE,
    LogFiles,
    is_text,
    is_whole,
    row_hashes,
    shown_path,
)
from fedray.imports.log_rounds import Numbering, exact_floats, whole_numbers
from fedray.imports.log_times import EARLIEST, LATEST, Formats, TimeReader
from fedray.trace.files import first_line
from fedray.trace.ids import combined
from fedray.trace.imported import AS_THEY_ARE, PERIOD, LeftOut, hashed_name

MOST_MET = 5
"""Largest number of values of a condition's column in a message."""
ROW_HASH = "row_hash"
"""Staged column: the hash of a row's values in all columns of the log. Rows that differ have the
same one with probability 2^-64."""
UNRELEASED = "in rounds that released nothing, by the rounds file"
UNTIMED = "without a time"
"""Reason for which rows cannot be used in a log with times."""
UNTIMED_WORDS = ("", "nan", "none", "null", "nil", "na", "n/a", "#n/a", "<na>", "-", "?", "unknown")
"""Texts in a column of times that stand for a missing time, in lower case."""
NO_TIMES = (
    "leave out the column of times: min-sep and participations need none, but timers are then "
    "unchecked, and copies count as repeats"
)
_CONTROL = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x{9f}]"
# pyarrow makes these functions at import, and its stubs do not know them.
_COMPUTE: Any = pc


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLayout:
    """Format and columns of a log, as arguments of `import_log`.

    Raises InputError for a column that is named twice, or a malformed condition.
    """

    devices: tuple[str, ...]
    round: str
    owner: str | None = None
    time: str | None = None
    time_unit: str | None = None
    time_format: Formats = None
    time_zone: str | None = None
    where: tuple[str, ...] = ()
    delimiter: str | None = None

    def __post_init__(self) -> None:
        if not self.devices:
            remedy = "name the column of the device"
            raise InputError.of("device_column", (), "names no column", remedy)
        # A device that persons share may be named by the owner too: a unit per person.
        owner = None if self.owner in self.devices else self.owner
        if self.periods and (self.time is None or not self.device_columns):
            needed = "device" if self.time else "time"
            rule = f"is a period of the time, which needs a column of the {needed} beside it"
            remedy = f"give `{needed}_column=NAME`"
            raise InputError.of("device_column", PERIOD + self.periods[0], rule, remedy)
        if unknown := [each for each in self.periods if each not in PERIODS]:
            rule = f"is not one of {', '.join(PERIODS)}"
            raise InputError.of("device_column", PERIOD + unknown[0], rule, "give one of these")
        chosen = (*self.devices, self.round, owner, self.time)
        for column, count in Counter(chosen).items():
            # Columns that are not given do not count.
            if count > 1 and column is not None:
                raise InputError(
                    f"column {column!r} is given twice for device, round, owner and time; give "
                    "different columns"
                )
        for each in self.where:
            column, equals, _ = each.partition("=")
            if not equals or not column:
                raise InputError.of("where", each, "must be COLUMN=VALUE, such as outcome=accepted")

    @property
    def device_columns(self) -> tuple[str, ...]:
        """Columns of the log that name a device."""
        return tuple(each for each in self.devices if not each.startswith(PERIOD))

    @property
    def periods(self) -> tuple[str, ...]:
        """Kinds of calendar periods of the time that name a device too, such as month."""
        return tuple(e.removeprefix(PERIOD) for e in self.devices if e.startswith(PERIOD))

    @property
    def conditions(self) -> dict[str, list[str]]:
        """Allowed values by column; participations have one of them in every column."""
        found: dict[str, list[str]] = {}
        for each in self.where:
            # Only the first equals sign separates, so that a value may contain others.
            column, _, value = each.partition("=")
            found.setdefault(column, []).append(value)
        return found

    @property
    def columns(self) -> dict[str, str]:
        """All columns to read, each with the first argument that names it."""
        named = dict.fromkeys(self.conditions, "where")
        if self.time is not None:
            named[self.time] = "time_column"
        if self.owner is not None:
            named[self.owner] = "owner_column"
        named[self.round] = "round_column"
        named |= dict.fromkeys(self.device_columns, "device_column")
        # A missing device column is reported before the others.
        return {column: named[column] for column in (*self.device_columns, *named)}

    def time_reader(self, where: str) -> TimeReader:
        """Returns a reader of a column of times, which messages call `where`. Raises InputError."""
        return TimeReader(where, self.time_unit, self.time_format, self.time_zone)


@dataclass(slots=True)
class Unused:
    """Rows of a log that are set apart for one reason, with the first of them."""

    reason: str
    rows: int = 0
    examples: list[tuple[pa.Scalar, str]] = field(default_factory=list)
    """Devices, which may be missing, and rounds, as messages show them, of the first rows."""
    row: int = 0
    """Number of the first row in the log, from 1; 0 if unknown."""

    def __str__(self) -> str:
        return "; ".join(row_text(device, number) for device, number in self.examples)

    def recorded(self, devices_digest: str, may_be_participation: bool = True) -> LeftOut:
        """Returns the entry of run.json, which others may read, so the device is hashed."""
        found = []
        for device, number in self.examples:
            name = device.as_py()
            shown_name = "missing" if name is None else hashed_name(name, devices_digest)
            found.append(f"device {shown_name}, round {number}")
        example = "; ".join(found)
        return LeftOut(self.reason, self.rows, example, may_be_participation)


@dataclass(slots=True)
class Tally:
    """Counts of the rows of some files of a log."""

    rows: int = 0
    filtered_rows: int = 0
    staged_rows: int = 0
    out_of_range: int = 0
    unreleased_rows: int = 0
    unreleased_rounds: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    left_out: dict[str, Unused] = field(default_factory=dict)

    def __add__(self, later: "Tally") -> "Tally":
        """Returns the counts of these files and later ones, with the first examples of both."""
        left_out = {reason: replace(each) for reason, each in self.left_out.items()}
        for reason, each in later.left_out.items():
            found = left_out.setdefault(reason, replace(each, rows=0))
            found.rows += each.rows
        return Tally(
            self.rows + later.rows,
            self.filtered_rows + later.filtered_rows,
            self.staged_rows + later.staged_rows,
            self.out_of_range + later.out_of_range,
            self.unreleased_rows + later.unreleased_rows,
            np.union1d(self.unreleased_rounds, later.unreleased_rounds),
            # In an order that does not depend on the rows that had them first.
            dict(sorted(left_out.items())),
        )


class Log:
    """Participations of a log, batch by batch; all other rows are counted.

    Args:
        path: a file, or a directory of files of one format.
        layout: format and columns of the log.
        numbering: relation of round numbers, which determines the valid ones.
        on_progress: function that is called with the number of rows read.
        known: own columns of files that were read before, by name.
        texts: whether each column of bytes was text in those files.

    Raises:
        InputError: the files or columns are missing, or have a type that cannot be read.
    """

    def __init__(
        self,
        path: Path,
        layout: LogLayout,
        numbering: Numbering,
        on_progress: Callable[[str], None],
        known: Mapping[str, pa.Schema] | None = None,
        texts: Mapping[str, bool] | None = None,
    ) -> None:
        self.path = path
        self.layout = layout
        self.numbering = numbering
        self.rows = self.filtered_rows = self.staged_rows = 0
        self.begin = 0
        """Rows of the files before those that are counted."""
        self._first_number = np.uint64(0)
        """A number by the name of the file that is read, which no other file has."""
        self._places = np.empty(0, np.int64)
        """Positions in the log of the rows of the last batch."""
        self.beyond = "with a round beyond 10^18"
        """Reason for which rows in rounds above the largest valid one cannot be used."""
        if numbering.how == AS_THEY_ARE:
            self.beyond = f"with a round beyond rounds-1={numbering.limit - 1}"
        self.time_problem = ""
        """First error for times that cannot be read."""
        self.left_out: dict[str, Unused] = {}
        """Rows that may be participations but are incomplete, by reason."""
        self.out_of_range = self.unreleased_rows = 0
        """Rows in rounds beyond the stated number, and in rounds that the rounds file lacks."""
        self.unreleased_rounds = np.empty(0, np.int64)
        """Distinct numbers of rounds that the rounds file lacks, sorted."""
        self.file_rows: list[int] = []
        """Rows of each file."""
        self.times: TimeReader | None = None
        # One reader serves all files, because all must have the same form of times.
        if layout.time is not None:
            self.times = layout.time_reader(f"column {layout.time!r} of log {shown_path(path)}")
        self._on_progress = on_progress
        # Only rows with a time may be copies of others (`repeats.py`), which all columns must show.
        known, is_whole = known or {}, layout.time is not None
        self.files = LogFiles(path, layout.columns, layout.delimiter, is_whole, known)
        self.found = self.files.found
        """The files of the log, and the marks that are skipped."""
        self._types = self.files.types
        self.texts: dict[str, bool] = {}
        """Whether each column of bytes that names a device or an owner is text."""
        new = [place for place, (_, name) in enumerate(self.found.files) if name not in known]
        for name in sorted({*layout.device_columns, layout.owner or ""} & self._types.keys()):
            # Impala, and Hive and Spark of old, write text without the mark of text.
            if _is_bytes(self._types[name]):
                only = LogFiles(path, {name: layout.columns[name]}, layout.delimiter, known=known)
                was_text = (texts or {}).get(name, True)
                self.texts[name] = was_text and _is_text_in(only, name, new)
                self._types[name] = pa.string() if self.texts[name] else pa.binary()
        _check_round_type(layout.round, self._types[layout.round])
        self._met: dict[str, dict[str, None]] = {column: {} for column in layout.conditions}
        """First few values of the columns of conditions."""
        fields = {"device": self._device_type()}
        # The owner comes second, so that the sort brings a device's owners together.
        if layout.owner is not None:
            kind = self._types[layout.owner]
            fields["owner"] = _name_kind(layout.owner, kind, "owner_column", "owners")
        fields["round"] = pa.int64()
        if layout.time is not None:
            fields |= {"time": pa.float64(), ROW_HASH: pa.uint64()}
        self.schema = pa.schema(fields)

    @property
    def exact_parts(self) -> frozenset[int]:
        """Places of the parts of a combined device that have one writing: integers and periods."""
        names = self.layout.device_columns
        whole = (place for place, name in enumerate(names) if is_whole(self._types[name]))
        return frozenset((*whole, *range(len(names), len(self.layout.devices))))

    def stage(self, file: Path, batches: Iterable[pa.RecordBatch] | None = None) -> None:
        """Writes the participations to a Parquet file: device, owner, round, time and hash.

        Args:
            file: path of the file.
            batches: all rows of the log, if they are read elsewhere.

        Raises:
            InputError: the log cannot be read.
            OSError: the disk is full or fails.
        """
        # lz4, because the file is read once and removed; names seldom repeat, so no dictionary.
        with pq.ParquetWriter(file, self.schema, compression="lz4", use_dictionary=False) as writer:
            if batches is not None:
                self._read(batches, writer.write_batch)
                return
            places = range(len(self.found.files))
            self.count([self.read_file(place, writer.write_batch) for place in places])

    def read_file(
        self, place: int, write: Callable[[pa.RecordBatch], None], begin: int = 0
    ) -> Tally:
        """Reads one file, and returns its counts; those of the log are then only of this file.

        Args:
            place: place of the file.
            write: function that takes its participations, batch by batch.
            begin: byte at which new rows of the file begin; 0 for all.

        Raises:
            InputError: the file cannot be read.
        """
        self.begin += self.rows
        self.count([])
        name = hashlib.sha256(self.found.files[place].name.encode(errors="surrogateescape"))
        self._first_number = np.frombuffer(name.digest(), np.uint64)[0]
        self._read(self.files.batches_of(place, begin), write)
        return Tally(
            self.rows,
            self.filtered_rows,
            self.staged_rows,
            self.out_of_range,
            self.unreleased_rows,
            self.unreleased_rounds,
            self.left_out,
        )

    def count(self, tallies: Sequence[Tally]) -> None:
        """Sets the counts of the log to those of all its files, in their order."""
        all_files = sum(tallies, Tally())
        self.rows, self.filtered_rows = all_files.rows, all_files.filtered_rows
        self.staged_rows, self.out_of_range = all_files.staged_rows, all_files.out_of_range
        self.unreleased_rows = all_files.unreleased_rows
        self.unreleased_rounds = all_files.unreleased_rounds
        self.left_out = all_files.left_out
        self.file_rows = [each.rows for each in tallies]

    def _read(
        self, batches: Iterable[pa.RecordBatch], write: Callable[[pa.RecordBatch], None]
    ) -> None:
        for batch in batches:
            start = self.begin + self.rows
            self._places = np.arange(start, start + batch.num_rows)
            self.rows += batch.num_rows
            staged = self._staged(batch)
            self.staged_rows += staged.num_rows
            write(staged)
            self._on_progress(f"{self.begin + self.rows:,} rows read")

    def _staged(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            return self._participations(self._where(batch))
        except pa.ArrowException as error:
            raise InputError(
                f"log {shown_path(self.path)} cannot be read ({first_line(error)}); correct it"
            ) from None

    def check_conditions(self) -> None:
        """Raises InputError, with some values of the columns, if no row meets the conditions."""
        if not self.rows or self.filtered_rows < self.rows:
            return
        met = []
        for column, wanted in self.layout.conditions.items():
            found = list(map(repr, self._met[column]))
            some = ", ".join(found[:MOST_MET])
            # One value more than the limit shows that there are others.
            some += ", ..." if len(found) > MOST_MET else ""
            wish = " or ".join(map(repr, wanted))
            met.append(f"column {column!r} has {some}, but {wish} is wanted")
        raise InputError(
            f"where={shown(list(self.layout.where))} matches none of the {self.rows:,} rows of log "
            f"{shown_path(self.path)}: {'; '.join(met)}; values must match exactly, and all "
            "columns must match in the same row"
        )

    def _where(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows that meet the conditions, with values compared as text."""
        taken = np.ones(batch.num_rows, np.bool_)
        for column, values in self.layout.conditions.items():
            # Null counts as empty text, so that COLUMN= selects rows without a value.
            text = batch.column(column).cast(pa.string()).fill_null("")
            # One more than a message shows, so that it can say whether there are others.
            if len(self._met[column]) <= MOST_MET:
                some = text.unique()[: MOST_MET + 1].to_pylist()
                self._met[column] |= dict.fromkeys(value[:60] for value in some)
            # pyarrow writes booleans as true and false, people also as True and False.
            is_boolean = pa.types.is_boolean(self._types[column])
            allowed = [value.lower() for value in values] if is_boolean else values
            taken &= np.asarray(_COMPUTE.is_in(text, pa.array(allowed)))
        # Most logs have no conditions, and a filter would copy the batch.
        if taken.all():
            return batch
        self.filtered_rows += int((~taken).sum())
        self._places = self._places[taken]
        return batch.filter(pa.array(taken))

    def _participations(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        devices = self._devices(batch)
        owners = self._owners(batch)
        rounds = batch.column(self.layout.round)
        whole = whole_numbers(rounds)
        numbers = np.asarray(whole.fill_null(0))
        limit = self.numbering.limit
        is_rounded = np.asarray(_COMPUTE.and_(rounds.is_valid(), exact_floats(rounds).is_null()))
        staged = self.numbering.staged(numbers)
        times = None if self.times is None else batch.column(self.layout.time)
        untimed = np.zeros(len(devices), bool) if times is None else _is_untimed(times)
        # A row is counted under the first of these that it fails.
        checks = {
            "without a device": _is_missing(devices),
            "without an owner": _is_missing(owners[0]) if owners else np.zeros(len(devices), bool),
            "without a round": np.asarray(rounds.is_null()),
            f"with a round that {rounds.type} does not hold exactly": is_rounded,
            "with a round that is not an integer": np.asarray(whole.is_null()),
            "with a negative round": numbers < 0,
            self.beyond: numbers >= limit,
            UNTIMED: untimed & (staged >= 0),
        }
        is_left = np.ones(batch.num_rows, np.bool_)
        for reason, fails in checks.items():
            places = np.flatnonzero(fails & is_left)
            is_left &= ~fails
            if not places.size:
                continue
            first = int(places[0])
            example = [(devices[first], shown_value(rounds[first]))]
            found = Unused(reason, 0, example, int(self._places[first]) + 1)
            self.left_out.setdefault(reason, found).rows += places.size
            self.out_of_range += places.size if reason == self.beyond else 0
        # Rows in these rounds are counted separately, because the log may have them.
        is_unreleased = is_left & (staged < 0)
        if is_unreleased.any():
            self.unreleased_rows += int(is_unreleased.sum())
            found = np.unique(numbers[is_unreleased])
            self.unreleased_rounds = np.union1d(self.unreleased_rounds, found)
        # Times of other rows are not read, so wrong times there are harmless.
        places = np.flatnonzero(is_left & ~is_unreleased)
        columns = [_taken(each, places) for each in (devices, *owners)]
        columns.append(pa.array(staged[places]))
        if self.times is not None and times is not None:

            def row_name(place: int) -> str:
                row = int(places[place])
                return row_text(devices[row], shown_value(rounds[row]))

            try:
                seconds = self.times.seconds(_taken(times, places), row_name)
            except InputError as error:
                # The first, since all later rows are read by the form of the first.
                self.time_problem = self.time_problem or str(error)
                seconds = np.full(places.size, np.nan)
            columns.append(pa.array(seconds, from_pandas=True))
            columns[0] = self._in_periods(columns[0], seconds)
            # Rows that cannot be compared have numbers that no other file has.
            numbers = (self._places - self.begin).astype(np.uint64) + self._first_number
            hashes = row_hashes(batch, numbers)
            columns.append(_taken(hashes, places))
        return pa.record_batch(columns, schema=self.schema)

    def _owners(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """Returns each row's owner, as a list of one column, or of none."""
        if self.layout.owner is None:
            return []
        found = batch.column(self.layout.owner).cast(self.schema.field("owner").type)
        found.validate(full=True)
        return [found]

    def _devices(self, batch: pa.RecordBatch) -> pa.Array:
        """Returns each row's device: a value, or several combined."""
        kind = self.schema.field("device").type
        found = [batch.column(name).cast(kind) for name in self.layout.device_columns]
        for each in found:
            # Text that is not UTF-8 would be sorted wrongly, which could split a device in two.
            each.validate(full=True)
        if len(found) == 1 and not self.layout.periods:
            return found[0]
        # With a missing part the device is missing.
        missing = pa.scalar(None, kind)
        return combined([_COMPUTE.if_else(_is_missing(each), missing, each) for each in found])

    def _in_periods(self, devices: pa.Array, seconds: Float64Array) -> pa.Array:
        """Returns devices [N], each combined with the periods of its time [N seconds]."""
        # The log is refused for times that cannot be read.
        if not self.layout.periods or not seconds.size or np.isnan(seconds).any():
            return devices
        days, places = np.unique(seconds // 86_400.0, return_inverse=True)
        if days[0] < EARLIEST / 86_400.0 - 1 or days[-1] > LATEST / 86_400.0:
            self.time_problem = (
                f"{PERIOD}{self.layout.periods[0]} needs times with a date, but those of log "
                f"{shown_path(self.path)} count from another moment; leave it out"
            )
            return devices
        dates = [datetime.date(1970, 1, 1) + datetime.timedelta(day) for day in days.tolist()]
        for each in self.layout.periods:
            names = pa.array([PERIODS[each](date) for date in dates])
            named = names.take(pa.array(places))
            devices = _COMPUTE.binary_join_element_wise(devices, named, "|")
        return devices

    def _device_type(self) -> pa.DataType:
        names = self.layout.device_columns
        kinds = [_name_kind(name, self._types[name], "device_column", "devices") for name in names]
        if len(kinds) == 1 and not self.layout.periods:
            return kinds[0]
        if pa.binary() in kinds:
            rule = "combines several columns, which must be integers or strings, not bytes"
            raise InputError.of("device_column", names, rule, "write bytes as hexadecimal text")
        return pa.string()


def _name_kind(name: str, kind: pa.DataType, argument: str, named: str) -> pa.DataType:
    if pa.types.is_unsigned_integer(kind):
        return pa.uint64()
    if pa.types.is_signed_integer(kind):
        return pa.int64()
    if kind == WHOLE or is_text(kind):
        return kind
    if _is_bytes(kind):
        return pa.binary()
    remedy = f"{named} must be integers, strings or bytes"
    raise InputError.of(argument, name, f"is of type {kind}", remedy)


def _is_bytes(kind: pa.DataType) -> bool:
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return is_bytes or pa.types.is_fixed_size_binary(kind)


def _is_text_in(files: LogFiles, name: str, places: Sequence[int]) -> bool:
    """Returns whether all values of a column of bytes, in the files at `places`, are text: UTF-8
    without control characters but white space."""
    for batch in itertools.chain.from_iterable(map(files.batches_of, places)):
        try:
            texts = batch.column(name).cast(pa.string())
        except pa.ArrowInvalid:
            return False
        if _COMPUTE.any(_COMPUTE.match_substring_regex(texts, _CONTROL)).as_py():
            return False
    return True


def _check_round_type(name: str, kind: pa.DataType) -> None:
    is_number = is_whole(kind) or pa.types.is_floating(kind)
    if not is_number and not is_text(kind):
        raise InputError.of("round_column", name, f"is of type {kind}", "rounds must be integers")


def row_text(device: pa.Scalar, round_text: str) -> str:
    """Returns a row's device and round, for messages."""
    return f"device {shown_value(device)}, round {round_text}"


def shown_value(value: pa.Scalar) -> str:
    """Returns a value of a log for messages, cut to 60 characters; bytes in hexadecimal."""
    try:
        plain = value.as_py()
    # Python's times have a smaller range and microseconds only.
    except (ValueError, OverflowError):
        return f"a {value.type}"
    if plain is None:
        return "missing"
    if isinstance(plain, bytes):
        plain = plain.hex()
    return (repr(plain) if isinstance(plain, str | list | dict) else str(plain))[:60]


def _is_untimed(times: pa.Array) -> BoolArray:
    """Returns whether times [N] are null, or words that stand for a missing value."""
    if not is_text(times.type):
        return np.asarray(times.is_null())
    words = _COMPUTE.utf8_lower(_COMPUTE.utf8_trim_whitespace(times)).fill_null("")
    return np.asarray(_COMPUTE.is_in(words, pa.array(UNTIMED_WORDS)))


def _taken(column: pa.Array, places: Int64Array) -> pa.Array:
    # Most logs lose no row here, and copying text takes as long as reading it.
    return column if places.size == len(column) else column.take(pa.array(places))


def _is_missing(column: pa.Array) -> BoolArray:
    """Returns whether values [N] are null or empty."""
    if is_whole(column.type):
        return np.asarray(column.is_null())
    # An empty name would merge all devices without a name into one.
    is_empty = _COMPUTE.equal(_COMPUTE.binary_length(column), 0)
    return np.asarray(_COMPUTE.fill_null(is_empty, True))
