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
from typing import Any

from fedray.clients.data.cache import made_once
from fedray.clients.data.readers.files import read_only_sqlite, split_files
from fedray.clients.data.readers.reader import Client, Column, Damaged
from fedray.scenario.data import LeafData

SUFFIXES = (".json",)
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
        self._connection = read_only_sqlite(copy)

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
                for name, content in ijson.kvitems(stream, "user_data", use_float=True):
                    clients += 1
                    yield name, *self._checked(content, f"{file.name}: client {name!r}")
        except (ijson.JSONError, UnicodeDecodeError) as error:
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
