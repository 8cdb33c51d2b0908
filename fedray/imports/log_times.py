"""Times of logs, converted to seconds: ISO 8601 text, Parquet's timestamps, or Unix numbers.

The first rows with a time determine the form, which all other rows must have. Nothing is guessed:

* Text with an offset from UTC ("2026-03-01T12:00:00Z", "2026-03-01 12:00:00 +0200", and the others
  of `iso_text.py`) is exact.
* Text without an offset, and timestamps without a zone, are local times of the given time zone, or
  of UTC by default, which the trace records. A local time that occurs twice, or never,
  because clocks were changed is refused.
* Numbers are Unix times if they lie between 2000 and 2100 in seconds, milliseconds, microseconds or
  nanoseconds; the four ranges do not overlap. Other numbers need the unit, and may then count from
  any moment, if none of them is such a Unix time, and not all are in other units. Numbers that are
  all dates in digits too, such as 2026030112, need their format or unit.
* Other text needs its format, or several, with the date and the time of day.
* Dates without a time of day, text with an offset in some rows only, and times before 2000 or after
  2100, which stand for missing ones, are refused in every form.
* A type that holds no seconds (float32), and a number of too few digits, are refused. Other times
  that are all multiples of a step, or some of which are written to the hour or the minute, are
  read, and `TimeReader.step` says so.
"""

import bisect
import contextlib
import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedray.base.arrays import Float64Array
from fedray.base.errors import InputError, shown
from fedray.base.quiet_duckdb import new_connection
from fedray.base.rounding import counted
from fedray.imports.iso_text import (
    BEGINNING,
    OFFSET,
    in_plain_form,
    reason,
    reason_of_cast,
    written_step,
)
from fedray.imports.time_steps import Steps
from fedray.trace.files import first_line

