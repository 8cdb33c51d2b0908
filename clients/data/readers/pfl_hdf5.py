"""HDF5 files of pfl-research: data sets {split}/{client}/{column}, by examples on the first axis.

A group `metadata`, and data sets beside the splits, are ignored.

HDF5 can take data from other files, which the digest of the data does not cover: such links and
data sets are refused before the library follows them.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedray.clients.data.readers.reader import (
    MOST_CLIENT_BYTES,
    Client,
    ClientFile,
    Column,
    Damaged,
    damage,
)
from fedray.scenario.data import PflHdf5Data

_NO_SPLITS = ("metadata",)
# Fewest texts to read in one call: a call takes as long as a hundred texts.
_TEXTS_AT_ONCE = 64
# Largest compressed chunk, bytes: deflate can make it a thousand times as large.
_MOST_COMPRESSED_CHUNK = 4 << 20
# HDF5's numbers of the filters that keep the size: shuffle and checksum.
_NOT_PACKING = (2, 3)
# Errors that h5py raises for a damaged file.
_DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError)


class PflHdf5(ClientFile):
    """Reads pfl-research's HDF5 by names.

    Raises:
        Damaged: the file is not HDF5.
    """

    def __init__(self, table: PflHdf5Data, cache: Path) -> None:
        del cache
        # Imported only here, so the checks below use this reference.
        import h5py

        path = Path(table.file)
        self._name = path.name
        self._bytes = path.stat().st_size
        # The first axis of this column counts the examples of a client.
        self._column = table.tokens or table.inputs
        self._h5py: Any = h5py
        with damage(f"{self._name} is not a readable HDF5 file", *_DAMAGE):
            # Without a lock: nothing writes, and some file systems of clusters have no locks.
            self._file: Any = h5py.File(path, "r", locking=False)

    def clients(self) -> Iterator[Client]:
        with damage(f"{self._name} cannot be read", *_DAMAGE):
            for split in map(str, self._file):
                if split in _NO_SPLITS:
                    continue
                clients = self._member(self._file, split, split)
                if not isinstance(clients, self._h5py.Group):
                    continue
                for name in map(str, clients):
                    shape = self._data_set(split, name, self._column).shape
                    yield Client(split, name, shape[0])

    def read(self, client: Client, columns: Sequence[str]) -> dict[str, Column]:
        found: dict[str, Column] = {}
        for column in columns:
            where = f"{self._name}: {client.split}/{client.name}/{column}"
            with damage(f"{where} cannot be read", *_DAMAGE):
                data = self._data_set(client.split, client.name, column)
                is_text = data.dtype.kind not in "biuf"
                found[column] = self._texts(data, where) if is_text else np.asarray(data[()])
            if data.shape[0] != client.examples:
                raise Damaged(
                    f"{where} has shape {data.shape}; the first axis should be the "
                    f"{client.examples} examples"
                )
        return found

    def _data_set(self, split: str, name: str, column: str) -> Any:
        """Returns a data set, checked but not read."""
        found = self._file
        # The name of a column may be a path of groups.
        for part in (split, name, *column.split("/")):
            found = self._member(found, part, f"{split}/{name}/{column}")
        where = f"{self._name}: {split}/{name}/{column}"
        if not isinstance(found, self._h5py.Dataset):
            raise Damaged(f"{self._name}: {split}/{name} has no data set {column!r}")
        # Checked before the shape, for which HDF5 may open the sources of a virtual data set.
        if found.is_virtual or found.external:
            kind = "a virtual data set" if found.is_virtual else "stored in an external file"
            raise Damaged(
                f"{where} is {kind}, and its data is outside of this file; store it in the file"
            )
        if not found.shape:
            raise Damaged(f"{where} is a single value; its first axis should be the examples")
        _check_size(found, where)
        return found

    def _member(self, group: Any, name: str, where: str) -> Any:
        """Returns a member of a group, or None; it follows no soft or external link."""
        key = name.encode("utf-8", "surrogateescape")
        if not isinstance(group, self._h5py.Group) or not group.id.links.exists(key):
            return None
        if group.id.links.get_info(key).type != self._h5py.h5l.TYPE_HARD:
            raise Damaged(
                f"{self._name}: {where} is a link (at {name!r}), which may lead to another file; "
                "store the data in its place"
            )
        return group[name]

    def _texts(self, data: Any, where: str) -> list:
        """Reads texts [N], or texts in words [N, W], piece by piece."""
        # Many texts may be a single text of the file, whose size therefore does not bound them.
        texts = max(_TEXTS_AT_ONCE, MOST_CLIENT_BYTES // self._bytes)
        rows = max(1, texts // max(1, math.prod(data.shape[1:])))
        found: list = []
        size = 0
        for start in range(0, data.shape[0], rows):
            piece = data[start : start + rows]
            size += sum(len(each) if hasattr(each, "__len__") else 1 for each in piece.flat)
            if size > MOST_CLIENT_BYTES:
                raise Damaged(f"{where} has more than {MOST_CLIENT_BYTES:,} bytes of text")
            found += _decoded(piece.tolist())
        return found


def _check_size(data: Any, where: str) -> None:
    """Checks that a data set can be read in bounded memory."""
    # `data.nbytes` would overflow.
    whole = math.prod(data.shape) * data.dtype.itemsize
    chunk = math.prod(data.chunks or (0,)) * data.dtype.itemsize
    if max(whole, chunk) > MOST_CLIENT_BYTES:
        raise Damaged(f"{where} or one of its chunks has more than {MOST_CLIENT_BYTES:,} bytes")
    if not chunk:
        return
    properties = data.id.get_create_plist()
    # Each filter unpacks the output of the one before, so sizes would multiply.
    filters = [properties.get_filter(number)[0] for number in range(properties.get_nfilters())]
    packing = [each for each in filters if each not in _NOT_PACKING]
    if len(packing) > 1:
        raise Damaged(f"{where} is compressed {len(packing)} times over; compress it once")
    # The iteration ends at the first chunk for which the function returns a value.
    if packing and data.id.chunk_iter(lambda found: found.size > _MOST_COMPRESSED_CHUNK or None):
        raise Damaged(
            f"{where} has a compressed chunk of more than {_MOST_COMPRESSED_CHUNK:,} bytes; use "
            "smaller chunks"
        )


def _decoded(value: Any) -> Any:
    """Decodes bytes to str, also in nested lists."""
    if isinstance(value, list):
        return [_decoded(each) for each in value]
    return value.decode(errors="replace") if isinstance(value, bytes) else value
