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

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.atomic import write_whole
from fedray.base.errors import InputError, shown
from fedray.imports.log_files import DAMAGE, csv_names, open_csv, open_parquet
from fedray.imports.log_times import TimeReader, are_moments
from fedray.trace.files import first_line
from fedray.trace.imported import AS_THEY_ARE, BY_LIST, BY_RANK

MOST_ROUNDS = 2**32 - 1
LARGEST_NUMBER = 10**18
"""Upper limit of round numbers in a log."""
MOST_SHOWN = 5
_EXACT = {pa.float16(): 2.0**11, pa.float32(): 2.0**24, pa.float64(): 2.0**53}
"""Integer by type below which all are exact, and no other is rounded to them."""
_PARQUET = (".parquet", ".pq")
REMEDY = (
    "number the rounds that occur with `renumber=True`, or list the rounds that released a model "
    "with `rounds_file='released.csv'`"
)


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
    is_exact = np.abs(np.nan_to_num(values.to_numpy(zero_copy_only=False))) < _EXACT[rounds.type]
    return pc.if_else(pa.array(is_exact), values, None)  # pyright: ignore[reportAttributeAccessIssue]


def listed(some: Int64Array, count: int) -> str:
    """Returns the first few of some numbers, for messages, and their total if there are more."""
    shown = ", ".join(map(str, some[:MOST_SHOWN].tolist()))
    return f"{shown}, ... {count:,} in all" if count > MOST_SHOWN else shown


def read_rounds_file(
    file: Path, separator: str, round_column: str, time_column: str | None, times: TimeReader
) -> ReleasedRounds:
    """Reads a list of rounds in order of release: one per line, or a CSV or Parquet file.

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
    if file.is_file():
        remedy = "name a new file, or remove it first"
        raise InputError.of("propose_rounds", str(file), "exists already", remedy)
    if file.suffix.lower() in _PARQUET:
        rule = "would be read as Parquet, but the list is CSV"
        raise InputError.of("propose_rounds", str(file), rule, "name it .csv")


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
    what = f"propose_rounds={str(file)!r}"
    write_whole(file, text.getvalue().encode(), what, InputError)


def _table(file: Path, separator: str, round_column: str) -> pa.Table:
    if file.suffix.lower() in _PARQUET:
        with open_parquet(file) as parquet:
            _check_distinct(parquet.schema_arrow.names, file)
            return parquet.read()
    names = csv_names(file, separator)
    # A first line that is neither digits nor names may or may not be a round.
    if len(names) == 1 and names[0].strip().removeprefix("-").isdigit():
        if names[0] == round_column:
            raise _refused(
                file, f"begins with {names[0]!r}, a round or a name", "rename the column"
            )
        return open_csv(file, ["round"], separator, header=["round"]).read_all()
    _check_distinct(names, file)
    # Columns are read as text, because pyarrow would guess types and lose the offsets of times.
    return open_csv(file, names, separator).read_all()


def _check_distinct(names: list[str], file: Path) -> None:
    if len(set(names)) < len(names):
        raise _refused(file, "has two columns with the same name", "rename one of them")


def _whole(column: pa.Array, file: Path) -> Int64Array:
    try:
        # A cast refuses spaces, which lists made by hand have.
        if pa.types.is_string(column.type):
            column = pc.utf8_trim_whitespace(column)  # pyright: ignore[reportAttributeAccessIssue]
        exact = exact_floats(column)
        if exact.null_count > column.null_count:
            raise _refused(
                file, f"has rounds that {column.type} does not hold exactly", "correct them"
            )
        numbers = exact.cast(pa.int64())
    except pa.ArrowException as error:
        rule = f"has rounds that are not integers ({first_line(error)})"
        raise _refused(file, rule, "correct them") from None
    if not len(numbers):
        raise _refused(file, "lists no round", "list the rounds that released a model")
    if numbers.null_count:
        raise _refused(file, f"has {numbers.null_count:,} lines without a round", "correct them")
    found = np.asarray(numbers)
    wrong = found[(found < 0) | (found >= LARGEST_NUMBER)]
    if wrong.size:
        remedy = "rounds must be from 0 to 10^18; correct it"
        raise _refused(file, f"has round {wrong[0]}", remedy)
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
