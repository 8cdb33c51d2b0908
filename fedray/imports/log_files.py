"""Reads the files of a log, CSV or Parquet, batch by batch.

CSV is read as text. Only an empty cell is missing, since a device may be called NA or null.
"""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from fedray.base.arrays import Int64Array
from fedray.base.errors import InputError
from fedray.base.parsing import decode_text
from fedray.base.quiet_duckdb import connected
from fedray.trace.files import first_line

BATCH_ROWS = 1 << 20
BATCH_BYTES = 64 << 20
"""Most bytes of Parquet, before compression, that are read at once."""
BLOCK_BYTES = 16 << 20
"""Number of bytes of CSV that are read at once; no value may be longer."""
DAMAGE = (pa.ArrowException, OSError, UnicodeError, KeyError)
"""Errors that pyarrow raises for files that cannot be read."""
# pyarrow decompresses CSV according to the suffix.
_FORMATS = {
    ".csv": "csv",
    ".gz": "csv",
    ".bz2": "csv",
    ".zst": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_VIEWS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
_DELIMITERS = {"tab": "\t", "\\t": "\t"}
_SEPARATORS = (";", "\t", ",", "|")


class LogFiles:
    """The columns of a log that an import reads.

    Args:
        path: a file, or a directory of files of one format, which are read in order of their names.
        columns: names of the columns, each with the argument that gives it.
        delimiter: character between columns of CSV; a comma if None.
        is_whole: whether batches have all columns of their file, so that rows can be compared.

    Raises:
        InputError: the files cannot be read, or lack a column.
    """

    def __init__(
        self,
        path: Path,
        columns: Mapping[str, str],
        delimiter: str | None,
        is_whole: bool = False,
    ) -> None:
        self._shown = f"log {shown_path(path)}"
        self._files = _files_of(path)
        self._separator = separator_of(delimiter)
        with self._readable():
            self._is_csv = _format_of(self._files[0]) == "csv"
        if delimiter is not None and not self._is_csv:
            raise InputError.of(
                "delimiter", delimiter, f"is for CSV, but {self._shown} is Parquet", "leave it out"
            )
        with self._readable():
            schema = self._schema(self._files[0])
            self._check_names(schema.names, columns)
        self.names = schema.names
        """Names of all columns of the first file."""
        self.types = _types(schema, columns)
        """Types of the columns in all files, as `_plain` has them."""
        self._is_whole, self._columns = is_whole, columns

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields the rows in order. Raises InputError for damaged files and for differing types."""
        for file in self._files:
            with self._readable():
                if self._is_csv:
                    names = csv_names(file, self._separator) if self._is_whole else self.types
                    self._check_names(list(names), self._columns)
                    yield from open_csv(file, list(names), self._separator)
                    continue
                with open_parquet(file) as parquet:
                    self._check_types(file, parquet.schema_arrow)
                    names = None if self._is_whole else list(self.types)
                    for batch in parquet.iter_batches(_batch_rows(parquet), columns=names):
                        # Each file may have another order of columns.
                        yield pa.record_batch(
                            [_decoded(each) for each in batch], batch.schema.names
                        )

    def _schema(self, file: Path) -> pa.Schema:
        if not self._is_csv:
            with open_parquet(file) as parquet:
                return parquet.schema_arrow
        names = csv_names(file, self._separator)
        return pa.schema([pa.field(name, pa.string()) for name in names])

    def _check_names(self, names: Sequence[str], columns: Mapping[str, str]) -> None:
        for column, argument in columns.items():
            count = names.count(column)
            if count > 1:
                rule = f"is the name of {count} columns of {self._shown}"
                raise InputError.of(argument, column, rule, "rename one of them")
            if not count:
                # The usual cause is another separator, with which all columns appear as one.
                hint = _separator_hint(self._files[0], self._separator) if self._is_csv else ""
                remedy = f"it has {', '.join(names[:20])[:400]}{hint}"
                rule = f"is not a column of {self._shown}"
                raise InputError.of(argument, column, rule, remedy)

    def _check_types(self, file: Path, schema: pa.Schema) -> None:
        # The string "0012" and the number 12 would be two devices.
        found = _types(schema, self.types)
        if found != self.types:
            first = shown_path(self._files[0])
            raise InputError(
                f"log {shown_path(file)} has the columns {_shown_types(found)}, but {first} has "
                f"{_shown_types(self.types)}; convert all files to the same types"
            )

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except DAMAGE as error:
            problem = first_line(error)
            raise InputError(f"{self._shown} cannot be read ({problem}); correct it") from None


def row_hashes(batch: pa.RecordBatch, places: Int64Array) -> pa.Array:
    """Returns a hash of all values of each row [N], by which equal rows are found.

    Args:
        batch: rows with all columns of the log.
        places: distinct numbers [N], for rows that cannot be compared.
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
        return pa.array(places, pa.uint64())
    return found.column(0).combine_chunks()


def open_csv(
    file: Path, columns: Sequence[str], separator: str, header: Sequence[str] = ()
) -> arrow_csv.CSVStreamingReader:
    """Opens a CSV file, compressed according to its suffix, for reading block by block.

    Args:
        file: path of the file.
        columns: names of the columns to read, as text; if empty, all are read with guessed types.
        separator: character between columns.
        header: names of all columns, if the first line does not have them.

    Raises:
        InputError: the first block cannot be read.
    """
    try:
        return arrow_csv.open_csv(
            file,
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
        hint = _separator_hint(file, separator)
        raise InputError(
            f"{shown_path(file)} cannot be read as CSV ({first_line(error)}{hint}); correct it"
        ) from None


def csv_names(file: Path, separator: str) -> list[str]:
    """Returns the names in the first line of a CSV file. Raises InputError."""
    # Without column names pyarrow reads one block and guesses types, which are not used.
    schema = open_csv(file, [], separator).schema
    try:
        # pyarrow decodes the names only here.
        names = schema.names
        if "\0" in "".join(names):
            raise UnicodeError("it has null bytes, as in UTF-16")
        return names
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


def _types(schema: pa.Schema, names: Iterable[str]) -> dict[str, pa.DataType]:
    """Returns the plain types of the named columns in a schema."""
    return {name: _plain(schema.field(name).type) for name in names if name in schema.names}


def _plain(kind: pa.DataType) -> pa.DataType:
    """Returns the type of a column's values: those of a dictionary, and the 16 bytes of a UUID."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type)
    return _VIEWS.get(kind, kind)


def _shown_types(types: Mapping[str, pa.DataType]) -> str:
    return ", ".join(f"{name} ({kind})" for name, kind in types.items())


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


def _separator_hint(file: Path, separator: str) -> str:
    """Returns a hint if a CSV file is UTF-16, or only another separator is in its first line."""
    try:
        with pa.input_stream(str(file)) as stream:
            first = decode_text(stream.read(1 << 12).split(b"\n")[0])
    except DAMAGE:
        return ""
    except ValueError as error:
        return f"; {error}"
    found = max(_SEPARATORS, key=first.count)
    if separator in first or found not in first:
        return ""
    name = "tab" if found == "\t" else found
    return f"; its first line has no {separator!r}, but delimiter={name!r} would split it"


def _files_of(path: Path) -> list[Path]:
    shown = f"log {shown_path(path)}"
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(f"{shown} does not exist; give a CSV or Parquet file, or a directory")
    # Other files are ignored, such as marks of a complete export.
    named = [file for file in path.rglob("*") if file.suffix.lower() in _FORMATS]
    # Only regular files count, because reading a pipe would wait for a writer.
    found = sorted(file for file in named if file.is_file())
    formats = Counter(_FORMATS[file.suffix.lower()] for file in found)
    if not found:
        raise InputError(f"{shown} has no .csv or .parquet file; give another directory")
    if len(formats) > 1:
        raise InputError(f"{shown} has both CSV and Parquet files; keep only those of one format")
    return found


def _format_of(file: Path) -> str:
    if (known := _FORMATS.get(file.suffix.lower())) is not None:
        return known
    with file.open("rb") as opened:
        head = opened.read(4096)
    if head.startswith(b"PAR1"):
        return "parquet"
    if b"\0" in head:
        raise InputError(
            f"log {shown_path(file)} is neither Parquet nor text; unpack or convert it"
        )
    return "csv"
