"""HDF5 files of pfl-research: data sets {split}/{client}/{column}, by examples on the first axis.

A group `metadata`, and data sets beside the splits, are passed over.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedray.clients.data.readers.reader import Client, Column, Damaged
from fedray.scenario.data import PflHdf5Data

_NO_SPLITS = ("metadata",)


class PflHdf5:
    """Reads pfl-research's HDF5 by names; see fedray.clients.data.readers.reader.ClientFile.

    Args:
        path: the file.
        column: one that every client has, whose first axis is its examples.

    Raises:
        Damaged: it is no such file.
    """

    def __init__(self, path: Path, column: str) -> None:
        import h5py

        self._name = path.name
        self._column = column
        # h5py is loaded here alone, so its class is kept for the checks below.
        self._groups = h5py.Group
        try:
            # No lock is taken: nobody writes, and some file systems of clusters have no locks.
            self._file: Any = h5py.File(path, "r", locking=False)
        except (OSError, RuntimeError) as error:
            raise Damaged(f"{self._name}: no HDF5 file that can be read ({error})") from None

    @classmethod
    def of(cls, table: PflHdf5Data, cache: Path) -> "PflHdf5":
        """Opens the file of a `table`; nothing of it is kept in the `cache`."""
        del cache
        return cls(Path(table.file), table.tokens or table.inputs)

    def clients(self) -> Iterator[Client]:
        """Every group of every split, in the order in which the file has them."""
        try:
            for split, clients in self._file.items():
                if split in _NO_SPLITS or not isinstance(clients, self._groups):
                    continue
                for name in map(str, clients):
                    shape = self._data_set(split, name, self._column).shape
                    if not shape:
                        raise Damaged(
                            f"{self._name}: {split}/{name}/{self._column} is a single value; its "
                            "first axis should be the examples"
                        )
                    yield Client(split, name, shape[0])
        except (OSError, RuntimeError, KeyError, ValueError) as error:
            raise _told(error, f"{self._name}") from None

    def gathered(self) -> None:
        """See ClientFile: a client has one place here."""

    def read(self, client: Client, columns: Sequence[str]) -> dict[str, Column]:
        """The data sets of a `client` that `columns` name.

        Raises:
            Damaged: one cannot be read, is missing, or has another number of examples.
        """
        found: dict[str, Column] = {}
        for column in columns:
            where = f"{self._name}: {client.split}/{client.name}/{column}"
            try:
                values = self._data_set(client.split, client.name, column)[()]
            except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
                raise _told(error, where) from None
            array = np.asarray(values)
            if array.shape[:1] != (client.examples,):
                raise Damaged(
                    f"{where} has shape {array.shape}; the first axis should be the "
                    f"{client.examples} examples"
                )
            found[column] = array if array.dtype.kind in "biuf" else _texts(array)
        return found

    def _data_set(self, split: str, name: str, column: str) -> Any:
        group = self._file[split][name]
        if not isinstance(group, self._groups) or column not in group:
            raise Damaged(f"{self._name}: {split}/{name} has no data set {column!r}")
        return group[column]


def _told(error: Exception, where: str) -> Damaged:
    """The error of a file as this reader raises it."""
    if isinstance(error, Damaged):
        return error
    return Damaged(f"{where} cannot be read ({error})")


def _texts(array: Any) -> list:
    """Texts [N], or texts in words [N, W]."""

    def text(value: Any) -> Any:
        if isinstance(value, list):
            return [text(each) for each in value]
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    return text(array.tolist())
