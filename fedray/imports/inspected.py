"""Inspection of a log before its import: its columns, all problems, and the next command.

The rows are checked by the importer's own reader. The whole log is held in memory.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.errors import InputError
from fedray.base.quiet_duckdb import connected
from fedray.base.rounding import counted
from fedray.imports.importer import REPEATED
from fedray.imports.log import Log, LogLayout, shown_value
from fedray.imports.log_files import LogFiles
from fedray.imports.log_rounds import Numbering
from fedray.imports.log_times import ISO_8601, TimeReader

WORDS = {
    "time": ("timestamp", "datetime", "time", "date"),
    "round": ("round", "attempt", "iteration"),
    "device": (
        "device",
        "deviceid",
        "client",
        "clientid",
        "phone",
        "installation",
        "user",
        "userid",
        "id",
    ),
    "owner": ("owner", "person"),
}
"""Words in the names of columns by role, the most certain first."""
FEW = 8
"""Most values of a column that may be outcomes."""
_CHECKS = {
    "device": "SELECT count(*), min(row) FROM staged"
    " WHERE row NOT IN (SELECT min(row) FROM staged GROUP BY device, round)",
    "owner": "SELECT count(DISTINCT device), min(row) FROM staged"
    " JOIN (SELECT device, arg_min(owner, row) AS first FROM staged GROUP BY device)"
    " USING (device) WHERE owner <> first",
    "round": "SELECT max(round) - min(round) + 1 - count(DISTINCT round) FROM staged",
    "time": "SELECT count(*), min(round), arg_min(row, round) FROM (SELECT round, min(row) AS row,"
    " max(time) AS last, lag(min(time)) OVER (ORDER BY round) AS before FROM staged"
    " WHERE time IS NOT NULL GROUP BY round) WHERE last < before",
}
"""Queries of staged rows by column: repeated rounds, devices of several owners, gaps between round
numbers, and rounds out of order; with the first row."""
# pyarrow makes these functions at import, and its stubs do not know them.
_COMPUTE: Any = pc


@dataclass(frozen=True, slots=True)
class Inspection:
    """Description of a log, and its problems.

    columns: name, type, distinct values, empty cells, examples and guessed role of each column.
    problems: reasons for which the import refuses the log; each with a count and the first row.
    notes: remarks that change the meaning of the import, but do not prevent it.
    command: arguments of the import to run next.
    """

    columns: tuple[tuple[str, ...], ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    command: tuple[str, ...]

    @property
    def is_importable(self) -> bool:
        """Whether the command imports the log as it is."""
        return not self.problems


def inspect_log(
    log: Path,
    columns: Mapping[str, list[str]],
    where: Sequence[str] = (),
    repeats: str = "refuse",
    leave_out_invalid: bool = False,
    rounds: str | None = None,
    out: Path | None = None,
    **form: Any,
) -> Inspection:
    """Describes a log, and checks it as the import would. Writes nothing.

    Args:
        log: file or directory of CSV or Parquet files.
        columns: known columns by role; the others are guessed from their names.
        where: conditions "COLUMN=VALUE" for rows that are participations.
        repeats: further rows of a device in a round, as the import takes them.
        leave_out_invalid: whether the import leaves out incomplete rows.
        rounds: rounds that released a model, as the command has them; None for all in the log.
        out: directory for the trace; None for a name like the log's.
        form: further fields of LogLayout.

    Raises:
        InputError: the log cannot be read at all, or an argument is wrong.
    """
    names = _files(log, form).names
    if len(names) == 1 and not form.get("delimiter"):
        form["delimiter"] = next((each for each in ";\t|" if each in names[0]), None)
        names = _files(log, form).names
    files = _files(log, form, names)
    table = pa.Table.from_batches(files.batches(), pa.schema(files.types))
    described = [_described(table[name], name) for name in names]
    roles = {role: given for role, given in columns.items() if given}
    roles |= {role: [name] for role, name in _guessed(described, roles).items()}
    role_of = {name: role for role, of_role in roles.items() for name in of_role}
    unused = set(names).difference(role_of, (each.partition("=")[0] for each in where))
    missing = [role for role in ("device", "round") if role not in roles]
    problems = [f"no column looks like the {each}; give --column {each}=NAME" for each in missing]
    notes = [text for name in names if name in unused and (text := _few(table[name], name))]
    if not problems:
        layout = LogLayout(
            devices=tuple(roles["device"]),
            round=roles["round"][0],
            owner=next(iter(roles.get("owner", ())), None),
            where=tuple(where),
            **form,
        )
        found = _Rows(log, layout, table, roles.get("time", ())[:1])
        for each in found.source.left_out.values():
            text = f"{counted(each.rows, 'row')} {each.reason} (first: row {each.row})"
            # A round beyond all numbers is refused in any case.
            if leave_out_invalid and not found.source.out_of_range:
                notes.append(f"{text}, left out; claims are then unchecked")
            else:
                problems.append(f"{text}; correct them, or leave them out by --leave-out-invalid")
        problems += found.problems
        notes += found.notes
        if found.is_repeated and repeats == "refuse":
            repeats = "each"
            notes.append(
                "--repeats each counts all rows of a device in a round, the safe reading; give "
                "once if they are records of one contribution"
            )
    if rounds is None:
        notes.append(
            "--rounds logged says that every round in the log released a model; else list them"
        )
    # A leading "-" would make an option of the file.
    command = ["fedray", "import", f"./{log}" if str(log).startswith("-") else str(log)]
    command += [word for name, role in role_of.items() for word in ("--column", f"{role}={name}")]
    command += [word for each in where for word in ("--where", each)]
    for name, value in form.items():
        if value:
            option = name.replace("time_unit", "time_format").replace("_", "-")
            command += [f"--{option}", value]
    command += ["--leave-out-invalid"] * leave_out_invalid
    command += ["--repeats", repeats] * (repeats != "refuse")
    command += ["--rounds", rounds or "logged", f"--out={out or f'{log.stem}-trace'}"]
    cells = tuple((*each, role_of.get(each[0], "")) for each in described)
    return Inspection(cells, tuple(problems), tuple(notes), tuple(command))


def _files(log: Path, form: Mapping[str, Any], names: Sequence[str] = ()) -> LogFiles:
    columns = dict.fromkeys(names, "column")
    return LogFiles(log, columns, form.get("file_format"), form.get("delimiter"))


def _few(column: pa.ChunkedArray, name: str) -> str:
    """Returns a note on a column whose few values may decide which rows are participations."""
    counts = column.value_counts()
    if not 2 <= len(counts) <= FEW:
        return ""
    shown = ", ".join(
        f"{shown_value(each['values'])} {each['counts'].as_py():,}" for each in counts
    )
    return (
        f"{name} has the values {shown}; if not all are participations, give --where {name}=VALUE"
    )


class _Rows:
    """Participations among the rows of a log, as the import stages them, with their problems."""

    def __init__(self, log: Path, layout: LogLayout, table: pa.Table, times: Sequence[str]) -> None:
        self.problems: list[str] = []
        self.notes: list[str] = []
        # Times are read below, because the import refuses the first wrong one.
        self.source = Log(log, layout, Numbering(None, True, None), lambda text: None)
        batches, places = [], [np.empty(0, np.int64)]
        for batch in self.source.participations(table.to_batches()):
            batches.append(batch)
            places.append(self.source.places)
        rows = np.concatenate(places)
        seconds = np.full(rows.size, np.nan)
        for name in times:
            found = table[name].combine_chunks().take(pa.array(rows))
            self._read_times(layout.time_reader(f"column {name!r}"), found, rows, seconds)
        staged = pa.Table.from_batches(batches, self.source.schema)
        staged = staged.append_column("row", pa.array(rows + 1))
        staged = staged.append_column("time", pa.array(seconds, from_pandas=True))
        self.is_repeated = self._check(staged)

    def _read_times(
        self, reader: TimeReader, times: pa.Array, rows: Int64Array, seconds: Float64Array
    ) -> None:
        """Sets `seconds` [N] of the rows with a time, if all of these can be read."""
        filled = np.flatnonzero(times.is_valid())
        if times.null_count:
            first = rows[np.flatnonzero(times.is_null())[0]] + 1
            text = f"{counted(times.null_count, 'row')} without a time (first: row {first})"
            self.problems.append(text)
        try:
            seconds[filled] = reader.seconds(
                times.take(pa.array(filled)), lambda place: f"row {rows[filled[place]] + 1}"
            )
        except InputError as error:
            self.problems.append(str(error))
            return
        doubt = "; is that so? Otherwise give --time-zone" if "taken as UTC" in reader.form else ""
        self.notes.append(f"times: {reader.form}{doubt}")

    def _check(self, staged: pa.Table) -> bool:
        """Checks staged rows; returns whether a device repeats a round."""
        if not len(staged):
            self.problems.append("no row is a participation")
            return False
        checks = {name: query for name, query in _CHECKS.items() if name in staged.schema.names}
        with connected({}) as connection:
            connection.register("staged", staged)
            found = {name: connection.sql(each).fetchall()[0] for name, each in checks.items()}
        if found.get("owner", (0,))[0]:
            count, row = found["owner"]
            self.problems.append(
                f"{counted(count, 'device')} with two or more owners (first: row {row}), but a "
                "device belongs to one person; correct the log, or name a device by both columns"
            )
        again, row = found["device"]
        if again:
            self.notes.append(f"{counted(again, 'row')} of {REPEATED} (first: row {row})")
        if gaps := found["round"][0]:
            text = f"{counted(gaps, 'round number')} between the first and the last do not occur"
            self.notes.append(text)
        late, number, row = found["time"]
        if late:
            text = f"{counted(late, 'round')} that ended before the round before began"
            self.notes.append(f"{text} (first: round {number}, row {row}); is the order right?")
        return bool(again)


def _guessed(
    described: Sequence[tuple[str, ...]], given: Mapping[str, list[str]]
) -> dict[str, str]:
    """Returns columns by role, from the words in their names; a column has one role. Times may also
    be the only column that looks like them."""
    taken = {name for of_role in given.values() for name in of_role}
    times = [name for name, kind, *_ in described if "ISO 8601" in kind or "timestamp" in kind]
    found: dict[str, str] = {}
    for role in (role for role in WORDS if role not in given):
        named = [
            each[0] for word in WORDS[role] for each in described if word in _words_of(each[0])
        ]
        if role == "time" and len(times) == 1:
            named += times
        free = [name for name in named if name not in taken]
        if free:
            found[role] = free[0]
            taken.add(free[0])
    return found


def _words_of(name: str) -> list[str]:
    """Returns the words of a name such as client_id or clientId, in lower case."""
    return [word.lower() for word in re.findall("[A-Z]?[a-z]+|[A-Z]+", name)]


def _described(column: pa.ChunkedArray, name: str) -> tuple[str, ...]:
    """Returns name, type, distinct values, empty cells and examples of a column."""
    values = column.unique().drop_null()
    examples = ", ".join(shown_value(each) for each in values[:3])
    return (name, _kind(values), f"{len(values):,}", f"{column.null_count:,}", examples)


def _kind(values: pa.Array) -> str:
    """Returns the type of distinct values; for text, also what all of it can be read as."""
    kind = str(values.type)
    if not pa.types.is_string(values.type) or not len(values):
        return kind
    if _COMPUTE.all(_COMPUTE.match_substring_regex(values, r"^-?[0-9]+$")).as_py():
        return "text, whole numbers"
    is_time = _COMPUTE.all(_COMPUTE.match_substring_regex(values, ISO_8601)).as_py()
    return "text, ISO 8601" if is_time else "text"
