"""Decodes tf.train.Example from the protobuf wire format, of which it needs a small part.

    Example   { Features features = 1; }
    Features  { map<string, Feature> feature = 1; }     entries { key = 1; value = 2; }
    Feature   { BytesList = 1 | FloatList = 2 | Int64List = 3 }, each { repeated value = 1; }

(tensorflow/core/example/feature.proto.) Numbers may be packed or not; fields that are unknown are
passed over; of a key that comes twice, the last one counts, as in protobuf.

Compiled code finds the feature that is asked for; `decode_plainly` is its slow twin, which says
what is wrong with a message.
"""

from collections.abc import Collection, Iterator
from functools import lru_cache

import numpy as np
from numba import njit
from numpy.typing import NDArray

Feature = list[bytes] | NDArray
"""Values of one feature: bytes, float32 [N] or int64 [N]."""
_VARINT, _FIXED_64, _LENGTH, _FIXED_32 = 0, 1, 2, 5
_MOST_VARINT_BYTES = 10
_EMPTY, _BYTES, _FLOATS, _INTEGERS = 0, 1, 2, 3
"""Kinds of lists, by the numbers of their fields; _EMPTY for a feature without a list."""
_ABSENT, _MALFORMED = -1, -2


def decode_example(content: bytes, wanted: Collection[str]) -> dict[str, Feature]:
    """Features of one serialized example by name.

    Args:
        content: the message.
        wanted: names of the features to decode; others are passed over.

    Raises:
        ValueError: it is no such message.
    """
    # What is not well formed is left to `decode_plainly`, which says what is wrong with it.
    found: dict[str, Feature] = {}
    array = np.frombuffer(content, np.uint8)
    for name in wanted:
        # The compiled search tells where values lie; here they are cut out of the bytes.
        kind, ranges = _located(array, _key(name))
        if kind == _BYTES:
            found[name] = [content[start:end] for start, end in ranges.tolist()]
        elif kind == _FLOATS and _are_whole_floats(ranges):
            pieces = [content[start:end] for start, end in ranges.tolist()]
            found[name] = np.frombuffer(b"".join(pieces), "<f4").astype(np.float32)
        elif kind == _INTEGERS:
            integers = _integers_in(array, ranges)
            if integers is None:
                return decode_plainly(content, wanted)
            found[name] = integers
        elif kind == _EMPTY:
            found[name] = []
        elif kind != _ABSENT:
            return decode_plainly(content, wanted)
    return found


def decode_plainly(content: bytes, wanted: Collection[str]) -> dict[str, Feature]:
    """As `decode_example`, without compiled code.

    Args:
        content: the message.
        wanted: names of the features to decode.

    Raises:
        ValueError: it is no such message.
    """
    values: dict[bytes, bytes] = {}
    for number, features in _fields(content):
        if number != 1:
            continue
        for inner, entry in _fields(_message(features)):
            if inner == 1:
                name, value = _entry(_message(entry))
                # A later entry of a key takes the place of an earlier one, as protobuf has it for
                # maps.
                values[name] = value
    found: dict[str, Feature] = {}
    for name in wanted:
        value = values.get(name.encode())
        if value is not None:
            found[name] = _feature(value)
    return found


def _are_whole_floats(ranges: NDArray[np.int64]) -> bool:
    """Whether ranges [N, 2] of bytes hold floats of four bytes and nothing else."""
    sizes = ranges[:, 1] - ranges[:, 0]
    return not (sizes % 4).any()


@lru_cache
def _key(name: str) -> NDArray[np.uint8]:
    return np.frombuffer(name.encode(), np.uint8)


@njit(cache=True)
def _located(content, key):
    """(kind, ranges [N, 2] of the values) of the last list of a key in an Example. The kind may be
    _ABSENT or _MALFORMED. A range of integers, packed or not, holds varints."""
    start, end = _feature_range(content, key)
    if start < 0:
        return start, np.empty((0, 2), np.int64)
    # Of several lists of a feature the last one counts, as protobuf has it for a `oneof`.
    kind, list_start, list_end = _EMPTY, 0, 0
    while start < end:
        number, wire, first, last, start = _next_field(content, start, end)
        if start < 0 or (1 <= number <= 3 and wire == _VARINT):
            return _MALFORMED, np.empty((0, 2), np.int64)
        if 1 <= number <= 3:
            kind, list_start, list_end = number, first, last
    # Every value takes two bytes at least.
    most_values = (list_end - list_start) // 2 + 1
    ranges = np.empty((most_values, 2), np.int64)
    count = 0
    while list_start < list_end:
        number, wire, first, last, list_start = _next_field(content, list_start, list_end)
        if list_start < 0 or (number == 1 and wire == _VARINT and kind != _INTEGERS):
            return _MALFORMED, np.empty((0, 2), np.int64)
        if number == 1:
            ranges[count] = first, last
            count += 1
    return kind, ranges[:count]


@njit(cache=True)
def _integers_in(content, ranges):
    """int64 [N] of varints; None if they do not end where their ranges do."""
    # A varint takes a byte at least, so there are no more values than bytes.
    sizes = ranges[:, 1] - ranges[:, 0]
    values = np.empty(sizes.sum(), np.int64)
    count = 0
    for index in range(ranges.shape[0]):
        place, end = ranges[index, 0], ranges[index, 1]
        while place < end:
            value, place = _compiled_varint(content, place, end)
            if place < 0:
                return None
            values[count] = value
            count += 1
    return values[:count].copy()


