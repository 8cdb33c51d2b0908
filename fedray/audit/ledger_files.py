"""Files of a ledger: the units of one window of one charge with their amounts, as Arrow, named by
the digest of their content.

The columns are `device` or `person`, the names; `rho` or `answers`, the amounts; and `key`, the
keys, unless they are the names.
"""

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from fedray.audit.ledger_lines import MOST_AMOUNT, Release, Spent
from fedray.base.arrays import Float64Array
from fedray.base.atomic import replace_file
from fedray.base.errors import InputError
from fedray.base.regular_file import open_regular_file


class Units(NamedTuple):
    """Units with the amounts that they spent on one release in one window."""

    names: pa.Array
    """Name of each unit, [U]: text, or the id of a device of a simulated run."""
    keys: pa.Array
    """Key of each unit, [U]; the names themselves if they are keys."""
    amounts: Float64Array
    """Amount of each unit, [U]: rho, or a number of answers."""


def write_units(folder: Path, unit: str, release: Release, units: Units) -> str:
    """Writes the units of a charge, and returns the digest that names their file.

    Args:
        folder: directory of the ledger.
        unit: unit of its budget: device or person.
        release: meaning of the amounts.
        units: units of the charge.

    Raises:
        OSError: the file cannot be written.
    """
    table = pa.record_batch({unit: units.names, _column_of(release): units.amounts})
    # Keys that are the names need no room.
    if not units.keys.equals(units.names):
        table = table.append_column("key", units.keys)
    # Small tables are read in a third of the time without compression.
    codec = "zstd" if table.nbytes > 1 << 16 else None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(
        sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)
    ) as writer:
        writer.write_batch(table)
    content = sink.getvalue().to_pybytes()
    digest = hashlib.sha256(content).hexdigest()
    replace_file(_file_of(folder, digest), content)
    return digest


def read_units(folder: Path, unit: str, spent: Spent) -> Units:
    """Reads the units of a charge, with their names as text.

    Args:
        folder: directory of the ledger.
        unit: unit of its budget: device or person.
        spent: entry of the charge that names the file.

    Raises:
        InputError: the file is missing, or has not its digest or the columns and values of a
            charge.
    """
    file = _file_of(folder, spent.file)
    try:
        # The digest is that of the bytes that are read, so a link cannot change what counts.
        with open_regular_file(file) as stream:
            content = stream.read()
        if hashlib.sha256(content).hexdigest() != spent.file:
            raise ValueError("it has another digest")
        table = pa.ipc.open_file(content).get_batch(0)
        table.validate(full=True)
        names, amounts = table[unit], table[_column_of(spent.release)].to_numpy()
        names = names if names.type == pa.string() else names.cast(pa.string())
        keys = table["key"] if table.num_columns == 3 else names
        # A missing number is NaN here, which no comparison accepts.
        is_valid = bool(amounts.min() >= 0.0) and bool(amounts.max() <= MOST_AMOUNT)
        is_valid &= not (names.null_count or keys.null_count) and table.num_columns <= 3
        if not (is_valid and amounts.dtype == np.float64 and keys.type == pa.string()):
            raise ValueError("it has wrong values")
        return Units(names, keys, amounts)
    except (pa.ArrowException, OSError, LookupError, TypeError, ValueError):
        raise InputError(
            f"{str(file)!r}, which the ledger names, is missing or was changed; restore it "
            "from a copy"
        ) from None


def _file_of(folder: Path, digest: str) -> Path:
    return folder / f"{digest}.arrow"


def _column_of(release: Release) -> str:
    """Returns the name of the column of amounts."""
    return "rho" if isinstance(release, str) else "answers"
