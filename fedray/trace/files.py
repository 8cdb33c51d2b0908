"""Reads the files of a trace, which may be missing, truncated or changed. Problems are reported in
one line."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fedray.base.arrays import UInt8Array
from fedray.base.errors import TraceCorrupt, TraceError, TraceVersion, shown
from fedray.base.parsing import parse_json
from fedray.base.regular_file import check_regular_file, read_regular_file
from fedray.trace.checkpoints import check_finished
from fedray.trace.columns import TEXTS
from fedray.trace.schema import DOCUMENT_DIGEST, RUN_FILE, document_digest

DAMAGE = (
    OSError,
    ValueError,
    TypeError,
    LookupError,
    OverflowError,
    MemoryError,
    pa.ArrowException,
)
"""Errors that pyarrow raises for damaged files."""


@dataclass(frozen=True, slots=True)
class DocumentForm:
    """Form of a document such as run.json, which is checked the same way in every form."""

    name: str
    """Name of the file."""
    format: str
    """Value of its key `format`."""
    version: int
    """Value of its key `version_key`."""
    kinds: Mapping[str, type]
    """Type of the value of each further key. Code relies on these types, even if digests are not
    checked."""
    whose: str
    """Phrase that follows "the directory" in messages."""
    repair: str
    """Remedy for a damaged file."""
    update: str
    """Remedy for a document of another release."""
    version_key: str = "version"

    def read(self, directory: Path) -> Any:
        """Returns the value of the JSON file in a directory, which may be any.

        Raises:
            TraceError: the file does not exist.
            TraceCorrupt: it cannot be read.
        """
        try:
            return parse_json(read_regular_file(directory / self.name))
        except (FileNotFoundError, NotADirectoryError):
            check_finished(directory)
            raise TraceError(
                f"{str(directory)!r} has no {self.name}; give the directory {self.whose}"
            ) from None
        except (OSError, ValueError) as error:
            problem = f"cannot be read ({first_line(error)})"
            raise TraceCorrupt.at(directory / self.name, problem, self.repair) from None

    def check(self, document: Any, directory: Path, verify: bool) -> None:
        """Checks the value of the file.

        Args:
            document: the value.
            directory: its directory, for messages.
            verify: whether it must have the digest that it records of itself.

        Raises:
            TraceError: it has another format.
            TraceVersion: another release of fedray wrote it.
            TraceCorrupt: a key is missing or has a value of another type, or it was changed.
        """
        file = directory / self.name
        # Valid JSON may be any value, such as a list.
        if not isinstance(document, dict) or document.get("format") != self.format:
            raise TraceError(
                f"{file} has no format = {self.format!r}; give the directory {self.whose}"
            )
        version = document.get(self.version_key)
        if version != self.version:
            found = f"{self.version_key}={shown(version)}, this release reads {self.version}"
            raise TraceVersion(f"{file} has {found}; {self.update}")
        kinds = {**self.kinds, DOCUMENT_DIGEST: str}
        wrong = [key for key, kind in kinds.items() if not isinstance(document.get(key), kind)]
        if wrong:
            problem = f"lacks {', '.join(wrong)}, or has values of another type there"
            raise TraceCorrupt.at(file, problem, self.repair)
        if verify:
            self.check_digest(document, directory)

    def check_digest(self, document: Mapping[str, Any], directory: Path) -> None:
        """Raises TraceCorrupt unless the document has the digest that it records of itself."""
        if document[DOCUMENT_DIGEST] != document_digest(document):
            raise TraceCorrupt.at(
                directory / self.name,
                "does not have the digest that it records of itself, so it was changed",
                f"{self.repair}, or leave digests unchecked (`verify=False`)",
            )


def check_name(path: Path) -> None:
    """Raises TraceError for a `path` with bytes that are not UTF-8, which the Parquet library
    cannot open."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise TraceError(
            f"trace {shown(str(path))} has a path that is not UTF-8, which the Parquet library "
            "cannot open; rename it"
        ) from None


def check_scenario_digest(digest: str, document: Mapping[str, Any], place: object) -> None:
    """Raises TraceCorrupt unless a scenario of this `digest` is the one that a `document` of a run
    or training recorded. An edited noise multiplier could support any claim."""
    if digest != document.get("scenario_digest"):
        raise TraceCorrupt(
            f"{place}: its scenario does not have the recorded digest, so it was edited, or a "
            "release with other defaults wrote it; use that release, or take the run again"
        )


