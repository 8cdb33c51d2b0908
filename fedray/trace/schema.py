"""The files of a trace.

    TRACE/
      run.json                    scenario, software, the parts, the digest of the result columns,
                                  one of every column, and one of itself
      rounds.parquet              a row per attempt at a round, in order of time
      participations/*.parquet    a row per selected device, sorted by (device_id, checkin_time); a
                                  file per part (a fixed range of device blocks), so that each
                                  device's rows are in one file; of buffered rounds, a row per
                                  device whose attempt ended while the buffer was filled
      losses.parquet              a row per loss of a device's history, between its first and last
                                  check-in in the trace, sorted by (device_id, time); only if
                                  histories may be lost
      training/                   the model trained on it, if any; not part of the digest
                                  (fedray/trace/trained.py)
      <sha256>.npy                the mechanism's matrix, only for mechanisms that are one
      report.html                 the page, if one was written

If devices at their privacy budget are excluded, a row with the outcome `excluded` says which device
was not selected, its check-in, and the round that it missed. It is the device's last row, and does
not count among the selected of a round.

If the server stores uploads, a row of participations is an upload that was drawn for a round. Its
times are the upload's, so an upload that was drawn several times has several rows with the same
times; an upload that could not be read has the outcome failed. `opened` of a round is the end of
the upload window, and `eligible_estimate` the number of eligible uploads. run.json describes the
uploads in `uploads` and the draws in `sampling`. If the population has classes, `classes` gives the
average share of each that is eligible at once, and its participations.

Times are seconds since the start of the run, which is midnight UTC of a Monday. The columns of each
file are in fedray/trace/columns.py.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedray.wire.messages import Outcome

FORMAT = "fedray-trace"
SCHEMA_VERSION = 6
DOCUMENT_DIGEST = "document_digest"
"""Key of run.json that holds the digest of all its other keys."""
RUN_FILE = "run.json"
ROUNDS_FILE = "rounds.parquet"
LOSSES_FILE = "losses.parquet"
METRICS_FILE = "metrics.parquet"
"""File of a trained run (fedray/trace/trained.py)."""
REPORT_FILE = "report.html"
PARTICIPATIONS = "participations"

OUTCOMES = tuple(outcome.name.lower() for outcome in Outcome)
"""Names in the column `outcome`; a name's position is its code in memory and in the digest."""
STATES = ("committed", "abandoned")

LOSSES_DIGEST = "losses_digest"
"""Key of run.json with the digest of LOSSES_FILE, both of which exist if histories may be lost."""


def part_file(first_device: int) -> str:
    """Returns a part's path within the trace. Names sort in order of device, up to 10^13 ids."""
    return f"{PARTICIPATIONS}/devices-{first_device:013d}.parquet"


def columns_digest(columns: Mapping[str, NDArray]) -> str:
    """Returns the BLAKE2b-256 over columns in order, in hexadecimal: name, type, values as
    little-endian bytes (NaN in one form; outcomes as codes).

    The digest depends on the values, not on the file, so another Parquet writer gives the same.
    """
    digest = hashlib.blake2b(digest_size=32)
    for name, column in columns.items():
        head, values = _canonical(name, column)
        digest.update(head)
        digest.update(values.data)
    return digest.hexdigest()


def column_digest(name: str, column: NDArray) -> str:
    """Returns the SHA-256 of one column, as in `columns_digest`, so that a reader of three columns
    can check only those."""
    head, values = _canonical(name, column)
    digest = hashlib.sha256(head)
    digest.update(values.data)
    return digest.hexdigest()


def _canonical(name: str, column: NDArray) -> tuple[bytes, NDArray]:
    """Returns (name, type and length; values) as they are hashed, the same on every machine."""
    # Machines with either byte order must give the same digest.
    values = column.astype(column.dtype.newbyteorder("<"), copy=False)
    # Only a column with a NaN is copied.
    if values.dtype.kind == "f" and np.isnan(values).any():
        values = np.where(np.isnan(values), np.nan, values)
    # The head separates columns, so that no value can move to the next one unnoticed.
    head = f"{name}:{values.dtype.str}:{values.size};"
    return head.encode(), np.ascontiguousarray(values)


def document_digest(document: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of a document's values, whatever the layout of the JSON; DOCUMENT_DIGEST
    itself does not count."""
    content = {key: value for key, value in document.items() if key != DOCUMENT_DIGEST}
    # The order of keys has no meaning in JSON, so it must not change the digest.
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def run_digest(
    part_digests: list[str], rounds_digest: str, losses_digest: str | None = None
) -> str:
    """Returns the digest of all result columns.

    Two runs with the same digest had the same participations, whatever their numbers of shards.

    Args:
        part_digests: digests of the parts, in order of device.
        rounds_digest: digest of rounds.parquet.
        losses_digest: digest of losses.parquet; None without this file.
    """
    of_losses = [] if losses_digest is None else [losses_digest]
    digests = [*part_digests, rounds_digest, *of_losses]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()
