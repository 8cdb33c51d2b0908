"""Options that describe a log: its columns, times and files."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedray.base.errors import InputError, shown

UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
"""Units of times, by their short names."""


def columns_of(
    texts: Sequence[str] | None, roles: Sequence[str], required: Sequence[str] = ()
) -> Mapping[str, list[str]]:
    """Reads `--column ROLE=NAME` options.

    Args:
        texts: the options.
        roles: roles that a column may have. Only a device may have several columns.
        required: roles that need a column.

    Returns:
        The names of the columns by role; empty for a role that was not given.

    Raises:
        InputError: a role is unknown, missing, or given twice.
    """
    columns: dict[str, list[str]] = {role: [] for role in roles}
    for text in texts or ():
        role, separator, name = text.partition("=")
        if not separator or role not in columns or not name:
            raise InputError(
                f"--column {shown(text)} must be ROLE=NAME; roles are {', '.join(roles)}"
            )
        # Several device columns are one unit of privacy; other roles have one column.
        if columns[role] and role != "device":
            raise InputError(f"--column {role}=... is given twice; a log has one such column")
        columns[role].append(name)
    for role in required:
        if not columns[role]:
            raise InputError(f"--column {role}=NAME must be given")
    return columns


def time_form(texts: Sequence[str] | None) -> dict[str, Any]:
    """Arguments of a reader of times for `--time-format`: a unit, or formats of text.

    Args:
        texts: the options; None if none was given.

    Raises:
        InputError: a text is neither a unit nor a format, or a unit is not the only text.
    """
    unit = next((each for each in texts or () if "%" not in each), None)
    if unit is None:
        return {"time_unit": None, "time_format": texts[0] if texts and len(texts) == 1 else texts}
    # The reader of times knows units by their long names.
    if UNITS.get(unit, unit) not in UNITS.values():
        rule = f"is neither one of {', '.join(UNITS)} nor a format with %"
        raise InputError.of("time_format", unit, rule, "an example is '%d.%m.%Y %H:%M'")
    if len(texts or ()) > 1:
        raise InputError.of("time_format", unit, "is a unit, beside which no other may be given")
    return {"time_unit": UNITS.get(unit, unit), "time_format": None}
