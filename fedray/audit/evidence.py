"""Evidence: every participation that breaks a claim, as a file with a row for each.

An audit shows the worst few of each statement. The file has all of them, so that an engineer can
look each one up in the training's own logs. Rows are in order of STATEMENTS, then of the device's
place in the trace, then of the rounds. docs/audit.md describes the columns.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from fedray.audit.audit import Audit
from fedray.audit.claims import STATEMENTS, Claim
from fedray.audit.names import DeviceNames
from fedray.audit.statements.statement import Breaches, Subject
from fedray.base.arrays import UInt64Array
from fedray.base.atomic import is_taken
from fedray.base.errors import InputError
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace
from fedray.trace.row_file import RowForm, new_row_file, row_form_of, write_rows

_SCHEMA = pa.schema(
    [
        pa.field("statement", pa.string(), nullable=False),
        pa.field("device", pa.string()),
        pa.field("first_round", pa.int64(), nullable=False),
        pa.field("last_round", pa.int64(), nullable=False),
        pa.field("first_log_round", pa.int64()),
        pa.field("last_log_round", pa.int64()),
        pa.field("found", pa.float64(), nullable=False),
        pa.field("claimed", pa.float64()),
    ]
)
_FORMULA = ("=", "+", "-", "@")
"""First characters of a cell that spreadsheet programs take for a formula."""


def check_evidence_file(file: str | Path, claim: Claim | None) -> RowForm:
    """Checks that evidence can be requested, before a trace is read for it.

    Args:
        file: path of the evidence.
        claim: the claim, or None.

    Returns:
        Form of the file, by its suffix.

    Raises:
        InputError: the claim states nothing about participation, the suffix is unknown, or the file
            exists.
    """
    path = Path(file)
    statements = [each.key for each in STATEMENTS]
    if claim is None or all(getattr(claim, each) is None for each in statements):
        found = "there is no claim" if claim is None else "the claim states nothing of it"
        raise InputError.of(
            "evidence",
            str(file),
            f"is for what breaks a claim about participation, and {found}",
            f"give a claim with one of {', '.join(statements)}",
        )
    form = row_form_of(path, "evidence")
    if is_taken(path):
        raise InputError.of(
            "evidence", str(file), "exists already", "name a new file, or remove it first"
        )
    return form


def write_evidence(audit: Audit, file: str | Path, show_devices: bool = False) -> int:
    """Writes a row for every participation that breaks a claim.

    The file is complete or absent. In a CSV file, names that spreadsheet programs could take for a
    formula begin with an apostrophe; in Parquet, names are unchanged.

    Args:
        audit: audit with a claim; its trace is read once more if a timer is broken.
        file: a new .csv, .parquet or .pq file.
        show_devices: whether devices of a log are named; else they are shown by a keyed hash.

    Returns:
        Number of rows; 0 if every statement about participation holds.

    Raises:
        InputError: see `check_evidence_file`, or the file cannot be written.
    """
    form = check_evidence_file(file, audit.claim)
    names = DeviceNames(audit.trace, show_devices)
    claimed = {each.statement: each.claimed for each in audit.findings}
    batches = (
        _batch(statement, claimed[statement], each, audit.trace, names, form)
        for statement, each in breaches(audit)
    )
    with new_row_file(Path(file), "evidence") as new:
        return write_rows(batches, _SCHEMA, new, form)


def breaches(audit: Audit) -> Iterator[tuple[str, Breaches]]:
    """Yields every breach of a statement about participation, with the statement's key."""
    subject = Subject(audit.trace, audit.patterns, audit.names.of)
    broken = {each.statement: each.claimed for each in audit.findings if each.broken_by}
    for statement in STATEMENTS:
        if statement.key not in broken:
            continue
        # The age of uploads is checked by the rules too, whatever is claimed.
        claimed = getattr(audit.claim, statement.key) or broken[statement.key]
        for each in statement.breaches(claimed, subject):
            yield statement.key, each


def _batch(
    statement: str,
    claimed: object,
    breaches: Breaches,
    trace: Trace | ImportedTrace,
    names: DeviceNames,
    form: RowForm,
) -> pa.RecordBatch:
    count = breaches.found.size
    rounds = breaches.rounds.astype(np.int64)
    of_log: list[pa.Array] = [pa.nulls(count, pa.int64())] * 2
    if isinstance(trace, ImportedTrace):
        of_log = [pa.array(each) for each in trace.round_labels(rounds).T]
    columns = [
        pa.array([statement] * count, pa.string()),
        pa.array(_names(breaches.device_ids, names, count, form), pa.string()),
        *(pa.array(each) for each in rounds.T),
        *of_log,
        pa.array(breaches.found, pa.float64()),
        # A frontier is more than a number.
        pa.array([None if isinstance(claimed, str) else claimed] * count, pa.float64()),
    ]
    return pa.record_batch(columns, schema=_SCHEMA)


def _names(
    device_ids: UInt64Array | None, names: DeviceNames, count: int, form: RowForm
) -> list[str | None]:
    if device_ids is None:
        return [None] * count
    # A device may break a statement many times, and looking its name up takes longest.
    distinct, places = np.unique(device_ids, return_inverse=True)
    found = names.all_of(distinct.tolist())
    if form == "csv":
        found = [f"'{each}" if each.startswith(_FORMULA) else each for each in found]
    return [found[place] for place in places.tolist()]
