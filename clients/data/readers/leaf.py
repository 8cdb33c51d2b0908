"""JSON files of LEAF: {"users": [...], "num_samples": [...], "user_data": {client: {x, y}}}.

A folder may hold several files of a split (`train/*.json`, `test/*.json`). JSON cannot be read
from its middle, so the clients are copied once into the cache, one after the other: no more than
one of them is in memory.
"""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numba import njit

from fedray.clients.data.cache import made_once
from fedray.clients.data.readers.files import read_only_sqlite, split_files
from fedray.clients.data.readers.reader import Client, Column, Damaged
from fedray.scenario.data import LeafData

SUFFIXES = (".json",)
MOST_DEPTH = 64
"""Most arrays and objects within each other. The parser needs memory for the square of them."""
MOST_CLIENT_TEXT = 64 << 20
"""Most bytes of the JSON of one client, which becomes up to twenty times as large in memory."""
_CREATE = "CREATE TABLE clients(split TEXT, name TEXT, examples INTEGER, content TEXT)"
_INSERT = "INSERT INTO clients VALUES (?, ?, ?, ?)"
_CLIENTS = "SELECT split, name, examples, rowid FROM clients ORDER BY rowid"
_CONTENT = "SELECT content FROM clients WHERE rowid = ?"


class LeafFiles:
    """Reads LEAF's JSON by a copy of its clients.

    See fedray.clients.data.readers.reader.ClientFile. Clients lie in order of the copy's rows.

    Args:
        path: the file or folder.
        columns: those that are copied: keys of a client, of which the first says how many examples
            there are.
        cache: the folder in the cache for its content.

    Raises:
        Damaged: they are no such files.
    """

    def __init__(self, path: Path, columns: Sequence[str], cache: Path) -> None:
        self._path = path
        self._columns = tuple(columns)
        # Columns may have names that are none of a file, so these are in hexadecimals.
        told = "-".join(column.encode().hex() for column in columns)
        copy = cache / f"clients-{told}.sqlite"
        made_once(copy, self._copy)
        self._connection = read_only_sqlite(copy, "clients")

    @classmethod
    def of(cls, table: LeafData, cache: Path) -> "LeafFiles":
        """Opens the files of a `table`, whose columns it names."""
        columns = (table.tokens,) if table.tokens else (table.inputs, table.targets)
        return cls(Path(table.file), [column for column in columns if column], cache)

    def clients(self) -> Iterator[Client]:
        """Every client of the copy, in the order of its rows."""
        try:
            for split, name, examples, row in self._connection.execute(_CLIENTS):
                yield Client(split, name, examples, row, row + 1)
        except sqlite3.Error as error:
            raise self._damaged_copy(error) from None

    def gathered(self) -> None:
        """See ClientFile: a client has one place here."""

    def read(self, client: Client, columns: Sequence[str]) -> dict[str, Column]:
        """The `columns` of a `client`, as lists.

        Raises:
            Damaged: the copy cannot be read.
        """
        try:
            found = self._connection.execute(_CONTENT, (client.first,)).fetchone()
            content = json.loads(found[0])
        except (sqlite3.Error, TypeError, ValueError) as error:
            raise self._damaged_copy(error) from None
        return {column: content[column] for column in columns}

    def _copy(self, new: Path) -> None:
        with closing(sqlite3.connect(new)) as connection:
            try:
                # The copy is not shared before it is whole, so it needs no journal.
                connection.execute("PRAGMA journal_mode = OFF")
                connection.execute(_CREATE)
                for split, file in split_files(self._path, SUFFIXES):
                    rows = ((split, *row) for row in self._clients_of(file))
                    connection.executemany(_INSERT, rows)
                connection.commit()
            except sqlite3.Error as error:
                raise OSError(f"copying {self._path.name}: {error}") from None

    def _clients_of(self, file: Path) -> Iterator[tuple[str, int, str]]:
        """(name, examples, content) of each client of a file."""
        import ijson

        clients = 0
        try:
            with file.open("rb") as stream:
                bounded = _Bounded(stream, file.name)
                for name, content in ijson.kvitems(bounded, "user_data", use_float=True):
                    clients += 1
                    yield name, *self._checked(content, f"{file.name}: client {name!r}")
        except Damaged:
            raise
        except (ijson.JSONError, ValueError) as error:  # no UTF-8, integers beyond reason
            reason = " ".join(str(error).split())
            raise Damaged(f"{file.name}: no JSON after client {clients} ({reason})") from None
        if not clients:
            raise Damaged(f"{file.name}: no LEAF file: it has no clients in `user_data`")

    def _checked(self, content: Any, where: str) -> tuple[int, str]:
        if not isinstance(content, dict):
            raise Damaged(f"{where} is no table of columns")
        sizes: dict[str, int] = {}
        for column in self._columns:
            values = content.get(column)
            if not isinstance(values, list):
                raise Damaged(f"{where} has no list {column!r}")
            sizes[column] = len(values)
        if len(set(sizes.values())) > 1:
            raise Damaged(f"{where} has columns of different lengths: {sizes}")
        # Only the wanted columns are copied, because others may be most of the file.
        kept = {column: content[column] for column in self._columns}
        return sizes[self._columns[0]], json.dumps(kept)

    def _damaged_copy(self, error: Exception) -> Damaged:
        return Damaged(f"{self._path.name}: its copy in the cache cannot be read ({error})")


class _Bounded:
    """A stream of JSON that ends with an error where it is nested too deeply, or a client too
    large, for a parser to hold.

    Args:
        stream: the JSON.
        name: its name in messages.
    """

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self._stream, self._name = stream, name
        self._state = np.zeros(4, np.int64)

    def read(self, size: int = -1) -> bytes:
        """The next bytes of the stream.

        Raises:
            Damaged: they exceed a bound.
        """
        block = self._stream.read(size)
        depth, run = _followed(np.frombuffer(block, np.uint8), self._state)
        if depth > MOST_DEPTH:
            raise Damaged(f"{self._name}: values are nested more than {MOST_DEPTH} deep")
        if run > MOST_CLIENT_TEXT:
            raise Damaged(
                f"{self._name}: a client has more than {MOST_CLIENT_TEXT:,} bytes of JSON"
            )
        return block


@njit(cache=True)
def _followed(block, state):
    """(greatest depth, most bytes of one client) so far in a block of JSON. The state [4] is taken
    along: whether a string is open, whether a backslash precedes, depth, bytes of this client."""
    is_open, is_escaped, depth, run = state
    greatest_depth, longest_run = depth, run
    for byte in block:
        run += 1
        longest_run = max(longest_run, run)
        if is_open:
            if is_escaped:
                is_escaped = 0
            elif byte == _BACKSLASH:
                is_escaped = 1
            elif byte == _QUOTE:
                is_open = 0
            continue
        if byte == _QUOTE:
            is_open = 1
        elif byte in (_ARRAY, _OBJECT):
            depth += 1
            greatest_depth = max(greatest_depth, depth)
        elif byte in (_ARRAY_END, _OBJECT_END):
            depth -= 1
        elif byte != _COMMA:
            continue
        # Clients are the members of `user_data`, which is a member of the whole.
        if depth <= 2:
            run = 0
    state[:] = is_open, is_escaped, depth, run
    return greatest_depth, longest_run


_QUOTE, _BACKSLASH, _COMMA, _ARRAY, _OBJECT, _ARRAY_END, _OBJECT_END = b'"\\,[{]}'
