"""SQLite files of TensorFlow Federated (EMNIST, Shakespeare, Stack Overflow), as its
`SqlClientData` has them:

    examples(split_name, client_id, serialized_example_proto)
    client_metadata(client_id, split_name, num_examples)

The first has a row per example, a serialized tf.train.Example; the second is not needed: examples
are counted. The rows of a client must follow one another.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedray.scenario.data import TffSqliteData
from .files import read_only_sqlite
from .reader import (
    MOST_CLIENT_BYTES,
    Client,
    ClientFile,
    Column,
    Damaged,
    damage,
)
from .tf_example import Feature, decode_example

_ROWS = "SELECT split_name, client_id, rowid FROM examples ORDER BY rowid"
_OF_CLIENT = (
    "SELECT rowid, serialized_example_proto FROM examples"
    " WHERE rowid >= ? AND rowid < ? ORDER BY rowid"
)
MOST_EXAMPLE_BYTES = 64 << 20
"""Largest size of a serialized example, bytes."""


class TffSqlite(ClientFile):
    """Reads TensorFlow Federated's SQLite, in order of rowid.

    Raises:
        Damaged: the file is not such a database.
    """

    def __init__(self, path: Path) -> None:
        self._name = path.name
        self._connection = self._opened(path)

    @classmethod
    def of(cls, table: TffSqliteData) -> "TffSqlite":
        """Opens the file of a table."""
        return cls(Path(table.file))

    def clients(self) -> Iterator[Client]:
        split, name = "", ""
        first, last, examples = -1, -1, 0
        try:
            for row_split, row_name, row in self._connection.execute(_ROWS):
                # Damaged pages can return the same rows again, without end.
                if first >= 0 and row <= last:
                    raise Damaged(f"{self._name}: row {row} comes after row {last}")
                # A run ends when the client changes, and the first one starts at the first row.
                if (row_split, row_name) != (split, name) or first < 0:
                    if first >= 0:
                        yield Client(split, name, examples, first, last + 1)
                    if not isinstance(row_split, str) or not isinstance(row_name, str):
                        raise Damaged(f"{self._name}: row {row} has no split_name or no client_id")
                    split, name, first, examples = row_split, row_name, row, 0
                last = row
                examples += 1
        except sqlite3.Error as error:
            raise Damaged(f"{self._name}: rows after {last} cannot be read: {error}") from None
        if first >= 0:
            yield Client(split, name, examples, first, last + 1)

    def read(self, client: Client, columns: Sequence[str]) -> dict[str, Column]:
        found: dict[str, list[Feature]] = {column: [] for column in columns}
        size = 0
        with damage(f"{self._name}: client {client.name!r}", sqlite3.Error):
            rows = self._connection.execute(_OF_CLIENT, (client.first, client.end))
            for row, content in rows:
                where = f"{self._name}: row {row} (client {client.name!r})"
                if not isinstance(content, bytes):
                    raise Damaged(f"{where} has no example, which would be bytes")
                size += len(content)
                # Many rows may share their pages, so the file's size does not bound them.
                if size > MOST_CLIENT_BYTES:
                    raise Damaged(f"{where} exceeds the {MOST_CLIENT_BYTES:,} bytes of a client")
                features = self._features(content, columns, where)
                for column, feature in features.items():
                    found[column].append(feature)
        return {column: _column(features) for column, features in found.items()}

    def _features(self, content: bytes, columns: Sequence[str], where: str) -> dict[str, Feature]:
        with damage(f"{where} is not a tf.train.Example", ValueError):
            features = decode_example(content, columns)
        for column in columns:
            if column not in features:
                raise Damaged(f"{where} has no feature {column!r}")
        return features

    def _opened(self, path: Path) -> sqlite3.Connection:
        subject = (
            f"{self._name} is not a SQLite file with a table examples(split_name, client_id, "
            "serialized_example_proto); decompress a .lzma file first"
        )
        with damage(subject, sqlite3.Error):
            connection = read_only_sqlite(path, "examples")
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_EXAMPLE_BYTES)
            # SQLite opens any file, and checks its format at the first query.
            connection.execute(_ROWS + " LIMIT 1").fetchone()
        return connection


def _column(features: list[Feature]) -> Column:
    """Returns texts in words, or numbers [N, values], or [N] if each example has one value."""
    if not features or isinstance(features[0], list):
        return [_words(feature) for feature in features]
    sizes = {len(feature) for feature in features}
    has_words = any(isinstance(feature, list) for feature in features)
    # Features without a common shape are returned unchanged; `Form` names the mistake.
    if len(sizes) > 1 or has_words:
        return features
    together = np.stack([np.asarray(feature) for feature in features])
    return together[:, 0] if sizes == {1} else together


def _words(feature: Feature) -> Sequence[str] | NDArray:
    if isinstance(feature, list):
        return [word.decode(errors="replace") for word in feature]
    return feature
