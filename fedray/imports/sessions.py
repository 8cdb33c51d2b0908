"""Files of sessions: when devices were eligible. They are written block by block, so that a
population of any size fits in memory.

`replay` reads the columns device, start and end. The other forms are what tools of others can
replay:

* `json`: `{"finish_time": T, "devices": {"0": [[start, end], ...], ...}}`, for programs that choose
  clients by code of their own, as those of Flower and APPFL do: neither has a format for this.
* `fedscale`: the dict that FedScale reads as `device_avail_file`, as JSON in place of its pickle:
  `{"0": {"duration": ..., "inactive": [...], "finish_time": T, "active": [...], "model": ""}}`.
  FedScale takes a device as active at t if active[i] <= t modulo finish_time <= inactive[i]
  (SymbioticLab/FedScale, fedscale/cloud/internal/client_metadata.py).
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedray.base.errors import InputError
from fedray.trace.row_file import ROW_SUFFIXES, new_row_file, write_rows

SessionForm = Literal["parquet", "csv", "json", "fedscale"]
SUFFIXES: dict[str, SessionForm] = {**ROW_SUFFIXES, ".json": "json"}
JOINED_SECONDS = 1.0
"""Sessions that are no further apart are one."""
_SCHEMA = pa.schema(
    [
        pa.field("device", pa.int64(), nullable=False),
        pa.field("start", pa.float64(), nullable=False),
        pa.field("end", pa.float64(), nullable=False),
    ]
)


class Sessions(NamedTuple):
    """Sessions [S] of a block of devices, sorted by device and start, disjoint.

    first_device, end_device: the devices of the block, those without a session included.
    device: [S]; whose.
    start, end: [S]; seconds since the first midnight.
    """

    first_device: int
    end_device: int
    device: NDArray[np.int64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]


def form_of(file: Path, form: str | None) -> SessionForm:
    """The form of a file of sessions.

    Args:
        file: its name, whose suffix tells the form unless one is given.
        form: what was asked for; None for nothing.

    Raises:
        InputError: the suffix tells nothing, or there is no such form.
    """
    if form is None:
        found = SUFFIXES.get(file.suffix.lower())
        if found is None:
            raise InputError.of(
                "sessions",
                str(file),
                f"has a suffix that is none of {', '.join(SUFFIXES)}",
                "name the file so, or say its format",
            )
        return found
    # The loop tells the type checker that what is returned is one of the forms.
    for each in get_args(SessionForm):
        if form == each:
            return each
    raise InputError.of("file_format", form, f"is none of {', '.join(get_args(SessionForm))}")


def write_sessions(
    blocks: Iterable[Sessions], file: Path, form: SessionForm, finish_seconds: float
) -> int:
    """Writes sessions, whole or not at all.

    Args:
        blocks: of devices, in order.
        file: where to; what was there is replaced.
        form: of the file.
        finish_seconds: after which tools that repeat the sessions begin anew.

    Returns:
        How many sessions there are.

    Raises:
        InputError: the file cannot be written.
    """
    with new_row_file(file, "sessions") as new:
        if form in ("parquet", "csv"):
            return write_rows(map(_batch, blocks), _SCHEMA, new, form)
        with new.open("w", encoding="utf-8") as stream:
            return _write_json(blocks, stream, form, finish_seconds)


def joined_sessions(
    device: NDArray[np.int64], start: NDArray[np.float64], end: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Sessions sorted by device and start, of which those of a device are apart.

    Args:
        device: [S]; whose, in any order.
        start: [S], seconds.
        end: [S], seconds; after the start.

    Returns:
        (device, start, end) of what is left: sessions that overlap, or lie no more than
        JOINED_SECONDS apart, are one, as they are for `replay`.
    """
    order = np.lexsort((start, device))
    device, start, end = device[order], start[order], end[order]
    # Device by device on one line, with room between, so that one running maximum does for all.
    room = float(end.max(initial=0.0) - start.min(initial=0.0)) + 2.0 * JOINED_SECONDS
    latest = np.maximum.accumulate(end + room * device)
    is_new = np.ones(device.size, np.bool_)
    is_new[1:] = start[1:] + room * device[1:] > latest[:-1] + JOINED_SECONDS
    first = np.flatnonzero(is_new)
    # A session may hold the next ones whole, so the end is the latest of all that are joined.
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
        # Devices are streamed, so what belongs to the whole file comes before them.
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
            # JSON has no comma after the last entry, and nobody knows yet which one that is.
            between = ",\n"
    stream.write("}\n" if form == "fedscale" else "}}\n")
    return total


def _fedscale_client(
    start: NDArray[np.float64], end: NDArray[np.float64], finish_seconds: float
) -> dict[str, object] | None:
    """What FedScale reads of one client; None without a session, since it looks at the first."""
    # FedScale goes on to the next session, and from the last one to the first, when it is asked at
    # a time after `inactive`, which is less than finish_time. An end that no such time exceeds
    # would leave the client at its last session for ever.
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
) -> Iterator[tuple[int, NDArray[np.float64], NDArray[np.float64]]]:
    devices = np.arange(block.first_device, block.end_device + 1)
    # A device without a session has an empty slice.
    first = np.searchsorted(block.device, devices)
    for place, device in enumerate(devices[:-1].tolist()):
        chosen = slice(first[place], first[place + 1])
        yield device, block.start[chosen], block.end[chosen]
