"""Reads the files of a log, CSV, JSON Lines or Parquet, batch by batch.

CSV is read as text. Only an empty cell is missing, since a device may be called NA or null. Of JSON
Lines, text stays text and whole numbers stay whole: the id "0012" is not the number 12. The folders
`round=3` of a partitioned log are columns of text.
"""

import contextlib
import csv
import errno
import io
import json
import lzma
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.json as arrow_json
import pyarrow.parquet as pq

from fedray.base.arrays import UInt64Array
from fedray.base.errors import InputError
from fedray.base.file_form import FileForm, form_of, unpacked
from fedray.base.input_files import InputFiles, input_files
from fedray.base.parsing import decode_text
from fedray.base.quiet_duckdb import connected
from fedray.trace.files import first_line

BATCH_ROWS = 1 << 20
BATCH_BYTES = 64 << 20
"""Most bytes of Parquet, before compression, that are read at once."""
BLOCK_BYTES = 16 << 20
"""Number of bytes of CSV or JSON Lines that are read at once; no value may be longer."""
DAMAGE = (pa.ArrowException, OSError, UnicodeError, KeyError, EOFError, lzma.LZMAError)
"""Errors that pyarrow and decompression raise for files that cannot be read."""
WHOLE = pa.decimal128(38, 0)
"""Type of whole numbers that neither int64 nor uint64 holds all."""
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""Value of a folder of a partitioned log for rows without one."""
_VIEWS = {
    pa.string_view(): pa.string(),
    pa.large_string(): pa.string(),
    pa.binary_view(): pa.binary(),
    pa.large_binary(): pa.binary(),
}
_TICKS = ("s", "ms", "us", "ns")
_DELIMITERS = {"tab": "\t", "\\t": "\t"}
_SEPARATORS = (";", "\t", ",", "|")
# pyarrow makes these functions at import, and its stubs do not know them.
_COMPUTE: Any = pc


@dataclass(frozen=True, slots=True)
class _LogFile:
    """A file of a log."""

    path: Path
    """Path by which it is opened."""
    form: FileForm
    """What it is."""
    schema: pa.Schema
    """Its own columns."""
    levels: Mapping[str, str | None]
    """Values of the folders `NAME=VALUE` above it, by name; None for no value."""

    @property
    def names(self) -> list[str]:
        """Names of all columns, those of folders last."""
        own = self.schema.names
        return [*own, *(name for name in self.levels if name not in own)]

    @property
    def kinds(self) -> list[pa.DataType]:
        """Types of the values of all columns."""
        own = [_plain(each.type) for each in self.schema]
        return [*own, *[pa.string()] * (len(self.names) - len(own))]


@dataclass(slots=True)
class _Kind:
    """Type of a column in one or more files."""

    common: pa.DataType
    """Type that holds the values of all these files exactly."""
    kind: pa.DataType
    """Type in the first of them."""
    path: Path
    """The first of them."""


class _Key(NamedTuple):
    """Column of a log in all of its files. Values of types that have none in common are in two."""

    name: str
    kind: pa.DataType
    place: int
    """Number of the file's columns before it with this name."""


