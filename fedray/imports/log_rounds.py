"""How the round numbers of a log become ours, 0 .. n-1 in order of release: as they are, by their
ranks, or by a list.

A log's numbers often have gaps: attempts that were abandoned, runs that were restarted. Min-sep
counts released models, so a gap that is taken for a release makes two participations look further
apart than they were.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedray.base.errors import InputError
from fedray.imports.log_times import TimeReader
from fedray.trace.files import first_line
from fedray.trace.imported import AS_THEY_ARE, BY_LIST, BY_RANK

MOST_ROUNDS = 2**32 - 1
LARGEST_NUMBER = 10**18
"""Largest number of a round in a log."""
MOST_SHOWN = 5


@dataclass(frozen=True, slots=True)
class ReleasedRounds:
    """The rounds that released a model, as a file lists them: those that are not listed released
    nothing."""

    numbers: NDArray[np.int64]
    """The log's numbers of the rounds, [n], distinct, in order of release."""
    seconds: NDArray[np.float64] | None
    """When each was released, [n], not decreasing; None if the file has no times."""
    form: str
    """What the times are, in words."""


class Numbering:
    """Takes the numbers of a log, batch by batch; knows ours once all have been seen.

    rounds: how many released a model, if that was said. has_ranks: whether ours are the ranks of
        the numbers that occur.
    """

    def __init__(
        self, rounds: int | None, has_ranks: bool, released: ReleasedRounds | None
    ) -> None:
        if rounds is not None and not 1 <= rounds <= MOST_ROUNDS:
            raise InputError.of(
                "rounds",
                rounds,
                f"must be from 1 to {MOST_ROUNDS}",
                "it is how many rounds released a model",
            )
        if has_ranks and released is not None:
            raise InputError(
                "`renumber=True` and `rounds_file=FILE` both say which rounds released a model; "
                "give one of them"
            )
        if rounds is None and not has_ranks and released is None:
            raise InputError(
                "say which rounds released a model: `rounds=N` for all of 0 .. N-1, "
                "`renumber=True` for all that occur in the log, or `rounds_file=FILE` for a list"
            )
        if released is not None and rounds not in (None, released.numbers.size):
            raise InputError.of(
                "rounds",
                rounds,
                f"is not the {released.numbers.size:,} rounds that the rounds file lists",
                "leave the number out",
            )
        self.how = AS_THEY_ARE
        if has_ranks:
            self.how = BY_RANK
        elif released is not None:
            self.how = BY_LIST
        self.released = released
        self.unreleased_rows = 0
        """Rows in rounds that the list does not have."""
        self._rounds = rounds
        self._seen = np.empty(0, np.int64)
        self._unreleased = np.empty(0, np.int64)
        if released is not None:
            # The list is in order of release, so numbers are looked up in a sorted copy.
            self._order = np.argsort(released.numbers)
            self._sorted = released.numbers[self._order]

    @property
    def type(self) -> pa.DataType:
        """The type of the numbers that `staged` returns: 64 bits for those of the log, 32 for
        ours."""
        return pa.int64() if self.how == BY_RANK else pa.uint32()

    @property
    def limit(self) -> int:
        """The bound of round numbers: rows with this number, or one above, are refused as beyond
        any round."""
        if self.how == AS_THEY_ARE and self._rounds is not None:
            return self._rounds
        return LARGEST_NUMBER

    def staged(self, numbers: NDArray[np.int64]) -> tuple[NDArray, NDArray[np.bool_] | None]:
        """(numbers to be sorted by, which rows released something; None for all), of a log's
        numbers [N] below `limit`."""
        if self.how != BY_LIST:
            # Distinct numbers are kept, so that memory grows with the rounds and not with the rows.
            self._seen = _union(self._seen, numbers)
            return (numbers if self.how == BY_RANK else numbers.astype(np.uint32)), None
        # The minimum is for numbers above all that are listed, which have no place.
        places = np.minimum(np.searchsorted(self._sorted, numbers), self._sorted.size - 1)
        is_released = self._sorted[places] == numbers
        if not is_released.all():
            self.unreleased_rows += int((~is_released).sum())
            self._unreleased = _union(self._unreleased, numbers[~is_released])
            places = places[is_released]
        ours = self._order[places]
        self._seen = _union(self._seen, ours)
        return ours.astype(np.uint32), None if is_released.all() else is_released

    def finish(self, log: str) -> NDArray[np.int64]:
        """The log's number of each of our rounds [n], or our own where they are the log's. Raises
        InputError for gaps."""
        if self.how == BY_LIST:
            assert self.released is not None
            return self.released.numbers
        if self.how == BY_RANK:
            if self._rounds not in (None, self._seen.size):
                raise InputError.of(
                    "rounds",
                    self._rounds,
                    f"is not the {self._seen.size:,} rounds with participations in log {log!r}, "
                    "which `renumber=True` counts",
                    "leave the number out, or list the rounds that released a model by "
                    "`rounds_file=FILE`",
                )
            return self._seen
        assert self._rounds is not None
        # All numbers are below `rounds`, so the count of distinct ones tells how many are missing.
        empty = self._rounds - self._seen.size
        if empty:
            raise InputError(
                f"log {log!r} has no participation in {empty:,} of the rounds 0 .. "
                f"{self._rounds - 1} (such as "
                f"{_listed(self.missing(), empty)}): if those released nothing, participations "
                "look further apart than they are. "
                "Number the rounds that occur by `renumber=True`, or list those that released a "
                "model by `rounds_file='released.csv'`"
            )
        return self._seen

    @property
    def empty_rounds(self) -> int:
        """How many of the listed rounds nobody of this log took part in; they released a model all
        the same, and count."""
        return self.released.numbers.size - self._seen.size if self.released is not None else 0

    @property
    def unreleased(self) -> str:
        """The rounds of the log that the list does not have: how many, and some of them."""
        return _listed(self._unreleased[:MOST_SHOWN].tolist(), self._unreleased.size)

    def missing(self) -> list[int]:
        """The first few of the rounds 0 .. rounds-1 in which the log has no participation, for
        messages."""
        assert self._rounds is not None
        # Of so many first numbers at least MOST_SHOWN are missing, if as many are at all.
        first = np.arange(min(self._rounds, self._seen.size + MOST_SHOWN))
        return np.setdiff1d(first, self._seen)[:MOST_SHOWN].tolist()


