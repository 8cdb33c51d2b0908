"""Records of attempts as an array, for checkpoints."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from fedray.base.arrays import Float64Array
from fedray.wire.messages import RoundRecord


def records_array(records: Sequence[RoundRecord]) -> Float64Array:
    """Returns records as an array [records, fields]; `records_of` reads it."""
    names = [field.name for field in dataclasses.fields(RoundRecord)]
    rows = [[getattr(record, name) for name in names] for record in records]
    return np.array(rows, np.float64).reshape(len(rows), len(names))


def records_of(array: Float64Array) -> list[RoundRecord]:
    """Returns the records of an array; the inverse of `records_array`."""
    return [_record(row) for row in array.tolist()]


def _record(row: list[float]) -> RoundRecord:
    index, opened, started, closed, selected, reported, accepted, is_committed, eligible = row
    return RoundRecord(
        int(index),
        opened,
        started,
        closed,
        int(selected),
        int(reported),
        int(accepted),
        bool(is_committed),
        int(eligible),
    )
