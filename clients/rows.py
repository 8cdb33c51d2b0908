"""A shard's rows of the trace, kept sorted in chunks; full chunks go to temporary files, so that
memory stays bounded."""

import mmap
import tempfile

import numpy as np
from numpy.typing import NDArray

from fedray.base.errors import RunFailed
from fedray.clients.check_in import by_bits
from fedray.wire.messages import Settlement

CHUNK_ROWS = 1 << 21
_COLUMNS = {
    "round": np.uint32,
    "device_id": np.uint64,
    "checkin_time": np.float64,
    "report_time": np.float64,
    "outcome": np.uint8,
}
"""The trace's columns that every settlement gives, and their types."""


class RowStore:
    """Rows of settled devices. At most CHUNK_ROWS and one settlement are held in memory.

    Files have no name, so that nothing is left of them however the process ends. A device's rows
    come in order of check-in time, because it is in one attempt at a time, or its uploads are drawn
    in their order: stable sorts by device keep that order, and that of an upload's rounds.

    Args:
        has_versions: whether settlements say from which version of the model devices started.

    rows: how many it holds.
    """

    def __init__(self, has_versions: bool = False) -> None:
        self._kinds = {**_COLUMNS, **({"version": np.uint32} if has_versions else {})}
        self._recent: list[tuple[int, dict[str, NDArray]]] = []
        """Rounds, with copies of their rows: a settlement's own arrays may be views that keep a
        whole message in memory."""
        self._recent_rows = 0
        self._chunks: list[dict[str, NDArray]] = []
        self._mappings: list[mmap.mmap] = []
        self.rows = 0

    def add(self, settlement: Settlement) -> None:
        """Takes the rows of a settlement.

        Args:
            settlement: of one attempt; attempts must come in order.

        Raises:
            RunFailed: a chunk cannot be written.
        """
        rows = {
            "device_id": settlement.device_ids.copy(),
            "checkin_time": settlement.check_in_times.copy(),
            "report_time": settlement.report_times.copy(),
            "outcome": settlement.outcomes.copy(),
        }
        if "version" in self._kinds:
            rows["version"] = settlement.versions.copy()
        self._recent.append((settlement.round_index, rows))
        self._recent_rows += settlement.device_ids.size
        self.rows += settlement.device_ids.size
        if self._recent_rows >= CHUNK_ROWS:
            self._flush()

    def of_devices(self, first_device: int, end_device: int) -> dict[str, NDArray]:
        """Reads the rows of a range of devices, sorted by (device, check-in time).

        Args:
            first_device, end_device: the range, [first_device, end_device).

        Returns:
            The trace's columns, by name: round, device_id, checkin_time, report_time, outcome; and
            version, if settlements say it.

        Raises:
            RunFailed: a chunk cannot be written.
        """
        self._flush()
        bounds = np.array([first_device, end_device], np.uint64)
        # Chunks are sorted by device, so that the rows of a range lie together in each.
        ranges = [np.searchsorted(chunk["device_id"], bounds) for chunk in self._chunks]
        columns: dict[str, NDArray] = {}
        for name, kind in self._kinds.items():
            # The empty part gives the column its type where there is no chunk at all.
            parts = [np.empty(0, kind)]
            for chunk, (begin, end) in zip(self._chunks, ranges, strict=True):
                parts.append(chunk[name][begin:end])
            columns[name] = np.concatenate(parts)
        for mapping in self._mappings:
            # What was read need not stay in memory: each part of a trace is read once.
            mapping.madvise(mmap.MADV_DONTNEED)
        order = _by_device(columns["device_id"])
        return {name: column[order] for name, column in columns.items()}

    def _flush(self) -> None:
        """Recent rows become a chunk, sorted by device, in a file of its own, column after
        column."""
        if not self._recent_rows:
            return
        rows = self._recent_rows
        rounds = np.array([round_index for round_index, _ in self._recent], np.uint32)
        settled = [columns for _, columns in self._recent]
        sizes = [each["device_id"].size for each in settled]
        columns: dict[str, NDArray] = {"round": np.repeat(rounds, sizes)}
        for name in self._kinds:
            if name != "round":
                columns[name] = np.concatenate([each[name] for each in settled])
        self._recent = []
        self._recent_rows = 0
        order = _by_device(columns["device_id"])
        try:
            with tempfile.TemporaryFile(prefix="fedray-rows-") as file:
                for name in self._kinds:
                    # Each column lies together, so that it can be read as one array in the mapping.
                    file.write(columns[name][order].data)
                file.flush()
                # The mapping keeps the content in reach after the nameless file is closed.
                mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            where = tempfile.gettempdir()
            raise RunFailed(
                f"a shard cannot keep its rows in {where!r} ({error}); free space there, or set "
                "TMPDIR"
            ) from None
        self._mappings.append(mapping)
        chunk: dict[str, NDArray] = {}
        begin = 0
        for name, kind in self._kinds.items():
            end = begin + rows * np.dtype(kind).itemsize
            chunk[name] = np.frombuffer(mapping, kind, rows, begin)
            begin = end
        self._chunks.append(chunk)


def _by_device(device_ids: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Places in order of device, stable."""
    # Offsets in the shard have fewer bits than ids, and so take fewer passes of the sort.
    offsets = (device_ids - device_ids.min(initial=np.uint64(2**64 - 1))).astype(np.uint32)
    largest = int(offsets.max(initial=0))
    return by_bits(offsets, largest.bit_length())
