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
from fedray.base.quiet_duckdb import kept_connections
from fedray.base.rounding import counted
from fedray.imports.importer import (
    SORTED,
    USUAL_MEMORY,
    LogRounds,
    Rows,
    check_owners,
    checked_numbering,
    queried,
)
from fedray.imports.iso_text import BEGINNING
from fedray.imports.log import NO_TIMES, UNRELEASED, UNTIMED, Log, LogLayout, shown_value
from fedray.imports.log_files import LogFiles, is_text, separator_of, shown_path
from fedray.imports.log_rounds import (
    Numbering,
    check_new_list,
    listed,
    write_rounds_file,
)
from fedray.imports.log_times import EARLIEST, LATEST, UNITS
from fedray.imports.repeats import Repeats
from fedray.imports.spellings import NO_ID, Spellings
from fedray.trace.imported import PERIOD
from fedray.trace.writer import TraceWriter

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
LOGGED = "logged"
"""Word of `--rounds` for all rounds that occur in the log."""
ALL_ROUNDS: Mapping[str, Any] = {"rounds": None, "renumber": True}
"""Arguments of an import that say so."""
LISTED = "give --rounds logged or a list, as such rows are participations too"
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
_NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)


@dataclass(frozen=True, slots=True)
class Inspection:
    """Description of a log, and its problems."""

    columns: tuple[tuple[str, ...], ...]
    """Name, type, distinct values, empty cells, examples and guessed role of each column; the
    distinct values of lists and the like are not counted."""
    problems: tuple[str, ...]
    """Reasons for which the import refuses the log; each with a count and the first row."""
    notes: tuple[str, ...]
    """Remarks that change the meaning of the import, but do not prevent it."""
    command: tuple[str, ...]
    """Arguments of the import to run next."""

    @property
    def is_importable(self) -> bool:
        """Whether the command imports the log as it is."""
        return not self.problems


