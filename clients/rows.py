"""Rows of the trace of one shard, in sorted chunks in temporary files, so that memory stays
bounded."""

import mmap
import tempfile

import numpy as np
from numpy.typing import NDArray

from fedray.base.arrays import Int64Array, UInt64Array
from fedray.base.errors import RunFailed
from fedray.trace.columns import COLUMNS
from fedray.trace.schema import PARTICIPATIONS
from fedray.wire.messages import Settlement
from .check_in import by_bits

CHUNK_ROWS = 1 << 21
_DTYPES = {each.name: each.dtype for each in COLUMNS[PARTICIPATIONS]}
_IN_SETTLEMENT = {
    "device_id": "device_ids",
    "checkin_time": "check_in_times",
    "report_time": "report_times",
    "outcome": "outcomes",
    "version": "versions",
}
"""Attribute of a settlement with each column of the trace that is kept with its rows, besides the
round."""


class RowStore:
    """Rows of settled devices. At most CHUNK_ROWS and one settlement are held in memory.

    Args:
        has_versions: whether settlements have versions of the model.
    """

    # A device's rows come in order of check-in time, because it is in one attempt at a time, or its
    # uploads are drawn in their order: stable sorts by device keep that order, and the order of an
    # upload's rounds.

    def __init__(self, has_versions: bool = False) -> None:
        names = ["round", *_IN_SETTLEMENT]
        if not has_versions:
            names.remove("version")
        self._dtypes = {name: _DTYPES[name] for name in names}
        # Copies of rows: a settlement's own arrays may be views that keep a whole message in
        # memory.
        self._recent: list[dict[str, NDArray]] = []
        self._recent_rows = 0
        self._chunks: list[dict[str, NDArray]] = []
        self._mappings: list[mmap.mmap] = []
        self.rows = 0
        """Number of rows held."""

    def add(self, settlement: Settlement) -> None:
        """Adds the rows of a settlement. Attempts must come in order.

        Raises:
            RunFailed: a chunk cannot be written.
        """
        size = settlement.device_ids.size
        number = np.full(size, settlement.round_index, self._dtypes["round"])
        rows: dict[str, NDArray] = {"round": number}
        for name, attribute in _IN_SETTLEMENT.items():
            if name in self._dtypes:
                rows[name] = getattr(settlement, attribute).copy()
        self._recent.append(rows)
        self._recent_rows += size
        self.rows += size
        if self._recent_rows >= CHUNK_ROWS:
            self._flush()

    def of_devices(self, first_device: int, end_device: int) -> dict[str, NDArray]:
        """Reads the rows of devices [first_device, end_device), sorted by (device, check-in time).

        Returns:
            Columns of the trace by name, as far as settlements have them.

        Raises:
            RunFailed: a chunk cannot be written.
        """
        self._flush()
        bounds = np.array([first_device, end_device], np.uint64)
        # Chunks are sorted by device, so the rows of a range lie together in each.
        ranges = [np.searchsorted(chunk["device_id"], bounds) for chunk in self._chunks]
        columns: dict[str, NDArray] = {}
        for name, dtype in self._dtypes.items():
            # The empty part gives the column its type if no chunk exists.
            parts = [np.empty(0, dtype)]
            for chunk, (begin, end) in zip(self._chunks, ranges, strict=True):
                column = chunk[name]
                parts.append(column[begin:end])
            columns[name] = np.concatenate(parts)
        for mapping in self._mappings:
            # Each part of a trace is read once, so its pages need not stay in memory.
            mapping.madvise(mmap.MADV_DONTNEED)
        order = _by_device(columns["device_id"])
        return {name: column[order] for name, column in columns.items()}

    def _flush(self) -> None:
        """Turns recent rows into a chunk, sorted by device, in a file of its own."""
        if not self._recent_rows:
            return
        rows = self._recent_rows
        columns: dict[str, NDArray] = {}
        for name in self._dtypes:
            columns[name] = np.concatenate([each[name] for each in self._recent])
        self._recent = []
        self._recent_rows = 0
        order = _by_device(columns["device_id"])
        try:
            # The file has no name, so nothing is left of it however the process ends.
            with tempfile.TemporaryFile(prefix="fedray-rows-") as file:
                for column in columns.values():
                    # Columns are contiguous, so that each is one array of the mapping.
                    file.write(column[order].data)
                file.flush()
                # The mapping keeps the content after the file is closed.
                mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            where = tempfile.gettempdir()
            raise RunFailed(
                f"a shard cannot write rows to {where!r} ({error}); free space or set TMPDIR"
            ) from None
        self._mappings.append(mapping)
        chunk: dict[str, NDArray] = {}
        begin = 0
        for name, dtype in self._dtypes.items():
            end = begin + rows * dtype.itemsize
            chunk[name] = np.frombuffer(mapping, dtype, rows, begin)
            begin = end
        self._chunks.append(chunk)


def _by_device(device_ids: UInt64Array) -> Int64Array:
    """Returns the stable order by device."""
    # Offsets in the shard have fewer bits than ids, so they take fewer passes of the sort.
    first_device = device_ids.min(initial=np.uint64(2**64 - 1))
    offsets = (device_ids - first_device).astype(np.uint32)
    largest = int(offsets.max(initial=0))
    return by_bits(offsets, largest.bit_length())
