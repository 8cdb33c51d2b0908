"""Rows of a log that name the same device and round as another row: copies, and repeats.

A copy is equal to another row in every column of the log, and its time sets the rows of its round
apart, so it is a second record of the same contribution. All other rows are repeats, which may be
contributions of their own (a retry, a sampler that draws with replacement): without a time, or with
one time for a whole round, equal rows may be those too.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedray.base.arrays import BoolArray, Int64Array, UInt32Array
from fedray.imports.log import ROW_HASH, Unused
from fedray.imports.log_rounds import MOST_SHOWN
from fedray.trace.imported import COPIED

REPEATED = "of the same device in the same round again"
# pyarrow makes these functions at import, and its stubs do not know them.
_COMPUTE: Any = pc


class Repeats:
    """Finds copies and repeats in rows that are sorted by all columns, batch by batch.

    Args:
        numbers: the log's numbers of the trace's rounds, [n].
        is_timed_apart: whether the rows of a round have more than one time, [n].
    """

    def __init__(self, numbers: Int64Array, is_timed_apart: BoolArray) -> None:
        self.copied, self.repeated = Unused(COPIED), Unused(REPEATED)
        """Rows of each kind, beyond the first of their device and round."""
        self._numbers, self._is_timed_apart = numbers, is_timed_apart
        self._last: pa.RecordBatch | None = None
        """The last row."""

    def found(
        self, batch: pa.RecordBatch, rounds: UInt32Array
    ) -> tuple[BoolArray, BoolArray, BoolArray]:
        """Returns whether rows [B] are the first of their device, copies, or repeats.

        Args:
            batch: the next rows.
            rounds: the trace's rounds of these rows, [B].
        """
        # Rows are sorted, so comparing with the row before reveals all three.
        names = batch.schema.names
        is_same = {name: self._is_next(name, batch) for name in names}
        self._last = batch.slice(batch.num_rows - 1)
        is_copy = np.zeros(batch.num_rows, np.bool_)
        if ROW_HASH in names:
            is_copy = np.all([*is_same.values()], axis=0) & self._is_timed_apart[rounds]
        is_again = is_same["device"] & is_same["round"] & ~is_copy
        for each, is_it in ((self.copied, is_copy), (self.repeated, is_again)):
            places = np.flatnonzero(is_it)
            each.rows += places.size
            for place in places[: MOST_SHOWN - len(each.examples)].tolist():
                number = str(self._numbers[rounds[place]])
                each.examples.append((batch.column("device")[place], number))
        return ~is_same["device"], is_copy, is_again

    def _is_next(self, name: str, batch: pa.RecordBatch) -> BoolArray:
        """Returns whether values [B] of a column are equal to the row before."""
        values = batch.column(name)
        found = np.zeros(len(values), np.bool_)
        # Null is equal to nothing: it is a time that an inspection could not read.
        found[1:] = _COMPUTE.fill_null(_COMPUTE.equal(values[1:], values[:-1]), False)
        if self._last is not None:
            found[0] = values[0].is_valid and values[0] == self._last.column(name)[0]
        return found
