"""Writes files of intervals in which devices were eligible, block by block for any population, with
the columns that `replay` reads."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.errors import InputError
from fedray.trace.row_file import new_row_file, write_rows

JOINED_SECONDS = 1.0
"""Largest gap between sessions that are joined, seconds."""
_SCHEMA = pa.schema(
    [
        pa.field("device", pa.int64(), nullable=False),
        pa.field("start", pa.float64(), nullable=False),
        pa.field("end", pa.float64(), nullable=False),
    ]
)


class Sessions(NamedTuple):
    """Sessions [S] of a block of devices, sorted by device and start, disjoint."""

    first_device: int
    """First device of the block, with or without sessions."""
    end_device: int
    """End of the range of the block's devices."""
    device: Int64Array
    """[S]; ids of the devices."""
    start: Float64Array
    """[S]; starts, seconds since the first midnight."""
    end: Float64Array
    """[S]; ends, seconds since the first midnight."""


def write_sessions(blocks: Iterable[Sessions], file: Path) -> int:
    """Writes a complete file of sessions, or no file.

    Args:
        blocks: sessions of blocks of devices, in order.
        file: path of the Parquet file, which is replaced.

    Returns:
        Number of sessions.

    Raises:
        InputError: the file is to be CSV, or cannot be written.
    """
    if file.suffix.lower() == ".csv":
        rule = "asks for CSV, but sessions are Parquet"
        raise InputError.of("sessions", str(file), rule, "rename it, and convert the file")
    with new_row_file(file, "sessions") as new:
        return write_rows(map(_batch, blocks), _SCHEMA, new, "parquet")


def joined_sessions(
    device: Int64Array, start: Float64Array, end: Float64Array
) -> tuple[Int64Array, Float64Array, Float64Array]:
    """Sorts sessions by device and start, and joins those less than JOINED_SECONDS apart.

    Args:
        device: [S]; ids of the devices, in any order.
        start: [S]; seconds.
        end: [S]; seconds, after the start.

    Returns:
        (device, start, end) of the joined sessions, as `replay` has them.
    """
    order = np.lexsort((start, device))
    device, start, end = device[order], start[order], end[order]
    # Devices are placed one after another on one axis, with gaps, so that one maximum serves all.
    room = float(end.max(initial=0.0) - start.min(initial=0.0)) + 2.0 * JOINED_SECONDS
    latest = np.maximum.accumulate(end + room * device)
    is_new = np.ones(device.size, np.bool_)
    is_new[1:] = start[1:] + room * device[1:] > latest[:-1] + JOINED_SECONDS
    first = np.flatnonzero(is_new)
    # A session may contain the next ones, so the end is the latest of all joined ones.
    return device[first], start[first], np.maximum.reduceat(end, first)


def _batch(block: Sessions) -> pa.RecordBatch:
    columns = [pa.array(block.device), pa.array(block.start), pa.array(block.end)]
    return pa.record_batch(columns, schema=_SCHEMA)
