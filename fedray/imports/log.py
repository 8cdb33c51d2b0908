"""A log of participations, read batch by batch: CSV or Parquet, rows checked, devices named, rounds
numbered, times read."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from fedray.base.errors import InputError, RunFailed, shown
from fedray.imports.log_rounds import Numbering, ReleasedRounds, plain_list, read_released
from fedray.imports.log_times import TimeReader
from fedray.trace.files import first_line
from fedray.trace.imported import AS_THEY_ARE, LeftOut, hashed_name

BATCH_ROWS = 1 << 20
BLOCK_BYTES = 16 << 20
"""Bytes of CSV that are read at once; no value may be longer."""
MOST_MET = 5
"""Values of a condition's column that are named where no row has the one that is wanted."""
LONGEST_EXACT = 2**53
"""Whole numbers beyond are not exact as float64."""
_FORMATS = {
    ".csv": "csv",
    ".gz": "csv",
    ".bz2": "csv",
    ".zst": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_DELIMITERS = {"tab": "\t", "\\t": "\t"}
_SEPARATORS = (";", "\t", ",", "|")
"""What CSV has between columns."""
_DAMAGE = (pa.ArrowException, OSError, UnicodeError, KeyError)
# pyarrow makes these functions at import, and its stubs do not know them.
_COMPUTE: Any = pc


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLayout:
    """How a log is written, and what its columns are.

    Raises InputError for columns that are named twice, and for a delimiter or condition that cannot
    be read.
    """

    devices: tuple[str, ...]
    """Columns that together name a device."""
    round: str
    """Column of the round."""
    time: str | None = None
    """Column of the time; None for a log without times."""
    time_unit: str | None = None
    """Unit of times that are numbers; None where it can be told from them."""
    time_format: str | None = None
    """Format of times that are text, by the directives of strptime; None for ISO 8601."""
    time_zone: str | None = None
    """Time zone of times without an offset, such as "Europe/Berlin"; None for UTC."""
    where: tuple[str, ...] = ()
    """Conditions "COLUMN=VALUE" of the rows that are participations; several of one column mean any
    of them."""
    file_format: str | None = None
    """csv or parquet; None: by the suffix."""
    delimiter: str | None = None
    """What stands between CSV's columns; None for a comma."""

    def __post_init__(self) -> None:
        if not self.devices:
            raise InputError.of(
                "device_column", (), "names no column", "name the column of the device"
            )
        chosen = [*self.devices, self.round, *([self.time] if self.time is not None else [])]
        twice = next((name for name, count in Counter(chosen).items() if count > 1), None)
        if twice is not None:
            raise InputError(
                f"column {twice!r} is named twice among those of device, round and time; "
                "name others"
            )
        if self.file_format is not None and self.file_format not in ("csv", "parquet"):
            raise InputError.of("file_format", self.file_format, "is not csv or parquet")
        separator_of(self.delimiter)
        for each in self.where:
            # The first equals sign counts, so that a value may have more of them.
            column, equals, _ = each.partition("=")
            if not equals or not column:
                raise InputError.of("where", each, "must be COLUMN=VALUE, such as outcome=accepted")

    @property
    def separator(self) -> str:
        """The character that the delimiter names."""
        return separator_of(self.delimiter)

    @property
    def conditions(self) -> dict[str, list[str]]:
        """The values that each column of `where` may have; rows that have one of them in every
        column are participations."""
        found: dict[str, list[str]] = {}
        for each in self.where:
            column, _, value = each.partition("=")
            found.setdefault(column, []).append(value)
        return found

    @property
    def columns(self) -> dict[str, str]:
        """All columns that are read, each with the argument that names it first."""
        named = dict.fromkeys(self.conditions, "where")
        if self.time is not None:
            named[self.time] = "time_column"
        named[self.round] = "round_column"
        of_devices = dict.fromkeys(self.devices, "device_column")
        others = {column: named[column] for column in named if column not in self.devices}
        return {**of_devices, **others}


@dataclass(frozen=True, slots=True)
class Example:
    """A row of the log, by which a message shows what it means; the first one of its kind."""

    device: pa.Scalar
    """The log's value, which may be missing."""
    round: str
    """The round as it is shown."""

    def __str__(self) -> str:
        """For whoever is at the log, who has to find the row."""
        return f"device {shown_value(self.device)}, round {self.round}"

    def hashed(self, devices_digest: str) -> str:
        """The row for the trace, which may be read by others: the device by a hash under the key
        `devices_digest`."""
        device = self.device.as_py()
        name = "missing" if device is None else hashed_name(device, devices_digest)
        return f"device {name}, round {self.round}"


@dataclass(frozen=True, slots=True)
class Unused:
    """Rows of a log that are no participation, by the reason, and one of them."""

    reason: str
    """Why, in words."""
    rows: int
    """How many."""
    example: Example
    """One of them."""

    def recorded(self, devices_digest: str, may_be_participation: bool = True) -> LeftOut:
        """As the trace has it, the example's device by a hash that is salted with
        `devices_digest`."""
        example = self.example.hashed(devices_digest)
        return LeftOut(self.reason, self.rows, example, may_be_participation)


class Log:
    """A log's participations, batch by batch; what is none is counted in `left_out`, by reason, or
    in `filtered_rows`.

    Args:
        path: a file, or a directory of files of one format, which are read in order of their names.
        layout: what the columns are.
        numbering: hears of all round numbers, and says which are taken.
        on_progress: hears how many rows were read.

    Raises:
        InputError: the files or the columns are not there, or of a type that cannot be read.
    """

    def __init__(
        self,
        path: Path,
        layout: LogLayout,
        numbering: Numbering,
        on_progress: Callable[[str], None],
    ) -> None:
        self.path = path
        self.layout = layout
        self.numbering = numbering
        self.rows = self.filtered_rows = self.staged_rows = 0
        self.left_out: dict[str, Unused] = {}
        self.out_of_range = 0
        """Rows whose round is none of the rounds that were told."""
        self.first_second = np.inf
        self.times: TimeReader | None = None
        if layout.time is not None:
            where = f"column {layout.time!r} of log {shown_path(path)}"
            # One reader serves all files, because all must have one form of times.
            self.times = _time_reader(where, layout)
        self._on_progress = on_progress
        self._files = log_files(path)
        self._format = log_format_of(self._files[0], layout.file_format)
        if self._format != "csv" and layout.delimiter is not None:
            raise InputError.of(
                "delimiter",
                layout.delimiter,
                f"is for CSV, and log {shown_path(path)} is Parquet",
                "leave it out",
            )
        self._types = self._checked_columns()
        self._met: dict[str, list[str]] = {column: [] for column in layout.conditions}
        """A few values that columns of conditions have, for the case that no row is taken."""
        fields = [pa.field("device", self._device_type()), pa.field("round", numbering.type)]
        if layout.time is not None:
            fields.append(pa.field("time", pa.float64()))
        self.schema = pa.schema(fields)

    def stage(self, file: Path) -> None:
        """Writes the participations to a Parquet `file`, from which they are sorted.

        Raises:
            InputError: the log cannot be read.
            RunFailed: the disk is full or fails.
        """
        # lz4, because the file is read once and removed; names seldom repeat, so no dictionary.
        try:
            with pq.ParquetWriter(
                file, self.schema, compression="lz4", use_dictionary=False
            ) as writer:
                for batch in self._batches():
                    self.staged_rows += batch.num_rows
                    writer.write_batch(batch)
        except OSError as error:
            # Reading raises errors of its own, so this is a failure to write.
            raise RunFailed(
                f"staging the log in {shown_path(file)} failed ({first_line(error)}); free space "
                "there"
            ) from None

    def no_row_taken(self) -> str:
        """Why there is nothing, where the conditions leave no row: what their columns have instead.
        Empty where some row is left."""
        # Rows that were left out for other reasons are told with those.
        if not self.rows or self.filtered_rows < self.rows:
            return ""
        met = []
        for column, wanted in self.layout.conditions.items():
            some = [repr(value) for value in self._met[column][:MOST_MET]]
            if len(self._met[column]) > MOST_MET:
                some.append("...")
            met.append(
                f"column {column!r} has {', '.join(some)}, and {' or '.join(map(repr, wanted))} is "
                "wanted"
            )
        return (
            f"where={shown(list(self.layout.where))} leaves none of the {self.rows:,} rows of log "
            f"{shown_path(self.path)}: {'; '.join(met)}; values must be equal to the letter, and "
            "all columns must match in one row"
        )

    def _checked_columns(self) -> dict[str, pa.DataType]:
        """The columns that are read with their types, by the first file; the others must agree."""
        file = self._files[0]
        given = self.layout.columns
        schema = (
            open_csv(file, [], self.layout.separator).schema
            if self._format == "csv"
            else open_parquet(file).schema_arrow
        )
        # pyarrow decodes the names only when they are asked for.
        try:
            names = schema.names
        except UnicodeError as error:
            raise InputError(
                f"log {shown_path(file)} has a first line that is not UTF-8 ({first_line(error)}); "
                "convert it, as by iconv"
            ) from None
        for column, argument in given.items():
            if names.count(column) > 1:
                raise InputError.of(
                    argument,
                    column,
                    f"is the name of {names.count(column)} columns of {shown_path(self.path)}",
                    "rename one of them",
                )
            if column not in names:
                hint = other_separator(file, self.layout.separator) if self._format == "csv" else ""
                raise InputError.of(
                    argument,
                    column,
                    f"is not a column of {shown_path(self.path)}",
                    f"it has {', '.join(names[:20])[:400]}{hint}",
                )
        return {
            name: pa.string() if self._format == "csv" else schema.field(name).type
            for name in given
        }

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._read():
                self.rows += batch.num_rows
                yield self._valid(self._where(batch))
                self._on_progress(f"{self.rows:,} rows read")
        except _DAMAGE as error:
            raise InputError(
                f"log {shown_path(self.path)} cannot be read ({first_line(error)}); correct that "
                "place"
            ) from None

    def _read(self) -> Iterator[pa.RecordBatch]:
        if self._format == "csv":
            for file in self._files:
                yield from open_csv(file, list(self._types), self.layout.separator)
            return
        # CSV is text everywhere; files of Parquet have types that may differ from file to file.
        for file in self._files:
            with open_parquet(file) as parquet:
                schema = parquet.schema_arrow
                found = {
                    name: schema.field(name).type if name in schema.names else None
                    for name in self._types
                }
                if found != self._types:
                    raise InputError(
                        f"log {shown_path(file)} has the columns {', '.join(self._types)} as "
                        f"{list(map(str, found.values()))}, "
                        f"{shown_path(self._files[0])} as {list(map(str, self._types.values()))}; "
                        "bring all files to one form"
                    )
                yield from parquet.iter_batches(batch_size=BATCH_ROWS, columns=list(self._types))

    def _where(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that meet the conditions. Values are compared as text, so that a number or a
        truth value is written as in the file."""
        taken = np.ones(batch.num_rows, np.bool_)
        for column, values in self.layout.conditions.items():
            found = _decoded(batch.column(column)).cast(pa.string())
            met = self._met[column]
            # One more than are named, so that the message knows whether there are others.
            room = MOST_MET + 1 - len(met)
            if room > 0:
                shown = ("" if each is None else each[:60] for each in found.unique().to_pylist())
                unknown = [each for each in dict.fromkeys(shown) if each not in met]
                met += unknown[:room]
            # pyarrow writes booleans as true and false, people also as True and False.
            is_boolean = pa.types.is_boolean(_plain(self._types[column]))
            allowed = [value.lower() for value in values] if is_boolean else values
            # Null counts as empty text, so that COLUMN= asks for rows without a value.
            is_allowed = _COMPUTE.is_in(_COMPUTE.fill_null(found, ""), pa.array(allowed))
            taken &= is_allowed.to_numpy(zero_copy_only=False)
        # Most logs have no conditions, and a filter would copy the batch.
        if taken.all():
            return batch
        self.filtered_rows += int((~taken).sum())
        return batch.filter(pa.array(taken))

    def _device_type(self) -> pa.DataType:
        kinds = [self._device_kind(name) for name in self.layout.devices]
        if len(kinds) == 1:
            return kinds[0]
        if pa.binary() in kinds:
            raise InputError.of(
                "device_column",
                self.layout.devices,
                "must be whole numbers or strings, not bytes",
                "write bytes as hexadecimal text",
            )
        return pa.string()

    def _device_kind(self, name: str) -> pa.DataType:
        kind = _plain(self._types[name])
        if pa.types.is_unsigned_integer(kind):
            return pa.uint64()
        if pa.types.is_signed_integer(kind):
            return pa.int64()
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return pa.string()
        is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
        if is_bytes or pa.types.is_fixed_size_binary(kind):
            return pa.binary()
        raise InputError.of(
            "device_column",
            name,
            f"is of type {kind}",
            "devices are whole numbers, strings or bytes",
        )

    def _valid(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The participations among a batch's rows, as they are staged."""
        devices = self._named(batch)
        rounds = _decoded(batch.column(self.layout.round))
        numbers, is_whole = _whole_numbers(rounds, self.layout.round)
        has_name = devices.is_valid().to_numpy(zero_copy_only=False)
        if not pa.types.is_integer(devices.type):
            has_name &= _has_content(devices)
        has_round = rounds.is_valid().to_numpy(zero_copy_only=False)
        limit = self.numbering.limit
        beyond = "with a round beyond 10^18"
        if self.numbering.how == AS_THEY_ARE:
            beyond = f"with a round beyond rounds-1={limit - 1}"
        # A row is counted under the first of these that it fails.
        checks = (
            ("without a device", ~has_name),
            ("without a round", ~has_round),
            ("with a round that is no whole number", ~is_whole),
            ("with a negative round", numbers < 0),
            (beyond, numbers >= limit),
        )
        is_valid = np.ones(len(numbers), np.bool_)
        for reason, fails in checks:
            places = np.flatnonzero(fails & is_valid)
            if places.size:
                self._leave_out(reason, places, devices, rounds)
                self.out_of_range += places.size if reason == beyond else 0
                is_valid &= ~fails
        # Only valid rows say which rounds occur.
        staged, is_released = self.numbering.staged(numbers[is_valid])
        if is_released is not None:
            # The answer is of the valid rows, and this puts it in its places among all.
            is_valid[is_valid] = is_released
        columns = [devices]
        if self.layout.time is not None:
            columns.append(_decoded(batch.column(self.layout.time)))
        # Times are read of these rows alone, so a wrong time elsewhere refuses nothing.
        if not is_valid.all():
            kept = pa.array(np.flatnonzero(is_valid))
            columns = [column.take(kept) for column in columns]
        arrays = [columns[0], pa.array(staged)]
        if self.times is not None:

            def row_name(place: int) -> str:
                row = int(np.flatnonzero(is_valid)[place])
                return str(Example(devices[row], shown_value(rounds[row])))

            seconds = self.times.seconds(columns[1], row_name)
            self.first_second = min(self.first_second, float(seconds.min(initial=np.inf)))
            arrays.append(pa.array(seconds))
        return pa.record_batch(arrays, schema=self.schema)

    def _named(self, batch: pa.RecordBatch) -> pa.Array:
        """Each row's device: the value of its column, or the values of several, joined by "|" (in
        values: "\\|", and "\\\\")."""
        kind = self.schema.field("device").type
        found = [_decoded(batch.column(name)).cast(kind) for name in self.layout.devices]
        for each in found:
            # Text that is not UTF-8 would be sorted wrongly, so that a device would be split in
            # two.
            each.validate(full=True)
        if len(found) == 1:
            return found[0]
        # A device needs all its parts: joined with a missing one, the whole is missing. Escaping
        # keeps ("a|b", "c") and ("a", "b|c") apart.
        missing = pa.scalar(None, kind)
        escaped = []
        for each in found:
            part = _COMPUTE.if_else(pa.array(_has_content(each)), each, missing)
            part = _COMPUTE.replace_substring(part, "\\", "\\\\")
            escaped.append(_COMPUTE.replace_substring(part, "|", "\\|"))
        return _COMPUTE.binary_join_element_wise(*escaped, "|")

    def _leave_out(
        self, reason: str, places: np.ndarray, devices: pa.Array, rounds: pa.Array
    ) -> None:
        first = int(places[0])
        before = self.left_out.get(reason)
        if before is not None:
            rows = before.rows + int(places.size)
            # The first example stays, because it is the one that is found first in the log.
            self.left_out[reason] = Unused(reason, rows, before.example)
            return
        example = Example(devices[first], shown_value(rounds[first]))
        self.left_out[reason] = Unused(reason, int(places.size), example)


def read_rounds_file(file: Path, layout: LogLayout) -> ReleasedRounds:
    """The rounds that a file lists, in order of release: one per line, or a CSV or Parquet file.

    Args:
        file: its path.
        layout: of the log, whose columns of round and time the file may have too.

    Raises:
        InputError: the file is not there, cannot be read, or is no such list.
    """
    if not file.is_file():
        raise InputError.of(
            "rounds_file",
            str(file),
            "is not there",
            "name a file that lists the rounds that released a model",
        )
    try:
        if file.suffix.lower() in (".parquet", ".pq"):
            table = pq.read_table(file)
        else:
            table = plain_list(file) or open_csv(file, [], layout.separator).read_all()
            # Left alone, pyarrow would guess the types, and lose the offsets of times.
            names = list(dict.fromkeys(table.column_names))
            if table.schema.types != [pa.string()] * len(names):
                table = open_csv(file, names, layout.separator).read_all()
    except _DAMAGE as error:
        # Names of columns that are not UTF-8 raise here too.
        raise InputError.of(
            "rounds_file", str(file), f"cannot be read ({first_line(error)})", "correct it"
        ) from None
    where = f"rounds_file={str(file)!r}"
    times = _time_reader(f"times of {where}", layout)
    return read_released(file, table, layout.round, layout.time, times)


def _time_reader(where: str, layout: LogLayout) -> TimeReader:
    return TimeReader(where, layout.time_unit, layout.time_format, layout.time_zone)


def open_csv(file: Path, columns: Sequence[str], separator: str) -> arrow_csv.CSVStreamingReader:
    """Opens a CSV file to be read block by block.

    Args:
        file: its path; compression follows from the suffix.
        columns: those that are read, as text; where none are named, all, of the types that pyarrow
            guesses.
        separator: between columns.

    Raises:
        InputError: it cannot be read, as far as its first block tells.
    """
    try:
        return _opened_csv(file, columns, separator)
    except _DAMAGE as error:
        hint = other_separator(file, separator)
        raise InputError(
            f"{shown_path(file)} cannot be read as CSV ({first_line(error)}{hint}); correct it"
        ) from None


def _opened_csv(file: Path, columns: Sequence[str], separator: str) -> arrow_csv.CSVStreamingReader:
    return arrow_csv.open_csv(
        file,
        read_options=arrow_csv.ReadOptions(block_size=BLOCK_BYTES),
        # Quoted text may have line breaks.
        parse_options=arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True),
        convert_options=arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(columns, pa.string()),
            include_columns=columns,
            # Only an empty cell is missing, since a device may be called NA or null.
            null_values=[""],
            strings_can_be_null=True,
        ),
    )


