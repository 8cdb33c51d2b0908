"""Nested tables by dotted keys."""

from collections.abc import Iterator
from typing import Any


def flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (dotted key, value) of all values of tables, which stand under a key, if any."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from flat(part, f"{key}.{name}" if key else name)
    else:
        yield key, value
