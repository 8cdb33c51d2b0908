"""Parquet files with a column of clients: one file, or a folder of them, as from Hugging Face
(`flwrlabs/femnist`, `flwrlabs/shakespeare`).

Rows are numbered over the files of a split. The rows of a client must follow one another.
"""

import bisect
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fedray.scenario.data import ParquetData
from .files import split_files
from .reader import (
    MOST_CLIENT_BYTES,
    Client,
    ClientFile,
    Column,
    Damaged,
    NoColumn,
    damage,
)

MOST_GROUP_BYTES = (1 << 31) - 1
"""Largest size of the columns of a row group in memory, bytes. Parquet stores equal values once, so
a small file can expand beyond the memory."""
MOST_NAME_BYTES = 4096
"""Largest size of a client's name, bytes."""
# An example takes at least a bit of its file.
_MOST_ROWS_PER_BYTE = 8
# Image formats that are decoded. Others, such as PostScript, are programs.
_PICTURES = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
# Errors that pyarrow raises for a damaged file.
_DAMAGE = (pa.ArrowException, OSError, ValueError, NotImplementedError, MemoryError)
# Type checkers do not see functions of this module, which are made when it is loaded.
_COMPUTE: Any = pc


class ParquetFiles(ClientFile):
    """Reads Parquet files by row groups, in order of the rows of a split.

    Args:
        path: file or folder.
        files: files of each split.
        client_column: column with the client of a row.

    Raises:
        Damaged: the files are not Parquet, or lack the column.
    """

    def __init__(self, path: Path, files: Mapping[str, list[Path]], client_column: str) -> None:
        self._path = path
        self._client_column = client_column
        self._splits = {split: _Rows(found) for split, found in files.items()}
        for rows in self._splits.values():
            # Files without the column are refused now, not when a client is read.
            rows.demand(client_column)

    @classmethod
    def of(cls, table: ParquetData) -> "ParquetFiles":
        """Opens the files of a table."""
        path = Path(table.file)
        return cls(path, split_files(path, table.split, table.held_out_split), table.client)

    def clients(self) -> Iterator[Client]:
        for split, rows in self._splits.items():
            for name, first, end in _runs(rows.column(self._client_column)):
                yield Client(split, name, end - first, first, end)

    def read(self, client: Client, columns: Sequence[str]) -> dict[str, Column]:
        rows = self._splits.get(client.split)
        if rows is None:
            raise Damaged(f"{self._path.name}: split {client.split!r} is missing")
        return rows.read(client, columns)