def check_file(file: Path, schema: pa.Schema, rows: int | None) -> None:
    """Checks a Parquet file by its footer, which is fast for files of any size.

    Args:
        file: path of the file.
        schema: exact columns in order.
        rows: exact number of rows; None for any.

    Raises:
        TraceCorrupt: the file is missing or damaged, or has other columns or rows.
    """
    with _opened(file, schema) as parquet:
        found_rows = parquet.metadata.num_rows
    if rows is not None and found_rows != rows:
        raise TraceCorrupt.at(file, f"has {found_rows} rows, but {RUN_FILE} records {rows}")


def read_columns(
    file: Path,
    schema: pa.Schema,
    rows: int | None = None,
    names: Iterable[str] | None = None,
) -> dict[str, NDArray]:
    """Returns columns in the schema's order; page checksums and values are verified.

    Args:
        file: a Parquet file.
        schema: exact columns of the file.
        rows: exact number of rows; None for any.
        names: columns to read; None for all.

    Returns:
        Arrays by name; NaN stands for null, and a code for a text (fedray/trace/columns.py).

    Raises:
        TraceCorrupt: the file is missing or damaged, has other columns or rows, or has a null that
            the schema forbids.
    """
    wanted = schema.names
    if names is not None:
        chosen = set(names)
        # Digests are over columns in the schema's order, so that of `names` does not matter.
        wanted = [name for name in schema.names if name in chosen]
    with _opened(file, schema) as parquet:
        table = parquet.read(columns=wanted)
        # Full validation finds codes beyond their dictionary, and text that is not UTF-8.
        table.validate(full=True)
        for name in wanted:
            if table.column(name).null_count and not schema.field(name).nullable:
                raise TraceCorrupt.at(file, f"has nulls in its column {name!r}")
        if rows is not None and table.num_rows != rows:
            raise TraceCorrupt.at(file, f"has {table.num_rows} rows, {RUN_FILE} says {rows}")
        return {name: _to_numpy(table.column(name), file, TEXTS.get(name, ())) for name in wanted}


@contextlib.contextmanager
def _opened(file: Path, schema: pa.Schema) -> Iterator[pq.ParquetFile]:
    try:
        check_regular_file(file)
        # Checksums reveal changed bytes that would still decode.
        with pq.ParquetFile(file, page_checksum_verification=True) as parquet:
            found = parquet.schema_arrow
            # Only types are compared, since nullability and metadata differ between writers.
            if found.names != schema.names or found.types != schema.types:
                trace_has = f"but a trace of this release has {schema.names}"
                raise TraceCorrupt.at(file, f"has columns {shown(found.names)}, {trace_has}")
            yield parquet
    # These are precise already, and must not be reported as damage below.
    except TraceError:
        raise
    except FileNotFoundError:
        raise TraceCorrupt.at(file, "is missing") from None
    except DAMAGE as error:
        problem = f"is truncated, damaged or not a Parquet file ({first_line(error)})"
        raise TraceCorrupt.at(file, problem) from None


def _to_numpy(column: pa.ChunkedArray, file: Path, names: tuple[str, ...]) -> NDArray:
    """Returns a column as an array; texts as codes, their positions in `names`."""
    if not pa.types.is_dictionary(column.type):
        # A null becomes NaN here.
        return column.to_numpy()
    chunks = [_codes(chunk, file, names) for chunk in column.chunks]
    return np.concatenate(chunks) if chunks else np.empty(0, np.uint8)


def _codes(chunk: pa.DictionaryArray, file: Path, names: tuple[str, ...]) -> UInt8Array:
    found = chunk.dictionary.to_pylist()
    if not set(found) <= set(names):
        problem = f"has a value among {shown(found)} that is not one of {list(names)}"
        raise TraceCorrupt.at(file, problem)
    # Writers may order a dictionary differently; codes are positions in `names`.
    codes = np.array([names.index(name) for name in found], np.uint8)
    return codes[chunk.indices.to_numpy()]


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, at most 200 characters."""
    # The text of an error of the system would repeat the path.
    lines = str(getattr(error, "strerror", None) or error).splitlines()
    return lines[0][:200] if lines else type(error).__name__
