"""Records of attempts as an array, for checkpoints."""

from collections.abc import Sequence
from dataclasses import astuple, fields
from typing import get_type_hints

import numpy as np

from fedray.base.arrays import Float64Array
from fedray.wire.messages import RoundRecord


def records_array(records: Sequence[RoundRecord]) -> Float64Array:
    """Returns records as an array [records, fields]; `records_of` reads it."""
    rows = [astuple(record) for record in records]
    return np.array(rows, np.float64).reshape(len(rows), len(fields(RoundRecord)))


def records_of(array: Float64Array) -> list[RoundRecord]:
    """Returns the records of an array; the inverse of `records_array`."""
    # A field is a float, an int or a bool, to which numbers of the array are converted.
    kinds = get_type_hints(RoundRecord).values()
    return [
        RoundRecord(*(kind(value) for kind, value in zip(kinds, row, strict=True)))
        for row in array.tolist()
    ]