def separator_of(delimiter: str | None) -> str:
    """The character that a `delimiter` names: a comma unless one is given, and a tab for "tab".
    Raises InputError."""
    separator = _DELIMITERS.get(delimiter or ",", delimiter or ",")
    # pyarrow takes one byte, which must be neither a quote nor the end of a line.
    if len(separator) != 1 or separator in '"\r\n' or not separator.isascii():
        raise InputError.of("delimiter", delimiter, "must be one character, such as ';' or tab")
    return separator


def other_separator(file: Path, separator: str) -> str:
    """What messages add where the first line of a CSV `file` has not the `separator` but another;
    else nothing."""
    try:
        with pa.input_stream(str(file)) as stream:
            first = stream.read(1 << 12).split(b"\n")[0].decode("utf-8", "replace")
    except _DAMAGE:
        return ""
    found = max(_SEPARATORS, key=first.count)
    if separator in first or found not in first:
        return ""
    name = "tab" if found == "\t" else found
    return f"; its first line has no {separator!r}, but delimiter={name!r} would part it"


def shown_path(path: Path) -> str:
    """A `path` in quotes, for messages; what is not UTF-8 in it is escaped."""
    return repr(str(path))


def shown_value(value: pa.Scalar) -> str:
    """A `value` of a log for messages, cut to 60 characters; bytes in hexadecimal, and "missing"
    for null."""
    plain = value.as_py()
    if plain is None:
        return "missing"
    if isinstance(plain, bytes):
        plain = plain.hex()
    return repr(plain)[:60]