class LogFiles:
    """The columns of a log that an import reads.

    Args:
        path: a file, or a directory of files of one format, which are read in order of their names.
        columns: names of the columns, each with the argument that gives it.
        delimiter: character between columns of CSV; a comma if None.
        is_whole: whether batches have all columns of their file, so that rows can be compared.
        known: own columns of files that were opened before, by name.

    Raises:
        InputError: the files cannot be read, or lack a column.
    """

    def __init__(
        self,
        path: Path,
        columns: Mapping[str, str],
        delimiter: str | None,
        is_whole: bool = False,
        known: Mapping[str, pa.Schema] | None = None,
    ) -> None:
        self._separator = separator_of(delimiter)
        self._is_whole, self._columns = is_whole, columns
        self.found = _found(path)
        """The files that are read, and the marks that are skipped."""
        self._files = [self._opened(path, name, known or {}) for path, name in self.found.files]
        first = self._files[0]
        self._kinds: dict[str, list[_Kind]] = {}
        for each in self._files:
            self._add_kinds(each)
            if each.form.content != first.form.content:
                raise InputError(
                    f"log {shown_path(path)} has both {first.form.content} and "
                    f"{each.form.content} files ({shown_path(first.path)}, "
                    f"{shown_path(each.path)}); keep only those of one format"
                )
            self._check_names(each)
        if delimiter is not None and first.form.content != "CSV":
            rule = f"is for CSV, but log {shown_path(path)} is {first.form.content}"
            raise InputError.of("delimiter", delimiter, rule, "leave it out")
        self.types = {name: self._common_type(name) for name in columns}
        """Types of the columns in all batches."""
        self._keys = list(dict.fromkeys(key for each in self._files for key in self._keys_of(each)))
        """All columns of the files, as batches have them if they are whole."""
        self.columns = [(name, str(kind), place) for name, kind, place in self._keys]
        """Name, type and place among its namesakes of each of these columns."""
        self.schemas = {
            name: each.schema for each, (_, name) in zip(self._files, self.found.files, strict=True)
        }
        """Own columns of the files, by name."""
        self.names = [name for name, _, _ in self._keys]
        """Names of all columns of the files; one of two types, or that a file has twice, is there
        twice."""

    def is_everywhere(self, name: str) -> bool:
        """Returns whether each file has a column of this name, and only one."""
        return all(each.names.count(name) == 1 for each in self._files)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields the rows in order, all with the same columns. Raises InputError for damaged
        files."""
        for place in range(len(self._files)):
            yield from self.batches_of(place)

    def batches_of(self, place: int, begin: int = 0) -> Iterator[pa.RecordBatch]:
        """Yields the rows of one file, as `batches` does.

        Args:
            place: place of the file.
            begin: byte at which the rows begin, after those that were read before; 0 for all.
        """
        file = self._files[place]
        keys = self._keys_of(file)
        wanted = file.names if self._is_whole else list(self.types)
        added = [name for name in wanted if name not in file.schema.names]
        own = [name for name in wanted if name not in added]
        with _readable(file.path):
            # Rows are counted by any column, if folders have all that is wanted.
            for batch in self._own_batches(file, own or file.schema.names, begin):
                names = [*(batch.schema.names if own else ()), *added]
                columns = [_decoded(column) for column in batch.columns[: len(names) - len(added)]]
                for name in added:
                    text = pa.scalar(file.levels[name], pa.string())
                    columns.append(pa.repeat(text, batch.num_rows))
                # Each file may have other types of the same values.
                for place, name in enumerate(names):
                    kind = keys[place].kind if self._is_whole else self.types.get(name)
                    if kind is not None and columns[place].type != kind:
                        columns[place] = columns[place].cast(kind)
                self._check_levels(file, names, columns)
                # Each file may have other columns, or the same in another order.
                if self._is_whole and keys != self._keys:
                    has = dict(zip(keys, columns, strict=True))
                    columns = [
                        has[key] if key in has else pa.nulls(batch.num_rows, key.kind)
                        for key in self._keys
                    ]
                    names = self.names
                yield pa.record_batch(columns, names)

    def end_of_rows(self, place: int, size: int) -> int:
        """Returns the byte at which the rows of a file that had `size` bytes end, if later rows can
        be read from there; else 0. A file that is compressed has no such byte, and neither has one
        whose last line had no end.

        Raises:
            InputError: the file is Parquet, which cannot grow.
        """
        file = self._files[place]
        if file.form.content == "Parquet":
            raise InputError(
                f"log {shown_path(file.path)} was changed after its import: a Parquet file does "
                "not grow; restore it, and put new rows into a new file"
            )
        if file.form.packing:
            return 0
        with _readable(file.path), file.path.open("rb") as stream:
            stream.seek(size - 1)
            return size if stream.read(1) == b"\n" else 0

    def _own_batches(
        self, file: _LogFile, names: Sequence[str], begin: int
    ) -> Iterator[pa.RecordBatch]:
        if file.form.content == "CSV":
            lines, rows = _Lines(file.path, file.form.packing, begin), 0
            header = file.schema.names if begin else ()
            reader = open_csv(file.path, file.form, names, self._separator, header, lines)
            for batch in reader:
                rows += batch.num_rows
                yield batch
            # Most files have a row on each line, below the names.
            if lines.count != rows + (not begin):
                _check_quotes(file, self._separator)
        elif file.form.content == "Parquet":
            with open_parquet(file.path) as parquet:
                # Of columns with one name, only those of all are in the file's order.
                some = None if self._is_whole else names
                yield from parquet.iter_batches(_batch_rows(parquet), columns=some)
        # pyarrow refuses JSON Lines without a value.
        elif not begin or _has_value(file.path, begin):
            schema = pa.schema([file.schema.field(name) for name in names])
            # Rows are compared by all of their values, so none may be passed over.
            unknown = "error" if self._is_whole else "ignore"
            try:
                for batch in _open_json(file.path, file.form.packing, schema, unknown, begin):
                    yield batch.select(names)
            except pa.ArrowInvalid as error:
                if "unexpected field" not in str(error):
                    raise
                raise InputError(
                    f"log {shown_path(file.path)} has the field {_late_field(file)} for the first "
                    f"time after {BLOCK_BYTES >> 20} MiB, so that its type is not known; convert "
                    "it: duckdb -c \"COPY (FROM read_json('LOG', sample_size=-1)) TO "
                    "'log.parquet'\""
                ) from None

    def _opened(self, path: Path, name: str, known: Mapping[str, pa.Schema]) -> _LogFile:
        with _readable(path):
            form = form_of(path)
            if name in known:
                schema = known[name]
            elif form.content == "CSV":
                names = csv_names(path, form, self._separator)
                schema = pa.schema([pa.field(each, pa.string()) for each in names])
            elif form.content == "Parquet":
                with open_parquet(path) as parquet:
                    schema = parquet.schema_arrow
            else:
                schema = _json_schema(path, form.packing)
            return _LogFile(path, form, schema, _levels(name))

    def _check_names(self, file: _LogFile) -> None:
        for column, argument in self._columns.items():
            count = file.names.count(column)
            if count > 1:
                rule = f"is the name of {count} columns of log {shown_path(file.path)}"
                raise InputError.of(argument, column, rule, "rename one of them")
            if not count:
                # The usual cause is another separator, with which all columns appear as one.
                is_csv = file.form.content == "CSV"
                hint = _separator_hint(file.path, file.form, self._separator) if is_csv else ""
                remedy = f"it has {', '.join(file.names[:20])[:400]}{hint}"
                rule = f"is not a column of log {shown_path(file.path)}"
                raise InputError.of(argument, column, rule, remedy)

    def _check_levels(
        self, file: _LogFile, names: Sequence[str], columns: Sequence[pa.Array]
    ) -> None:
        """Raises InputError if a file's columns [N rows] contradict the name of its folder."""
        for name in file.levels.keys() & set(names) & set(file.schema.names):
            texts = columns[names.index(name)].cast(pa.string()).fill_null(_NO_VALUE)
            value = file.levels[name]
            if not _COMPUTE.all(_COMPUTE.equal(texts, value or _NO_VALUE)).as_py():
                raise InputError(
                    f"log {shown_path(file.path)} has values in the column {name!r} other than "
                    f"{value!r}, the value in the name of its folder; correct one of them"
                )

    def _add_kinds(self, file: _LogFile) -> None:
        """Adds the types of a file's columns to those of the files before."""
        for name, kind in zip(file.names, file.kinds, strict=True):
            known = self._kinds.setdefault(name, [])
            # A column without any value has no type.
            if pa.types.is_null(kind):
                continue
            for each in known:
                common = _common(each.common, kind)
                if common is not None:
                    each.common = common
                    break
            else:
                known.append(_Kind(kind, kind, file.path))

    def _keys_of(self, file: _LogFile) -> list["_Key"]:
        """Returns the columns of a file, with types that hold the values of all files exactly."""
        seen = Counter[str]()
        found = []
        for name, kind in zip(file.names, file.kinds, strict=True):
            alike = [e.common for e in self._kinds[name] if _common(e.common, kind) == e.common]
            usual = [each.common for each in self._kinds[name]]
            found.append(_Key(name, next(iter([*alike, *usual]), kind), seen[name]))
            seen[name] += 1
        return found

    def _common_type(self, name: str) -> pa.DataType:
        """Returns the type of a column in all files: one that holds the values of each exactly."""
        first, *others = self._kinds[name] or [_Kind(pa.null(), pa.null(), self._files[0].path)]
        # The string "0012" and the number 12 would be two devices.
        for other in others:
            raise InputError(
                f"log {shown_path(other.path)} has the column {name} ({other.kind}), but "
                f"{shown_path(first.path)} has {name} ({first.kind}); convert all files to the "
                "same types"
            )
        return first.common


