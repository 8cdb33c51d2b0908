"""Ids of devices and owners in logs: a key that all spellings of one id share, and texts that mean
no id.

Integers and bytes are written in one way. A text has a key, made in this order: Unicode's form NFKC
and case folded; percent escapes decoded; `b'...'`, `urn:uuid:`, `uuid:`, `0x`, `\\x`, `x'...'` and
the `.0` of a number removed; of a UUID, also within a longer id, and of a MAC address or EUI-64 the
hexadecimal digits, of other text its letters and digits, with a hyphen where other characters stood
between two digits (1-23 and 12-3 are two ids); zeros before a number removed. Without letters and
digits, what remains is the key. `key_of` defines the key, and `keys_of` computes it for columns.

Two ids may share a key and still be two devices, so an import asks (`fedray.imports.spellings`).
"""

import re
import unicodedata
from collections.abc import Collection
from functools import partial
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedray.base.arrays import BoolArray, Int64Array

ROLES = {"device": "device", "person": "owner"}
"""Role of ids in a log, which names their column in a trace, by the unit of privacy."""
_UUID_DIGITS, _MAC_DIGITS, _EUI_DIGITS = 32, 12, 16
_ZEROS = tuple("0" * each for each in (_UUID_DIGITS, _MAC_DIGITS, _EUI_DIGITS))
NO_IDS = (
    *("nan", "nat", "none", "null", "nil", "na", "undefined", "unknown", "missing", "anonymous"),
    *("empty", "notset", "hivedefaultpartition", "desconocido", "desconhecido", "unbekannt"),
    *("inconnu", "sconosciuto", "неизвестно", "未知", "不明", "알수없음"),
    *_ZEROS,
)
"""Keys of texts that mean no id; the last are those of a UUID, MAC address or EUI-64 of zeros."""
_PREFIXES = (
    re.compile(r"[\W_]*b['\"](?:(?:\\x00)+(?=[\W_]*$))?"),
    # NULL of MySQL, Hive and COPY of PostgreSQL.
    re.compile(r"[\W_]*\\n(?=[\W_]*$)"),
    re.compile(r"[\W_]*(?:urn:)?uuid:"),
    re.compile(r"[\W_]*(?:0x(?=[0-9a-f]*[\W_]*$)|(?:\\x|x['\"])(?=[0-9a-f]+[\W_]*$))"),
)
_DECIMAL = re.compile(r"[\W_]*([0-9]+)\.0+[\W_]*")
_MAC_FORMS = ((6, 2), (3, 4), (2, 6), (8, 2), (4, 4))
"""Groups of a MAC address or an EUI-64, and digits of a group."""
_MAC = re.compile(
    r"[\W_]*(?:{})[\W_]*".format(
        "|".join(
            rf"[0-9a-f]{{{size}}}(?:[\W_][0-9a-f]{{{size}}}){{{groups - 1}}}"
            for groups, size in _MAC_FORMS
        )
    )
)
_UUID = re.compile(r"(?=[0-9a-f]{8}(?:[\W_][0-9a-f]{4}){3}[\W_][0-9a-f]{12})")
_UUID_MARKS = np.array([8, 13, 18, 23])
"""Places of the separators of a UUID."""
SLICE = 1 << 14
"""Number of ids whose keys are computed together."""
_LOWER = np.arange(128, dtype=np.uint8)
_LOWER[ord("A") : ord("Z") + 1] += ord("a") - ord("A")
_KEPT, _DIGIT, _HEXADECIMAL, _RARE = 1, 2, 4, 8
_ESCAPES = np.frombuffer(b"%'\"", np.uint8)
_TRAITS = np.array(
    [
        _KEPT * each.isalnum()
        + _DIGIT * each.isdigit()
        + _HEXADECIMAL * (each in "0123456789abcdef")
        + _RARE * (each in "%'\"x.:\\")
        for each in map(chr, range(128))
    ],
    np.uint8,
)
"""Traits of the ASCII characters."""
# pyarrow makes these functions at import, and its stubs do not know them.
_COMPUTE: Any = pc