@kept_connections()
def inspect_log(
    log: Path,
    columns: Mapping[str, list[str]],
    where: Sequence[str] = (),
    repeats: str = "refuse",
    leave_out_invalid: bool = False,
    join_ids: bool | None = None,
    keep_ids: Sequence[str] = (),
    rounds: Mapping[str, Any] = ALL_ROUNDS,
    out: Path | None = None,
    append: Path | None = None,
    propose_rounds: Path | None = None,
    **form: Any,
) -> Inspection:
    """Describes a log, and checks it and the arguments as the import would. Leaves nothing behind
    but the list of rounds that it is to propose.

    Args:
        log: file or directory, as `import_log` reads it.
        columns: known columns by role; the others are guessed from their names.
        where: conditions "COLUMN=VALUE" for rows that are participations; guessed if empty.
        repeats: further rows of a device in a round, as the import takes them.
        leave_out_invalid: whether the import leaves out incomplete rows.
        join_ids: whether ids that differ only in writing are one device, as the import takes it.
        keep_ids: texts that name a device though they look like a missing id.
        rounds: arguments of the import that say which rounds released a model.
        out: directory for the trace; None for a name like the log's.
        append: trace to which the import adds rows, in place of `out`; None for a new trace.
        propose_rounds: new file for a list of the rounds that do not look abandoned.
        form: further fields of LogLayout.

    Raises:
        InputError: the log cannot be read at all, or an argument is wrong.
        RunFailed: the disk is full or fails, or there is too little memory.
    """
    _check_outputs(out, propose_rounds, rounds)
    files = LogFiles(log, {}, form.get("delimiter"), is_whole=True)
    if len(files.names) == 1 and not form.get("delimiter"):
        form["delimiter"] = next((each for each in ";\t|" if each in files.names[0]), None)
        files = LogFiles(log, {}, form["delimiter"], is_whole=True)
    described = [_Column(name) for name in files.names]
    batches = _begun(_described(files.batches(), described))
    roles = {role: given for role, given in columns.items() if given}
    # The import needs columns that every file has, once.
    usable = [each for each in described if files.is_everywhere(each.name)]
    roles |= {role: [name] for role, name in _guessed(usable, roles).items()}
    with_role = {name for of_role in roles.values() for name in of_role}
    unused = [each for each in described if each.name not in with_role]
    guessed = [] if where else _outcomes([each for each in unused if each in usable])
    has_period = any(each.startswith(PERIOD) for each in roles.get("device", ()))
    needed = ("device", "round", "time") if has_period else ("device", "round")
    proposal = _Proposal(
        log=log,
        roles=roles,
        missing=[role for role in needed if role not in roles],
        where=[*where, *guessed],
        form=form,
        leave_out_invalid=leave_out_invalid,
        repeats=repeats,
        rounds=str(rounds.get("rounds_file") or rounds.get("rounds") or LOGGED),
        target=f"--append={append}" if append else f"--out={out or f'{log.stem}-trace'}",
        keep_ids=keep_ids,
        join_ids=join_ids,
    )
    problems = [
        f"no column looks like the {each}; give --column {each}=NAME" for each in proposal.missing
    ]
    notes = [f"the log is {files.found}"]
    # Problems that the command does not meet, because it leaves out what they are about.
    avoided, found = len(problems), None
    if not problems:
        layout = LogLayout(
            devices=tuple(roles["device"]),
            round=roles["round"][0],
            owner=next(iter(roles.get("owner", ())), None),
            time=next(iter(roles.get("time", ())), None),
            where=tuple(proposal.where),
            **form,
        )
        numbering = checked_numbering(layout, repeats, log if out is None else out, **rounds)
        try:
            found = _Rows(log, layout, numbering, repeats, keep_ids, join_ids, batches)
        except InputError as error:
            problems.append(str(error))
        else:
            of_rows, remarks = found.said(leave_out_invalid)
            problems += of_rows
            notes += remarks
            of_times = found.problems_of_times(leave_out_invalid)
            if of_times and not has_period:
                proposal.leaves_times, avoided = True, of_times
                notes.append("the command leaves out the times; it may have them once corrected")
            # Rows without a time, and copies, may be repeats then.
            if (found.is_repeated or proposal.leaves_times) and repeats == "refuse":
                proposal.repeats = "each"
                notes.append(_note_on_each(layout.time is not None, proposal.leaves_times))
    if len(problems) > avoided:
        notes.append("the command is for the corrected log")
    # After a problem above, the rows are described all the same.
    for _ in batches:
        pass
    notes += _notes_on(unused, proposal.where, guessed)
    timed = [each.name for each in unused if each.is_time]
    if "time" not in roles and timed:
        notes.append(f"{' and '.join(timed)} look like times; give --column time=NAME")
    if propose_rounds is not None and found is not None and not problems:
        notes.append(found.propose(propose_rounds))
        proposal.rounds = str(propose_rounds)
    elif propose_rounds is not None:
        notes.append(f"{shown_path(propose_rounds)} is written once the problems are corrected")
    elif rounds == ALL_ROUNDS:
        notes.append(
            "--rounds logged says that every round in the log released a model; else list them"
        )
    cells = tuple(
        (*each.cells, ", ".join(role for role in roles if each.name in roles[role]))
        for each in described
    )
    return Inspection(cells, tuple(problems), tuple(notes), tuple(proposal.command()))


def _check_outputs(
    out: Path | None, propose_rounds: Path | None, rounds: Mapping[str, Any]
) -> None:
    """Raises InputError for a name that the import cannot give to a trace, or a list of rounds that
    cannot be proposed."""
    if out is not None:
        with TraceWriter(out):
            pass
    if propose_rounds is not None:
        check_new_list(propose_rounds)
        if rounds != ALL_ROUNDS:
            rule = "lists rounds of the log, but others are given"
            raise InputError.of("propose_rounds", str(propose_rounds), rule, "leave out --rounds")


