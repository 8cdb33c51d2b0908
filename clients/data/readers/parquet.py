"""Parquet files with a column of clients: one file, or a folder of them, such as those of Hugging
Face (`flwrlabs/femnist`, `flwrlabs/shakespeare`).

Rows are numbered over the files of a split. Where the rows of a client lie apart, a copy in order
of the clients is made in the cache, by DuckDB, which sorts on disk where memory ends.
"""

import bisect
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fedray.clients.data.cache import made_once
from fedray.clients.data.readers.files import split_files
from fedray.clients.data.readers.reader import Client, ClientFile, Column, Damaged
from fedray.quiet_duckdb import connected
from fedray.scenario.data import ParquetData

SUFFIXES = (".parquet",)
_SORT_MEMORY = "1GiB"
_GROUP_ROWS = 4096
"""Rows of a row group of the copy: a client is read by whole groups."""


class ParquetFiles:
    """Reads Parquet files by row groups; see fedray.clients.data.readers.reader.ClientFile.

    Records lie in order of the rows of a split.

    Args:
        path: the file or folder.
        client_column: names the client of a row.
        cache: the folder in the cache for its content.

    Raises:
        Damaged: they are no such files.
    """

    def __init__(self, path: Path, client_column: str, cache: Path) -> None:
        self._path = path
        self._client_column = client_column
        self._cache = cache
        files: dict[str, list[Path]] = {}
        for split, file in split_files(path, SUFFIXES):
            files.setdefault(split, []).append(file)
        self._splits = {split: _Rows(found) for split, found in files.items()}
        for rows in self._splits.values():
            # Files without the column are refused at once, and not when a client is read.
            rows.demand(client_column)

    @classmethod
    def of(cls, table: ParquetData, cache: Path) -> "ParquetFiles":
        """Opens the files of a `table`."""
        return cls(Path(table.file), table.client, cache)

    def clients(self) -> Iterator[Client]:
        """Every run of rows of the same client, in the order of the files."""
        for split, rows in self._splits.items():
            for name, first, end in _runs(rows.column(self._client_column)):
                yield Client(split, name, end - first, first, end)

    def gathered(self) -> ClientFile:
        """A reader of the copy in which the rows of each client lie together, which is made unless
        it is there.

        Raises:
            Damaged: the rows cannot be sorted.
        """
        copy = self._cache / "gathered"
        for split, rows in self._splits.items():
            # Of the form that says the split, in whatever it is named.
            name = f"{split}-00000-of-00001.parquet" if split else "all.parquet"
            file = copy / name
            copy.mkdir(exist_ok=True)
            made_once(file, self._sorter(rows))
        return ParquetFiles(copy, self._client_column, self._cache)

    def read(self, client: Client, columns: Sequence[str]) -> dict[str, Column]:
        """The `columns` of the rows of a `client`, which are numbered over the files of its split.

        Raises:
            Damaged: they cannot be read, or a file lacks a column.
        """
        rows = self._splits.get(client.split)
        if rows is None:
            raise Damaged(f"{self._path.name}: there is no split {client.split!r} any more")
        return rows.read(client, columns)

    def _sorter(self, rows: "_Rows") -> Callable[[Path], None]:
        def sort(new: Path) -> None:
            import duckdb

            settings: dict[str, Any] = {
                "memory_limit": _SORT_MEMORY,
                "temp_directory": str(self._cache / "sorting"),
            }
            # In SQL a quote within a quoted name is written twice.
            escaped = self._client_column.replace('"', '""')
            files = [str(file) for file in rows.files]
            try:
                with connected(settings) as connection:
                    found = connection.read_parquet(files, filename=True, file_row_number=True)
                    # Examples of a client stay in the order in which they came.
                    found = found.order(f'"{escaped}", filename, file_row_number')
                    found = found.project("* EXCLUDE (filename, file_row_number)")
                    found.to_parquet(str(new), row_group_size=_GROUP_ROWS)
            except duckdb.Error as error:
                reason = " ".join(str(error).split())
                raise Damaged(
                    f"{self._path.name} cannot be put in order of its clients ({reason})"
                ) from None

        return sort