def key_of(text: str) -> str:
    """Returns the key of a text id, as the module defines it."""
    bare = _folded(text)
    if "%" in bare:
        bare = _decoded(bare)
    for prefix in _PREFIXES:
        bare = prefix.sub("", bare, count=1) if prefix.match(bare) else bare
    if found := _DECIMAL.fullmatch(bare):
        bare = found[1]
    marks = {
        found.start() + mark for found in _UUID.finditer(bare) for mark in _UUID_MARKS.tolist()
    }
    kept, is_apart = [""], False
    for place, each in enumerate(bare):
        if place in marks:
            continue
        if not _is_kept(each):
            is_apart = True
            continue
        if is_apart and kept[-1].isdigit() and each.isdigit():
            kept.append("-")
        kept.append(each)
        is_apart = False
    key = "".join(kept)
    digits = key.replace("-", "")
    is_uuid = re.fullmatch(f"[0-9a-f]{{{_UUID_DIGITS}}}", digits) is not None
    if is_uuid or _MAC.fullmatch(bare):
        key = digits
    if key.isdigit() and not is_uuid and key not in _ZEROS:
        key = key.lstrip("0") or "0"
    return key or bare


def means_no_id(text: str) -> bool:
    """Returns whether a text stands for a missing id: a word such as NULL, the UUID of zeros, or
    spaces, punctuation and wrappers only."""
    key = key_of(text)
    return key in NO_IDS or all(_is_blank(each) for each in key)


def keys_of(
    ids: pa.Array | pa.ChunkedArray, is_combined: bool = False, exact: Collection[int] = ()
) -> pa.Array:
    """Returns the keys [N] of ids [N] as text; the ids themselves if they are integers or bytes.

    Args:
        ids: ids without missing ones.
        is_combined: whether an id combines values of several columns (`combined`), whose keys it
            then combines.
        exact: places of the columns whose values have one writing, such as integers; they are
            their own keys.
    """
    if not pa.types.is_string(ids.type):
        return ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids
    chunks = ids.chunks if isinstance(ids, pa.ChunkedArray) else [ids]
    made = partial(_combined_keys, exact=exact) if is_combined else _keys
    # Arrays of a slice fit in the processor's cache, which is three times as fast.
    slices = (each.slice(at, SLICE) for each in chunks for at in range(0, len(each), SLICE))
    return pa.concat_arrays([pa.array([], pa.string()), *map(made, slices)])


def are_missing(
    ids: pa.Array, keys: pa.Array, is_combined: bool, kept: Collection[str]
) -> BoolArray:
    """Returns which ids [N] mean no id; a combined one does if any of its parts does.

    Args:
        ids: text or bytes.
        keys: their keys [N].
        is_combined: as in `keys_of`.
        kept: texts, as the log has them, or bytes in hexadecimal, that name a device all the same.
    """
    if not pa.types.is_string(ids.type):
        is_zero = np.asarray(_COMPUTE.match_substring_regex(ids, r"\A\x00+\z"))
        for place in np.flatnonzero(is_zero).tolist():
            is_zero[place] = ids[place].as_py().hex() not in kept
        return is_zero
    # Keys without a letter or digit are few, and the words are short: most keys end here.
    edge = r"(?:^|\|)", r"(?:$|\|)"
    words = rf"{edge[0]}(?:{'|'.join(NO_IDS)}|[^\pL\pM\pN|]*){edge[1]}"
    found = np.asarray(_COMPUTE.match_substring_regex(keys, words))
    for place in np.flatnonzero(found).tolist():
        text = ids[place].as_py()
        parts = parts_of(text) if is_combined else [text]
        found[place] = any(means_no_id(each) and each not in kept for each in parts)
    return found


