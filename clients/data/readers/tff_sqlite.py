"""SQLite files of TensorFlow Federated (EMNIST, Shakespeare, Stack Overflow), as its
`SqlClientData` has them:

    examples(split_name, client_id, serialized_example_proto)
    client_metadata(client_id, split_name, num_examples)

The first has a row per example, a serialized tf.train.Example; the second is not needed: examples
are counted. A compressed file (.lzma, .xz) is decompressed into the cache, once.
"""

import lzma
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedray.clients.data.cache import made_once
from fedray.clients.data.readers.files import read_only_sqlite, read_only_uri
from fedray.clients.data.readers.reader import (
    MOST_CLIENT_BYTES,
    Client,
    ClientFile,
    Column,
    Damaged,
)
from fedray.clients.data.readers.tf_example import Feature, decode_example
from fedray.scenario.data import TffSqliteData

_ROWS = "SELECT split_name, client_id, rowid FROM examples ORDER BY rowid"
_OF_CLIENT = (
    "SELECT rowid, serialized_example_proto FROM examples"
    " WHERE rowid >= ? AND rowid < ? ORDER BY rowid"
)
_GATHER = (
    "CREATE TABLE main.examples AS"
    " SELECT split_name, client_id, serialized_example_proto FROM source.examples"
    " ORDER BY split_name, client_id, rowid"
)
_COMPRESSED = (".lzma", ".xz")
MOST_EXAMPLE_BYTES = 64 << 20
"""Most bytes of a serialized example."""
MOST_UNPACKED_SHARE = 100
"""Largest size of a decompressed file, in sizes of the compressed one. EMNIST's has 20."""
_LEAST_UNPACKED_LIMIT = 64 << 20
"""Size that any file may be decompressed to, since an empty database is nearly all zeros."""


