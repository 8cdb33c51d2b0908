"""Ids of a log that may name the same device, or none: the import keeps them apart and says so."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedray.base.arrays import Int64Array
from fedray.base.rounding import counted

MISSING = (
    *("", "nan", "none", "null", "nil", "na", "n/a", "#n/a", "<na>", "-", "?", "undefined"),
    *("unknown", "missing", "anonymous", "00000000-0000-0000-0000-000000000000", "0" * 32),
)
"""Texts that mean a missing value, as `_KEYS` writes them."""
# pyarrow makes these functions at import, and its stubs do not know them.
_COMPUTE: Any = pc
# Characters that are spaces or not shown in any script, braces and quotes; then zeros of numbers.
_MARKS = r"[\s\p{Z}\p{C}{}()\"''`]"
_NUMBER = r"^0*(\d+?)(\.0+)?$"
_KEYS = {
    pa.string(): f"regexp_replace(lower(nfc_normalize(regexp_replace(id, '{_MARKS}', '', 'g'))),"
    rf" '{_NUMBER}', '\1')",
    pa.binary(): "lower(hex(id))",
}
"""SQL that makes ids equal that are written differently, by type; integers are written one way."""
_KEYED = "(SELECT id, {key} AS key FROM (SELECT DISTINCT {role} AS id FROM staged))"
_ALIKE = (
    "SELECT count(*), sum(ids)::BIGINT, arg_min(first, first), arg_min(last, first) FROM (SELECT"
    " count(*) AS ids, min(id) AS first, max(id) AS last FROM {keyed} GROUP BY key) WHERE ids > 1"
)
_COUNTS = "SELECT count(id), count(DISTINCT key) FROM {keyed}"
_JOINED = (
    "(SELECT * EXCLUDE (one) REPLACE (one AS {role}) FROM {rows} LEFT JOIN (SELECT id AS {role},"
    " min(id) OVER (PARTITION BY key) AS one FROM {keyed}) USING ({role}))"
)
_NO_IDS = "SELECT id, key FROM {keyed} WHERE list_contains({missing}, key) ORDER BY id"


def doubtful_ids(
    queried: Callable[[str], Iterable[pa.RecordBatch]], schema: pa.Schema, has_examples: bool
) -> list[str]:
    """Returns notes on ids of devices and owners that look alike, or like a missing value.

    Args:
        queried: function that answers a query of the view `staged`.
        schema: columns of the log; device and perhaps owner are in the view.
        has_examples: whether notes have some of the ids as the log has them.
    """
    found = []
    for role in ("device", "owner"):
        key = _KEYS.get(schema.field(role).type) if role in schema.names else None
        if key is None:
            continue
        keyed = _KEYED.format(key=key, role=role)
        ((groups, ids, first, last),) = _rows(queried(_ALIKE.format(keyed=keyed)))
        if groups:
            text = (
                f"{ids:,} ids of {role}s, in {counted(groups, 'group')}, differ only in case, "
                "spaces, quotes, braces, leading zeros or Unicode form"
            )
            found.append((text, [first, last]))
        if rows := _rows(queried(_NO_IDS.format(keyed=keyed, missing=[*MISSING]))):
            keys = ", ".join(sorted({repr(key) for _, key in rows}))
            text = f"{counted(len(rows), 'id')} of {role}s may mean a missing value ({keys})"
            found.append((text, [each for each, _ in rows[:5]]))
    return [
        text
        + (f", such as {', '.join(f'{each!r:.60}' for each in some)}." if has_examples else ".")
        for text, some in found
    ]


def joined_rows(
    queried: Callable[[str], Iterable[pa.RecordBatch]], schema: pa.Schema
) -> tuple[str, int]:
    """Returns SQL of the view's rows with one spelling of ids that differ only in writing, and the
    number of ids of devices before; the view without such ids."""
    rows, counts = "staged", []
    for role in (each for each in ("device", "owner") if each in schema.names):
        keyed = _KEYED.format(key=_KEYS.get(schema.field(role).type, "id"), role=role)
        counts += _rows(queried(_COUNTS.format(keyed=keyed)))
        if len({*counts[-1]}) > 1:
            rows = _JOINED.format(rows=rows, role=role, keyed=keyed)
    return rows, counts[0][0]


def first_alike(names: pa.ChunkedArray) -> Int64Array:
    """Returns for each device, given by its id [D], the first whose id differs only in writing."""
    keys: Any = names
    if pa.types.is_string(names.type):
        keys = _COMPUTE.replace_substring_regex(names, _MARKS, "")
        keys = _COMPUTE.utf8_lower(_COMPUTE.utf8_normalize(keys, "NFC"))
        keys = _COMPUTE.replace_substring_regex(keys, _NUMBER, r"\1")
    codes = keys.combine_chunks().dictionary_encode().indices.to_numpy()
    return np.unique(codes, return_index=True)[1][codes]


def _rows(batches: Iterable[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def keys_of(ids):  # TEMPORARY until main has it
    import re
    import unicodedata

    def key(text):
        t = unicodedata.normalize("NFKC", text).casefold()
        t = re.sub(r"^urn:uuid:", "", t.strip("\"'{} "))
        return re.sub(r"[^\w|]", "", t) or text

    if pa.types.is_binary(ids.type):
        return pa.chunked_array([pa.array([e.hex() for e in ids.to_pylist()], pa.string())])
    if not pa.types.is_string(ids.type):
        return ids.cast(pa.string())
    return pa.chunked_array([pa.array([key(e) for e in ids.to_pylist()], pa.string())])
