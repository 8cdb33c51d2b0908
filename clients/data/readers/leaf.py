"""JSON files of LEAF: {"users": [...], "num_samples": [...], "user_data": {client: {x, y}}}.

A folder may hold several files of a split (`train/*.json`, `test/*.json`). JSON cannot be read
from its middle, so the clients are copied once into the cache, one by one: only one of them is in
memory at a time.
"""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedray.base.compiled import njit
from fedray.base.errors import one_line
from fedray.clients.data.cache import made_once
from fedray.clients.data.readers.files import read_only_sqlite, split_files
from fedray.clients.data.readers.reader import Client, ClientFile, Column, Damaged, damage
from fedray.scenario.data import LeafData

SUFFIXES = (".json",)
MOST_DEPTH = 64
"""Deepest nesting of arrays and objects, since the parser needs memory for its square."""
MOST_CLIENT_TEXT = 64 << 20
"""Largest JSON of one client, bytes; it grows up to twentyfold in memory."""
_CREATE = "CREATE TABLE clients(split TEXT, name TEXT, examples INTEGER, content TEXT)"
_INSERT = "INSERT INTO clients VALUES (?, ?, ?, ?)"
_CLIENTS = "SELECT split, name, examples, rowid FROM clients ORDER BY rowid"
_CONTENT = "SELECT content FROM clients WHERE rowid = ?"


class LeafFiles(ClientFile):
    """Reads LEAF's JSON by a copy of its clients, in order of the copy's rows.

    Raises:
        Damaged: the files are not LEAF's.
    """

    def __init__(self, table: LeafData, cache: Path) -> None:
        self._path = Path(table.file)
        columns = (table.tokens,) if table.tokens else (table.inputs, table.targets)
        # Only these columns are copied, because others may be most of the file.
        self._columns = [column for column in columns if column]
        # A column's name may be invalid in a file name, so it is written in hexadecimal.
        names = "-".join(column.encode().hex() for column in self._columns)
        copy = cache / f"clients-{names}.sqlite"
        made_once(copy, self._copy)
        self._connection = read_only_sqlite(copy, "clients")
        self._copy_damage = f"{self._path.name}: its copy in the cache cannot be read"

    def clients(self) -> Iterator[Client]:
        with damage(self._copy_damage, sqlite3.Error):
            for split, name, examples, row in self._connection.execute(_CLIENTS):
                yield Client(split, name, examples, row, row + 1)

    def read(self, client: Client, columns: Sequence[str]) -> dict[str, Column]:
        with damage(self._copy_damage, sqlite3.Error, TypeError, ValueError):
            found = self._connection.execute(_CONTENT, (client.first,)).fetchone()
            content = json.loads(found[0])
        return {column: content[column] for column in columns}

    def _copy(self, new: Path) -> None:
        with closing(sqlite3.connect(new)) as connection:
            try:
                # The copy is not shared until it is complete, so it needs no journal.
                connection.execute("PRAGMA journal_mode = OFF")
                connection.execute(_CREATE)
                for split, file in split_files(self._path, SUFFIXES):
                    rows = ((split, *row) for row in self._clients_of(file))
                    connection.executemany(_INSERT, rows)
                connection.commit()
            except sqlite3.Error as error:
                raise OSError(f"copying {self._path.name}: {error}") from None

    def _clients_of(self, file: Path) -> Iterator[tuple[str, int, str]]:
        """Yields (name, examples, content) of each client of a file."""
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
        # ValueError: text that is not UTF-8, or an integer too long to convert.
        except (ijson.JSONError, ValueError) as error:
            where = f"{file.name} is not valid JSON after client {clients}"
            raise Damaged(one_line(f"{where}: {error}")) from None
        if not clients:
            raise Damaged(f"{file.name} is not a LEAF file: it has no clients in `user_data`")

    def _checked(self, content: Any, where: str) -> tuple[int, str]:
        if not isinstance(content, dict):
            raise Damaged(f"{where} is not a table of columns")
        sizes: dict[str, int] = {}
        for column in self._columns:
            values = content.get(column)
            if not isinstance(values, list):
                raise Damaged(f"{where} has no list {column!r}")
            sizes[column] = len(values)
        if len(set(sizes.values())) > 1:
            raise Damaged(f"{where} has columns of different lengths: {sizes}")
        kept = {column: content[column] for column in self._columns}
        return sizes[self._columns[0]], json.dumps(kept)


class _Bounded:
    """A stream of JSON that fails before its nesting or a client grows too large for a parser.

    Args:
        stream: stream of JSON.
        name: name of the file in messages.
    """

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self._stream = stream
        self._name = name
        self._state = np.zeros(4, np.int64)

    def read(self, size: int = -1) -> bytes:
        """Returns the next bytes.

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
    """Returns (greatest depth, most bytes of one client) in a block of JSON.

    The state [4] continues from block to block: whether a string is open, whether a backslash
    precedes, depth, bytes of this client.
    """
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
        # Clients are members of `user_data`, which is a member of the document.
        if depth <= 2:
            run = 0
    state[:] = is_open, is_escaped, depth, run
    return greatest_depth, longest_run


_QUOTE, _BACKSLASH, _COMMA, _ARRAY, _OBJECT, _ARRAY_END, _OBJECT_END = b'"\\,[{]}'