class TffSqlite:
    """Reads TensorFlow Federated's SQLite; see fedray.clients.data.readers.reader.ClientFile.

    Records lie in order of their rowid.

    Args:
        path: the file.
        cache: the folder in the cache for its content.

    Raises:
        Damaged: it is no such file.
    """

    def __init__(self, path: Path, cache: Path) -> None:
        self._name, self._cache = path.name, cache
        if path.suffix in _COMPRESSED:
            path = made_once(cache / "database.sqlite", lambda new: self._decompress(path, new))
        self._path = path
        self._connection = self._opened(path)

    @classmethod
    def of(cls, table: TffSqliteData, cache: Path) -> "TffSqlite":
        """Opens the file of a `table`."""
        return cls(Path(table.file), cache)

    def clients(self) -> Iterator[Client]:
        """Every run of rows of the same client, in the order of their rowid."""
        split, name = "", ""
        first, last, examples = -1, -1, 0
        try:
            for row_split, row_name, row in self._connection.execute(_ROWS):
                # A damaged tree of pages can give the same rows again, without end.
                if first >= 0 and row <= last:
                    raise Damaged(f"{self._name}: row {row} comes after row {last}")
                # A run ends where the client changes; there is none before the first row.
                if (row_split, row_name) != (split, name) or first < 0:
                    if first >= 0:
                        yield Client(split, name, examples, first, last + 1)
                    if not isinstance(row_split, str) or not isinstance(row_name, str):
                        raise Damaged(f"{self._name}: row {row} has no split_name or no client_id")
                    split, name, first, examples = row_split, row_name, row, 0
                last, examples = row, examples + 1
        except sqlite3.Error as error:
            raise Damaged(f"{self._name}: rows after {last} cannot be read ({error})") from None
        if first >= 0:
            yield Client(split, name, examples, first, last + 1)

    def gathered(self) -> ClientFile:
        """A reader of the copy in which the rows of each client lie together, which is made unless
        it is there.

        Raises:
            Damaged: the rows cannot be sorted.
        """
        copy = made_once(self._cache / "gathered.sqlite", self._gather)
        return TffSqlite(copy, self._cache)

    def read(self, client: Client, columns: Sequence[str]) -> dict[str, Column]:
        """The features of a `client` that `columns` name, decoded.

        Raises:
            Damaged: a row cannot be read, is no tf.train.Example, or lacks a feature.
        """
        found: dict[str, list[Feature]] = {column: [] for column in columns}
        size = 0
        try:
            rows = self._connection.execute(_OF_CLIENT, (client.first, client.end))
            for row, content in rows:
                where = f"{self._name}: row {row} (client {client.name!r})"
                if not isinstance(content, bytes):
                    raise Damaged(f"{where} has no example, which would be bytes")
                size += len(content)
                # Many rows may share their pages, so that the file's size does not bound them.
                if size > MOST_CLIENT_BYTES:
                    raise Damaged(f"{where} exceeds the {MOST_CLIENT_BYTES:,} bytes of a client")
                features = self._features(content, columns, where)
                for column, feature in features.items():
                    found[column].append(feature)
        except sqlite3.Error as error:
            raise Damaged(f"{self._name}: client {client.name!r}: {error}") from None
        return {column: _column(features) for column, features in found.items()}

    def _features(self, content: bytes, columns: Sequence[str], where: str) -> dict[str, Feature]:
        try:
            features = decode_example(content, columns)
        except ValueError as error:
            raise Damaged(f"{where} is no tf.train.Example ({error})") from None
        for column in columns:
            if column not in features:
                raise Damaged(f"{where} has no feature {column!r}")
        return features

    def _opened(self, path: Path) -> sqlite3.Connection:
        try:
            connection = read_only_sqlite(path, "examples")
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_EXAMPLE_BYTES)
            # SQLite opens any file, and finds out what it is when it is asked for a row.
            connection.execute(_ROWS + " LIMIT 1").fetchone()
        except sqlite3.Error as error:
            raise Damaged(
                f"{self._name}: no SQLite file with a table examples(split_name, client_id, "
                f"serialized_example_proto) ({error})"
            ) from None
        return connection

    def _decompress(self, path: Path, new: Path) -> None:
        left = max(_LEAST_UNPACKED_LIMIT, MOST_UNPACKED_SHARE * path.stat().st_size)
        try:
            with lzma.open(path) as source, new.open("wb") as target:
                while block := source.read(1 << 20):
                    left -= len(block)
                    if left < 0:
                        raise Damaged(
                            f"{self._name} unpacks to more than {MOST_UNPACKED_SHARE} times its "
                            "size, as no data does; decompress it yourself if you trust it"
                        )
                    target.write(block)
        except (lzma.LZMAError, EOFError, MemoryError) as error:
            raise Damaged(f"{self._name} cannot be decompressed ({error})") from None
        # Content that is not a database is not kept in the cache.
        self._opened(new).close()

    def _gather(self, new: Path) -> None:
        try:
            with closing(sqlite3.connect(new, uri=True)) as connection:
                connection.execute("ATTACH ? AS source", (read_only_uri(self._path),))
                # The copy is not shared before it is whole, so it needs no journal.
                connection.execute("PRAGMA main.journal_mode = OFF")
                connection.execute(_GATHER)
                connection.commit()
        except sqlite3.Error as error:
            raise Damaged(f"{self._name} cannot be put in order of its clients ({error})") from None


def _column(features: list[Feature]) -> Column:
    """Features of N examples: texts in words, or an array [N, values], or [N] of single ones."""
    if not features or isinstance(features[0], list):
        return [_words(feature) for feature in features]
    sizes = {len(feature) for feature in features}
    has_words = any(isinstance(feature, list) for feature in features)
    # What has no common shape is given as it is; the form of the data says what is wrong with it.
    if len(sizes) > 1 or has_words:
        return features
    together = np.stack([np.asarray(feature) for feature in features])
    return together[:, 0] if sizes == {1} else together


def _words(feature: Feature) -> Sequence[str] | NDArray:
    """A feature of bytes as words; one of numbers as it is."""
    if isinstance(feature, list):
        return [word.decode(errors="replace") for word in feature]
    return feature
