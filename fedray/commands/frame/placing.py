"""Placement of a run as options `--place KEY=VALUE`."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, get_args, get_type_hints

from fedray.base.errors import InputError, shown
from fedray.base.nearest import nearest_first
from fedray.runtime.placement import Placement


def placement_of(texts: Sequence[str] | None) -> Placement:
    """Reads a placement.

    Args:
        texts: options "key=value"; of equal keys the last one counts.

    Raises:
        InputError: a key is unknown, or a value is not one of its type.
    """
    return Placement(**dict(_setting(each) for each in texts or ()))


def _setting(text: str) -> tuple[str, Any]:
    key, separator, value = (part.strip() for part in text.partition("="))
    # New fields of a placement become keys without a line here.
    names = [each.name for each in fields(Placement)]
    if not separator or key not in names:
        nearest = ", ".join(nearest_first(key, names))
        raise InputError(f"--place {shown(text)} must be KEY=VALUE; keys are {nearest}")
    hint = get_type_hints(Placement)[key]
    # Choices and addresses are text, which the placement checks itself.
    allowed = (hint, *get_args(hint))
    kind = next((each for each in (int, float) if each in allowed), str)
    try:
        return key, kind(value)
    except ValueError:
        rule = "a whole number" if kind is int else "a number"
        raise InputError(f"--place {key}={value} must be {rule}, such as {key}=1") from None
