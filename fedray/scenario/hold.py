"""Hold files: devices that must wait before they may take part again, each until a round or a time,
or for ever.

A hold file is CSV or Parquet with two columns: `device_id` and either `first_round` or `first_time`
(seconds, as in the trace). An empty value means never. A scenario reads one
(`participation.hold`), and so does an audit, whose log may name devices by any text.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from fedray.base.arrays import Float64Array, Int64Array, UInt64Array
from fedray.base.atomic import write_output
from fedray.base.errors import InputError, one_line, shown
from fedray.base.regular_file import read_regular_file

MOST_HOLD_BYTES = 1 << 30
"""Largest hold file that is read; 10^7 devices take about 200 MB."""
LAST_ROUND = 2**31 - 1
"""Number of a round that no run reaches: the first round of a device that may never take part."""
_PARQUET = b"PAR1"
By = Literal["first_round", "first_time"]


class Hold(NamedTuple):
    """Devices of a hold file, each once, in the order of the file."""

    device_ids: Sequence[str]
    """[H]; the devices, as the file names them."""
    first: Float64Array
    """[H]; first round, or first time in seconds, in which each may take part; infinity for
    never."""
    by: By
    """Meaning of `first`, the name of its column."""


class HeldDevices(NamedTuple):
    """Devices of a simulated population that are held."""

    device_ids: UInt64Array
    """[H], sorted."""
    first_rounds: Int64Array
    """[H]; first round of each; 0 if a time holds it, `LAST_ROUND` for never."""
    first_times: Float64Array
    """[H]; first time of each, seconds since start; 0 if a round holds it, infinity for never."""

    @classmethod
    def of(cls, device_ids: UInt64Array, first: Float64Array, by: By) -> "HeldDevices":
        """Returns held devices [H] from columns of a hold file."""
        order = np.argsort(device_ids)
        device_ids, first = device_ids[order], first[order]
        is_round = by == "first_round"
        rounds = np.minimum(first, float(LAST_ROUND)) if is_round else np.zeros(first.size)
        # A device that never comes back has no time at which it would ask again.
        times = np.where(np.isinf(first), np.inf, 0.0) if is_round else first
        return cls(device_ids, rounds.astype(np.int64), times)


def read_hold(path: Path) -> Hold:
    """Reads a hold file, CSV or Parquet.

    Raises:
        InputError: it cannot be read, is not a hold file, or names a device twice.
    """
    try:
        content = read_regular_file(path, MOST_HOLD_BYTES)
    except OSError as error:
        raise InputError.of(
            "hold", str(path), f"cannot be read ({error.strerror or error})", "give a hold file"
        ) from None
    return _parsed(content, str(path))


def write_hold(path: Path, hold: Hold) -> None:
    """Writes a hold file: Parquet if the name of the file ends with .parquet, else CSV."""
    first = _column(hold.first, hold.by)
    table = pa.table({"device_id": pa.array(hold.device_ids, pa.string()), hold.by: first})
    buffer = io.BytesIO()
    if path.suffix == ".parquet":
        pq.write_table(table, buffer)
    else:
        buffer.write(_csv(table))
    write_output(path, buffer.getvalue(), "the hold file")


def _column(first: Float64Array, by: By) -> pa.Array:
    is_never = np.isinf(first)
    known = np.where(is_never, 0.0, first)
    return pa.array(known.astype(np.int64) if by == "first_round" else known, mask=is_never)


def _csv(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    buffer.write((",".join(table.column_names) + "\n").encode())
    options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed")
    pyarrow.csv.write_csv(table, buffer, options)
    return buffer.getvalue()


def _parsed(content: bytes, name: str) -> Hold:
    """Returns the content of a hold file. Raises InputError."""
    try:
        table = _table(content)
    except (pa.ArrowException, OSError) as error:
        raise _refused(name, f"cannot be read as CSV or Parquet ({one_line(str(error))})") from None
    known = [each for each in get_args(By) if each in table.column_names]
    # A name may be repeated.
    if len(known) != 1 or sorted(table.column_names) != ["device_id", *known]:
        raise _refused(
            name,
            f"has the columns {shown(', '.join(table.column_names))}, but a hold file has "
            "device_id and either first_round or first_time",
            "rename or remove columns",
        )
    by: By = known[0]
    try:
        device_ids = pc.cast(table["device_id"], pa.string())
        kind = pa.int64() if by == "first_round" else pa.float64()
        column = pc.cast(table[by], kind)
    except pa.ArrowException as error:
        raise _refused(name, f"has a wrong value ({one_line(str(error))})") from None
    if device_ids.null_count:
        raise _refused(name, "has a row without a device_id")
    first = column.fill_null(LAST_ROUND if by == "first_round" else np.inf).to_numpy()
    first = np.where(column.is_null().to_numpy(), np.inf, first.astype(np.float64))
    is_given = column.is_valid().to_numpy()
    wrong = is_given & ~(
        (first >= 0) & (first < LAST_ROUND if by == "first_round" else first < np.inf)
    )
    if wrong.any():
        value = column[int(np.argmax(wrong))].as_py()
        rule = f"from 0 to {LAST_ROUND - 1}" if by == "first_round" else "finite and at least 0"
        raise _refused(name, f"has {by}={value}, which must be {rule}", "leave it empty for never")
    counts = device_ids.value_counts()
    if len(counts) < len(device_ids):
        twice = counts.field("values")[int(np.argmax(counts.field("counts").to_numpy()))].as_py()
        raise _refused(name, f"names device {shown(twice)} twice", "keep one of the rows")
    return Hold(device_ids.to_pylist(), first, by)


def _table(content: bytes) -> pa.Table:
    if content.startswith(_PARQUET):
        return pq.read_table(pa.BufferReader(content))
    # Ids are texts, such as 007; an empty cell is a missing value also in a column of texts.
    options = pyarrow.csv.ConvertOptions(
        column_types={
            "device_id": pa.string(),
            "first_round": pa.int64(),
            "first_time": pa.float64(),
        },
        null_values=[""],
        strings_can_be_null=True,
    )
    return pyarrow.csv.read_csv(pa.BufferReader(content), convert_options=options)


def _refused(name: str, rule: str, remedy: str = "correct it") -> InputError:
    return InputError.of("hold", name, rule, remedy)


def canonical_hold(content: bytes, name: str) -> bytes:
    """Returns a hold file of a scenario in the form that traces store: CSV, sorted by device.
    Raises InputError."""
    hold = _parsed(content, name)
    held = held_devices(hold, name)
    # The order of rows means nothing, so it must not change the digest.
    first = held.first_rounds if hold.by == "first_round" else held.first_times
    first = np.where(np.isinf(held.first_times), np.inf, first)
    table = {"device_id": pa.array(held.device_ids), hold.by: _column(first, hold.by)}
    return _csv(pa.table(table))


def held_devices(hold: Hold, name: str) -> HeldDevices:
    """Returns the devices of a hold file as devices of a simulation. Raises InputError."""
    try:
        ids = pc.cast(pa.array(hold.device_ids, pa.string()), pa.uint64()).to_numpy()
    except pa.ArrowException as error:
        raise _refused(
            name,
            f"names a device that no simulation has ({one_line(str(error))})",
            "give ids of a simulated trace",
        ) from None
    held = HeldDevices.of(ids, hold.first, hold.by)
    # Two texts, such as 7 and 007, may name one device.
    is_again = held.device_ids[1:] == held.device_ids[:-1]
    if is_again.any():
        twice = held.device_ids[1:][is_again][0]
        raise _refused(name, f"names device {twice} twice", "keep one of the rows")
    return held


def parsed_devices(content: bytes, name: str) -> HeldDevices:
    """Returns the devices of a hold file of a simulation. Raises InputError."""
    return held_devices(_parsed(content, name), name)
