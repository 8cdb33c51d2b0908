"""The index of recorded data: its clients, how many examples they have, and where they lie.

It is built when the data is first opened, and kept in the cache. It has some 50 bytes per client,
and the data itself is read client by client, so neither many clients nor large files need much
memory.
"""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedray.base.kept import keep, read_kept
from .readers.reader import Client, ClientFile, Damaged, damage
from .source import Integers

_SCHEMA = pa.schema(
    [
        pa.field("split", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("examples", pa.int64(), nullable=False),
        pa.field("first", pa.int64(), nullable=False),
        pa.field("end", pa.int64(), nullable=False),
    ]
)
_BATCH_CLIENTS = 65_536
# Type checkers do not see functions of this module, which are made when it is loaded.
_COMPUTE: Any = pc


class Index:
    """Clients in order of (split, name).

    Args:
        table: a row per client, with the columns of Client.
    """

    def __init__(self, table: pa.Table) -> None:
        self._table = table.combine_chunks()
        self.examples: Integers = self._table.column("examples").to_numpy()
        """Number of examples of each client, [N]."""

    @property
    def splits(self) -> list[str]:
        """Names of all splits that have clients."""
        return sorted(self._table.column("split").unique().to_pylist())

    def places(self, split: str) -> Integers:
        """Returns the rows of this index that hold the clients of a split, in order of name."""
        is_in_it = _COMPUTE.equal(self._table.column("split"), split)
        return np.flatnonzero(is_in_it.to_numpy(zero_copy_only=False))

    def client(self, place: int) -> Client:
        """Returns the client in one row of the index, which counts the clients of all splits."""
        cells = (self._table.column(name)[place] for name in Client._fields)
        return Client(*(cell.as_py() for cell in cells))

    def reading_order(self, places: Integers) -> Integers:
        """Returns places in the order of the data, so that a file is read once, front to back."""
        first = self._table.column("first").to_numpy()[places]
        return places[np.argsort(first, kind="stable")]

    def to_bytes(self) -> bytes:
        """Returns a file of Arrow's IPC format."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, self._table.schema) as writer:
            writer.write_table(self._table)
        return sink.getvalue().to_pybytes()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Index":
        """Returns the index whose `to_bytes` is the content."""
        reader = pa.ipc.open_file(content)
        return cls(reader.read_all())


def indexed(reader: ClientFile, file: Path | None, request: str) -> Index:
    """Returns the index of data, from the cache or built.

    Args:
        reader: reader of the data.
        file: file of the index in the cache; None to keep no index.
        request: description of the index. An index of something else is built again.

    Raises:
        Damaged: something in the data cannot be read, or a client has several places in it.
        OSError: the cache cannot be written.
    """
    found = None if file is None else _kept(file, request)
    if found is None:
        found = _built(reader.clients())
        if file is not None:
            keep(file, request, found.to_bytes())
    return found


def _kept(file: Path, request: str) -> Index | None:
    try:
        content = read_kept(file, request)
    except ValueError as error:
        warnings.warn(f"the index {str(file)!r} {error}; it is built again", stacklevel=2)
        return None
    return None if content is None else Index.from_bytes(content)


def _built(clients: Iterator[Client]) -> Index:
    table = pa.Table.from_batches(_batches(clients), _SCHEMA)
    if not table.num_rows:
        raise Damaged("the data has no clients")
    # Arrow cannot sort by a dictionary, the type of `split`.
    plain_split = table.column("split").cast(pa.string())
    plain = table.set_column(0, "split", plain_split)
    keys = [("split", "ascending"), ("name", "ascending")]
    order = _COMPUTE.sort_indices(plain, sort_keys=keys)
    index = Index(table.take(order))
    split = plain.column("split").take(order)
    name = plain.column("name").take(order)
    # In this order, a client that occurs twice is its own neighbour.
    same_split = _COMPUTE.equal(split[1:], split[:-1])
    same_name = _COMPUTE.equal(name[1:], name[:-1])
    again = np.flatnonzero(_COMPUTE.and_(same_split, same_name).to_numpy())
    if again.size:
        client = index.client(int(again[0]))
        raise Damaged(
            f"the rows of client {client.name!r} of split {client.split!r} do not follow one "
            "another; sort the file by its clients"
        )
    return index


def _batches(clients: Iterator[Client]) -> Iterator[pa.RecordBatch]:
    rows: list[Client] = []
    for client in clients:
        rows.append(client)
        if len(rows) == _BATCH_CLIENTS:
            yield _batch(rows)
            rows = []
    yield _batch(rows)


def _batch(rows: list[Client]) -> pa.RecordBatch:
    # Without rows zip returns no columns, but a batch needs all of them.
    columns = list(zip(*rows, strict=True)) or [()] * len(_SCHEMA)
    errors = pa.ArrowException, UnicodeEncodeError, OverflowError
    with damage("the name of a client is not UTF-8", *errors):
        arrays = [
            pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)
        ]
    return pa.record_batch(arrays, schema=_SCHEMA)