def combined(columns: list[pa.Array]) -> pa.Array:
    """Returns text ids [N] that combine the values of several text columns [N]: joined by "|", with
    "|" and a backslash in a value escaped by a backslash; null where a value is."""
    # Escapes keep ("a|b", "c") and ("a", "b|c") apart.
    escaped = []
    for each in columns:
        part = _COMPUTE.replace_substring(each, "\\", "\\\\")
        escaped.append(_COMPUTE.replace_substring(part, "|", "\\|"))
    return _COMPUTE.binary_join_element_wise(*escaped, "|")


def parts_of(text: str) -> list[str]:
    """Returns the values that `combined` joined."""
    parts = [""]
    for each in re.findall(r"\\.|.", text, re.DOTALL):
        if each == "|":
            parts.append("")
        else:
            parts[-1] += each[-1]
    return parts


def _combined_keys(ids: pa.Array, exact: Collection[int]) -> pa.Array:
    if not len(ids):
        return ids
    if _COMPUTE.any(_COMPUTE.match_substring(ids, "\\")).as_py():
        texts = zip(*(parts_of(each) for each in ids.to_pylist()), strict=True)
        columns = [pa.array(each, pa.string()) for each in texts]
    else:
        parts = _COMPUTE.split_pattern(ids, "|")
        count = len(parts[0])
        flat = parts.flatten()
        places = (pa.array(np.arange(each, len(flat), count)) for each in range(count))
        columns = [flat.take(each) for each in places]
    return combined([each if place in exact else _keys(each) for place, each in enumerate(columns)])


def _keys(ids: pa.Array) -> pa.Array:
    """Returns the keys of text ids [N], most of them by `_plain_keys`."""
    keys, is_plain = _plain_keys(ids)
    if is_plain.all():
        return keys
    others = pa.array(~is_plain)
    slow = pa.array([key_of(each) for each in ids.filter(others).to_pylist()], pa.string())
    return _COMPUTE.replace_with_mask(keys, others, slow)


