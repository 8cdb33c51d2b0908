"""Relates a log's round numbers to the trace's, 0 .. n-1 in order of release.

The trace's numbers are equal to the log's, their ranks, or positions in a list. A log's numbers
often have gaps, from abandoned attempts or restarted runs. Min-sep counts released models, so a gap
that is mistaken for a release makes participations look further apart than they were.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.atomic import is_taken, write_output
from fedray.base.errors import InputError, shown
from fedray.base.file_form import form_of
from fedray.imports.log_files import (
    DAMAGE,
    WHOLE,
    LogFiles,
    is_text,
    open_csv,
)
from fedray.imports.log_times import TimeReader, are_moments
from fedray.trace.files import first_line
from fedray.trace.imported import AS_THEY_ARE, BY_LIST, BY_RANK

MOST_ROUNDS = 2**32 - 1
LARGEST_NUMBER = 10**18
"""Upper limit of round numbers in a log."""
LONGEST_EXACT = 2**53
"""Larger integers are not exact as float64."""
TOO_LARGE = 2**62
"""Stands for every larger number; int64 and float64 hold it exactly."""
MOST_SHOWN = 5
_EXACT = {pa.float16(): 2.0**11, pa.float32(): 2.0**24, pa.float64(): 2.0**53}
"""Integer by type below which all are exact, and no other is rounded to them."""
REMEDY = (
    "number the rounds that occur with `renumber=True`, or list the rounds that released a model "
    "with `rounds_file='released.csv'`"
)
# pyarrow makes these functions at import, and its stubs do not know them.
_COMPUTE: Any = pc


@dataclass(frozen=True, slots=True)
class ReleasedRounds:
    """Rounds that released a model, read from a file; all other rounds released nothing."""

    numbers: Int64Array
    """Numbers of the rounds in the log, [n], distinct, in order of release."""
    seconds: Float64Array | None
    """Time of each release, [n], not decreasing; None if the file has no times."""
    form: str
    """Form of the times, in words."""
    step: float = 0.0
    """Step in seconds to which the times are rounded; 0 if it is a second or less, or unknown."""
    doubts: tuple[str, ...] = ()
    """Sentences on the rounding of the times, and on another reading of them."""


class Numbering:
    """The relation between a log's round numbers and the trace's.

    Args:
        rounds: number of rounds that released a model, if known.
        has_ranks: whether the trace's numbers are ranks of the numbers that occur.
        released: rounds of the rounds file; None without one.

    Raises:
        InputError: the arguments contradict each other, or do not determine the rounds.
    """

    def __init__(
        self, rounds: int | None, has_ranks: bool, released: ReleasedRounds | None
    ) -> None:
        if rounds is not None and not 1 <= rounds <= MOST_ROUNDS:
            rule = f"must be from 1 to {MOST_ROUNDS}"
            raise InputError.of("rounds", rounds, rule, "it counts rounds that released a model")
        if (rounds is not None) + has_ranks + (released is not None) != 1:
            raise InputError(
                "which rounds released a model must be given in one way; use `rounds=N` for 0 .. "
                "N-1, `renumber=True` for all that occur in the log, or `rounds_file=FILE` for a "
                "list"
            )
        self.how = AS_THEY_ARE
        if has_ranks:
            self.how = BY_RANK
        elif released is not None:
            self.how = BY_LIST
        self.released = released
        self.limit = LARGEST_NUMBER
        """Rows with this round number or a higher one are refused."""
        if rounds is not None:
            self.limit = rounds
        self._rounds = rounds
        # The list is in order of release, so numbers are looked up in a sorted copy.
        if released is not None:
            self._order = np.argsort(released.numbers)
            self._sorted = released.numbers[self._order]

    def staged(self, numbers: Int64Array) -> Int64Array:
        """Returns values in the order of the trace's rounds for log rounds [N]; -1 if not released.

        They are positions in the rounds file if there is one, otherwise the log's numbers, because
        ranks are known only after the last row.
        """
        if self.released is None:
            return numbers
        # Numbers above all listed ones have no position, hence the minimum.
        places = np.searchsorted(self._sorted, numbers)
        places = np.minimum(places, self._sorted.size - 1)
        return np.where(self._sorted[places] == numbers, self._order[places], -1)

    def log_rounds(self, seen: Int64Array, log: str) -> Int64Array:
        """Returns the log's numbers of the trace's rounds 0 .. n-1, [n].

        Args:
            seen: distinct staged values, sorted.
            log: name of the log in messages.

        Raises:
            InputError: rounds are missing.
        """
        if self.released is not None:
            return self.released.numbers
        missing = 0 if self._rounds is None else self._rounds - seen.size
        if missing:
            # These numbers include the first MOST_SHOWN missing ones, or all of them.
            first = np.arange(min(self.limit, seen.size + MOST_SHOWN))
            some = listed(np.setdiff1d(first, seen), missing)
            raise InputError(
                f"log {log!r} has no participation in {missing:,} of the rounds 0 .. "
                f"{self.limit - 1} (such as {some}): if these rounds released nothing, "
                f"participations would look further apart than they are; {REMEDY}"
            )
        return seen


def exact_floats(rounds: pa.Array) -> pa.Array:
    """Returns rounds [N], with null if the type may have rounded one: larger integers are not exact
    as floats, so that two rounds may have one number."""
    if rounds.type not in _EXACT:
        return rounds
    values = rounds.cast(pa.float64())
    sizes = np.abs(np.nan_to_num(values.to_numpy(zero_copy_only=False)))
    # Numbers beyond all rounds are refused for their size.
    is_exact = (sizes < _EXACT[rounds.type]) | (sizes >= LARGEST_NUMBER)
    return pc.if_else(pa.array(is_exact), values, None)  # pyright: ignore[reportAttributeAccessIssue]


def listed(some: Int64Array, count: int) -> str:
    """Returns the first few of some numbers, for messages, and their total if there are more."""
    shown = ", ".join(map(str, some[:MOST_SHOWN].tolist()))
    return f"{shown}, ... {count:,} in all" if count > MOST_SHOWN else shown


def read_rounds_file(
    file: Path, separator: str, round_column: str, time_column: str | None, times: TimeReader
) -> ReleasedRounds:
    """Reads a list of rounds in order of release: one per line, or a file of a log's formats.

    Args:
        file: path of the file. Rounds are in `round_column` or `round`, and times, if any, in
            `time_column` or `time`; it has no other column, and a list of digits no header.
        separator: character between columns of CSV.
        round_column: column of rounds in the log.
        time_column: column of times in the log; None if it has no times.
        times: reader of the times.

    Raises:
        InputError: the file cannot be read, or its rounds are not distinct integers in order.
    """
    if not file.is_file():
        remedy = "give a file that lists the rounds that released a model"
        raise InputError.of("rounds_file", str(file), "does not exist", remedy)
    try:
        table = _table(file, separator, round_column)
    except DAMAGE as error:
        raise _refused(file, f"cannot be read ({first_line(error)})", "correct it") from None
    names = table.column_names
    # The log's own names have precedence over the usual ones.
    chosen = [name for name in (round_column, "round") if name in names][:1]
    rule = f"has the columns {shown(', '.join(names[:20]))}"
    if not chosen:
        raise _refused(file, rule, f"name the column of rounds {round_column!r} or 'round'")
    numbers = _whole(table.column(chosen[0]).combine_chunks(), file)
    chosen += [name for name in (time_column, "time") if name in names and name not in chosen][:1]
    if other := [name for name in names if name not in chosen]:
        remedy = f"keep only released rounds, and drop the column {other[0]!r}"
        raise _refused(file, f"{rule}, but may only have rounds and their times", remedy)
    seconds = None
    if len(chosen) > 1:
        column = table.column(chosen[1]).combine_chunks()
        # Times with an offset are certain, whatever form the log's own times have.
        times = TimeReader(times.where) if are_moments(column) else times
        seconds = times.seconds(column)
    _check_order(numbers, seconds, file)
    return ReleasedRounds(numbers, seconds, times.form, times.step, tuple(times.doubts))


def check_new_list(file: Path) -> None:
    """Raises InputError if a list of rounds cannot be written to a file without a loss."""
    if is_taken(file):
        remedy = "name a new file, or remove it first"
        raise InputError.of("propose_rounds", str(file), "exists already", remedy)


def write_rounds_file(
    file: Path, separator: str, numbers: Int64Array, times: Sequence[str]
) -> None:
    """Writes a list of rounds as CSV, which `read_rounds_file` reads.

    Args:
        file: path of the file.
        separator: character between columns.
        numbers: numbers of the rounds in the log, in order of release, [n].
        times: text of the time of each round, [n]; empty for a list without.

    Raises:
        InputError: the file cannot be written.
    """
    columns = (numbers.tolist(), times) if times else (numbers.tolist(),)
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator, lineterminator="\n")
    writer.writerow(("round", "time")[: len(columns)])
    writer.writerows(zip(*columns, strict=True))
    write_output(file, text.getvalue().encode(), f"propose_rounds={str(file)!r}")


def whole_numbers(rounds: pa.Array) -> pa.Array:
    """Returns rounds [N] as int64, beyond 10^18 perhaps as TOO_LARGE; null if a value is not an
    integer."""
    kind = rounds.type
    if is_text(kind):
        digits = _COMPUTE.utf8_trim_whitespace(rounds)
        digits = _COMPUTE.replace_substring_regex(digits, r"^(-?)0+([0-9])", r"\1\2")
        # 18 digits always fit int64.
        is_large = _COMPUTE.match_substring_regex(digits, r"^[0-9]{19,}$")
        digits = _COMPUTE.if_else(is_large, str(TOO_LARGE), digits)
        is_short = _COMPUTE.match_substring_regex(digits, r"^-?[0-9]{1,18}$")
        is_integer = _COMPUTE.or_(is_large, is_short)
        return _COMPUTE.if_else(is_integer, digits, pa.scalar(None, kind)).cast(pa.int64())
    if pa.types.is_floating(kind):
        values = exact_floats(rounds)
        is_large = _COMPUTE.greater_equal(values, float(LARGEST_NUMBER))
        is_exact = _COMPUTE.less_equal(_COMPUTE.abs(values), float(LONGEST_EXACT))
        is_integer = _COMPUTE.and_(is_exact, _COMPUTE.equal(values, _COMPUTE.trunc(values)))
        values = _COMPUTE.if_else(is_integer, values, None).cast(pa.int64())
        return _COMPUTE.if_else(is_large, pa.scalar(TOO_LARGE), values)
    if kind == WHOLE:
        least = pa.scalar(-1).cast(kind)
        rounds = _COMPUTE.max_element_wise(rounds, least, skip_nulls=False)
    if kind == WHOLE or pa.types.is_uint64(kind):
        largest = pa.scalar(TOO_LARGE).cast(kind)
        rounds = _COMPUTE.min_element_wise(rounds, largest, skip_nulls=False)
    return rounds.cast(pa.int64())


def _table(file: Path, separator: str, round_column: str) -> pa.Table:
    form = form_of(file)
    delimiter = separator if form.content == "CSV" else None
    names = LogFiles(file, {}, delimiter).names
    # A first line that is neither digits nor names may or may not be a round.
    is_list = delimiter is not None and len(names) == 1
    if is_list and names[0].strip().removeprefix("-").isdigit():
        if names[0] == round_column:
            raise _refused(
                file, f"begins with {names[0]!r}, a round or a name", "rename the column"
            )
        return open_csv(file, form, ["round"], separator, header=["round"]).read_all()
    if len(set(names)) < len(names):
        raise _refused(file, "has two columns with the same name", "rename one of them")
    files = LogFiles(file, dict.fromkeys(names, "rounds_file"), delimiter)
    return pa.Table.from_batches(files.batches(), pa.schema(files.types))


def _whole(column: pa.Array, file: Path) -> Int64Array:
    if exact_floats(column).null_count > column.null_count:
        rule = f"has rounds that {column.type} does not hold exactly"
        raise _refused(file, rule, "correct them")
    if not len(column):
        raise _refused(file, "lists no round", "list the rounds that released a model")
    if column.null_count:
        raise _refused(file, f"has {column.null_count:,} lines without a round", "correct them")
    numbers = whole_numbers(column)
    if numbers.null_count:
        first = column[int(np.flatnonzero(numbers.is_null())[0])]
        raise _refused(file, f"has rounds that are not integers ({first})", "correct them")
    found = np.asarray(numbers)
    wrong = np.flatnonzero((found < 0) | (found >= LARGEST_NUMBER))
    if wrong.size:
        remedy = "rounds must be from 0 to 10^18; correct it"
        raise _refused(file, f"has round {column[int(wrong[0])]}", remedy)
    return found


def _check_order(numbers: Int64Array, seconds: Float64Array | None, file: Path) -> None:
    """Checks that numbers, or else times, increase: a wrong order gives a wrong min-sep."""
    distinct, counts = np.unique(numbers, return_counts=True)
    if distinct.size < numbers.size:
        rule = f"lists round {distinct[counts.argmax()]} more than once"
        raise _refused(file, rule, "drop repeats")
    # Numbers may be in any order if times show the order of release.
    falls = np.flatnonzero(np.diff(numbers if seconds is None else seconds) < 0)
    if falls.size:
        before, after = numbers[falls[0] : falls[0] + 2]
        remedy = "sort the file by time"
        if seconds is None:
            remedy = "sort it in order of release, or add a column 'time' with the times of release"
        rule = f"must list rounds in order of release, but {after} comes after {before}"
        raise _refused(file, rule, remedy)


def _refused(file: Path, rule: str, remedy: str) -> InputError:
    return InputError.of("rounds_file", str(file), rule, remedy)