def row_hashes(batch: pa.RecordBatch, numbers: UInt64Array) -> pa.Array:
    """Returns a hash of all values of each row [N], by which equal rows are found.

    Args:
        batch: rows with all columns of the log.
        numbers: distinct numbers [N], for rows that cannot be compared.
    """
    # The import takes a tenth of a second.
    import duckdb

    numbered = batch.rename_columns([str(place) for place in range(batch.num_columns)])
    try:
        # A single thread keeps the order of rows.
        with connected({"threads": 1}) as connection:
            connection.register("given", pa.Table.from_batches([numbered]))
            found = connection.sql("SELECT hash(given) FROM given").to_arrow_table()
    except duckdb.InterruptException:
        raise KeyboardInterrupt from None
    # DuckDB does not read a few types, such as half-precision floats: no row is then a copy.
    except duckdb.Error:
        return pa.array(numbers)
    return found.column(0).combine_chunks()


def open_csv(
    file: Path,
    form: FileForm,
    columns: Sequence[str],
    separator: str,
    header: Sequence[str] = (),
    lines: "_Lines | None" = None,
) -> arrow_csv.CSVStreamingReader:
    """Opens a CSV file for reading block by block.

    Args:
        file: path of the file.
        form: its form, which has the compression.
        columns: names of the columns to read, as text; if empty, all are read with guessed types.
        separator: character between columns.
        header: names of all columns, if the first line does not have them.
        lines: the unpacked file, if it is open.

    Raises:
        InputError: the first block cannot be read.
    """
    try:
        return arrow_csv.open_csv(
            pa.PythonFile(lines or _Lines(file, form.packing), "r"),
            read_options=arrow_csv.ReadOptions(block_size=BLOCK_BYTES, column_names=header),
            # Quoted text may contain line breaks.
            parse_options=arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(columns, pa.string()),
                # All columns, since pyarrow would read the first of two with one name twice.
                include_columns=columns if len(set(columns)) == len(columns) else [],
                null_values=[""],
                strings_can_be_null=True,
            ),
        )
    except DAMAGE as error:
        hint = _separator_hint(file, form, separator)
        raise InputError(
            f"{shown_path(file)} cannot be read as CSV ({first_line(error)}{hint}); correct it"
        ) from None