def read_released(
    file: Path, table: pa.Table, round_column: str, time_column: str | None, times: TimeReader
) -> ReleasedRounds:
    """Reads the rounds that a table lists.

    Args:
        file: where the table is from, for messages.
        table: its rounds are in `round_column`, `round`, or its only column; its times, if it has
            any, in `time_column` or `time`.
        round_column: the log's column of the round.
        time_column: the log's column of times; None if it has none.
        times: reads the times.

    Raises:
        InputError: unless rounds are distinct whole numbers in order.
    """
    names = table.column_names
    # The log's own name comes first, then the usual one, then the only one.
    round_name = next(
        (name for name in (round_column, "round") if name in names),
        names[0] if len(names) == 1 else None,
    )
    if round_name is None:
        raise InputError.of(
            "rounds_file",
            str(file),
            f"has the columns {', '.join(names[:20])}",
            f"call that of the rounds {round_column!r} or 'round'",
        )
    if len(set(names)) < len(names):
        raise InputError.of(
            "rounds_file", str(file), "has two columns of one name", "rename one of them"
        )
    numbers = _whole(table.column(round_name).combine_chunks(), file)
    time_name = next(
        (name for name in (time_column, "time") if name in names and name != round_name), None
    )
    seconds, form = None, ""
    if time_name is not None:
        seconds = times.seconds(table.column(time_name).combine_chunks())
        form = times.form
    _check_order(numbers, seconds, file)
    return ReleasedRounds(numbers, seconds, form)


def plain_list(file: Path) -> pa.Table | None:
    """A file of one whole number per line, as a table; None if its first line is something else."""
    try:
        with file.open("rb") as lines:
            first = next((line for line in lines if line.strip()), b"")
            # No column is called by digits, so a first line of digits begins a plain list.
            if not first.strip().removeprefix(b"-").isdigit():
                return None
            rest = [line.strip() for line in [first, *lines] if line.strip()]
    except OSError as error:
        raise InputError.of(
            "rounds_file",
            str(file),
            f"cannot be read ({error.strerror})",
            "name a CSV or Parquet file",
        ) from None
    wrong = next((line for line in rest if not line.removeprefix(b"-").isdigit()), None)
    if wrong is not None:
        raise InputError.of(
            "rounds_file",
            str(file),
            f"begins with a number, so it has one per line, but one line is {wrong[:60]!r}",
            "give it one number per line, or a first line with the columns' names",
        )
    # Text is what CSV gives too, so that both are cast and refused alike.
    return pa.table({"round": pa.array([line.decode() for line in rest], pa.string())})


def _whole(column: pa.Array, file: Path) -> NDArray[np.int64]:
    try:
        numbers = column.cast(pa.int64())
    except pa.ArrowException as error:
        raise InputError.of(
            "rounds_file", str(file), f"has rounds that are no whole numbers ({first_line(error)})"
        ) from None
    if not len(numbers):
        raise InputError.of(
            "rounds_file", str(file), "lists no round", "nothing was released that could be audited"
        )
    if numbers.null_count:
        raise InputError.of(
            "rounds_file",
            str(file),
            f"has {numbers.null_count:,} lines without a round",
            "correct them",
        )
    found = numbers.to_numpy(zero_copy_only=False)
    if found.min() < 0 or found.max() >= LARGEST_NUMBER:
        wrong = found.min() if found.min() < 0 else found.max()
        raise InputError.of(
            "rounds_file",
            str(file),
            f"has round {wrong}",
            "rounds are numbers from 0 to 10^18, correct it",
        )
    return found


def _check_order(
    numbers: NDArray[np.int64], seconds: NDArray[np.float64] | None, file: Path
) -> None:
    """Rounds in the wrong order would give a wrong min-sep: numbers increase, or else times do."""
    distinct, counts = np.unique(numbers, return_counts=True)
    if distinct.size < numbers.size:
        raise InputError.of(
            "rounds_file",
            str(file),
            f"lists round {distinct[counts.argmax()]} more than once",
            "drop repeats",
        )
    # Times show the order where there are any, and numbers may then be in any order.
    falls = np.flatnonzero(np.diff(numbers if seconds is None else seconds) < 0)
    if falls.size:
        before, after = numbers[falls[0] : falls[0] + 2]
        remedy = (
            "sort the file by time"
            if seconds is not None
            else "sort it in order of release, or add a column 'time' that shows it"
        )
        raise InputError.of(
            "rounds_file",
            str(file),
            f"must list rounds in order of release, but {after} comes after {before}",
            f"{remedy}",
        )


def _union(known: NDArray[np.int64], numbers: NDArray) -> NDArray[np.int64]:
    # A batch has few distinct numbers, and only those need be sorted.
    found: Any = pa.array(numbers).unique().to_numpy(zero_copy_only=False)
    return np.union1d(known, found)


def _listed(some: list[int], count: int) -> str:
    shown = ", ".join(map(str, some[:MOST_SHOWN]))
    return f"{shown}, ... {count:,} in all" if count > MOST_SHOWN else shown
