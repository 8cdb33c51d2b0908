"""Decodes tf.train.Example from the protobuf wire format, of which it needs a small part.

    Example   { Features features = 1; }
    Features  { map<string, Feature> feature = 1; }     entries { key = 1; value = 2; }
    Feature   { BytesList = 1 | FloatList = 2 | Int64List = 3 }, each { repeated value = 1; }

(tensorflow/core/example/feature.proto.) Numbers may be packed or not; fields that are unknown are
passed over; of a key that comes twice, the last one counts, as in protobuf.
"""

from collections.abc import Collection, Iterator

import numpy as np
from numpy.typing import NDArray

Feature = list[bytes] | NDArray
"""Values of one feature: bytes, float32 [N] or int64 [N]."""
_VARINT, _FIXED_64, _LENGTH, _FIXED_32 = 0, 1, 2, 5
_MOST_VARINT_BYTES = 10


def decode_example(content: bytes, wanted: Collection[str]) -> dict[str, Feature]:
    """Features of one serialized example by name.

    Args:
        content: the message.
        wanted: names of the features to decode; others are passed over.

    Raises:
        ValueError: it is no such message.
    """
    found: dict[str, Feature] = {}
    for number, features in _fields(content):
        if number != 1:
            continue
        for inner, entry in _fields(_message(features)):
            if inner != 1:
                continue
            name, value = _entry(_message(entry))
            if name in wanted:
                found[name] = _feature(value)
    return found


def _entry(content: bytes) -> tuple[str, bytes]:
    name, value = b"", b""
    for number, part in _fields(content):
        if number == 1:
            name = _message(part)
        elif number == 2:
            value = _message(part)
    return name.decode(), value  # UnicodeDecodeError is a ValueError


def _feature(content: bytes) -> Feature:
    values: Feature = []
    for number, part in _fields(content):
        if number == 1:
            values = [_message(each) for inner, each in _fields(_message(part)) if inner == 1]
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
    return np.array(values, np.uint64).view(np.int64)  # two's complement


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
            return value & 0xFFFF_FFFF_FFFF_FFFF, place
    raise ValueError(f"a number has more than {_MOST_VARINT_BYTES} bytes")


def _message(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number stands where a message is expected")
    return value
