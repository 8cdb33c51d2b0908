"""Times as logs have them, made seconds: ISO 8601 text, Parquet's timestamps, or Unix numbers.

The first rows that have a time tell the form; every other row must be of that form. Nothing is
guessed:

* Text with an offset from UTC ("2026-03-01T12:00:00Z", "2026-03-01 12:00:00+02:00", "2026-03-01
  12:00:00 UTC") is exact.
* Text without an offset, and timestamps without a zone, are local times of the time zone that is
  given; without one they are taken as UTC, and reported as such. A local time that a change of
  clocks gives twice, or leaves out, is refused.
* Numbers are Unix times if they lie between 2000 and 2100 in exactly one of seconds, milliseconds,
  microseconds and nanoseconds; the four ranges are apart. Other numbers need the unit, and may then
  count from any start.
* Text of any other form is read by its format, which must be given, and must name date and time of
  day.
* Dates without a time of day, and text with an offset in some rows only, are refused.
"""

import datetime
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedray.base.errors import InputError, shown
from fedray.base.quiet_duckdb import connected
from fedray.base.rounding import counted
from fedray.trace.files import first_line

RowName = Callable[[int], str]
"""What messages call a row, by its place."""
UNITS = {"seconds": 1.0, "milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9}
EARLIEST, LATEST = 946_684_800.0, 4_102_444_800.0
"""2000 and 2100: Unix numbers without a given unit must lie between."""
ACCEPTED = (
    "Accepted are ISO 8601 text such as 2026-03-01T12:00:00Z, timestamps, Unix numbers "
    "such as 1772366400, and other text by its format, as by `time_format='%d.%m.%Y %H:%M'`"
)
_ISO_8601 = r"^\d{4}-\d{2}-\d{2}[ T]\d"
"""How times in text begin, so that the order of day and month is known."""
_TICKS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
_NUMBERS = "numbers"
_WITH_OFFSET, _WITHOUT = pa.timestamp("ns", "UTC"), pa.timestamp("ns")
# pyarrow makes these functions at import, and its stubs do not know them.
_COMPUTE: Any = pc


class TimeReader:
    """Reads one column of times, batch by batch. Raises InputError for what cannot be told.

    Args:
        where: what messages call the column.
        unit: of numbers, one of UNITS; None where it is not known.
        text_format: of text, by the directives of strptime; None for ISO 8601.
        zone: of times without an offset, by its name in the time zone database; None for UTC.
    """

    def __init__(
        self,
        where: str,
        unit: str | None,
        text_format: str | None = None,
        zone: str | None = None,
    ) -> None:
        if unit is not None and unit not in UNITS:
            raise InputError.of("time_unit", unit, f"is none of {', '.join(UNITS)}")
        if unit is not None and text_format is not None:
            raise InputError.of(
                "time_unit",
                unit,
                f"is for numbers, and `time_format={text_format!r}` for text",
                "leave one out",
            )
        self._where = where
        self._parser = None if text_format is None else _TextParser(text_format)
        self._zone = zone
        if zone is not None:
            _located(pa.array([], _WITHOUT), zone)
        self._unit = unit
        self._has_given_unit = unit is not None
        self._text_type: pa.DataType | None = None
        self.form = ""
        """What the times are, in words; empty before the first row."""

    def seconds(self, column: pa.Array, row_name: RowName | None = None) -> NDArray[np.float64]:
        """The times of a `column` [N] as seconds, float64: since 1970-01-01 UTC, or as the numbers
        count.

        The first column that is read settles the form, which all later ones must have. Raises
        InputError; `row_name` says what messages call a row by its place.
        """
        if not len(column):
            return np.empty(0)
        if column.null_count:
            named = _named(row_name, int(np.flatnonzero(column.is_null())[0]))
            raise InputError(
                f"{self._where} has rows without a time{named}; correct them, or leave "
                "the times out: timers are then not checked. "
                f"{ACCEPTED}"
            )
        kind = column.type
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        if self._parser is not None:
            if not is_text:
                raise InputError(
                    f"{self._where} is of type {kind}, and "
                    f"`time_format={self._parser.text_format!r}` is for text; leave it out"
                )
            return self._of_format(column, self._parser, row_name)
        if pa.types.is_timestamp(kind):
            return self._of_timestamps(column, "timestamps", row_name)
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            # Unsafe casts round: nanoseconds since 1970 need more digits than float64 has.
            numbers = column.cast(pa.float64(), safe=False)
            return self._of_numbers(numbers.to_numpy(zero_copy_only=False))
        if is_text:
            return self._of_text(_COMPUTE.utf8_trim_whitespace(column), row_name)
        raise InputError(f"{self._where} is of type {kind}, which has no times. {ACCEPTED}")

    def _of_text(self, text: pa.Array, row_name: RowName | None) -> NDArray[np.float64]:
        # The first row settles whether the text is numbers, and later batches keep to it.
        if (not self.form and _is_number(text[0].as_py())) or self.form.startswith(_NUMBERS):
            try:
                numbers = text.cast(pa.float64())
            except pa.ArrowException as error:
                raise self._refused(first_line(error)) from None
            return self._of_numbers(numbers.to_numpy(zero_copy_only=False))
        # pyarrow would take a date for its midnight, up to a day away from the truth.
        is_short = _COMPUTE.less_equal(_COMPUTE.binary_length(text), len("2026-03-01"))
        short = np.flatnonzero(is_short)
        if short.size:
            first = int(short[0])
            values = f"{counted(short.size, 'value')} such as {shown(text[first].as_py())}"
            raise self._refused(
                f"{values}{_named(row_name, first)}, which is a date without a time of day, or no "
                "time; correct or remove such rows"
            )
        # pyarrow knows the letter Z, and not the word UTC.
        text = _COMPUTE.replace_substring_regex(text, r" ?UTC$", "Z")
        problem = ""
        # Once rows had an offset, or had none, all others must be alike.
        kinds = (_WITH_OFFSET, _WITHOUT) if self._text_type is None else (self._text_type,)
        for kind in kinds:
            try:
                found = text.cast(kind)
            except pa.ArrowException as error:
                # What follows is advice on functions of pyarrow.
                problem = first_line(error).split(" If these")[0]
                continue
            self._text_type = kind
            return self._of_timestamps(found, "ISO 8601", row_name)
        others = np.flatnonzero(_COMPUTE.invert(_COMPUTE.match_substring_regex(text, _ISO_8601)))
        if others.size:
            first = int(others[0])
            values = f"{counted(others.size, 'value')} such as {shown(text[first].as_py())}"
            raise self._refused(f"{values}{_named(row_name, first)}, which is not ISO 8601")
        raise self._refused(
            f"neither all with an offset from UTC nor all without: {problem.rstrip('.')}"
        )

    def _of_format(
        self, text: pa.Array, parser: "_TextParser", row_name: RowName | None
    ) -> NDArray[np.float64]:
        found = parser.parsed(text)
        what = f"text of the form {parser.text_format!r}"
        wrong = np.flatnonzero(found.is_null())
        if wrong.size:
            first = int(wrong[0])
            raise InputError(
                f"{self._where} has {counted(wrong.size, 'value')} such as "
                f"{shown(text[first].as_py())}{_named(row_name, first)}, which is not of "
                f"`time_format={parser.text_format!r}`; correct the format or the rows"
            )
        seconds = self._of_timestamps(found, what, row_name)
        outside = np.flatnonzero((seconds < EARLIEST) | (seconds > LATEST))
        if outside.size:
            first = int(outside[0])
            raise InputError(
                f"{self._where} has {shown(text[first].as_py())}{_named(row_name, first)}, which "
                f"`time_format={parser.text_format!r}` takes as a year before 2000 or after 2100; "
                "%y is a year of two digits, and %Y one of four"
            )
        return seconds

    def _of_timestamps(
        self, column: pa.Array, what: str, row_name: RowName | None
    ) -> NDArray[np.float64]:
        if self._has_given_unit:
            raise InputError(
                f"{self._where} has {what}, whose unit is known; `time_unit={self._unit!r}` is for "
                "numbers, leave it out"
            )
        if self._zone is not None:
            if column.type.tz:
                raise self._without_zone(f"{what} with an offset from UTC")
            self.form = f"{what}, local times of {self._zone}"
            column = self._of_zone(column, self._zone, row_name)
        else:
            self.form = (
                f"{what} in UTC"
                if column.type.tz
                else f"{what} without an offset from UTC, taken as UTC"
            )
        ticks = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
        return ticks / _TICKS[column.type.unit]

    def _of_zone(self, column: pa.Array, zone: str, row_name: RowName | None) -> pa.Array:
        """The times in UTC of local times [N]."""
        first, last = _located(column, zone)
        doubtful = np.flatnonzero(_COMPUTE.not_equal(first, last))
        if doubtful.size:
            row = int(doubtful[0])
            raise InputError(
                f"{self._where} has {counted(doubtful.size, 'time')} such as "
                f"{shown(str(column[row].as_py()))}{_named(row_name, row)}, which clocks of "
                f"{zone} showed twice or never, because they were changed; write the times with "
                "their offset from UTC, or leave them out"
            )
        return first

    def _without_zone(self, what: str) -> InputError:
        return InputError(
            f"{self._where} has {what}; time_zone={self._zone!r} is for times without one, leave "
            "it out"
        )

    def _of_numbers(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        if not np.isfinite(values).all():
            raise self._refused("a number that is not finite")
        if self._zone is not None:
            raise self._without_zone("numbers, which count from a moment")
        if self._unit is None:
            # The ranges of 2000 to 2100 in the four units are apart, so that at most one fits.
            units = []
            for unit, per_second in UNITS.items():
                if EARLIEST <= values[0] / per_second <= LATEST:
                    units.append(unit)
            if not units:
                raise self._refused(
                    f"{values[0]:.15g}, which is a Unix time of 2000 to 2100 in no unit; say what "
                    "the numbers are, as by `time_unit='seconds'`"
                )
            self._unit = units[0]
        seconds = values / UNITS[self._unit]
        if self._has_given_unit:
            self.form = f"{_NUMBERS}, {self._unit} as told"
            return seconds
        self.form = f"{_NUMBERS}, Unix {self._unit}"
        outside = np.flatnonzero((seconds < EARLIEST) | (seconds > LATEST))
        if outside.size:
            raise self._refused(
                f"{values[outside[0]]:.15g} beside Unix {self._unit}; correct it, or say what the "
                "numbers are, as by `time_unit='seconds'`"
            )
        return seconds

    def _refused(self, problem: str) -> InputError:
        return InputError(
            f"{self._where} has times that cannot be told for certain: {problem}. {ACCEPTED}"
        )


class _TextParser:
    """Reads text of one format. DuckDB does: others take the 31st of February for a day in March.

    Raises InputError for a format that names no date with a time of day.
    """

    def __init__(self, text_format: str) -> None:
        # The import takes a tenth of a second.
        import duckdb

        self.text_format = text_format
        # Times belong to rows by their places, and a single thread keeps the order of rows.
        self._connection = connected({"threads": 1})
        # What is written in the format must be read as the same hour of the same day.
        moment = pa.array([datetime.datetime(2026, 11, 23, 13)], pa.timestamp("us"))
        query = "SELECT try_strptime(strftime(moment, $1), $1) FROM moments"
        try:
            found = self._queried(query, moments=pa.table({"moment": moment}))
        # DuckDB's messages may cut a letter in two.
        except (duckdb.Error, UnicodeError) as error:
            raise InputError.of(
                "time_format",
                text_format,
                f"cannot be read ({first_line(error)})",
                "an example is '%d.%m.%Y %H:%M:%S'",
            ) from None
        # Counts of microseconds are compared, because with %z there is a zone that was not written.
        if found.cast(pa.int64()) != moment.cast(pa.int64()):
            raise InputError.of(
                "time_format",
                text_format,
                "does not name a date with a time of day",
                "an example is '%d.%m.%Y %H:%M:%S'",
            )

    def parsed(self, text: pa.Array) -> pa.Array:
        """The timestamps of text [N]; null where it is not of the format."""
        return self._queried("SELECT try_strptime(text, $1) FROM log", log=pa.table({"text": text}))

    def _queried(self, query: str, **tables: pa.Table) -> pa.Array:
        """The only column of a query's answer."""
        for name, table in tables.items():
            self._connection.register(name, table)
        answer = self._connection.sql(query, params=[self.text_format]).to_arrow_table()
        return answer.column(0).combine_chunks()


def _located(column: pa.Array, zone: str) -> tuple[pa.Array, pa.Array]:
    """The earliest and the latest moments at which clocks of a zone show local times [N]. Raises
    InputError for an unknown zone."""
    try:
        first, last = (
            _COMPUTE.assume_timezone(column, zone, ambiguous=choice, nonexistent=choice)
            for choice in ("earliest", "latest")
        )
    except pa.ArrowException as error:
        raise InputError.of(
            "time_zone",
            zone,
            f"is not known ({first_line(error)})",
            "name one such as 'Europe/Berlin'",
        ) from None
    return first, last


def _named(row_name: RowName | None, place: int) -> str:
    """The row at a place, in brackets; empty where rows have no names."""
    return "" if row_name is None else f" ({row_name(place)})"


def shown_range(first: float, last: float) -> tuple[str, str]:
    """Two times for reading, in one form: ISO 8601 in UTC if both lie within 2000 to 2100, else
    seconds.

    Both have as many decimals as the one that needs more, six at most.
    """
    if not EARLIEST <= first <= last <= LATEST:
        return f"{first:.15g} s", f"{last:.15g} s"
    microseconds = [round(1e6 * each) for each in (first, last)]
    timespec = "microseconds"
    # The shortest form is taken in which neither time loses a digit.
    for length, name in ((1_000_000, "seconds"), (1_000, "milliseconds")):
        if all(each % length == 0 for each in microseconds):
            timespec = name
            break
    # Whole microseconds are added to 1970, because fromtimestamp would round a float.
    start = datetime.datetime.fromtimestamp(0, datetime.UTC)
    moments = [start + datetime.timedelta(microseconds=each) for each in microseconds]
    return moments[0].isoformat(timespec=timespec), moments[1].isoformat(timespec=timespec)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
