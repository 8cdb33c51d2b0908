"""ISO 8601 text as logs write it, in the one form that pyarrow reads, and reasons for other text.

Read are the extended and the basic format, with an offset from UTC or without one; hours and
minutes only; a comma or a point before the fraction, of which nine digits count; 24:00; and zones
that are certain: Z, UTC, GMT, and names beside an offset. Other text is refused with the reason
that is true of it, because a time that is read in a wrong way may hide a broken timer.
"""

import datetime
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedray.base.arrays import BoolArray

OFFSET = r"(Z|[+-]\d\d(:?\d\d)?)$"
"""Offset from UTC at the end of text that was read, which has a time of day before it."""
BEGINNING = r"^\d{4}(-\d\d-\d\d|\d{4})[ Tt]\d"
"""Beginning of a date with a time of day."""
NO_ISO = "not ISO 8601 with a time of day"
_PLAIN = r"^\d{4}-\d\d-\d\d[ T]\d\d(:\d\d(:\d\d(\.\d{1,9})?)?)?(Z|[+-]\d\d(:?\d\d)?)?$"
"""Form that pyarrow reads as it is."""
_READ = (
    r"^(?P<year>\d{4})(?:-(?P<month>\d\d)-(?P<day>\d\d)|(?P<month_day>\d{4}))"
    r"[ Tt](?P<hour>\d\d)(?::?(?P<minute>\d\d)"
    r"(?::?(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9})\d*)?)?)?"
    r"(?: ?(?:(?P<utc>(?i:Z|UTC|GMT|\[(?:Z|UTC|GMT|Etc/UTC)\]))"
    r"|(?P<sign>[+-])(?P<hours>\d\d)(?::?(?P<minutes>\d\d))?(?: [A-Z]{3,5})?)"
    r"(?:\[[^\]]+\])?)?$"
)
_COARSE = r"^[\d-]{8,10}[ Tt]\d\d(:?\d\d)?([^\d:]|$)"
_HOUR = r"^[\d-]{8,10}[ Tt]\d\d([^\d:]|$)"
"""Beginnings of times without seconds, and without minutes."""
_DAY = r"\d{4}-?\d\d-?\d\d"
_LEAP_SECOND = "a leap second, which Unix time does not have"
_REASONS = (
    (rf"{_DAY}$", f"{NO_ISO}: a date may be a day away from the time"),
    (r"\d{4}-?W\d", "a week date; write year, month and day"),
    (r"\d{4}-?\d{3}([ Tt]|$)", "a day of the year; write year, month and day"),
    (rf"{_DAY}[ Tt]\d\d:?\d\d:?60", _LEAP_SECOND),
    (r"\d{4}-(\d-\d\d?|\d\d-\d)[ T]", "a date with a number of one digit; write two digits"),
    (rf"{_DAY}[ Tt]\d(:|$)", "a time with an hour of one digit; write two digits"),
    (rf"{_DAY}[ Tt](\d\d|\d\d:?\d\d)[.,]\d", "a fraction of an hour or a minute; write seconds"),
    (rf"{_DAY}.*\d ?[AaPp]\.?[Mm]\.?$", "a time of 12 hours; give its format, with %I and %p"),
    (
        rf"{_DAY}[ Tt][\d:.,]*\d ?\[?[A-Za-z][A-Za-z_/]+",
        "a time in a zone without a certain offset from UTC; write an offset such as -05:00",
    ),
    (rf"{_DAY}.*[+-]\d\d:\d\d:\d\d", "a time with seconds in its offset from UTC; write minutes"),
)
"""Reasons for which text is not read, by the pattern of its beginning."""
# pyarrow makes these functions at import, and its stubs do not know them.
_COMPUTE: Any = pc


def in_plain_form(text: pa.Array) -> tuple[pa.Array, pa.Array, BoolArray]:
    """Returns text [N] in the form that pyarrow reads, as far as its meaning is certain.

    Args:
        text: values without spaces around them.

    Returns:
        The text, [N]; whether it was read, [N]; and whether it is 24:00, written here as 0:00 of
        the day that ends then, [N].
    """
    is_plain = _COMPUTE.match_substring_regex(text, _PLAIN)
    is_midnight = np.zeros(len(text), np.bool_)
    # Hours from 24 are left to the slow way.
    is_late = _COMPUTE.match_substring_regex(text, r"[ T]24")
    is_plain = _COMPUTE.and_not(is_plain, is_late)
    if _COMPUTE.all(is_plain).as_py():
        return text, is_plain, is_midnight
    found = _COMPUTE.extract_regex(text, _READ)
    part = {name: _COMPUTE.struct_field(found, name) for name in found.type.names}
    minute, second, fraction = (
        _or(part[name], default)
        for name, default in (("minute", "00"), ("second", "00"), ("fraction", "0"))
    )
    is_zero = _COMPUTE.match_substring_regex(_joined(minute, second, fraction), "^0+$")
    is_next = _COMPUTE.and_(_COMPUTE.equal(part["hour"], "24"), is_zero).fill_null(False)
    offset = _joined(part["sign"], part["hours"], _or(part["minutes"], "00"))
    is_zoned = _COMPUTE.not_equal(part["sign"], "")
    utc = _COMPUTE.if_else(_COMPUTE.equal(part["utc"], ""), "", "Z")
    both = part["month_day"]
    date = _joined(
        *(part["year"], "-", part["month"], _COMPUTE.utf8_slice_codeunits(both, 0, 2), "-"),
        *(part["day"], _COMPUTE.utf8_slice_codeunits(both, 2)),
    )
    hour = _COMPUTE.if_else(is_next, "00", part["hour"])
    clock = _joined("T", hour, ":", minute, ":", second, ".", fraction)
    plain = _joined(date, clock, _COMPUTE.if_else(is_zoned, offset, utc))
    is_read = _COMPUTE.is_valid(plain)
    return _COMPUTE.coalesce(plain, text), is_read, np.asarray(is_next)


def written_step(text: pa.Array) -> float:
    """Returns the seconds of the largest last part of times [N]: an hour, a minute, or 0 if all
    have seconds."""
    is_coarse = _COMPUTE.match_substring_regex(text, _COARSE)
    if not _COMPUTE.any(is_coarse).as_py():
        return 0.0
    is_hour = _COMPUTE.match_substring_regex(text.filter(is_coarse), _HOUR)
    return 3600.0 if _COMPUTE.any(is_hour).as_py() else 60.0


def reason(value: str) -> str:
    """Returns the reason for which a text is not read, after "which is"; NO_ISO if unknown."""
    return next((text for pattern, text in _REASONS if re.match(pattern, value)), NO_ISO)


def reason_of_cast(value: str, plain: str) -> str:
    """Returns the reason for which pyarrow refuses a text in the form of a time.

    Args:
        value: the text in the log.
        plain: the same in plain form.
    """
    try:
        datetime.datetime.fromisoformat(plain)
    except ValueError as error:
        return _LEAP_SECOND if reason(value) == _LEAP_SECOND else f"not a time: {error}"
    return "not a time from 2000 to 2100"


def _or(values: pa.Array, default: str) -> pa.Array:
    return _COMPUTE.if_else(_COMPUTE.equal(values, ""), default, values)


def _joined(*parts: pa.Array | str) -> pa.Array:
    return _COMPUTE.binary_join_element_wise(*parts, "")
