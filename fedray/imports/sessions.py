"""Writes files of intervals in which devices were eligible, block by block for any population.

`replay` reads the columns device, start and end. The other forms are for other tools:

* `json`: `{"finish_time": T, "devices": {"0": [[start, end], ...], ...}}`, for programs that select
  clients in their own code, as with Flower and APPFL, which have no format for this.
* `fedscale`: the dict that FedScale reads as `device_avail_file`, as JSON instead of a pickle:
  `{"0": {"duration": ..., "inactive": [...], "finish_time": T, "active": [...], "model": ""}}`.
  For FedScale a device is active at t if active[i] <= t modulo finish_time <= inactive[i]
  (SymbioticLab/FedScale, fedscale/cloud/internal/client_metadata.py).
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa

from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.errors import InputError
from fedray.trace.row_file import ROW_SUFFIXES, new_row_file, write_rows

SessionForm = Literal["parquet", "csv", "json", "fedscale"]
SUFFIXES: dict[str, SessionForm] = {**ROW_SUFFIXES, ".json": "json"}
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
    """Sessions [S] of a block of devices, sorted by device and start, disjoint.

    first_device, end_device: range of the block's devices, with or without sessions.
    device: [S]; ids of the devices.
    start, end: [S]; seconds since the first midnight.
    """

    first_device: int
    end_device: int
    device: Int64Array
    start: Float64Array
    end: Float64Array


def form_of(file: Path, form: str | None) -> SessionForm:
    """Returns the given form of a file, or else the form of its suffix. Raises InputError."""
    if form is None:
        found = SUFFIXES.get(file.suffix.lower())
        if found is None:
            rule = f"has a suffix that is none of {', '.join(SUFFIXES)}"
            raise InputError.of("sessions", str(file), rule, "rename the file, or give its format")
        return found
    # The loop shows the type checker that the result is one of the forms.
    for each in get_args(SessionForm):
        if form == each:
            return each
    raise InputError.of("file_format", form, f"is none of {', '.join(get_args(SessionForm))}")


def write_sessions(
    blocks: Iterable[Sessions], file: Path, form: SessionForm, finish_seconds: float
) -> int:
    """Writes a complete file of sessions, or no file.

    Args:
        blocks: sessions of blocks of devices, in order.
        file: path of the file, which is replaced.
        form: form of the file.
        finish_seconds: period after which tools repeat the sessions.

    Returns:
        Number of sessions.

    Raises:
        InputError: the file cannot be written.
    """
    with new_row_file(file, "sessions") as new:
        if form in ("parquet", "csv"):
            return write_rows(map(_batch, blocks), _SCHEMA, new, form)
        with new.open("w", encoding="utf-8") as stream:
            return _write_json(blocks, stream, form, finish_seconds)


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


def _write_json(
    blocks: Iterable[Sessions], stream: IO[str], form: SessionForm, finish_seconds: float
) -> int:
    total = 0
    head = "{"
    if form == "json":
        # Devices are streamed, so the other keys come before them.
        head = f'{{"finish_time": {json.dumps(finish_seconds)}, "devices": {{'
    between = "\n"
    stream.write(head)
    for block in blocks:
        total += block.device.size
        for device, start, end in _by_device(block):
            if form == "json":
                value: object = np.stack([start, end], axis=1).tolist()
            else:
                value = _fedscale_client(start, end, finish_seconds)
            if value is None:
                continue
            stream.write(f'{between}"{device}": {json.dumps(value)}')
            # JSON has no comma after the last entry, so a comma is written before each later one.
            between = ",\n"
    stream.write("}\n" if form == "fedscale" else "}}\n")
    return total


def _fedscale_client(
    start: Float64Array, end: Float64Array, finish_seconds: float
) -> dict[str, object] | None:
    """Returns FedScale's record of a client; None without a session, since FedScale reads the
    first."""
    # FedScale moves to the next session, and from the last one to the first, if it is called at a
    # time after `inactive` and before finish_time. It would never leave a session that ends later.
    last = finish_seconds - 2.0
    is_inside = start < last
    start, end = start[is_inside], np.minimum(end[is_inside], last)
    if not start.size:
        return None
    return {
        "duration": float((end - start).sum()),
        "inactive": end.tolist(),
        "finish_time": finish_seconds,
        "active": start.tolist(),
        "model": "",
    }


def _by_device(
    block: Sessions,
) -> Iterator[tuple[int, Float64Array, Float64Array]]:
    devices = np.arange(block.first_device, block.end_device + 1)
    # A device without a session has an empty slice.
    first = np.searchsorted(block.device, devices)
    for place, device in enumerate(devices[:-1].tolist()):
        chosen = slice(first[place], first[place + 1])
        yield device, block.start[chosen], block.end[chosen]