class _Lines:
    """Unpacked file whose lines are counted as they are read.

    Its last line has an end, without which pyarrow takes a file of one line for empty.
    """

    def __init__(self, file: Path, packing: str, begin: int = 0) -> None:
        self._stream = unpacked(file, packing)
        if begin:
            self._stream.seek(begin)
        self._is_open = False
        self.count = 0
        """Number of lines that were read."""

    @property
    def closed(self) -> bool:
        return self._stream.closed

    def read(self, count: int) -> bytes:
        data = self._stream.read(count)
        # The end belongs to the block of its line.
        while 0 < len(data) < count and (more := self._stream.read(count - len(data))):
            data += more
        if len(data) < count and (data or self._is_open) and not data.endswith(b"\n"):
            data += b"\n"
        self.count += data.count(b"\n")
        self._is_open = bool(data) and not data.endswith(b"\n")
        return data

    def close(self) -> None:
        self._stream.close()


def _check_quotes(file: _LogFile, separator: str) -> None:
    """Raises InputError for a quote inside a quoted value of CSV that is not written twice: pyarrow
    takes all lines up to a later quote as one value."""
    with unpacked(file.path, file.form.packing) as stream:
        text = io.TextIOWrapper(io.BufferedReader(stream), "utf-8", "replace", newline="")
        reader = csv.reader(text, delimiter=separator, strict=True)
        try:
            for _ in reader:
                pass
        except csv.Error as error:
            # Long values are no fault.
            if "limit" in str(error):
                return
            raise InputError(
                f"log {shown_path(file.path)} has a quoted value up to line {reader.line_num:,} "
                "that does not end with its quote; write quotes inside of values twice"
            ) from None


