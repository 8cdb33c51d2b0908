"""The wire format, by bytes that were written by hand."""

import numpy as np
import pytest

from fedray.clients.data.readers.tf_example import decode_example

ALL = ("a", "b", "c")
BYTES = bytes.fromhex("0a0f 0a0d 0a0161 1208 0a06 0a0168 0a0169")
"""features { feature { key: "a" value { bytes_list { value: "h" value: "i" } } } }"""
PACKED_FLOATS = bytes.fromhex("0a13 0a11 0a0162 120c 120a 0a08 0000803f 000000c0")
"""... "b": float_list { value: 1 value: -2 }, packed."""
PLAIN_FLOATS = bytes.fromhex("0a13 0a11 0a0162 120c 120a 0d 0000803f 0d 000000c0")
"""The same, not packed."""
PACKED_INTEGERS = bytes.fromhex("0a18 0a16 0a0163 1211 1a0f 0a0d ac02 05 ffffffffffffffffff01")
"""... "c": int64_list { value: 300 value: 5 value: -1 }, packed."""
PLAIN_INTEGERS = bytes.fromhex("0a0e 0a0c 0a0163 1207 1a05 08ac02 0805")
"""... { value: 300 value: 5 }, not packed."""


def test_each_kind_of_list_is_read() -> None:
    assert decode_example(BYTES, ALL) == {"a": [b"h", b"i"]}
    for content in (PACKED_FLOATS, PLAIN_FLOATS):
        found = decode_example(content, ALL)["b"]
        assert isinstance(found, np.ndarray)
        assert (found.dtype, found.tolist()) == (np.float32, [1.0, -2.0])
    found = decode_example(PACKED_INTEGERS, ALL)["c"]
    assert isinstance(found, np.ndarray)
    assert (found.dtype, found.tolist()) == (np.int64, [300, 5, -1])
    found = decode_example(PLAIN_INTEGERS, ALL)["c"]
    assert isinstance(found, np.ndarray)
    assert found.tolist() == [300, 5]


def test_messages_are_merged_and_what_is_unknown_is_passed_over() -> None:
    unknown = bytes.fromhex("1003 1901020304050607081d01020304 2202ffff")
    together = unknown + BYTES + PACKED_FLOATS + unknown + PLAIN_INTEGERS
    assert set(decode_example(together, ALL)) == {"a", "b", "c"}
    assert set(decode_example(together, ("b",))) == {"b"}
    assert decode_example(b"", ALL) == {}
    assert decode_example(bytes.fromhex("0a07 0a05 0a0161 1200"), ALL) == {"a": []}
    assert decode_example(BYTES + bytes.fromhex("0a07 0a05 0a0161 1200"), ALL) == {"a": []}


@pytest.mark.parametrize("content", [BYTES, PACKED_FLOATS, PLAIN_FLOATS, PACKED_INTEGERS])
def test_no_cut_and_no_other_byte_is_anything_but_a_value_error(content: bytes) -> None:
    refused = 0
    for place in range(1, len(content)):
        with pytest.raises(ValueError):
            decode_example(content[:place], ALL)
        for value in (0, 7, 0x80, 0xFF):
            changed = content[:place] + bytes([value]) + content[place + 1 :]
            try:
                decode_example(changed, ALL)
            except ValueError:
                refused += 1
    assert refused > len(content)


@pytest.mark.parametrize(
    "content",
    [
        "0b",  # a group that does not end
        "0001",  # a field with the number 0
        "0a" + "ff" * 11,  # a size of more than 10 bytes
        "08ffff",  # a varint that does not end
        "0a0d0a0b0a0162120612040a020000",  # two bytes in place of a float
    ],
)
def test_malformed_bytes_are_a_value_error(content: str) -> None:
    with pytest.raises(ValueError, match="parsing message"):
        decode_example(bytes.fromhex(content), ALL)


def test_a_varint_in_place_of_a_list_is_an_unknown_field() -> None:
    """As the specification has it: the feature is then missing, and the reader refuses the row."""
    assert decode_example(bytes.fromhex("0801"), ALL) == {}


def test_of_a_key_that_comes_twice_the_last_value_counts() -> None:
    again = BYTES.replace(b"h", b"x").replace(b"i", b"y")
    assert decode_example(BYTES + again, ALL) == {"a": [b"x", b"y"]}
