"""Inspection of a log before its import: its columns, all problems, and the next command.

The log is read once, batch by batch. The importer's own reader, sort and queries check its rows, in
a temporary directory and with the importer's memory.
"""

import itertools
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedray.base.errors import InputError
from fedray.base.rounding import counted
from fedray.imports.importer import (
    DISTINCT,
    ROUNDS,
    SORTED,
    USUAL_MEMORY,
    LogRounds,
    check_owners,
    queried,
)
from fedray.imports.log import NO_TIMES, UNTIMED, Log, LogLayout, is_text, shown_value
from fedray.imports.log_files import LogFiles
from fedray.imports.log_rounds import Numbering
from fedray.imports.log_times import EARLIEST, ISO_8601, LATEST, UNITS
from fedray.imports.repeats import Repeats
from fedray.imports.spellings import NO_ID, Spellings

WORDS = {
    "time": ("timestamp", "datetime", "time", "date", "ts", "at", "when"),
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
MANY = 10_000
"""Most distinct values of a column that are counted."""
TAKEN = {
    *("accepted", "success", "succeeded", "successful", "ok", "completed", "complete", "committed"),
    *("aggregated", "included", "contributed", "participated"),
}
"""Outcomes that mean a contribution; also names of columns of truth values."""
# pyarrow makes these functions at import, and its stubs do not know them.
_COMPUTE: Any = pc


@dataclass(frozen=True, slots=True)
class Inspection:
    """Description of a log, and its problems.

    columns: name, type, distinct values, empty cells, examples and guessed role of each column; the
        distinct values of lists and the like are not counted.
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
    join_ids: bool | None = None,
    keep_ids: Sequence[str] = (),
    rounds: str | None = None,
    out: Path | None = None,
    **form: Any,
) -> Inspection:
    """Describes a log, and checks it as the import would. Leaves nothing behind.

    Args:
        log: file or directory of CSV or Parquet files.
        columns: known columns by role; the others are guessed from their names.
        where: conditions "COLUMN=VALUE" for rows that are participations; guessed if empty.
        repeats: further rows of a device in a round, as the import takes them.
        leave_out_invalid: whether the import leaves out incomplete rows.
        join_ids: whether ids that differ only in writing are one device, as the import takes it.
        keep_ids: texts that name a device though they look like a missing id.
        rounds: rounds that released a model, as the command has them; None for all in the log.
        out: directory for the trace; None for a name like the log's.
        form: further fields of LogLayout.

    Raises:
        InputError: the log cannot be read at all, or an argument is wrong.
        RunFailed: the disk is full or fails, or there is too little memory.
    """
    names = _files(log, form).names
    if len(names) == 1 and not form.get("delimiter"):
        form["delimiter"] = next((each for each in ";\t|" if each in names[0]), None)
        names = _files(log, form).names
    described = [_Column(name) for name in names]
    batches = _described(_files(log, form, names).batches(), described)
    # Guesses need some rows, and the log is read only once.
    start: list[pa.RecordBatch] = []
    for batch in batches:
        start.append(batch)
        if sum(each.num_rows for each in start) >= MANY:
            break
    batches = itertools.chain(start, batches)
    roles = {role: given for role, given in columns.items() if given}
    roles |= {role: [name] for role, name in _guessed(described, roles).items()}
    role_of = {name: role for role, of_role in roles.items() for name in of_role}
    unused = [each for each in described if each.name not in role_of]
    is_guess = not where
    where = where or _outcomes(unused)
    missing = [role for role in ("device", "round") if role not in roles]
    problems = [f"no column looks like the {each}; give --column {each}=NAME" for each in missing]
    notes: list[str] = []
    of_times = 0
    if not problems:
        layout = LogLayout(
            devices=tuple(roles["device"]),
            round=roles["round"][0],
            owner=next(iter(roles.get("owner", ())), None),
            time=next(iter(roles.get("time", ())), None),
            where=tuple(where),
            **form,
        )
        try:
            found = _Rows(log, layout, batches, keep_ids, join_ids)
        except InputError as error:
            problems.append(str(error))
        else:
            for each in found.source.left_out.values():
                first = f"first: row {each.row}" if each.row else f"such as {each}"
                text = f"{counted(each.rows, 'row')} {each.reason} ({first})"
                # A round beyond all numbers is refused in any case.
                if leave_out_invalid and not found.source.out_of_range:
                    notes.append(f"{text}, left out; claims are then unchecked")
                else:
                    remedy = "leave them out by --leave-out-invalid"
                    remedy = NO_TIMES if each.reason == UNTIMED else remedy
                    if each.reason.endswith(NO_ID):
                        remedy += ", or say by --keep-id NULL that NULL names a device"
                    problems.append(f"{text}; correct them, or {remedy}")
            problems += found.problems
            notes += found.notes
            of_times = bool(found.source.time_problem)
            of_times += UNTIMED in found.source.left_out and not leave_out_invalid
            if of_times:
                notes.append("the command leaves out the times; it may have them once corrected")
            # Rows without a time, copies, and rows of joined ids may be repeats then.
            if (found.is_repeated or of_times or join_ids) and repeats == "refuse":
                repeats = "each"
                copies = "" if layout.time is None or of_times else " but copies"
                notes.append(
                    f"--repeats each counts all rows of a device in a round{copies}, the safe "
                    "reading; give once if they are records of one contribution"
                    + ("" if layout.time else ", or --column time=NAME, by which copies are found")
                )
    if len(problems) > of_times + len(missing):
        notes.append("the command is for the corrected log")
    # After a problem above, the rows are described all the same.
    for _ in batches:
        pass
    conditions = {each.partition("=")[0] for each in where}
    for each in unused:
        remedy = f"if not all are participations, give --where {each.name}=VALUE"
        if each.name in conditions:
            remedy = "check that all with the guessed --where are participations, and no others"
        if each.values and (is_guess or each.name not in conditions):
            notes.append(f"{each.name} has the values {each.values}; {remedy}")
    timed = [each.name for each in unused if each.is_time]
    if "time" not in roles and timed:
        notes.append(f"{' and '.join(timed)} look like times; give --column time=NAME")
    if rounds is None:
        notes.append(
            "--rounds logged says that every round in the log released a model; else list them"
        )
    # A leading "-" would make an option of the file.
    command = ["fedray", "import", f"./{log}" if str(log).startswith("-") else str(log)]
    used = {name: role for name, role in role_of.items() if role != "time" or not of_times}
    command += [word for name, role in used.items() for word in ("--column", f"{role}={name}")]
    command += [word for each in missing for word in ("--column", f"{each}=NAME")]
    command += [word for each in where for word in ("--where", each)]
    for name, value in form.items():
        if value and not (of_times and name.startswith("time_")):
            option = name.replace("time_unit", "time_format").replace("_", "-")
            values = [value] if isinstance(value, str) else value
            command += [word for each in values for word in (f"--{option}", each)]
    command += ["--leave-out-invalid"] * leave_out_invalid
    command += ["--repeats", repeats] * (repeats != "refuse")
    command += ["--rounds", rounds or "logged", f"--out={out or f'{log.stem}-trace'}"]
    command += [word for each in keep_ids for word in ("--keep-id", each)]
    command += [] if join_ids is None else ["--join-ids" if join_ids else "--no-join-ids"]
    cells = tuple((*each.cells, role_of.get(each.name, "")) for each in described)
    return Inspection(cells, tuple(problems), tuple(notes), tuple(command))


def _files(log: Path, form: Mapping[str, Any], names: Sequence[str] = ()) -> LogFiles:
    columns = dict.fromkeys(names, "column")
    return LogFiles(log, columns, form.get("delimiter"))


class _Column:
    """Description of a column, from the batches seen so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._kind, self._empty = pa.null(), 0
        self._counts: Counter[pa.Scalar] | None = Counter()
        """Rows by value, in order of first occurrence; None if values are many or nested."""
        self._examples: list[pa.Scalar] = []
        self._forms: set[str] | None = None
        """Forms of all values, such as Unix times, beyond their type; None before the first."""

    def add(self, column: pa.Array) -> None:
        """Adds the values of a batch."""
        self._kind, self._empty = column.type, self._empty + column.null_count
        values = column.drop_null()
        if not len(values):
            return
        forms = _forms(values)
        self._forms = forms if self._forms is None else self._forms & forms
        self._examples = list(dict.fromkeys([*self._examples, *values[:100]]))[:3]
        if self._counts is None:
            return
        counts = None if pa.types.is_nested(values.type) else values.value_counts()
        if counts is None or len(self._counts) + len(counts) > MANY:
            self._counts = None
            return
        for value, count in zip(*counts.flatten(), strict=True):
            self._counts[value] += count.as_py()

    @property
    def is_time(self) -> bool:
        forms = self._forms or ()
        return pa.types.is_timestamp(self._kind) or any(
            each[:4] in ("ISO ", "Unix") for each in forms
        )

    @property
    def is_whole(self) -> bool:
        return pa.types.is_integer(self._kind) or "whole numbers" in (self._forms or ())

    @property
    def values(self) -> str:
        """Values with their rows, if they are so few that they may be outcomes."""
        counts = self._counts or {}
        shown = (f"{shown_value(each)} {rows:,}" for each, rows in counts.items())
        return ", ".join(shown) if 2 <= len(counts) <= FEW else ""

    @property
    def taken(self) -> list[str]:
        """Values that mean a contribution, as conditions have them; empty if all do."""
        texts = [str(each).strip("'") for each in map(shown_value, self._counts or ())]
        wanted = {"true", "yes", "1"} if TAKEN & {*_words_of(self.name)} else TAKEN
        found = [each for each in texts if each.lower() in wanted]
        return found if self.values and len(found) < len(texts) else []

    @property
    def cells(self) -> tuple[str, ...]:
        """Name, type, distinct values, empty cells and examples."""
        kind = ", ".join(
            ["text" if is_text(self._kind) else str(self._kind), *sorted(self._forms or ())[:1]]
        )
        distinct = "many" if self._counts is None else f"{len(self._counts):,}"
        examples = ", ".join(map(shown_value, self._examples))
        return (self.name, kind, distinct, f"{self._empty:,}", examples)


def _described(
    batches: Iterable[pa.RecordBatch], described: Sequence[_Column]
) -> Iterator[pa.RecordBatch]:
    """Yields the batches, and adds them to the descriptions of their columns, in order."""
    for batch in batches:
        for each in described:
            each.add(batch.column(each.name))
        yield batch


def _forms(values: pa.Array) -> set[str]:
    """Returns forms of all values [N], N > 0, beyond their type."""
    found = set()
    if is_text(values.type):
        if _COMPUTE.all(_COMPUTE.match_substring_regex(values, ISO_8601)).as_py():
            return {"ISO 8601"}
        if _COMPUTE.all(_COMPUTE.match_substring_regex(values, r"^-?[0-9]+$")).as_py():
            found.add("whole numbers")
    elif not pa.types.is_integer(values.type) and not pa.types.is_floating(values.type):
        return found
    try:
        numbers = np.asarray(values.cast(pa.float64(), safe=False))
    except pa.ArrowException:
        return found
    for unit, ticks in UNITS.items():
        if numbers.min() / ticks >= EARLIEST and numbers.max() / ticks <= LATEST:
            found.add(f"Unix {unit}")
    return found


def _outcomes(columns: Sequence[_Column]) -> list[str]:
    """Returns conditions on the first column that says which rows are contributions."""
    for each in columns:
        if each.taken and "=" not in each.name:
            return [f"{each.name}={value}" for value in each.taken]
    return []


class _Rows:
    """Participations among the rows of a log, as the import sorts them, with their problems.

    Raises InputError for a log that the import refuses before it reads the first row.
    """

    def __init__(
        self,
        log: Path,
        layout: LogLayout,
        batches: Iterable[pa.RecordBatch],
        keep_ids: Sequence[str],
        join_ids: bool | None,
    ) -> None:
        self.source = Log(log, layout, Numbering(None, True, None), lambda text: None)
        self.notes: list[str] = []
        self.is_repeated = False
        with tempfile.TemporaryDirectory(prefix="fedray-inspect-") as folder:
            staged = Path(folder) / "staged.parquet"
            self.source.stage(staged, batches)
            self.problems = [each for each in (self.source.time_problem,) if each]
            form = "" if self.source.times is None else self.source.times.form
            if form and not self.problems:
                doubt = "; is that so? Otherwise give --time-zone" if "taken as UTC" in form else ""
                self.notes.append(f"times: {form}{doubt}")
            try:
                self.source.check_conditions()
                self._check_staged(staged, keep_ids, join_ids)
            except InputError as error:
                self.problems.append(str(error))

    def _check_staged(self, staged: Path, keep_ids: Sequence[str], join_ids: bool | None) -> None:
        queries = partial(queried, memory_mebibytes=USUAL_MEMORY)
        ids = Spellings(self.source, queries, staged.parent, keep_ids, join_ids)
        if self.source.staged_rows:
            ids.read(DISTINCT, {"staged": staged})
            ids.count_missing(staged)
            self.problems += [
                f"{each}; answer --join-ids if each group is one device, or --no-join-ids if not"
                for each in ids.questions
            ]
        if not self.source.staged_rows:
            raise InputError("no row is a participation")
        usable, views = ids.rows(staged)

        def of_staged(query: str) -> Iterator[pa.RecordBatch]:
            return queries(query.replace("staged", usable), views)

        time = "NULL::DOUBLE" if self.source.times is None else "time"
        rounds = of_staged(ROUNDS.format(time=time, own="true"))
        log_rounds = LogRounds(pa.Table.from_batches(rounds), self.source)
        repeats, devices = Repeats(log_rounds.numbers, log_rounds.is_timed_apart), 0
        for batch in filter(len, of_staged(SORTED)):
            places = log_rounds.places(batch.column("round").to_numpy())
            devices += int(repeats.found(batch, places)[0].sum())
        numbers, rows = log_rounds.numbers, self.source.staged_rows - repeats.copied.rows
        self.notes.append(
            f"{counted(rows, 'row')} of {counted(devices, 'device')} in "
            f"{counted(numbers.size, 'round')} count"
        )
        for each in (repeats.copied, repeats.repeated):
            if each.rows:
                self.notes.append(f"{counted(each.rows, 'row')} {each.reason} (such as {each})")
        self.is_repeated = bool(repeats.repeated.rows)
        self.notes += [log_rounds.sparse] if log_rounds.sparse else []
        if gaps := int(numbers[-1] - numbers[0]) + 1 - numbers.size:
            text = f"{counted(gaps, 'round number')} missing between the first and the last"
            self.notes.append(text)
        if log_rounds.late.size:
            text = f"{counted(log_rounds.late.size, 'round')} that ended before the round before"
            first = numbers[log_rounds.late[0]]
            self.notes.append(f"{text} began (first: round {first}); is the order right?")
        if self.source.layout.owner is not None:
            check_owners(of_staged)


def _guessed(columns: Sequence[_Column], given: Mapping[str, list[str]]) -> dict[str, str]:
    """Returns columns by role, from the words in their names; a column has one role. A time is
    rather a column that looks like one, whatever its name if there is no other, and a round one of
    whole numbers."""
    taken = {name for of_role in given.values() for name in of_role}
    others = {word for role, words in WORDS.items() if role != "time" for word in words}
    timed = [each.name for each in columns if each.is_time]
    free = [name for name in timed if not others.intersection(_words_of(name))]
    found: dict[str, str] = {}
    for role in (role for role in WORDS if role not in given):
        named = [
            each.name for word in WORDS[role] for each in columns if word in _words_of(each.name)
        ]
        if role == "round":
            whole = {each.name for each in columns if each.is_whole}
            named.sort(key=lambda name: name not in whole)
        if role == "time":
            only = free if len(free) == 1 else []
            named = [*(name for name in named if name in timed), *only, *named]
        usable = [name for name in named if name not in taken]
        if usable:
            found[role] = usable[0]
            taken.add(usable[0])
    return found


def _words_of(name: str) -> list[str]:
    """Returns the words of a name such as client_id or clientId, in lower case."""
    return [word.lower() for word in re.findall("[A-Z]?[a-z]+|[A-Z]+", name)]