class _Rows:
    """The rows of the files of one split, one after the other."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files
        self._readers: list[pq.ParquetFile] = []
        self._groups: list[tuple[int, int]] = []
        """(file, row group) of each group."""
        self._starts = [0]
        """First rows of the groups, and the end of the last."""
        self._last_key: tuple[int, tuple[str, ...]] | None = None
        self._last = pa.table({})
        for number, file in enumerate(files):
            try:
                reader = pq.ParquetFile(file, memory_map=True)
            except (pa.ArrowException, OSError, ValueError) as error:
                raise Damaged(f"{file.name}: no Parquet file that can be read ({error})") from None
            self._readers.append(reader)
            for group in range(reader.num_row_groups):
                self._groups.append((number, group))
                rows = reader.metadata.row_group(group).num_rows
                end = self._starts[-1] + rows
                self._starts.append(end)

    def demand(self, column: str) -> None:
        """Checks that every file has a `column`.

        Raises:
            Damaged: one has none of that name.
        """
        for file, reader in zip(self.files, self._readers, strict=True):
            names = reader.schema_arrow.names
            if column not in names:
                # No more than a line takes.
                some = ", ".join(names[:20])
                raise Damaged(f"{file.name} has no column {column!r}; it has {some}")

    def column(self, name: str) -> Iterator[pa.Array]:
        """The column of a `name` over all files, batch by batch.

        Raises:
            Damaged: it cannot be read.
        """
        for file, reader in zip(self.files, self._readers, strict=True):
            try:
                for batch in reader.iter_batches(columns=[name]):
                    yield batch.column(0)
            except (pa.ArrowException, OSError, ValueError) as error:
                raise Damaged(f"{file.name}: column {name!r} cannot be read ({error})") from None

    def read(self, client: Client, columns: Sequence[str]) -> dict[str, Column]:
        """The `columns` of the rows [first, end) of a `client`.

        Raises:
            Damaged: they cannot be read, or a file lacks a column.
        """
        for column in columns:
            self.demand(column)
        pieces: list[pa.Table] = []
        # The rows of a client may begin within a group and go on in the next ones.
        group = bisect.bisect_right(self._starts, client.first) - 1
        while group < len(self._groups) and self._starts[group] < client.end:
            table = self._group(group, tuple(columns))
            start = self._starts[group]
            first = max(0, client.first - start)
            # A slice that is longer than what is left of the group ends with it.
            rows = client.end - start - first
            pieces.append(table.slice(first, rows))
            group += 1
        where = f"{self.files[0].parent.name}: client {client.name!r}"
        try:
            together = pa.concat_tables(pieces)
            return {column: _values(together.column(column), where) for column in columns}
        except (pa.ArrowException, OSError) as error:
            raise Damaged(f"{where}: {error}") from None

    def _group(self, group: int, columns: tuple[str, ...]) -> pa.Table:
        """A row group, which is kept until another is asked for: clients that follow one another
        are often in the same."""
        if (group, columns) != self._last_key:
            number, within = self._groups[group]
            try:
                self._last = self._readers[number].read_row_group(within, columns=list(columns))
            except (pa.ArrowException, OSError, ValueError) as error:
                raise Damaged(
                    f"{self.files[number].name}: row group {within} cannot be read ({error})"
                ) from None
            self._last_key = group, columns
        return self._last


def _runs(batches: Iterator[pa.Array]) -> Iterator[tuple[str, int, int]]:
    """(name, first row, end row) of rows of the same client that follow one another."""
    name, first, row = None, 0, 0
    for batch in batches:
        if batch.null_count:
            first_null = pc.index(batch.is_null(), True)  # pyright: ignore[reportAttributeAccessIssue]
            missing = row + int(first_null.as_py())
            raise Damaged(f"row {missing} has no client")
        # Rows of a client follow one another: Python sees a name per run, and not per row.
        encoded = pc.run_end_encode(batch.cast(pa.string()))  # pyright: ignore[reportAttributeAccessIssue]
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
    """The values of a column: numbers as an array, pictures decoded, else a list.

    Hugging Face keeps a picture as a struct with its encoded bytes, or as the bytes alone.
    """
    if column.null_count:
        raise Damaged(f"{where} has an empty cell")
    kind = column.type
    is_picture = pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0
    if is_picture:
        return [_picture(cell["bytes"], where) for cell in column.to_pylist()]
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    if is_bytes:
        return [_picture(cell, where) for cell in column.to_pylist()]
    is_real = pa.types.is_floating(kind)
    if is_real or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return column.to_numpy()
    return column.to_pylist()


def _picture(content: bytes | None, where: str) -> np.ndarray:
    """Pixels of an encoded image (PNG, JPEG), as Hugging Face keeps them."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content or b"")) as image:
            return np.asarray(image)
    except (OSError, ValueError, SyntaxError, UnidentifiedImageError) as error:
        raise Damaged(f"{where} has an image that cannot be read ({error})") from None