Floats = Float64Array
Formats = str | Sequence[str] | None
RowName = Callable[[int], str]
"""Returns the name of a row for messages, from its position."""
UNITS = {"seconds": 1.0, "milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9}
EARLIEST, LATEST = 946_684_800.0, 4_102_444_800.0
"""The years 2000 and 2100, between which all times with a date must be."""
ACCEPTED = (
    "Accepted are ISO 8601 text such as 2026-03-01T12:00:00Z, timestamps, Unix numbers such as "
    "1772366400, or text of any forms, each with its format, such as "
    "`time_format='%d.%m.%Y %H:%M'`; numbers and text cannot be mixed"
)
_SAMPLE = 1000
_PARTS = (slice(_SAMPLE), slice(_SAMPLE, None))
"""Parts of a batch, of which the small first one mostly settles a doubt about all rows."""
_TICKS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
_NUMBERS = "numbers"
_WITH_OFFSET, _WITHOUT = pa.timestamp("ns", "UTC"), pa.timestamp("ns")
_DAY_MONTH_YEAR = re.compile("(?<!%)%-?[dmy]")
_ORDERS = {"dmy": ["dmy", "mdy", "ymd"], "dy": ["dy", "yd"]}
"""Orders of day, month and year of two digits in which dates are written."""
_WITH_EXPONENT = r"^[+-]?\d*\.?(?P<fraction>\d*)[eE]\+?(?P<exponent>-?\d+)$"
_STAMPS = {
    "%Y%m%d%H": ((1e6, 1e4), (1e4, 100), (100, 100), (1, 100), (1e10, 1)),
    "%y%m%d%H%M": ((1e8, 100), (1e6, 100), (1e4, 100), (100, 100), (1, 100)),
}
"""Formats of dates that are numbers like Unix seconds: divisors and moduli of their parts, from
the year to the minute."""
_FORMAT_EXAMPLE = "an example is '%d.%m.%Y %H:%M:%S'"
# pyarrow makes these functions at import, and its stubs do not know them.
_COMPUTE: Any = pc


class TimeReader:
    """Reads one column of times, batch by batch.

    Args:
        where: name of the column in messages.
        unit: unit of numbers, one of UNITS; None if unknown.
        text_format: format of text times, in directives of strptime, or several; None for ISO 8601.
        zone: time zone of times without an offset; None for UTC.

    Raises:
        InputError: unit, format or zone is unknown, or they contradict each other.
    """

    def __init__(
        self,
        where: str,
        unit: str | None = None,
        text_format: Formats = None,
        zone: str | None = None,
    ) -> None:
        if unit is not None and unit not in UNITS:
            raise InputError.of("time_unit", unit, f"is none of {', '.join(UNITS)}")
        formats = [text_format] if isinstance(text_format, str) else text_format or ()
        self._given = " and ".join(f"`time_format={each!r}`" for each in formats)
        if unit is not None and formats:
            rule = f"is for numbers, but {self._given} is for text"
            raise InputError.of("time_unit", unit, rule, "leave one out")
        self.where = where
        self._parsers = [_TextParser(each) for each in formats]
        self._zone = zone
        if zone is not None:
            _located(pa.array([], _WITHOUT), zone)
        self._unit = unit
        self._has_given_unit = unit is not None
        self._is_unit_checked = False
        """Whether a positive number was compared with the told unit."""
        self._text_type: pa.DataType | None = None
        self._has_unix, self._other = False, ""
        """Whether a number was a Unix time, and the first numbers that were not, for messages."""
        self._row_name: RowName = str
        self._steps = Steps()
        self._written = 0.0
        """Seconds of the hour or minute that is the last part of a time as it is written; 0 if all
        have seconds."""
        self.form = ""
        """Form of the times, in words; empty before the first row."""

    @property
    def step(self) -> float:
        """Step in seconds to which the times are rounded, as far as they show; 0 if they are exact
        to a second, or so few that a step may be chance."""
        return max(self._steps.seconds if self._steps.is_sure else 0.0, self._written)

    @property
    def doubts(self) -> list[str]:
        """Sentences on the rounding of the times, and on another reading of them."""
        found = [each.doubt for each in self._parsers if each.doubt]
        seconds, is_sure = self._steps.seconds, self._steps.is_sure
        rounded = "they are taken as rounded, so that waits between participations count as"
        if seconds > self._written:
            so = rounded if is_sure else "if they were rounded, waits between participations may be"
            step = f"{seconds:,g} s"
            found.append(f"All times are multiples of {step}: {so} {step} shorter than they say.")
        if self._written and not (is_sure and seconds > self._written):
            step = f"{self._written:,g} s"
            found.append(f"Some times are written to {step}: {rounded} {step} shorter.")
        return found

    def seconds(
        self, column: pa.Array, row_name: RowName = lambda place: f"row {place + 1}"
    ) -> Floats:
        """Returns the times of a column [N] in seconds since 1970-01-01 UTC, or as numbers count.

        Args:
            column: the values; the first column read determines the form for all later ones.
            row_name: function that returns the name of a row for messages.

        Raises:
            InputError: a value is missing, not of the form, or ambiguous.
        """
        self._row_name = row_name
        if not len(column):
            return np.empty(0)
        if column.null_count:
            place = int(np.flatnonzero(column.is_null())[0])
            raise self._error(f"rows without a time ({row_name(place)}); correct them")
        kind = column.type
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        if self._parsers and not is_text:
            raise InputError(f"{self.where} is {kind}, but {self._given} is for text; leave it out")
        if self._parsers:
            return self._of_format(column)
        if pa.types.is_timestamp(kind):
            return self._of_timestamps(column, column, "timestamps")
        if kind in (pa.float16(), pa.float32()):
            raise InputError(
                f"{self.where} is of type {kind}, which holds times of today only to a minute or "
                "two; write them again from their source, as timestamps, integers or doubles"
            )
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
            return self._of_numbers(column)
        if is_text:
            return self._of_text(_COMPUTE.utf8_trim_whitespace(column))
        raise InputError(f"{self.where} is of type {kind}, which is not a time. {ACCEPTED}")

    def state(self) -> dict[str, Any]:
        """Returns what the times so far have settled, the same in whatever order they came."""
        return {
            "form": self.form,
            "unit": self._unit,
            "is_unit_checked": self._is_unit_checked,
            "has_offset": None if self._text_type is None else self._text_type == _WITH_OFFSET,
            "has_unix": self._has_unix,
            "has_other": bool(self._other),
            "written": self._written,
            "steps": self._steps.state(),
            "formats": [each.state() for each in self._parsers],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes over what the `state` of a reader with the same arguments was."""
        self.form, self._unit = state["form"], state["unit"]
        self._is_unit_checked = state["is_unit_checked"]
        if state["has_offset"] is not None:
            self._text_type = _WITH_OFFSET if state["has_offset"] else _WITHOUT
        self._has_unix = state["has_unix"]
        self._other = "numbers that are none" if state["has_other"] else ""
        self._written = state["written"]
        self._steps.restore(state["steps"])
        for each, known in zip(self._parsers, state["formats"], strict=True):
            each.restore(known)

    def texts(self, seconds: Floats) -> list[str]:
        """Returns times [N] of `seconds` as text that a list of rounds may have."""
        if self.form.startswith(_NUMBERS) and not self._has_unix:
            return [repr(each) for each in (seconds * UNITS[self._unit or "seconds"]).tolist()]
        return [_iso(each) for each in seconds.tolist()]

    def _of_text(self, text: pa.Array) -> Floats:
        may_be = not self.form and not _are_most(_COMPUTE.match_substring_regex(text, BEGINNING))
        are_numbers = may_be and any(_is_number(text[place].as_py()) for place in (0, -1))
        if are_numbers or self.form.startswith(_NUMBERS):
            seconds = self._of_numbers(self._cast(text, pa.float64(), text))
            self._check_digits(text)
            return seconds
        self._written = max(self._written, written_step(text))
        plain, is_read, is_next_day = in_plain_form(text)
        if some := self._some(text, _COMPUTE.invert(is_read)):
            wrong = text[int(np.flatnonzero(~np.asarray(is_read))[0])].as_py()
            raise self._doubt(f"{some}, which is {reason(wrong)}")
        has_offset = _COMPUTE.match_substring_regex(plain, OFFSET)
        # After the first rows, all others must have an offset too, or must not.
        if self._text_type is None:
            self._text_type = _WITH_OFFSET if _are_most(has_offset) else _WITHOUT
        is_bare = self._text_type is _WITHOUT
        if some := self._some(text, has_offset if is_bare else _COMPUTE.invert(has_offset)):
            has = "with" if is_bare else "without"
            raise self._doubt(f"{some} {has} an offset from UTC, unlike others")
        found = self._cast(plain, self._text_type, text)
        if is_next_day.any():
            days = pa.array(86_400_000_000_000 * is_next_day, pa.duration("ns"))
            found = _COMPUTE.add(found, days)

        def clock(part: slice) -> pa.Array:
            # Clocks show rounded times, which offsets of other zones hide.
            shown = _COMPUTE.replace_substring_regex(plain[part], OFFSET, "")
            return shown.cast(_WITHOUT)

        return self._of_timestamps(found, text, "ISO 8601", clock)

    def _of_format(self, text: pa.Array) -> Floats:
        found, *others = (each.parsed(text) for each in self._parsers)
        for each in others:
            if each.type != found.type:
                raise InputError(f"only some of {self._given} have %z; all or none must have it")
            if some := self._some(text, _COMPUTE.not_equal(found, each).fill_null(False)):
                raise self._error(f"{some}, which {self._given} read differently; leave one out")
            found = _COMPUTE.coalesce(found, each)
        self._written = max(each.written for each in self._parsers)
        if some := self._some(text, found.is_null()):
            raise self._error(f"{some}, which does not match {self._given}; correct format or rows")
        form = " or ".join(repr(each.text_format) for each in self._parsers)
        return self._of_timestamps(found, text, f"text of the form {form}")

    def _cast(self, text: pa.Array, kind: pa.DataType, given: pa.Array) -> pa.Array:
        """Converts text [N], or raises InputError about the first of the `given` values [N] that is
        not of the kind."""

        def converted(count: int) -> pa.Array | None:
            with contextlib.suppress(pa.ArrowException):
                return text[:count].cast(kind)

        found = converted(len(text))
        if found is not None:
            return found
        counts = range(1, len(text) + 1)
        place = bisect.bisect_left(counts, True, key=lambda count: converted(count) is None)
        wrong = f"{self._one(given, place)}, which is"
        if kind == pa.float64():
            raise self._doubt(f"{wrong} not a number, unlike others")
        raise self._doubt(f"{wrong} {reason_of_cast(given[place].as_py(), text[place].as_py())}")

    def _check_digits(self, text: pa.Array) -> None:
        """Raises InputError if a number of text [N] is written with too few digits for seconds."""
        has_exponent = np.asarray(_COMPUTE.match_substring(text, "e", ignore_case=True))
        places = np.flatnonzero(has_exponent)
        if not places.size:
            return
        # Beside numbers with all digits, others may still be rounded.
        found = _COMPUTE.extract_regex(text.take(pa.array(places)), _WITH_EXPONENT)
        digits = _COMPUTE.utf8_length(_COMPUTE.struct_field(found, "fraction"))
        exponent = _COMPUTE.struct_field(found, "exponent").cast(pa.float64())
        last = np.asarray(exponent) - np.asarray(digits)
        steps = 10.0**last / UNITS[self._unit or "seconds"]
        wrong = np.flatnonzero(steps > 1)
        if wrong.size:
            raise self._doubt(
                f"{self._one(text, int(places[wrong[0]]))}, whose digits are too few: they stand "
                f"for all times within {steps[wrong[0]]:,g} s; write all digits"
            )

    def _of_timestamps(
        self,
        column: pa.Array,
        given: pa.Array,
        what: str,
        clock: Callable[[slice], pa.Array] | None = None,
    ) -> Floats:
        """Returns the seconds of timestamps [N], whose values in the log are `given` [N], and whose
        clocks showed `clock` of some of the rows, by default those of the timestamps' zone."""
        local = column
        if self._zone is not None:
            if column.type.tz:
                raise self._without_zone(f"{what} with an offset from UTC")
            self.form = f"{what}, local times of {self._zone}"
            column = self._of_zone(column, given, self._zone)
        elif column.type.tz:
            self.form = f"{what} in UTC"
        else:
            self.form = f"{what} without an offset from UTC, taken as UTC"
        seconds = np.asarray(column.cast(pa.int64())) / _TICKS[column.type.unit]
        if some := self._some(given, _is_outside(seconds)):
            remedy = "; correct or remove such rows"
            if self._parsers:
                remedy = "; use %y for years of two digits, and %Y for four"
            raise self._error(f"{some}, which is before 2000 or after 2100{remedy}")
        for part in filter(self._is_needed, _PARTS):
            moments = local[part] if clock is None else clock(part)
            if moments.type.tz:
                moments = _COMPUTE.local_timestamp(moments)
            ticks = moments.cast(pa.int64()).to_numpy()
            self._steps.add(ticks, _TICKS[moments.type.unit])
        return seconds

    def _of_zone(self, column: pa.Array, given: pa.Array, zone: str) -> pa.Array:
        """Returns local times [N] in UTC."""
        first, last = _located(column, zone)
        if some := self._some(given, _COMPUTE.not_equal(first, last)):
            raise self._error(
                f"{some}, which clocks of {zone} showed twice or never, because they were changed; "
                "give their offset from UTC, or leave them out"
            )
        return first

    def _of_numbers(self, column: pa.Array) -> Floats:
        # Unsafe casts round, because nanoseconds since 1970 need more digits than float64 has.
        values = np.asarray(column.cast(pa.float64(), safe=False))
        if some := self._some(column, ~np.isfinite(values)):
            raise self._doubt(f"a number that is not finite, {some}")
        if self._zone is not None:
            raise self._without_zone("numbers, which count from a moment")
        if self._unit is None:
            units = [unit for unit in UNITS if not _is_outside(values[0] / UNITS[unit])]
            if not units:
                raise self._doubt(
                    f"{self._one(column, 0)}, which is not a Unix time from 2000 to 2100 in any "
                    "unit; give their unit, such as `time_unit='seconds'`"
                )
            self._unit = units[0]
            if stamp := _stamp(values / UNITS[self._unit]):
                raise self._doubt(
                    f"{self._one(column, 0)}, which like the others is a date in digits, and also "
                    f"Unix {self._unit} of another one; give `time_format={stamp!r}` for text, or "
                    f"`time_unit={self._unit!r}`"
                )
        elif self._has_given_unit and not self._is_unit_checked:
            self._check_unit(column, values)
            # Batches may begin with zeros, which are in no unit.
            self._is_unit_checked = bool((values > 0).any())
        seconds = values / UNITS[self._unit]
        told = f"{self._unit} as told" if self._has_given_unit else f"Unix {self._unit}"
        self.form = f"{_NUMBERS}, {told}"
        # Zeros among Unix times stand for missing ones.
        is_other = _is_outside(seconds)
        self._has_unix |= not is_other.all()
        self._other = self._other or self._some(column, is_other)
        if self._has_unix and self._other:
            raise self._doubt(f"{self._other} among Unix {self._unit}; correct it")
        for part in filter(self._is_needed, _PARTS):
            some = values[part]
            # Parts of a second or less, and numbers beyond integers, are of no rounded time.
            if (some != np.trunc(some)).any() or (np.abs(some) > 2.0**62).any():
                self._steps.is_open = False
            else:
                self._steps.add(some.astype(np.int64), UNITS[self._unit])
        return seconds

    def _check_unit(self, column: pa.Array, values: Floats) -> None:
        """Raises InputError if all numbers [N] that may be times are Unix times in other units than
        the told one. Numbers since a start are small at first."""
        fits = {unit: ~_is_outside(values / UNITS[unit]) for unit in UNITS}
        first = int((values > 0).argmax())
        unit = next((unit for unit in UNITS if fits[unit][first]), self._unit)
        is_unix = np.any([*fits.values()], axis=0)
        if unit != self._unit and is_unix[values > 0].all():
            raise self._doubt(
                f"{self._one(column, first)}, which is a Unix time in {unit}, but {self._unit} are "
                f"told; give `time_unit={unit!r}`, or subtract the first time from all"
            )

    def _is_needed(self, part: slice) -> bool:
        """Returns whether a part of a batch may change the step; the first one mostly settles
        it."""
        return self._steps.is_open

    def _some(self, values: pa.Array, is_wrong: pa.Array | NDArray) -> str:
        """Returns the number of wrong values, and the first with its row; "" if all are right."""
        wrong = np.flatnonzero(is_wrong)
        if not wrong.size:
            return ""
        return f"{counted(wrong.size, 'value')} such as {self._one(values, int(wrong[0]))}"

    def _one(self, values: pa.Array, place: int) -> str:
        # Python has no time after 9999, nor one between two microseconds.
        is_text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
        value = shown(values[place].as_py()) if is_text else values[place].cast(pa.string())
        return f"{value} ({self._row_name(place)})"

    def _error(self, problem: str) -> InputError:
        return InputError(f"{self.where} has {problem}")

    def _doubt(self, problem: str) -> InputError:
        return self._error(f"times that cannot be read with certainty: {problem}. {ACCEPTED}")

    def _without_zone(self, what: str) -> InputError:
        given = f"time_zone={self._zone!r}"
        return self._error(f"{what}, but {given} is for times without one; leave it out")


class _TextParser:
    """Reads text in one format with DuckDB, because pyarrow accepts the 31st of February.

    Raises InputError for a format without a date and a time of day.
    """

    def __init__(self, text_format: str) -> None:
        # The import takes a tenth of a second.
        import duckdb

        self.text_format = text_format
        # Times are matched to rows by position, and a single thread keeps the order of rows.
        self._connection = new_connection({"threads": 1})
        # A time that is written in the format must be read back as the same hour of the same day.
        hour = datetime.datetime(2026, 11, 23, 13)
        moment = pa.array([hour, hour.replace(minute=59, second=59)], pa.timestamp("us"))
        try:
            found = self._queried("try_strptime(strftime(value, $1), $1)", moment)
        # DuckDB's messages may cut a letter in two.
        except (duckdb.Error, UnicodeError) as error:
            rule = f"cannot be read ({first_line(error)})"
            raise InputError.of("time_format", text_format, rule, _FORMAT_EXAMPLE) from None
        # Microseconds are compared, because with %z the result has a zone that was not written.
        lost = _COMPUTE.subtract(moment.cast(pa.int64()), found.cast(pa.int64())).to_pylist()
        if lost[0] != 0:
            rule = "does not name a date with a time of day"
            raise InputError.of("time_format", text_format, rule, _FORMAT_EXAMPLE)
        self.is_used = False
        """Whether it read a time."""
        self._written = lost[1] / 1e6 + 1 if lost[1] else 0.0
        """A minute or an hour, seconds, if the format has no smaller part; else 0."""

        letters = "".join(each[-1] for each in _DAY_MONTH_YEAR.findall(text_format))
        orders = _ORDERS.get("".join(sorted(letters)), [])
        if {"d", "m"} <= set(letters):
            orders = [letters.translate(str.maketrans("dm", "md")), *orders]
        self._others = [
            _Other(_reordered(text_format, order), order.find("y") != letters.find("y"))
            for order in dict.fromkeys(orders)
            if order != letters
        ]
        """Formats of the same parts in other orders, while they read all times too."""

    def parsed(self, text: pa.Array) -> pa.Array:
        """Returns the timestamps of text [N]; null if it does not match the format."""
        found = self._queried("try_strptime(value, $1)", text)
        self.is_used |= found.null_count < len(found)
        for part in _PARTS:
            for each in tuple(self._others):
                other = self._queried("try_strptime(value, $1)", text[part], each.text_format)
                if not each.add(found[part], other):
                    self._others.remove(each)
        return found

    def state(self) -> list[Any]:
        """Returns whether it read a time, and the other orders that are still likely."""
        return [self.is_used, [each.state() for each in self._others]]

    def restore(self, state: Sequence[Any]) -> None:
        """Takes over what `state` returned."""
        self.is_used, others = state
        known = {text_format: rest for text_format, *rest in others}
        self._others = [each for each in self._others if each.text_format in known]
        for each in self._others:
            each.restore(known[each.text_format])

    @property
    def written(self) -> float:
        """Seconds of the last part of the times that were read: a minute, an hour; else 0."""
        return self._written if self.is_used else 0.0

    @property
    def doubt(self) -> str:
        """Sentence on numbers that may be swapped; empty if the times rule it out."""
        for each in self._others:
            if not each.is_other:
                continue
            if not each.is_year:
                return (
                    f"No day of the times that {self.text_format!r} reads is above 12, so that "
                    f"{each.text_format!r} reads them all too, as other days: the log does not "
                    "show which number is the day."
                )
            if each.is_narrower:
                return (
                    f"{each.text_format!r} reads all times that {self.text_format!r} reads too, as "
                    "days of a shorter time: the log does not show which number is the year."
                )
        return ""

    def _queried(self, expression: str, values: pa.Array, text_format: str = "") -> pa.Array:
        self._connection.register("given", pa.table({"value": values}))
        given = [text_format or self.text_format]
        answer = self._connection.sql(f"SELECT {expression} FROM given", params=given)
        return answer.to_arrow_table().column(0).combine_chunks()


@dataclass(slots=True)
class _Other:
    """Another order of day, month and year, with what it read so far."""

    text_format: str
    is_year: bool
    """Whether it takes another number for the year: such a reading is only likely if its times are
    closer together."""
    is_other: bool = False
    """Whether it reads some of them as other times."""
    _own: tuple[int, int] | None = None
    _given: tuple[int, int] | None = None
    """First and last time as this format, and as the given one, reads them, microseconds."""

    def state(self) -> list[Any]:
        """Returns its format, and what it read."""
        spans = [None if each is None else list(each) for each in (self._own, self._given)]
        return [self.text_format, self.is_other, *spans]

    def restore(self, state: Sequence[Any]) -> None:
        """Takes over what `state` returned, without the format."""
        self.is_other = state[0]
        self._own, self._given = (None if each is None else tuple(each) for each in state[1:])

    @property
    def is_narrower(self) -> bool:
        """Whether its times are closer together than those of the given format."""
        return _span(self._own) < _span(self._given)

    def add(self, given: pa.Array, own: pa.Array) -> bool:
        """Adds times [N] as both formats read them; returns whether this one reads them all."""
        if _COMPUTE.any(_COMPUTE.and_(given.is_valid(), own.is_null())).as_py():
            return False
        self.is_other |= bool(_COMPUTE.any(_COMPUTE.not_equal(given, own)).as_py())
        if self.is_year:
            self._given, self._own = _wider(self._given, given), _wider(self._own, own)
        return True


def _wider(known: tuple[int, int] | None, times: pa.Array) -> tuple[int, int] | None:
    moments = times.cast(pa.int64()).drop_null()
    if not len(moments):
        return known
    ends = _COMPUTE.min_max(moments).as_py()
    first, last = known or (ends["min"], ends["max"])
    return min(first, ends["min"]), max(last, ends["max"])


def _span(ends: tuple[int, int] | None) -> int:
    return 0 if ends is None else ends[1] - ends[0]


def _reordered(text_format: str, order: str) -> str:
    """Returns a format with the letters of day, month and year in another order."""
    letters = iter(order)
    return _DAY_MONTH_YEAR.sub(lambda found: found[0][:-1] + next(letters), text_format)


def _located(column: pa.Array, zone: str) -> tuple[pa.Array, pa.Array]:
    """Returns the earliest and latest moments at which clocks of a zone show local times [N]."""
    try:
        first, last = (
            _COMPUTE.assume_timezone(column, zone, ambiguous=choice, nonexistent=choice)
            for choice in ("earliest", "latest")
        )
    except (pa.ArrowException, UnicodeEncodeError) as error:
        rule = f"is not known ({first_line(error)})"
        raise InputError.of(
            "time_zone", zone, rule, "give a zone such as 'Europe/Berlin'"
        ) from None
    return first, last


def _iso(second: float) -> str:
    moment = datetime.datetime.fromtimestamp(second, datetime.UTC)
    return moment.isoformat().replace("+00:00", "Z")


def are_moments(column: pa.Array) -> bool:
    """Returns whether values [N] are ISO 8601 text with an offset from UTC."""
    if not pa.types.is_string(column.type) or column.null_count:
        return False
    plain, is_read, _ = in_plain_form(_COMPUTE.utf8_trim_whitespace(column))
    has_offset = _COMPUTE.match_substring_regex(plain, OFFSET)
    return bool(_COMPUTE.all(_COMPUTE.and_(is_read, has_offset)).as_py())


def shown_range(first: float, last: float) -> tuple[str, str]:
    """Formats two times: ISO 8601 in UTC if both are between 2000 and 2100, otherwise seconds."""
    if not EARLIEST <= first <= last <= LATEST:
        return f"{first:.15g} s", f"{last:.15g} s"
    moments = (datetime.datetime.fromtimestamp(each, datetime.UTC) for each in (first, last))
    begin, end = (each.isoformat() for each in moments)
    return begin, end


def _stamp(seconds: Floats) -> str:
    """Returns the format of dates in ten digits, from 2000 on, if all numbers [N] are some."""
    for text_format, divisors in _STAMPS.items():
        year, month, day, hour, minute = (
            np.floor(seconds / unit) % modulus for unit, modulus in divisors
        )
        is_whole = seconds == np.floor(seconds)
        is_date = (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
        is_time = (hour < 24) & (minute < 60)
        if (is_whole & is_date & is_time & ((year < 100) | (year // 100 == 20))).all():
            return text_format
    return ""


def _is_outside(seconds: Any) -> Any:
    return (seconds < EARLIEST) | (seconds > LATEST)


def _are_most(flags: pa.Array) -> bool:
    """Whether most flags [N] are set; the first one decides a tie."""
    return 2 * int(np.asarray(flags).sum()) + bool(flags[0].as_py()) > len(flags)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