def csv_names(file: Path, form: FileForm, separator: str) -> list[str]:
    """Returns the names in the first line of a CSV file. Raises InputError."""
    # Without column names pyarrow reads one block and guesses types, which are not used.
    schema = open_csv(file, form, [], separator).schema
    try:
        # pyarrow decodes the names only here.
        return schema.names
    except UnicodeError as error:
        raise InputError(
            f"{shown_path(file)} cannot be read: its first line is not UTF-8 "
            f"({first_line(error)}); convert it to UTF-8, for example with iconv"
        ) from None


def open_parquet(file: Path) -> pq.ParquetFile:
    """Opens a Parquet file. Raises InputError."""
    try:
        # With pre-buffering the whole file would be read ahead.
        return pq.ParquetFile(file, pre_buffer=False)
    except DAMAGE as error:
        raise InputError(
            f"{shown_path(file)} cannot be read as Parquet ({first_line(error)}); correct it"
        ) from None


def separator_of(delimiter: str | None) -> str:
    """Returns the character that a `delimiter` names. Raises InputError."""
    separator = _DELIMITERS.get(delimiter or ",", delimiter or ",")
    # pyarrow accepts one byte, which must not be a quote or end a line.
    if len(separator) != 1 or separator in '"\r\n' or not separator.isascii():
        raise InputError.of("delimiter", delimiter, "must be one character, such as ';' or tab")
    return separator


def shown_path(path: Path) -> str:
    """Returns a path in quotes, for messages; bytes that are not UTF-8 are escaped."""
    return repr(str(path))


@contextlib.contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except DAMAGE as error:
        problem = getattr(error, "strerror", None) or first_line(error)
        raise InputError(f"log {shown_path(file)} cannot be read ({problem}); correct it") from None


def _found(path: Path) -> InputFiles:
    try:
        return input_files(path, has_levels=True)
    except FileNotFoundError as error:
        # A folder may be without data.
        if path.exists():
            raise _not_read(path, error) from None
        raise InputError(
            f"log {shown_path(path)} does not exist; give a CSV, JSON Lines or Parquet file, or a "
            "directory"
        ) from None
    except OSError as error:
        raise _not_read(path, error) from None


def _not_read(path: Path, error: OSError) -> InputError:
    return InputError(f"log {shown_path(path)} cannot be read: {error.strerror or error}")


def _levels(name: str) -> dict[str, str | None]:
    """Returns the columns in the folders of a file's name, such as `round=3/part.csv`."""
    found: dict[str, str | None] = {}
    for part in Path(name).parts[:-1]:
        key, equals, value = part.partition("=")
        if not key or not equals:
            continue
        column = unquote(key, errors="strict")
        if column in found:
            raise OSError(errno.EINVAL, f"two folders of its path name the column {column!r}")
        found[column] = None if value == _NO_VALUE else unquote(value, errors="strict")
    return found


def _open_json(
    file: Path, packing: str, schema: pa.Schema | None, unknown: str = "infer", begin: int = 0
) -> pa.RecordBatchReader:
    """Opens JSON Lines for reading block by block.

    Args:
        file: path of the file.
        packing: its compression.
        schema: columns with their types; None for all of the first block, with guessed types.
        unknown: whether other columns are an "error", or to "ignore".
        begin: byte at which the first line begins.
    """
    stream = unpacked(file, packing)
    if begin:
        stream.seek(begin)
    return arrow_json.open_json(
        stream,
        arrow_json.ReadOptions(block_size=BLOCK_BYTES),
        arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unknown),
    )


def _has_value(file: Path, begin: int) -> bool:
    """Returns whether a file has more than white space from a byte on."""
    with file.open("rb") as stream:
        stream.seek(begin)
        return any(chunk.strip() for chunk in iter(lambda: stream.read(1 << 20), b""))


