"""What a log has and lacks before it is imported: its columns, all problems, and the command.

The rows are checked by the importer's own reader. The whole log is held in memory.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.errors import InputError
from fedray.base.rounding import counted
from fedray.imports.importer import REPEATED
from fedray.imports.log import Log, LogLayout, shown_value
from fedray.imports.log_files import LogFiles
from fedray.imports.log_rounds import Numbering
from fedray.imports.log_times import ISO_8601

WORDS = {
    "time": ("timestamp", "datetime", "time", "date"),
    "round": ("round", "attempt", "iteration"),
    "device": ("device", "deviceid", "client", "clientid", "phone", "user", "userid", "id"),
    "owner": ("owner", "person"),
}
"""Words in the names of columns by role, the most certain first."""
FEW = 8
"""Most values of a column that may be outcomes."""
# pyarrow makes these functions at import, and its stubs do not know them.
_COMPUTE: Any = pc


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a log has and lacks.

    columns: of each column: name, type, distinct values, empty cells, examples and guessed role.
    problems: what the import refuses, or must be told; each with a count and the first row.
    notes: what changes the meaning of the import, but does not prevent it.
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
    **form: Any,
) -> Inspection:
    """Describes a log, and checks it as the import would. Writes nothing.

    Args:
        log: file or directory of CSV or Parquet files.
        columns: known columns by role; the others are guessed from their names.
        where: conditions "COLUMN=VALUE" for rows that are participations.
        repeats: further rows of a device in a round, as the import takes them.
        leave_out_invalid: whether the import leaves out incomplete rows.
        form: further fields of LogLayout.

    Raises:
        InputError: the log cannot be read at all, or an argument is wrong.
    """
    reading = form.get("file_format"), form.get("delimiter")
    names = LogFiles(log, {}, *reading).names
    if len(names) == 1 and not form.get("delimiter"):
        found = next((each for each in ";\t|" if each in names[0]), None)
        if found is not None:
            form["delimiter"] = found
            return inspect_log(log, columns, where, repeats, leave_out_invalid, **form)
    files = LogFiles(log, dict.fromkeys(names, "column"), *reading)
    table = pa.Table.from_batches(files.batches(), pa.schema(files.types))
    roles = {role: given for role, given in columns.items() if given} | {
        role: [name] for role, name in _guessed(names, columns).items() if not columns.get(role)
    }
    time = next(iter(roles.get("time", [])), None)
    described = [_described(table[name], name, roles) for name in names]
    problems, notes = [], []
    for role in ("device", "round"):
        if role not in roles:
            problems.append(f"no column looks like the {role}; give --column {role}=NAME")
    unused = set(names).difference(*roles.values(), (each.partition("=")[0] for each in where))
    notes += [text for name in names if name in unused and (text := _few(table[name], name))]
    # A leading "-" would make an option of the file.
    command = ["fedray", "import", f"./{log}" if str(log).startswith("-") else str(log)]
    for role, of_role in roles.items():
        command += [word for name in of_role for word in ("--column", f"{role}={name}")]
    command += [word for each in where for word in ("--where", each)]
    for name, value in form.items():
        if value:
            option = name.replace("time_unit", "time_format").replace("_", "-")
            command += [f"--{option}", value]
    if leave_out_invalid:
        command.append("--leave-out-invalid")
    if repeats != "refuse":
        command += ["--repeats", repeats]
    if not problems:
        layout = LogLayout(
            devices=tuple(roles["device"]),
            round=roles["round"][0],
            owner=next(iter(roles.get("owner", [])), None),
            time=time,
            where=tuple(where),
            **form,
        )
        _check(log, layout, table, problems, notes, command)
    command += ["--rounds", "logged", f"--out={log.stem}-trace"]
    notes.append(
        "--rounds logged says that every round in the log released a model; else list them"
    )
    return Inspection(tuple(described), tuple(problems), tuple(notes), tuple(command))


def _few(column: pa.ChunkedArray, name: str) -> str:
    """Returns a note on a column that may tell which rows are participations, by its few values."""
    counts = column.value_counts()
    if not 2 <= len(counts) <= FEW:
        return ""
    shown = ", ".join(
        f"{shown_value(each['values'])} {each['counts'].as_py():,}" for each in counts
    )
    return (
        f"{name} has the values {shown}; if not all are participations, give --where {name}=VALUE"
    )


def _check(
    log: Path,
    layout: LogLayout,
    table: pa.Table,
    problems: list[str],
    notes: list[str],
    command: list[str],
) -> None:
    # Times are read below, because the reader refuses the first wrong one.
    untimed = replace(layout, time=None, time_unit=None, time_format=None, time_zone=None)
    source = Log(log, untimed, Numbering(None, True, None), lambda text: None)
    batches, places = [], []
    for batch in source.participations():
        batches.append(batch)
        places.append(source.places)
    staged = pa.Table.from_batches(batches, source.schema)
    rows = np.concatenate(places) if places else np.empty(0, np.int64)
    for each in source.left_out.values():
        text = f"{counted(each.rows, 'row')} {each.reason} (first: row {each.row})"
        # A round beyond all numbers is refused in any case.
        if "--leave-out-invalid" in command and not source.out_of_range:
            notes.append(f"{text}, left out; claims are then unchecked")
        else:
            problems.append(f"{text}; correct them, or leave them out by --leave-out-invalid")
    if not staged.num_rows:
        problems.append("no row is a participation")
        return
    rounds = staged["round"].to_numpy()
    devices = _codes(staged["device"])
    if layout.owner is not None:
        _check_owners(devices, _codes(staged["owner"]), rows, problems)
    again = _again(devices, rounds)
    if again.size:
        text = f"{counted(again.size, 'row')} of {REPEATED} (first: row {rows[again[0]] + 1})"
        if "--repeats" not in command:
            text += (
                ": --repeats each counts all of them, the safe reading; give once if they are "
                "records of one contribution"
            )
            command += ["--repeats", "each"]
        notes.append(text)
    numbers = np.unique(rounds)
    if gaps := int(numbers[-1] - numbers[0]) + 1 - numbers.size:
        notes.append(f"{counted(gaps, 'round number')} between the first and the last do not occur")
    if layout.time is not None:
        times = table[layout.time].combine_chunks().take(pa.array(rows))
        seconds = _seconds(layout, times, rows, problems, notes)
        _check_order(seconds, rounds, rows, notes)


def _codes(column: pa.ChunkedArray) -> Int64Array:
    """Returns a number for each value, the same for equal values."""
    return column.combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)


def _check_owners(
    devices: Int64Array, owners: Int64Array, rows: Int64Array, problems: list[str]
) -> None:
    """Adds devices whose rows have different owners, which the import refuses."""
    _, first, places = np.unique(devices, return_index=True, return_inverse=True)
    other = np.flatnonzero(owners != owners[first][places])
    if other.size:
        count = counted(np.unique(devices[other]).size, "device")
        problems.append(
            f"{count} with two or more owners (first: row {rows[other[0]] + 1}), but a device "
            "belongs to one person; correct the log, or name a device by both columns"
        )


def _again(codes: Int64Array, rounds: Int64Array) -> Int64Array:
    """Returns positions of rows of a device and round that an earlier row has, sorted."""
    order = np.lexsort((rounds, codes))
    is_same = (np.diff(codes[order]) == 0) & (np.diff(rounds[order]) == 0)
    return np.sort(order[1:][is_same])


def _seconds(
    layout: LogLayout, times: pa.Array, rows: Int64Array, problems: list[str], notes: list[str]
) -> Float64Array:
    """Returns the times of rows [N] in seconds; NaN where there is none, or none can be read."""
    seconds = np.full(len(times), np.nan)
    filled = np.flatnonzero(times.is_valid())
    if empty := len(times) - filled.size:
        first = int(rows[np.flatnonzero(times.is_null())[0]]) + 1
        problems.append(f"{counted(empty, 'row')} without a time (first: row {first})")
    reader = layout.time_reader(f"column {layout.time!r}")
    try:
        seconds[filled] = reader.seconds(
            times.take(pa.array(filled)), lambda place: f"row {rows[filled[place]] + 1}"
        )
    except InputError as error:
        problems.append(str(error))
        return seconds
    doubt = "; is that so? Otherwise give --time-zone" if "taken as UTC" in reader.form else ""
    notes.append(f"times: {reader.form}{doubt}")
    return seconds


def _check_order(
    seconds: Float64Array, rounds: Int64Array, rows: Int64Array, notes: list[str]
) -> None:
    """Notes rounds that ended before the round before began."""
    numbers, places = np.unique(rounds, return_inverse=True)
    first, last = np.full(numbers.size, np.inf), np.full(numbers.size, -np.inf)
    np.fmin.at(first, places, seconds)
    np.fmax.at(last, places, seconds)
    # Rounds without a time that can be read have no place in the order.
    known = np.flatnonzero(np.isfinite(first))
    late = known[1:][last[known[1:]] < first[known[:-1]]]
    if late.size:
        row = rows[np.flatnonzero(places == late[0])[0]] + 1
        text = f"{counted(late.size, 'round')} that ended before the round before began"
        notes.append(f"{text} (first: round {numbers[late[0]]}, row {row}); is the order right?")


def _guessed(names: Sequence[str], given: Mapping[str, list[str]]) -> dict[str, str]:
    """Returns columns by role, from the words in their names; a column has one role."""
    taken = {name for of_role in given.values() for name in of_role}
    found: dict[str, str] = {}
    for role, words in WORDS.items():
        named = (name for word in words for name in names if word in _words_of(name))
        free = [name for name in named if name not in taken]
        if free and not given.get(role):
            found[role] = free[0]
            taken.add(free[0])
    return found


def _words_of(name: str) -> list[str]:
    """Returns the words of a name such as client_id or clientId, in lower case."""
    return [word.lower() for word in re.findall("[A-Z]?[a-z]+|[A-Z]+", name)]


def _described(
    column: pa.ChunkedArray, name: str, roles: Mapping[str, list[str]]
) -> tuple[str, ...]:
    values = column.unique().drop_null()
    role = next((role for role, named in roles.items() if name in named), "")
    examples = ", ".join(shown_value(each) for each in values[:3])
    return (name, _kind(values), f"{len(values):,}", f"{column.null_count:,}", examples, role)


def _kind(values: pa.Array) -> str:
    """Returns the type of distinct values; for text, also what all of it can be read as."""
    kind = str(values.type)
    if not pa.types.is_string(values.type) or not len(values):
        return kind
    if _COMPUTE.all(_COMPUTE.match_substring_regex(values, r"^-?[0-9]+$")).as_py():
        return "text, whole numbers"
    is_time = _COMPUTE.all(_COMPUTE.match_substring_regex(values, ISO_8601)).as_py()
    return "text, ISO 8601" if is_time else "text"
