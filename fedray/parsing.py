"""JSON and TOML that a hand may have written and a disk may have damaged: read, or refused in one line.

The parsers of the standard library pass on what Python itself refuses (nesting beyond the stack, integers of more than 4,300
digits), and that of JSON takes a key that is there twice. All of it is a ValueError here.
"""

import json
import tomllib
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """The value that a JSON text describes. Raises ValueError, also for a key that an object has twice."""
    try:
        return json.loads(text.decode() if isinstance(text, bytes) else text, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


def parse_toml(text: str) -> dict[str, Any]:
    """The tables that a TOML text describes. Raises tomllib.TOMLDecodeError for its syntax, else ValueError."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    known = dict(pairs)
    if len(known) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for place, key in enumerate(keys) if key in keys[:place])
        raise ValueError(f"the key {twice[:80]!r} is there twice")
    return known