def _late_field(file: _LogFile) -> str:
    """Returns the first field of JSON Lines that is not in the file's schema, with its line."""
    # A line may have several values, which Python does not read.
    with unpacked(file.path, file.form.packing) as stream, contextlib.suppress(ValueError):
        for number, line in enumerate(io.BufferedReader(stream), 1):
            names = json.loads(line) if line.strip() else ()
            for name in names:
                if name not in file.schema.names:
                    return f"{name!r} (line {number:,})"
    return "of another value"


def _json_schema(file: Path, packing: str) -> pa.Schema:
    """Returns the columns of the first block, with types that keep what is written."""
    guessed = _open_json(file, packing, None).schema
    return pa.schema([pa.field(each.name, _json_type(each, file, packing)) for each in guessed])


def _json_type(field: pa.Field, file: Path, packing: str) -> pa.DataType:
    if pa.types.is_floating(field.type):
        # Whole numbers from 2^63 on are guessed to be reals.
        whole = pa.schema([pa.field(field.name, pa.uint64())])
        with contextlib.suppress(pa.ArrowException):
            _open_json(file, packing, whole, "ignore")
            return pa.uint64()
    return _untimed(field.type)


def _untimed(kind: pa.DataType) -> pa.DataType:
    """Returns a type in which text that looks like a time is text."""
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_untimed(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(each.name, _untimed(each.type)) for each in kind])
    return kind


def _plain(kind: pa.DataType) -> pa.DataType:
    """Returns the type of a column's values: those of a dictionary, and the 16 bytes of a UUID."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type)
    if pa.types.is_decimal(kind) and not kind.scale and kind.precision <= WHOLE.precision:
        return WHOLE
    return _VIEWS.get(kind, kind)


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Returns the type that holds the values of two plain types exactly; None if their values are
    of different kinds."""
    if one in (other, pa.null()):
        return other
    if is_whole(one) and is_whole(other):
        if pa.types.is_signed_integer(one) and pa.types.is_signed_integer(other):
            return pa.int64()
        are_unsigned = pa.types.is_unsigned_integer(one) and pa.types.is_unsigned_integer(other)
        return pa.uint64() if are_unsigned else WHOLE
    if pa.types.is_timestamp(one) and pa.types.is_timestamp(other):
        finest = max(one.unit, other.unit, key=_TICKS.index)
        return pa.timestamp(finest, one.tz) if bool(one.tz) == bool(other.tz) else None
    is_bytes = [
        pa.types.is_binary(each) or pa.types.is_fixed_size_binary(each) for each in (one, other)
    ]
    return pa.binary() if all(is_bytes) else None


def is_whole(kind: pa.DataType) -> bool:
    """Returns whether all values of a plain type are whole numbers."""
    return pa.types.is_integer(kind) or kind == WHOLE


def is_text(kind: pa.DataType) -> bool:
    """Returns whether a type is text."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _decoded(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        return _decoded(column.dictionary_decode())
    if isinstance(column, pa.ExtensionArray):
        return _decoded(column.storage)
    return column.cast(_plain(column.type)) if column.type in _VIEWS else column


def _batch_rows(parquet: pq.ParquetFile) -> int:
    """Returns the rows of a batch, fewer if rows are long."""
    groups = range(parquet.num_row_groups)
    size = sum(parquet.metadata.row_group(each).total_byte_size for each in groups)
    return min(BATCH_ROWS, max(1, BATCH_BYTES * parquet.metadata.num_rows // max(1, size)))


def _separator_hint(file: Path, form: FileForm, separator: str) -> str:
    """Returns a hint if only another separator is in the first line of a CSV file."""
    try:
        with unpacked(file, form.packing) as stream:
            first = decode_text(stream.read(1 << 12).split(b"\n")[0])
    except (*DAMAGE, ValueError):
        return ""
    found = max(_SEPARATORS, key=first.count)
    if separator in first or found not in first:
        return ""
    name = "tab" if found == "\t" else found
    return f"; its first line has no {separator!r}, but delimiter={name!r} would split it"
