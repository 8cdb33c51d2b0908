"""Reading of JSON and TOML that may be written by hand or damaged, and numbers as JSON can hold
them.

The parsers of the standard library raise errors of their own for nesting beyond the stack and for
integers of more than 4,300 digits, and JSON's accepts a key that occurs twice. Here each of these
is a ValueError.
"""

import json
import math
import re
import tomllib
from pathlib import Path
from typing import Any, Literal

from fedray.base.errors import InputError
from fedray.base.regular_file import read_input

_INTEGER_BITS = 10_000
_LONG_KEY = re.compile(
    r"""^[ \t\[]*(?:(?:[\w-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')[ \t]*\.[ \t]*){32}""", re.MULTILINE
)
"""Start of a line with a dotted key, or the heading of a table, of more than 32 parts."""


def decode_text(content: bytes) -> str:
    """Returns a text in UTF-8 without the byte order mark that editors of Windows write first.

    Raises:
        ValueError: it is UTF-16, or else (UnicodeDecodeError) not UTF-8.
    """
    # Text in UTF-16 without a mark has a null byte in each Latin letter.
    if content[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in content[:2]:
        raise ValueError("it is UTF-16; convert it to UTF-8, for example with iconv")
    return content.decode("utf-8-sig")


def parse_json(text: str | bytes) -> Any:
    """Returns the value of a JSON text.

    Args:
        text: text, or bytes in UTF-8.

    Raises:
        ValueError: the text is not JSON (json.JSONDecodeError) or not UTF-8, an object has a key
            twice, or values are nested or long beyond Python's limits.
    """
    # Given bytes, json would guess the encoding, and take UTF-16 too.
    decoded = decode_text(text) if isinstance(text, bytes) else text
    try:
        return json.loads(decoded, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


def parse_toml(text: str | bytes) -> dict[str, Any]:
    """Returns the tables of a TOML text, or of bytes in UTF-8.

    Raises:
        ValueError: the syntax is wrong (tomllib.TOMLDecodeError), the text is not UTF-8, or values
            are nested or long beyond Python's limits.
    """
    # The parser keeps every beginning of a dotted key: 20,000 parts would take gigabytes.
    text = decode_text(text) if isinstance(text, bytes) else text
    if _LONG_KEY.search(text):
        raise ValueError("it has a key of more than 32 parts")
    try:
        tables = tomllib.loads(text)
        _check_integers(tables)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None
    return tables


def read_document(path: Path, what: str, form: Literal["JSON", "TOML"]) -> Any:
    """Reads a file that a user names. Raises InputError.

    Args:
        path: path of the file.
        what: description of the file for messages, such as "mechanism file".
        form: form of its text.
    """
    try:
        content = read_input(path)
        return parse_json(content) if form == "JSON" else parse_toml(content)
    except OSError as error:
        problem = error.strerror or error
        raise InputError(
            f"{what} {str(path)!r} cannot be read ({problem}); name a {form} file"
        ) from None
    # Of the syntax, of UTF-8, of numbers or nesting beyond reason.
    except ValueError as error:
        raise InputError(
            f"{what} {str(path)!r} is not valid {form} ({error}); correct it there"
        ) from None


def finite_or_none(value: float | None) -> float | None:
    """Returns the value for JSON, which has only finite numbers: others become None, written as
    null."""
    return float(value) if value is not None and math.isfinite(value) else None


def _check_integers(value: Any) -> None:
    """Refuses integers that cannot be printed. Reading hexadecimal ones has no limit of digits."""
    if isinstance(value, int) and value.bit_length() > _INTEGER_BITS:
        raise ValueError(
            f"it has an integer of {value.bit_length():,} bits, more than any key takes"
        )
    if isinstance(value, dict):
        parts = list(value.values())
    else:
        parts = value if isinstance(value, list) else []
    for each in parts:
        _check_integers(each)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # The standard library would silently keep the last one.
    known = dict(pairs)
    if len(known) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for place, key in enumerate(keys) if key in keys[:place])
        raise ValueError(f"the key {twice[:80]!r} occurs twice")
    return known