@njit(cache=True)
def _feature_range(content, key):
    """(start, end) of the last feature of a key in an Example, or _ABSENT or _MALFORMED."""
    found_start, found_end = _ABSENT, _ABSENT
    place = np.int64(0)
    while place < content.size:
        number, kind, features, features_end, place = _next_field(content, place, content.size)
        if place < 0 or (number == 1 and kind == _VARINT):
            return _MALFORMED, _MALFORMED
        if number != 1:
            continue
        while features < features_end:
            inner, kind, entry, entry_end, features = _next_field(content, features, features_end)
            if features < 0 or (inner == 1 and kind == _VARINT):
                return _MALFORMED, _MALFORMED
            if inner != 1:
                continue
            name = name_end = value = value_end = 0
            while entry < entry_end:
                part, kind, start, end, entry = _next_field(content, entry, entry_end)
                if entry < 0 or (part in (1, 2) and kind == _VARINT):
                    return _MALFORMED, _MALFORMED
                if part == 1:
                    name, name_end = start, end
                elif part == 2:
                    value, value_end = start, end
            if np.array_equal(content[name:name_end], key):
                # The search goes on: of a key that comes twice, the last one counts.
                found_start, found_end = value, value_end
    return found_start, found_end


@njit(cache=True)
def _next_field(content, place, end):
    """(number, wire type, start and end of the value, place of the next field, below 0 for none
    that is well formed)."""
    tag, place = _compiled_varint(content, place, end)
    number, kind = tag >> 3, tag & 7
    if place < 0 or number == 0:
        return 0, 0, 0, 0, _MALFORMED
    size = 0
    if kind == _VARINT:
        start = place
        _, place = _compiled_varint(content, place, end)
        return number, kind, start, place, place
    if kind == _LENGTH:
        size, place = _compiled_varint(content, place, end)
    elif kind == _FIXED_64:
        size = 8
    elif kind == _FIXED_32:
        size = 4
    else:
        return 0, 0, 0, 0, _MALFORMED
    # The size is held against what is left, because place + size could overflow.
    if place < 0 or size < 0 or size > end - place:
        return 0, 0, 0, 0, _MALFORMED
    return number, kind, place, place + size, place + size


@njit(cache=True)
def _compiled_varint(content, place, end):
    """(value, place of what follows, below 0 for none). Values from 2^63 on are below 0, and are
    no size and no number of a field."""
    value, shift = 0, 0
    while place < end and shift < 7 * _MOST_VARINT_BYTES:
        byte = np.int64(content[place])
        place += 1
        # A byte has seven bits, the lowest ones first; its eighth bit says that more follow.
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
    return 0, _MALFORMED


def _entry(content: bytes) -> tuple[bytes, bytes]:
    name, value = b"", b""
    for number, part in _fields(content):
        if number == 1:
            name = _message(part)
        elif number == 2:
            value = _message(part)
    return name, value


def _feature(content: bytes) -> Feature:
    values: Feature = []
    for number, part in _fields(content):
        if number == 1:
            entries = _fields(_message(part))
            values = [_message(each) for inner, each in entries if inner == 1]
        elif number == 2:
            values = _floats(_message(part))
        elif number == 3:
            values = _integers(_message(part))
    return values


def _floats(content: bytes) -> NDArray[np.float32]:
    pieces = []
    for number, part in _fields(content):
        if number != 1:
            continue
        piece = _message(part)
        if len(piece) % 4:
            raise ValueError(f"{len(piece)} bytes are no whole number of floats")
        pieces.append(piece)
    return np.frombuffer(b"".join(pieces), "<f4").astype(np.float32)


def _integers(content: bytes) -> NDArray[np.int64]:
    values: list[int] = []
    for number, part in _fields(content):
        if number != 1:
            continue
        if isinstance(part, int):
            values.append(part)
            continue
        place = 0
        while place < len(part):
            value, place = _varint(part, place)
            values.append(value)
    # Negative integers are varints in two's complement.
    return np.array(values, np.uint64).view(np.int64)


def _fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of the fields of a message: a whole number for a varint, else bytes."""
    place, end = 0, len(content)
    while place < end:
        tag, place = _varint(content, place)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise ValueError("a field has the number 0")
        if kind == _VARINT:
            value, place = _varint(content, place)
            yield number, value
            continue
        if kind == _LENGTH:
            size, place = _varint(content, place)
        elif kind in (_FIXED_64, _FIXED_32):
            size = 8 if kind == _FIXED_64 else 4
        else:
            raise ValueError(f"a field has the wire type {kind}")
        if place + size > end:
            raise ValueError(f"a field of {size} bytes ends beyond the message")
        yield number, content[place : place + size]
        place += size


def _varint(content: bytes, place: int) -> tuple[int, int]:
    """(value, place of what follows)."""
    value = 0
    for shift in range(0, 7 * _MOST_VARINT_BYTES, 7):
        if place >= len(content):
            raise ValueError("a number ends beyond the message")
        byte = content[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            # Ten bytes have 70 bits, of which protobuf takes the lowest 64.
            return value & 0xFFFF_FFFF_FFFF_FFFF, place
    raise ValueError(f"a number has more than {_MOST_VARINT_BYTES} bytes")


def _message(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number stands where a message is expected")
    return value
