"""Settles which ids of a log name one device or one owner, and which name none.

Ids that share a key (`fedray.trace.ids`) are either spellings of one device, or distinct devices.
Only the log's owner knows, so an import asks once, and every later figure has one answer. Ids that
mean no id are rows without a device, unless the caller says that a device has that name.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fedray.base.errors import InputError
from fedray.base.rounding import counted
from fedray.imports.log import Log, Unused, shown_value
from fedray.imports.log_files import is_whole
from fedray.trace.ids import ROLES, are_missing, keys_of

NO_ID = "means no id"
"""End of the reason for which rows with words such as NULL are left out."""
MOST_GROUPS = 3
"""Largest number of groups of ids in a message."""
_GROUPS = (
    "SELECT min(id) AS first, max(id) AS last, count(*) AS ids FROM {role}_ids WHERE NOT is_missing"
    " GROUP BY key HAVING count(*) > 1 ORDER BY first"
)
_DISTINCT = "SELECT DISTINCT {role} FROM names"
_COUNT = "SELECT count(DISTINCT device) AS ids FROM {rows}"
_WITHOUT = "(SELECT * FROM {rows} WHERE {role} NOT IN (SELECT id FROM {role}_ids WHERE is_missing))"
_JOINED = (
    "(SELECT * EXCLUDE (spelling) REPLACE (spelling AS {role}) FROM {rows} JOIN (SELECT id AS"
    " {role}, min(id) OVER (PARTITION BY key) AS spelling FROM {role}_ids WHERE NOT is_missing)"
    " USING ({role}))"
)
_OF_NO_ID = (
    "SELECT {role}, round, count(*) OVER () AS rows FROM {rows} WHERE {role} IN (SELECT id FROM"
    " {role}_ids WHERE is_missing) ORDER BY ALL LIMIT 1"
)
# pyarrow makes these functions at import, and its stubs do not know them.
_COMPUTE: Any = pc


class Spellings:
    """Ids of the devices and owners of a staged log that are no integers, with their keys.

    Args:
        source: the log, whose staged rows have been counted.
        queried: function that answers a query of files, each a view by its name.
        staged: file of the staged rows; files of ids are written beside it.
        keep_ids: texts that name a device, or an owner, though they look like a missing id.
        join_ids: whether ids that share a key are one device; None if the caller has not said.
    """

    def __init__(
        self,
        source: Log,
        queried: Callable[[str, Mapping[str, Path]], Iterator[pa.RecordBatch]],
        staged: Path,
        keep_ids: Sequence[str],
        join_ids: bool | None,
    ) -> None:
        self.questions: list[str] = []
        """A sentence for each role whose ids share keys, until the caller has answered."""
        self._alike: dict[str, bool] = {}
        """Whether ids of each role that was read share keys."""
        self._ids_of_devices = 0
        """Number of ids of devices that are joined; 0 if they are integers."""
        self._source, self._queried, self._staged = source, queried, staged
        self._kept, self._join = set(keep_ids), join_ids
        self._files: dict[str, Path] = {}
        """File of the ids of each role that was read."""

    def read(self, file: Path) -> None:
        """Reads the distinct ids of each role from a file with a column for each: the staged rows,
        or the names of the devices."""
        for role in ROLES.values():
            if role not in self._source.schema.names:
                continue
            # Any integer is an id, and is written in one way.
            if is_whole(self._source.schema.field(role).type):
                continue
            is_combined = role == "device" and len(self._source.layout.devices) > 1
            found = self._queried(_DISTINCT.format(role=role), {"names": file})
            kind = self._source.schema.field(role).type
            self._files[role] = self._staged.with_name(f"{role}_ids.parquet")
            exact = self._source.exact_parts
            _write_keyed(self._files[role], kind, found, is_combined, exact, self._kept)
            self._ask(role)

    def recorded(self, devices: int) -> dict[str, Any]:
        """Returns the entries of run.json on the caller's answer, for a number of devices."""
        if self._join is None:
            return {}
        if self._join:
            return {"joined_ids": self._ids_of_devices or devices}
        # The caller was asked about roles with such ids; without any the answer is about all.
        alike = [role for role, is_alike in self._alike.items() if is_alike]
        return {"joined_ids": 0, "distinct_ids": alike or list(ROLES.values())}

    def rows(self, query: str) -> Iterator[pa.RecordBatch]:
        """Yields the answer to a query of the view `staged`: the rows whose ids name a device, with
        one spelling of ids that the caller joins."""
        rows, form = "staged", _JOINED if self._join else _WITHOUT
        for role in self._files:
            rows = form.format(role=role, rows=rows)
        return self._queried(query.replace("staged", rows), self._views())

    def count_missing(self) -> None:
        """Adds staged rows whose ids mean no id to the rows that the log leaves out."""
        rows = "staged"
        for role in self._files:
            query = _OF_NO_ID.format(role=role, rows=rows)
            rows = _WITHOUT.format(role=role, rows=rows)
            for batch in self._queried(query, self._views()):
                if not batch.num_rows:
                    continue
                text, number, count = (column[0] for column in batch.columns)
                reason = f"whose {role} {NO_ID}"
                found = Unused(reason, count.as_py(), [(text, str(number))])
                self._source.left_out[reason] = found
                self._source.staged_rows -= found.rows
        if self._join and "device" in self._files:
            # A device may have no row but those that another role leaves out.
            (found,) = self._queried(_COUNT.format(rows=rows), self._views())
            self._ids_of_devices = found["ids"][0].as_py()

    def remove(self) -> None:
        """Removes the files of ids."""
        for each in self._files.values():
            each.unlink()

    def _views(self) -> dict[str, Path]:
        """Returns the files that queries of rows read, each a view by its name."""
        of_ids = {f"{role}_ids": file for role, file in self._files.items()}
        return {"staged": self._staged, **of_ids}

    def _ask(self, role: str) -> None:
        view = {f"{role}_ids": self._files[role]}
        groups = ids = 0
        some: list[str] = []
        for batch in self._queried(_GROUPS.format(role=role), view):
            groups += batch.num_rows
            ids += _COMPUTE.sum(batch["ids"]).as_py() or 0
            few = batch.slice(0, MOST_GROUPS - len(some))
            for first, last in zip(few["first"], few["last"], strict=True):
                some.append(f"{shown_value(first)} and {shown_value(last)}")
        self._alike[role] = groups > 0
        if groups and self._join is None:
            self.questions.append(
                f"{ids:,} ids of {role}s differ only in writing within "
                f"{counted(groups, 'group')} (such as {'; '.join(some)})"
            )


def check_spellings(spellings: Spellings, log: str) -> None:
    """Raises InputError, a question, if ids share keys and the caller has not said what they are.

    Args:
        spellings: the ids, as read.
        log: name of the log in messages.
    """
    if spellings.questions:
        raise InputError(
            f"log {log!r}: {'; '.join(spellings.questions)}: is each group one device, or are they "
            "distinct? Answer `join_ids=True` for one, or `join_ids=False` for distinct ones"
        )


def _write_keyed(
    file: Path,
    kind: pa.DataType,
    batches: Iterable[pa.RecordBatch],
    is_combined: bool,
    exact: Collection[int],
    kept: set[str],
) -> None:
    schema = pa.schema({"id": kind, "key": kind, "is_missing": pa.bool_()})
    with pq.ParquetWriter(file, schema, compression="lz4", use_dictionary=False) as writer:
        for batch in batches:
            ids = batch.column(0)
            keys = keys_of(ids, is_combined, exact)
            missing = pa.array(are_missing(ids, keys, is_combined, kept))
            writer.write_batch(pa.record_batch([ids, keys, missing], schema=schema))