def _begun(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Returns the same batches, after the first MANY rows were read: guesses need some rows, and
    the log is read only once."""
    start: list[pa.RecordBatch] = []
    for batch in batches:
        start.append(batch)
        if sum(each.num_rows for each in start) >= MANY:
            break
    return itertools.chain(start, batches)


def _note_on_each(has_times: bool, leaves_times: bool) -> str:
    copies = " but copies" if has_times and not leaves_times else ""
    by_time = "" if has_times else ", or --column time=NAME, by which copies are found"
    return (
        f"--repeats each counts all rows of a device in a round{copies}, the safe reading; give "
        f"once if they are records of one contribution{by_time}"
    )


def _notes_on(
    unused: Sequence["_Column"], where: Sequence[str], guessed: Sequence[str]
) -> Iterator[str]:
    """Yields a note on each column without a role whose values may be outcomes."""
    conditions = {each.partition("=")[0] for each in where}
    for each in unused:
        remedy = f"if not all are participations, give --where {each.name}=VALUE"
        if each.name in conditions:
            remedy = "check that all with the guessed --where are participations, and no others"
        if each.values and (guessed or each.name not in conditions):
            yield f"{each.name} has the values {each.values}; {remedy}"


@dataclass(kw_only=True)
class _Proposal:
    """Import that an inspection proposes."""

    log: Path
    roles: Mapping[str, Sequence[str]]
    """Columns by role; one may have several roles."""
    missing: Sequence[str]
    """Roles that no column has, but some must."""
    where: Sequence[str]
    form: Mapping[str, Any]
    """Further fields of LogLayout."""
    leave_out_invalid: bool
    repeats: str
    rounds: str
    """Value of --rounds: a list, a number, or LOGGED."""
    target: str
    """The option with the directory of the trace."""
    keep_ids: Sequence[str]
    join_ids: bool | None
    leaves_times: bool = False
    """Whether the import does without the column of times, which has problems."""

    def command(self) -> Iterator[str]:
        """Yields the words of the command."""
        # A leading "-" would make an option of the file.
        yield from ("fedray", "import")
        yield f"./{self.log}" if str(self.log).startswith("-") else str(self.log)
        for role, names in self.roles.items():
            for name in names:
                if role != "time" or not self.leaves_times:
                    yield from ("--column", f"{role}={name}")
        for each in self.missing:
            yield from ("--column", f"{each}=NAME")
        for each in self.where:
            yield from ("--where", each)
        for name, value in self.form.items():
            if value and not (self.leaves_times and name.startswith("time_")):
                option = name.replace("time_unit", "time_format").replace("_", "-")
                for each in [value] if isinstance(value, str) else value:
                    yield from (f"--{option}", each)
        if self.leave_out_invalid:
            yield "--leave-out-invalid"
        if self.repeats != "refuse":
            yield from ("--repeats", self.repeats)
        yield from ("--rounds", self.rounds, self.target)
        for each in self.keep_ids:
            yield from ("--keep-id", each)
        if self.join_ids is not None:
            yield "--join-ids" if self.join_ids else "--no-join-ids"


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
        for each, column in zip(described, batch.columns, strict=True):
            each.add(column)
        yield batch


def _forms(values: pa.Array) -> set[str]:
    """Returns forms of all values [N], N > 0, beyond their type."""
    found = set()
    if is_text(values.type):
        if _COMPUTE.all(_COMPUTE.match_substring_regex(values, BEGINNING)).as_py():
            return {"ISO 8601"}
        if _COMPUTE.all(_COMPUTE.match_substring_regex(values, r"^-?[0-9]+$")).as_py():
            found.add("whole numbers")
    elif not any(each(values.type) for each in _NUMBERS):
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
        numbering: Numbering,
        repeats: str,
        keep_ids: Sequence[str],
        join_ids: bool | None,
        batches: Iterable[pa.RecordBatch],
    ) -> None:
        self.source = Log(log, layout, numbering, lambda text: None)
        self.notes: list[str] = []
        self.is_repeated = False
        self._repeats = repeats
        self._log_rounds: LogRounds | None = None
        with tempfile.TemporaryDirectory(prefix="fedray-inspect-") as folder:
            staged = Path(folder) / "staged.parquet"
            self.source.stage(staged, batches)
            self.problems = [each for each in (self.source.time_problem,) if each]
            form = "" if self.source.times is None else self.source.times.form
            if form and not self.problems:
                doubt = "; is that so? Otherwise give --time-zone" if "taken as UTC" in form else ""
                self.notes.append(f"times: {form}{doubt}")
                self.notes += self.source.times.doubts if self.source.times else ()
            try:
                self.source.check_conditions()
                self._check_staged(staged, keep_ids, join_ids)
            except InputError as error:
                self.problems.append(str(error))

    def said(self, leave_out_invalid: bool) -> tuple[list[str], list[str]]:
        """Returns the problems and the notes on the rows, by whether the import leaves out
        incomplete ones."""
        left_out = {}
        for each in self.source.left_out.values():
            first = f"first: row {each.row}" if each.row else f"such as {each}"
            left_out[each.reason] = f"{counted(each.rows, 'row')} {each.reason} ({first})"
        # A round beyond all numbers is refused in any case.
        if leave_out_invalid and not self.source.out_of_range:
            notes = [f"{text}, left out; claims are then unchecked" for text in left_out.values()]
            return self.problems, [*notes, *self.notes]
        problems = [
            f"{text}; correct them, or {self._remedy(reason)}" for reason, text in left_out.items()
        ]
        return [*problems, *self.problems], self.notes

    def problems_of_times(self, leave_out_invalid: bool) -> int:
        """Returns the number of these problems that an import without times does not have."""
        is_untimed = UNTIMED in self.source.left_out and not leave_out_invalid
        return bool(self.source.time_problem) + is_untimed

    def _remedy(self, reason: str) -> str:
        """Returns the remedy for rows that cannot be used, by the reason."""
        if reason == self.source.beyond:
            return LISTED
        if reason == UNTIMED:
            return NO_TIMES
        remedy = "leave them out by --leave-out-invalid"
        if reason.endswith(NO_ID):
            remedy += ", or say by --keep-id NULL that NULL names a device"
        return remedy

    def _check_staged(self, staged: Path, keep_ids: Sequence[str], join_ids: bool | None) -> None:
        queries = partial(queried, memory_mebibytes=USUAL_MEMORY)
        ids = Spellings(self.source, queries, staged, keep_ids, join_ids)
        if self.source.staged_rows:
            ids.read(staged)
            ids.count_missing()
            self.problems += [
                f"{each}; answer --join-ids if each group is one device, or --no-join-ids if not"
                for each in ids.questions
            ]
        if not self.source.staged_rows:
            raise InputError("no row is a participation")
        log_rounds, repeats, devices = self._sorted(ids.rows, self._repeats)
        if repeats.repeated.rows and self._repeats == "refuse":
            # The import refuses such rows, so they count as the proposed command counts them.
            log_rounds, repeats, devices = self._sorted(ids.rows, "each")
        self._log_rounds = log_rounds
        numbers, rows = log_rounds.numbers, self.source.staged_rows - repeats.copied.rows
        rows -= repeats.repeated.rows * (self._repeats == "once")
        self.notes.append(
            f"{counted(rows, 'row')} of {counted(devices, 'device')} in "
            f"{counted(numbers.size, 'round')} count"
        )
        if unreleased := self.source.unreleased_rows:
            self.notes.append(f"{counted(unreleased, 'row')} {UNRELEASED}, left out")
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
            check_owners(ids.rows)

    def _sorted(self, rows: Rows, meaning: str) -> tuple[LogRounds, Repeats, int]:
        """Returns the rounds, the repeats and the number of devices of the rows as the import sorts
        them, if further rows of a device in a round have a `meaning`, one of REPEATS."""
        log_rounds = LogRounds(rows, self.source, meaning)
        repeats, devices = Repeats(log_rounds.numbers, log_rounds.is_timed_apart), 0
        for batch in filter(len, rows(SORTED)):
            places = log_rounds.places(batch.column("round").to_numpy())
            devices += int(repeats.found(batch, places)[0].sum())
        return log_rounds, repeats, devices

    def propose(self, file: Path) -> str:
        """Writes a list of the rounds that do not look abandoned, and returns a note on it.

        Raises:
            InputError: no round looks abandoned, or the file cannot be written.
        """
        log_rounds = self._log_rounds
        assert log_rounds is not None
        few = log_rounds.numbers[log_rounds.is_few]
        if not few.size:
            rule = "has nothing to list: no round has under a tenth of the median's rows"
            raise InputError.of("propose_rounds", str(file), rule, "leave it out")
        numbers = log_rounds.numbers[~log_rounds.is_few]
        times, without = log_rounds.release_times()[~log_rounds.is_few], ""
        texts = []
        if self.source.times is not None:
            without = ", without times, by which their order would be another"
        # A list is in order of release, which the last times contradict if rounds overlap.
        if self.source.times is not None and not (np.diff(times) < 0).any():
            texts, without = self.source.times.texts(times), ""
        separator = separator_of(self.source.layout.delimiter)
        write_rounds_file(file, separator, numbers, texts)
        return (
            f"{shown_path(file)} lists {counted(numbers.size, 'round')}{without}; it leaves out "
            f"{listed(few, few.size)}, which look abandoned. If one of them released a model, add "
            "it: that is your decision, which min-sep rests on"
        )


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
