"""Writes values as TOML on one line."""

import json
import re
from typing import Any

from pydantic import BaseModel


def literal(value: Any) -> str:
    """Returns a value as one line of TOML: a number, string, list or inline table.

    Args:
        value: value of a TOML type, or table of a scenario; keys that are None are left out.
    """
    if isinstance(value, BaseModel):
        return literal(value.model_dump(mode="json", exclude_none=True))
    if isinstance(value, dict):
        pairs = ", ".join(f"{_key(name)} = {literal(each)}" for name, each in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(literal, value))}]"
    # Booleans are spelt in TOML as in JSON, and `repr` would begin them with a capital.
    if isinstance(value, bool | str):
        # JSON has the escapes of a basic string, except for DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    # `repr` gives the shortest text that reads back as the same float.
    return repr(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else literal(name)