def _plain_keys(ids: pa.Array) -> tuple[pa.Array, BoolArray]:
    """Returns keys [N] of text ids [N], and for which of them they are right: ASCII texts that need
    no more than lower case, and characters removed."""
    starts, content = _text_of(ids)
    is_plain = np.array(_COMPUTE.string_is_ascii(ids))
    content = _LOWER[content & 127]
    traits = _TRAITS[content]
    is_other = (traits & _KEPT) == 0

    def sums(trait: int) -> NDArray[np.int32]:
        found = np.zeros(content.size + 1, np.int32)
        np.cumsum((traits & trait) > 0, out=found[1:])
        return found

    def owners(places: Int64Array) -> Int64Array:
        return np.searchsorted(starts, places, side="right") - 1

    # Escapes, quotes, 0x, the .0 of a number, uuid: and \N are rare.
    rare = np.flatnonzero(traits & _RARE)
    sign, before = content[rare], np.where(rare > 0, content[rare - 1], 0)
    after = np.where(rare + 1 < content.size, content[(rare + 1) % max(1, content.size)], 0)
    is_prefix = np.isin(sign, _ESCAPES)
    is_prefix |= (sign == ord("x")) & ((before == ord("0")) | (before == ord("\\")))
    is_prefix |= (sign == ord(".")) & (after == ord("0"))
    is_prefix |= (sign == ord("\\")) & (after == ord("n"))
    is_prefix |= (sign == ord(":")) & (before == ord("d"))
    is_plain[owners(rare[is_prefix])] = False
    # A hyphen stands where others stood between two digits of an id.
    edges = np.flatnonzero(np.diff(is_other, prepend=False, append=False))
    first, end = edges[::2], edges[1::2]
    is_inside = (first > 0) & (end < content.size)
    first, end = first[is_inside], end[is_inside]
    is_mark = (traits[first - 1] & traits[end] & _DIGIT) > 0
    first, end = first[is_mark], end[is_mark]
    first = first[owners(first - 1) == owners(end)]
    of_hexadecimal = sums(_HEXADECIMAL)
    kept, digits = (np.diff(sums(each)[starts]) for each in (_KEPT, _DIGIT))
    hexadecimal, lengths = np.diff(of_hexadecimal[starts]), np.diff(starts)
    is_uuid = (kept == _UUID_DIGITS) & (hexadecimal == kept)
    is_mac = np.zeros(lengths.size, np.bool_)
    for groups, size in _MAC_FORMS:
        is_form = (kept == groups * size) & (hexadecimal == kept) & (lengths == kept + groups - 1)
        places = np.flatnonzero(is_form)
        marks = starts[places, None] + size + np.arange(groups - 1) * (size + 1)
        is_mac[places] = is_other[marks].all(axis=1)
    first = first[~(is_uuid | is_mac)[owners(first)]]
    # Most ids are no longer than a UUID.
    if (lengths > _UUID_DIGITS + _UUID_MARKS.size).any():
        marks = np.flatnonzero(is_other)
        marks = marks[(marks >= _UUID_MARKS[0]) & (marks <= content.size - 28)]
        begins = marks - _UUID_MARKS[0]
        begins = begins[of_hexadecimal[begins + 36] - of_hexadecimal[begins] == _UUID_DIGITS]
        begins = begins[is_other[begins[:, None] + _UUID_MARKS].all(axis=1)]
        begins = begins[owners(begins) == owners(begins + 35)]
        is_kept_mark = np.ones(content.size, np.bool_)
        is_kept_mark[begins[:, None] + _UUID_MARKS] = False
        first = first[is_kept_mark[first]]
    # What stands around a MAC address is removed, and a number has no zeros before it.
    is_plain &= kept > 0
    places = np.flatnonzero(
        ((kept == _MAC_DIGITS) | (kept == _EUI_DIGITS))
        & (hexadecimal == kept)
        & (lengths > kept)
        & ~is_mac
    )
    is_plain[places[is_other[starts[places]] | is_other[starts[places + 1] - 1]]] = False
    is_number = np.flatnonzero((digits == kept) & (kept > 0) & ~is_uuid & is_plain)
    begins = content[starts[is_number]]
    is_plain[is_number[(begins == ord("0")) | ((_TRAITS[begins] & _KEPT) == 0)]] = False
    content[first] = ord("-")
    is_other[first] = False
    ends = np.zeros(content.size + 1, np.int32)
    np.cumsum(~is_other, out=ends[1:])
    buffers = [
        None,
        pa.py_buffer(ends[starts]),
        pa.py_buffer(content[~is_other]),
    ]
    return pa.Array.from_buffers(pa.string(), len(ids), buffers), is_plain


def _text_of(ids: pa.Array) -> tuple[Int64Array, NDArray[np.uint8]]:
    """Returns the places [N + 1] of texts [N] in their bytes, and the bytes."""
    _, ends, content = ids.buffers()
    offsets = np.frombuffer(ends, np.int32)[ids.offset : ids.offset + len(ids) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    found = np.frombuffer(content, np.uint8)[first:last] if last else np.zeros(0, np.uint8)
    return offsets.astype(np.int64) - first, found


def _folded(text: str) -> str:
    normal = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    # Phones write numbers in digits of their language, and Turkish ones I in lower case without a
    # dot.
    normal = normal.replace("i\u0307", "i").replace("\u0131", "i")
    return "".join(str(unicodedata.decimal(each, each)) for each in normal)


def _decoded(text: str) -> str:
    """Returns a text with its percent escapes decoded; as it is if they are not UTF-8."""
    try:
        return _folded(unquote(text, errors="strict"))
    except UnicodeDecodeError:
        return text


def _is_kept(character: str) -> bool:
    # Variation selectors are marks, but only choose between two pictures of a sign.
    # Letters are added to Unicode, so a character that this version does not have may be one.
    kind = unicodedata.category(character)
    return (kind[0] in "LMN" or kind == "Cn") and not "\ufe00" <= character <= "\ufe0f"


def _is_blank(character: str) -> bool:
    return not _is_kept(character) and (
        character.isascii() or unicodedata.category(character)[0] in "PZC"
    )