def open_parquet(file: Path) -> pq.ParquetFile:
    try:
        # Without this the whole file would be read ahead.
        return pq.ParquetFile(file, pre_buffer=False)
    except _DAMAGE as error:
        raise InputError(
            f"log {shown_path(file)} cannot be read as Parquet ({first_line(error)}); correct it"
        ) from None


def _decoded(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _has_content(column: pa.Array) -> np.ndarray:
    """[N]: which are neither missing nor empty."""
    lengths = _COMPUTE.fill_null(_COMPUTE.binary_length(column), 0)
    return lengths.to_numpy(zero_copy_only=False) > 0


def _whole_numbers(rounds: pa.Array, name: str) -> tuple[np.ndarray, np.ndarray]:
    """(numbers [N] int64, which of them are whole [N]); -1 and False where there is none."""
    kind = rounds.type
    if pa.types.is_integer(kind):
        largest = 2**62
        # Numbers above 2^62 are far beyond any round; without the cap they would not fit int64.
        if pa.types.is_uint64(kind):
            rounds = _COMPUTE.min_element_wise(
                rounds, pa.scalar(largest, pa.uint64()), skip_nulls=False
            )
        numbers = _COMPUTE.fill_null(rounds.cast(pa.int64()), -1)
        all_whole = np.ones(len(rounds), np.bool_)
        return numbers.to_numpy(zero_copy_only=False), all_whole
    if pa.types.is_floating(kind):
        filled = _COMPUTE.fill_null(rounds.cast(pa.float64()), -1.0)
        values = filled.to_numpy(zero_copy_only=False)
        is_exact = np.isfinite(values) & (np.abs(values) <= LONGEST_EXACT)
        is_whole = is_exact & (values == np.trunc(values))
        return np.where(is_whole, values, -1.0).astype(np.int64), is_whole
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        trimmed = _COMPUTE.fill_null(_COMPUTE.utf8_trim_whitespace(rounds), "-1")
        # 18 digits fit int64 whatever they are.
        is_whole = _COMPUTE.match_substring_regex(trimmed, r"^-?[0-9]{1,18}$")
        numbers = _COMPUTE.if_else(is_whole, trimmed, "-1").cast(pa.int64())
        return numbers.to_numpy(zero_copy_only=False), is_whole.to_numpy(zero_copy_only=False)
    raise InputError.of("round_column", name, f"is of type {kind}", "rounds are whole numbers")


def log_files(path: Path) -> list[Path]:
    if path.is_file():
        return [_utf8(path)]
    if not path.is_dir():
        raise InputError(
            f"log {shown_path(path)} is not there; name a CSV or Parquet file, or a directory of "
            "them"
        )
    # Other files, such as those that mark an export as whole, are passed over.
    named = [file for file in path.rglob("*") if file.suffix.lower() in _FORMATS]
    found = sorted(file for file in named if file.is_file())
    kinds = Counter(_FORMATS[file.suffix.lower()] for file in found)
    if not found:
        raise InputError(
            f"log {shown_path(path)} holds no .csv or .parquet file; name a file, or a directory "
            "of them"
        )
    if len(kinds) > 1:
        raise InputError(
            f"log {shown_path(path)} holds both CSV and Parquet files; keep those of one format in "
            "it"
        )
    return [_utf8(file) for file in found]


def _utf8(file: Path) -> Path:
    try:
        str(file).encode()
    except UnicodeEncodeError:
        raise InputError(
            f"log {shown_path(file)} has a name that is not UTF-8, which cannot be opened; rename "
            "it"
        ) from None
    return file


def log_format_of(file: Path, given: str | None) -> str:
    found = given or _FORMATS.get(file.suffix.lower())
    if found is None:
        raise InputError(
            f"log {shown_path(file)} has no suffix that tells its format; give "
            "`file_format='csv'` or `file_format='parquet'`"
        )
    return found