class _Rows:
    """The rows of the files of one split, file after file."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files
        self._readers: list[pq.ParquetFile] = []
        self._schemas: list[pa.Schema] = []
        self._groups: list[tuple[int, int]] = []
        """(file, row group) of each group."""
        self._starts = [0]
        """First rows of the groups, and the end of the last."""
        self._last_key: tuple[int, tuple[str, ...]] | None = None
        self._last = pa.table({})
        for number, file in enumerate(files):
            with damage(f"{file.name} is not a readable Parquet file", *_DAMAGE):
                reader, schema = _opened(file)
            if reader.metadata.num_rows > _MOST_ROWS_PER_BYTE * file.stat().st_size:
                raise Damaged(
                    f"{file.name} has {reader.metadata.num_rows:,} rows, more than its size can "
                    "hold as examples"
                )
            self._readers.append(reader)
            self._schemas.append(schema)
            for group in range(reader.num_row_groups):
                self._groups.append((number, group))
                rows = reader.metadata.row_group(group).num_rows
                end = self._starts[-1] + rows
                self._starts.append(end)

    def demand(self, column: str) -> None:
        """Raises Damaged if a file lacks a column."""
        for file, reader in zip(self.files, self._readers, strict=True):
            names = reader.schema_arrow.names
            if column not in names:
                # A line cannot show more.
                some = ", ".join(names[:20])
                raise NoColumn(f"{file.name} has no column {column!r}; it has {some}")

    def column(self, name: str) -> Iterator[pa.Array]:
        """Yields batches of a column over all files, or raises Damaged."""
        for file, reader in zip(self.files, self._readers, strict=True):
            with damage(f"{file.name}: column {name!r} cannot be read", *_DAMAGE):
                for batch in reader.iter_batches(columns=[name]):
                    yield batch.column(0)

    def read(self, client: Client, columns: Sequence[str]) -> dict[str, Column]:
        for column in columns:
            self.demand(column)
        pieces: list[pa.Table] = []
        # The rows of a client may start within a group and continue in the next ones.
        group = bisect.bisect_right(self._starts, client.first) - 1
        while group < len(self._groups) and self._starts[group] < client.end:
            table = self._group(group, tuple(columns))
            start = self._starts[group]
            first = max(0, client.first - start)
            # A slice beyond the end of the group ends with it.
            rows = client.end - start - first
            pieces.append(table.slice(first, rows))
            group += 1
        where = f"{self.files[0].parent.name}: client {client.name!r}"
        with damage(where, *_DAMAGE):
            together = pa.concat_tables(pieces)
            return {
                column: _values(together.column(column), f"{where}, column {column!r},")
                for column in columns
            }

    def _group(self, group: int, columns: tuple[str, ...]) -> pa.Table:
        # Consecutive clients are often in the same group, so the last one is kept.
        if (group, columns) != self._last_key:
            number, within = self._groups[group]
            reader = self._readers[number]
            where = f"{self.files[number].name}: row group {within}"
            with damage(f"{where} cannot be read", *_DAMAGE):
                _check_size(_packed_bytes(reader, within, columns), where)
                found = reader.read_row_group(within, columns=list(columns))
                _check_size(sum(map(_unpacked_bytes, found.columns)), where)
                schema = pa.schema([self._schemas[number].field(name) for name in columns])
                self._last = found.select(columns).cast(schema)
            self._last_key = group, columns
        return self._last


def _opened(file: Path) -> tuple[pq.ParquetFile, pa.Schema]:
    """Returns a reader that stores equal texts and bytes once, and the schema of the file."""
    plain = pq.ParquetFile(file, memory_map=True)
    metadata = plain.metadata
    leaves = [metadata.schema.column(place) for place in range(metadata.num_columns)]
    texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    reader = pq.ParquetFile(file, memory_map=True, metadata=metadata, read_dictionary=texts)
    return reader, plain.schema_arrow


def _packed_bytes(reader: pq.ParquetFile, group: int, columns: Sequence[str]) -> int:
    """Returns the bytes of columns of a row group by its metadata, equal texts counted once."""
    metadata = reader.metadata.row_group(group)
    leaves = [metadata.column(place) for place in range(metadata.num_columns)]
    # A number takes at most eight bytes; a text takes eight beside its own.
    return sum(
        8 * leaf.num_values + leaf.total_uncompressed_size
        for leaf in leaves
        if any(f"{leaf.path_in_schema}.".startswith(f"{column}.") for column in columns)
    )


def _unpacked_bytes(column: pa.ChunkedArray | pa.Array) -> int:
    """Returns the bytes of a column in which each text is stored separately."""
    if isinstance(column, pa.ChunkedArray):
        return sum(map(_unpacked_bytes, column.chunks))
    if _are_texts(column):
        lengths = _COMPUTE.binary_length(column.dictionary)
        return _COMPUTE.sum(lengths.take(column.indices)).as_py() or 0
    if isinstance(column, pa.StructArray):
        return sum(map(_unpacked_bytes, column.flatten()))
    if isinstance(column, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        return _unpacked_bytes(column.flatten())
    return column.nbytes


def _are_texts(column: pa.Array) -> TypeGuard[pa.DictionaryArray]:
    """Whether a column has texts or bytes, with equal ones stored once."""
    kind = column.type
    # A column of categories may be a dictionary of numbers.
    return pa.types.is_dictionary(kind) and not pa.types.is_primitive(kind.value_type)


def _check_size(size: int, where: str) -> None:
    if size > MOST_GROUP_BYTES:
        raise Damaged(
            f"{where} takes more than {MOST_GROUP_BYTES:,} bytes of memory; write smaller groups"
        )


def _runs(batches: Iterator[pa.Array]) -> Iterator[tuple[str, int, int]]:
    """Yields (name, first row, end row) of consecutive rows of the same client."""
    name, first, row = None, 0, 0
    for batch in batches:
        if batch.null_count:
            first_null = _COMPUTE.index(batch.is_null(), True)
            missing = row + int(first_null.as_py())
            raise Damaged(f"row {missing} has no client")
        if _are_texts(batch):
            longest = _COMPUTE.max(_COMPUTE.binary_length(batch.dictionary)).as_py() or 0
            if longest > MOST_NAME_BYTES:
                raise Damaged(f"a client's name has more than {MOST_NAME_BYTES:,} bytes")
        with damage("the column of clients has no names", *_DAMAGE):
            texts = batch.cast(pa.string())
        # Rows of a client follow one another: Python sees a name per run, not per row.
        encoded = _COMPUTE.run_end_encode(texts)
        names = encoded.values.to_pylist()
        ends = [row + end for end in encoded.run_ends.to_pylist()]
        start = row
        for found, end in zip(names, ends, strict=True):
            if found != name:
                if name is not None:
                    yield name, first, start
                name, first = found, start
            start = end
        row += len(batch)
    if name is not None:
        yield name, first, row


def _values(column: pa.ChunkedArray, where: str) -> Column:
    """Returns numbers as an array, pictures decoded, and other values as a list.

    Hugging Face stores a picture as its encoded bytes, or as a struct with them.
    """
    if column.null_count:
        raise Damaged(f"{where} has an empty cell")
    kind = column.type
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        return _pictures((cell["bytes"] for cell in column.to_pylist()), where)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _pictures(column.to_pylist(), where)
    is_real = pa.types.is_floating(kind)
    if is_real or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return column.to_numpy()
    return column.to_pylist()


def _pictures(contents: Iterable[bytes | None], where: str) -> list[np.ndarray]:
    """Returns the pixels of encoded images."""
    from PIL import Image

    errors = OSError, ValueError, SyntaxError, Image.DecompressionBombError
    found: list[np.ndarray] = []
    size = 0
    for content in contents:
        with (
            damage(f"{where} has an image that cannot be read", *errors),
            Image.open(io.BytesIO(content or b""), formats=_PICTURES) as image,
        ):
            # Checked before decoding: a small file can be a large picture of one colour.
            size += image.width * image.height * len(image.getbands())
            if size > MOST_CLIENT_BYTES:
                raise Damaged(f"{where} has images of more than {MOST_CLIENT_BYTES:,} bytes")
            found.append(np.asarray(image))
    return found
