"""A trace imported from a participation log: which device took part in which round, and when, if
the log has times.

    TRACE/
      run.json                  source, settings of the import, rows left out and why, the parts,
                                and digests of all files
      participations/*.parquet  device_id, round and, if the log has times, time; sorted by these;
                                each device in one file. With repeats "once" also last_time, the
                                time of the participation's last row
      log_rounds.parquet        row i: the log's name of round i, and its time
      devices.parquet           row i: the log's name of device i, and perhaps of its owner
      rows/                     only in a trace that logs are appended to: the rows of each file of
                                the log as read, in its order, and the state of their reading

Device ids are positions in devices.parquet, so that names of any kind are kept exactly. Times are
seconds since the first time in the log or the rounds file; run.json records that moment.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import (
    Any,
    ClassVar,
    NotRequired,
    Self,
    TypedDict,
    get_origin,
    get_type_hints,
)

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fedray.base.arrays import Float64Array, Int64Array, UInt32Array, UInt64Array
from fedray.base.errors import TraceCorrupt, TraceError, shown
from fedray.base.file_digests import ReadFile
from fedray.base.rounding import counted
from fedray.base.storage import fetched
from fedray.base.threads import in_order
from fedray.trace.files import DAMAGE, DocumentForm, check_file, first_line, read_columns
from fedray.trace.invariants import check_accepted
from fedray.trace.reader import (
    COPY_AGAIN,
    AcceptedPart,
    OpenedTrace,
    Trace,
    check_no_strays,
    check_parts,
    read_document,
)
from fedray.trace.schema import FORMAT, RUN_FILE, columns_digest, run_digest
from fedray.trace.several_tasks import is_of_tasks

IMPORT_FORMAT = "fedray-import"
IMPORT_VERSION = 4
DEVICES_FILE = "devices.parquet"
NAMES_PER_GROUP = 1 << 18
"""Rows per row group of devices.parquet, so that a name is found without reading the others."""
AS_THEY_ARE, BY_RANK, BY_LIST = "as they are", "by rank", "by list"
"""How the log's round numbers became the trace's: by the arguments `rounds`, `renumber` and
`rounds_file`, in this order."""
LOG_ROUNDS_FILE = "log_rounds.parquet"
LOG_ROUNDS_SCHEMA = pa.schema(
    [
        pa.field("log_round", pa.int64(), nullable=False),
        # The first and last times are null if the log has no times or the round no participation.
        pa.field("first_time", pa.float64()),
        pa.field("last_time", pa.float64()),
        # The listed time is null if the rounds file has no times.
        pa.field("listed_time", pa.float64()),
    ]
)
IMPORTED_SCHEMA = pa.schema(
    [
        pa.field("device_id", pa.uint64(), nullable=False),
        pa.field("round", pa.uint32(), nullable=False),
    ]
)
TIMED_SCHEMA = IMPORTED_SCHEMA.append(pa.field("time", pa.float64(), nullable=False))
REPEATED_SCHEMA = TIMED_SCHEMA.append(pa.field("last_time", pa.float64(), nullable=False))
"""Schema of imports with times and repeats "once"."""

COPIED = "equal to another row in every column"
"""Reason for which copies are left out."""
PERIOD = "time:"
"""Beginning of a part of a device's name that is a period of the time, such as time:month."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Rows of the log that were left out for one reason, with an example, as run.json records
    them."""

    reason: str
    """Reason in words."""
    rows: int
    """Number of rows."""
    example: str
    """One of the rows, with a hash of its device's name."""
    may_be_participation: bool = True
    """Whether the trace's figures would change if these rows were participations."""


class ImportedTimes(TypedDict):
    """Source of an imported trace's times, as run.json records it."""

    column: str | None
    """Column of times in the log."""
    form: str | None
    """Format of the values in that column."""
    rounds_file_form: str | None
    """Format of the times in the rounds file."""
    origin: float
    """Time 0 of the trace, in the log's seconds."""
    step: NotRequired[float]
    """Step in seconds of which all times are multiples; absent if they are not rounded."""
    doubts: NotRequired[list[str]]
    """Sentences on the rounding of the times, and on another reading of them; absent without."""


class ImportDocument(TypedDict):
    """run.json of an imported log, without its parts."""

    format: str
    """Name of the format of run.json."""
    version: int
    """Version of that format."""
    digest: str
    """Digest of the columns of all parts."""
    devices_digest: str
    """Digest of the names of the devices."""
    rounds_digest: str
    """Digest of the file of the log's rounds."""
    log: str
    """The log that was read: a file, or a directory of files."""
    files: list[ReadFile]
    """Files that were read, in this order, with sizes and digests. Devices and owners in the names
    of folders are hashed."""
    file_rows: NotRequired[list[int]]
    """Rows that were read from each of these files; absent in traces of older releases."""
    rows_digest: NotRequired[str]
    """Digest of `rows/state.json`, which has those of the rows of each file; absent if the trace
    cannot be appended to."""
    skipped_files: list[str]
    """Files and folders of the log's directory that were skipped, as marks of other programs."""
    device_columns: list[str]
    """Columns of the log that name a device."""
    round_column: str
    """Column of rounds in the log."""
    where: list[str]
    """Conditions given as `--where`."""
    numbering: str
    """Conversion of the log's rounds to numbers from 0."""
    rounds_file: str | None
    """The file that lists the rounds, if one was given."""
    rounds: int
    """Number of rounds that released a model."""
    empty_rounds: int
    """Number of rounds without a participation."""
    rounds_out_of_order: int
    """Number of rounds whose order by time differs from that by number."""
    repeats: str
    """Meaning of further rows of one device in one round, given as `--repeats`."""
    repeated_rows: int
    """Number of further rows of one device in one round, without copies."""
    repeated_examples: NotRequired[str]
    """The first of these rows, with hashes of their devices' names; absent without such rows."""
    times: ImportedTimes | None
    """Source of the times; None without times."""
    rows_read: int
    """Number of rows in the log."""
    filtered_rows: int
    """Number of rows that `--where` excluded."""
    rows: int
    """Number of participations in the trace."""
    devices: int
    """Number of devices that took part at least once."""
    owner_column: NotRequired[str]
    """Column of the log that names the owner of a device; absent if owners are unknown."""
    sparse_rounds: NotRequired[str]
    """Sentence on rounds that may have been abandoned, as they have few rows; absent without such
    rounds, and with a file of rounds."""
    joined_ids: NotRequired[int]
    """Number of ids of devices before ids that differ only in writing were joined, or 0 if such ids
    are distinct devices, as stated to the import; absent if it was not asked, so that no two ids of
    the log differ only in writing."""
    distinct_ids: NotRequired[list[str]]
    """Roles, device or owner, whose ids that differ only in writing are distinct, as stated to the
    import; absent without such a statement."""
    left_out: list[LeftOut]
    """Rows that are not participations."""
    written: str
    """Time of writing: UTC, as ISO 8601 has it."""
    packages: dict[str, str]
    """Versions of Python and of packages by name."""
    document_digest: str
    """Digest of run.json itself."""


def _kinds() -> dict[str, type]:
    """Returns the keys that every run.json has, with the types of their values; a key that may be
    null is checked where it is read."""
    hints = get_type_hints(ImportDocument)
    kinds = {key: get_origin(hints[key]) or hints[key] for key in ImportDocument.__required_keys__}
    return {key: kind for key, kind in kinds.items() if kind in (str, int, list, dict)}


_FORM = DocumentForm(
    RUN_FILE,
    IMPORT_FORMAT,
    IMPORT_VERSION,
    {**_kinds(), "parts": list},
    "that `fedray import` wrote",
    COPY_AGAIN,
    "import the log again",
)


class ImportedTrace(OpenedTrace):
    """An opened trace of an imported log. It is read and audited like a `Trace`.

    Raises:
        TraceError: the directory is not an import.
        TraceCorrupt: a file is missing, damaged, changed, or breaks an invariant of the format.
        TraceVersion: another release of fedray wrote it.
    """

    TABLES: ClassVar[str] = "fedray.report.traces:imported_tables"
    SUBJECT: ClassVar[str] = "fedray.report.subjects:trace_subject"

    @classmethod
    def open(cls, path: str | Path, verify: bool = True) -> Self:
        """Opens and validates: version, every file present, schemas, row counts.

        Args:
            path: the directory.
            verify: whether run.json, and everything else when it is read, must have its recorded
                digest.
        """
        directory = Path(path)
        run = read_document(directory)
        _FORM.check(run, directory, verify)
        _check_entries(run["left_out"], LeftOut, "left_out", directory)
        _check_entries(run["files"], ReadFile, "files", directory)
        _check_values(run, directory)
        check_parts(run["parts"], directory)
        if verify:
            _check_digest(run, directory)
        _check_totals(run, directory)
        check_no_strays(run["parts"], directory)
        # The file may be large, so its digest is checked when the first name is needed.
        if not (directory / DEVICES_FILE).is_file():
            raise _corrupt(directory / DEVICES_FILE, "is missing")
        # Footers are enough here, since columns are checked when they are read.
        for part in run["parts"]:
            check_file(directory / part["file"], _schema(run, part), part["rows"])
        check_file(directory / LOG_ROUNDS_FILE, LOG_ROUNDS_SCHEMA, run["rounds"])
        return cls(directory, run, verify)

    def __repr__(self) -> str:
        rows = self.run["rows"]
        return f"<ImportedTrace {shown(str(self.path))}: {rows:,} rows, digest {self.digest[:12]}>"

    @property
    def committed_rounds(self) -> int:
        """Number of rounds that released a model, as given to the import: n of every mechanism."""
        return self.run["rounds"]

    @property
    def left_out(self) -> list[LeftOut]:
        """Rows of the log that the import left out, except rows that did not meet its conditions
        (`filtered_rows`)."""
        return [LeftOut(**each) for each in self.run["left_out"]]

    @property
    def incompleteness(self) -> str:
        """Sentence on why figures may look better than the truth: a row that may be a participation
        was left out. Empty if none was."""
        lost = [each for each in self.left_out if each.may_be_participation]
        if not lost:
            return ""
        reasons = "; ".join(f"{counted(each.rows, 'row')} {each.reason}" for each in lost)
        return (
            "The import left out rows that may be participations, so no claim about this trace can "
            f"be confirmed: {reasons}."
        )

    @property
    def repeats(self) -> str:
        """Meaning of further rows of a device in a round: "refuse" (the log has none), "once" or
        "each".

        With "each", a device's rounds may repeat: every row in `accepted` is a contribution.
        """
        return self.run["repeats"]

    @property
    def filtered_rows(self) -> int:
        """Number of rows of the log that did not meet the conditions (`where`) and so are not
        participations."""
        return self.run["filtered_rows"]

    @property
    def device_columns(self) -> list[str]:
        """Columns of the log, and periods of its time, that together name a device: the unit of
        privacy is one combination of their values."""
        return self.run["device_columns"]

    @property
    def unit(self) -> str:
        """Unit of privacy, as a phrase that follows "one"."""
        columns = self.device_columns
        if len(columns) == 1:
            return f"device (a value of the log's column {columns[0]!r})"
        words = [
            f"{each.removeprefix(PERIOD)} of the time (UTC)"
            if each.startswith(PERIOD)
            else repr(each)
            for each in columns
        ]
        return f"combination of {', '.join(words[:-1])} and {words[-1]} in the log"

    def round_label(self, round_index: int) -> str:
        """Returns the log's number of the round `round_index` of the trace, as text."""
        return str(int(self.round_labels(np.array([round_index]))[0]))

    def round_labels(self, rounds: Int64Array) -> Int64Array:
        """Returns the log's numbers of the trace's `rounds`, an array of any shape."""
        return self._log_rounds["log_round"][rounds]

    def round_times(self) -> tuple[Float64Array, Float64Array] | None:
        """Returns the earliest [n] and the latest [n] time of a participation in each round, in
        seconds as in `times`; None without times.

        Both cover everything recorded of the round: its participations, and its time in the rounds
        file. If the time in the rounds file is the only one, it is both. A round without times gets
        the earliest time of the round before and the latest of the round after, or infinity at the
        ends: missing times make the interval longer, never shorter.
        """
        if self.run.get("times") is None:
            return None
        columns = self._log_rounds
        # fmin and fmax ignore NaN if the other value is known.
        earliest = np.fmin(columns["first_time"], columns["listed_time"])
        latest = np.fmax(columns["last_time"], columns["listed_time"])
        # In reverse order, the last known time is that of the next round.
        return _filled(earliest, -np.inf), _filled(latest[::-1], np.inf)[::-1]

    def times(self, part_index: int) -> tuple[Float64Array, Float64Array] | None:
        """Returns the first [A] and the last [A] times of the participations of a part, in the
        order of the same part of `accepted`; None if the log has no times.

        Times are seconds since the first time in the log or the rounds file; which event they
        belong to (selection, upload) depends on the log. Both are the same unless repeated rows
        count once: then they are the earliest and the latest of these rows.
        """
        part = self.run["parts"][part_index]
        if self.run.get("times") is None or "times_digest" not in part:
            return None
        file = self.path / part["file"]
        schema = _schema(self.run, part)
        names = [name for name in schema.names if name not in IMPORTED_SCHEMA.names]
        times = read_columns(file, schema, part["rows"], names)
        if self._verify and columns_digest(times) != part["times_digest"]:
            raise _changed(f"{file}, its times,")
        return times["time"], times[names[-1]]

    @property
    def time_step(self) -> float:
        """Seconds to which the times are rounded, as far as the import could see; 0 without."""
        return (self.run.get("times") or {}).get("step", 0.0)

    def accepted(self) -> Iterator[AcceptedPart]:
        """Yields participations part by part, in order of device; every device is in only one part.
        Checks invariants 4 and 5.

        A device's rounds increase; if `repeats` is "each", they may repeat.
        """
        yield from in_order(self._accepted_of, self.run["parts"])

    def _accepted_of(self, part: dict[str, Any]) -> AcceptedPart:
        file = self.path / part["file"]
        columns = read_columns(file, _schema(self.run, part), part["rows"], IMPORTED_SCHEMA.names)
        device_ids = columns["device_id"]
        rounds = columns["round"]
        if self._verify and imported_digest(device_ids, rounds) != part["digest"]:
            raise _changed(file)
        first = part["first_device"]
        end = part["end_device"]
        distinct = device_ids, rounds
        if self.repeats == "each":
            # The invariant is for distinct rows: a device may contribute to a round several times.
            is_first = np.ones(rounds.size, np.bool_)
            is_first[1:] = (device_ids[1:] != device_ids[:-1]) | (rounds[1:] != rounds[:-1])
            distinct = device_ids[is_first], rounds[is_first]
        check_accepted(*distinct, first, end, self.committed_rounds, str(file))
        owner_ids = None if self._owners is None else self._owners[device_ids]
        return AcceptedPart(device_ids, rounds, owner_ids=owner_ids)

    @cached_property
    def _owners(self) -> UInt64Array | None:
        """Owner of each device, [devices], named by the first device that has the owner; None if
        the log has no owners."""
        if not self.has_owners:
            return None
        try:
            names = pq.read_table(self._names_file, columns=["owner"]).column(0)
        except DAMAGE as error:
            raise _corrupt(self._names_file, f"is damaged ({first_line(error)})") from None
        codes = names.combine_chunks().dictionary_encode().indices.to_numpy()
        _, first = np.unique(codes, return_index=True)
        return first[codes].astype(np.uint64)

    @property
    def has_owners(self) -> bool:
        """Whether the log names the owners of devices."""
        return "owner_column" in self.run

    def owner_names(self, owner_ids: Sequence[int]) -> list[str]:
        """Returns the log's names of persons, each given by the first device that the person owns;
        as `names_of`."""
        return self._names_in("owner", owner_ids)

    def names_of(self, device_ids: Sequence[int]) -> list[str]:
        """Returns the log's names of devices, in their order, quoted and escaped if they cannot be
        printed.

        Each row group that contains a requested name is read once, which is fast for the few
        devices of a report and for many neighbouring devices.
        """
        return self._names_in("device", device_ids)

    def _names_in(self, column: str, device_ids: Sequence[int]) -> list[str]:
        file = self._names_file
        # Row groups have equal sizes, so the position of a name follows from the id.
        groups = sorted({each // NAMES_PER_GROUP for each in device_ids})
        try:
            with pq.ParquetFile(file, page_checksum_verification=True) as parquet:
                columns = {each: parquet.read_row_group(each)[column] for each in groups}
            return [
                name_text(columns[each // NAMES_PER_GROUP][each % NAMES_PER_GROUP].as_py())
                for each in device_ids
            ]
        except DAMAGE as error:
            raise _corrupt(file, f"is missing or damaged ({first_line(error)})") from None

    def are_distinct(self, role: str) -> bool:
        """Returns whether ids of a role (device or owner) that differ only in writing were stated
        to be distinct."""
        return role in self.run.get("distinct_ids", ())

    def ids_of(self, role: str) -> pa.ChunkedArray:
        """Returns the ids in the log of every device, or of its owner (`role`), in order of the
        devices of the trace."""
        return pq.read_table(self._names_file, columns=[role])[role]

    def verify(self) -> None:
        """Recomputes every digest. Raises TraceCorrupt at the first difference."""
        checked = ImportedTrace.open(self.path)
        # Reading is enough, because it checks the digests.
        for place, _ in enumerate(checked.accepted()):
            checked.times(place)
        _ = checked._names_file, checked.round_label(0)

    @cached_property
    def _names_file(self) -> Path:
        """The file of the devices' names; its digest is checked once."""
        file = self.path / DEVICES_FILE
        if self._verify and file_digest(file) != self.run["devices_digest"]:
            raise _changed(file)
        return file

    @cached_property
    def _log_rounds(self) -> dict[str, NDArray]:
        """The columns of log_rounds.parquet; their digest is checked."""
        file = self.path / LOG_ROUNDS_FILE
        columns = read_columns(file, LOG_ROUNDS_SCHEMA, self.committed_rounds)
        if self._verify and columns_digest(columns) != self.run["rounds_digest"]:
            raise _changed(file)
        return columns


def _corrupt(place: object, problem: str) -> TraceCorrupt:
    return TraceCorrupt.at(place, problem, "import the log again")


def _changed(place: object) -> TraceCorrupt:
    return _corrupt(place, f"does not have the digest that {RUN_FILE} records, so it was changed")


def _check_entries(entries: list[Any], kind: type, key: str, directory: Path) -> None:
    """Raises TraceCorrupt unless all entries of a list in run.json have the keys of a class."""
    kinds = get_type_hints(kind)
    for entry in entries:
        # `type` is compared, because isinstance accepts True as an int.
        if not isinstance(entry, dict) or {k: type(v) for k, v in entry.items()} != kinds:
            raise _corrupt(directory / RUN_FILE, f"has a malformed entry in {key}")


def _check_digest(run: dict[str, Any], directory: Path) -> None:
    of_parts = [part["digest"] for part in run["parts"]]
    if run_digest(of_parts, str(run["rounds"])) != run["digest"]:
        raise _corrupt(directory, "has a digest that does not match its parts and rounds")


def _check_totals(run: dict[str, Any], directory: Path) -> None:
    rows = sum(part["rows"] for part in run["parts"])
    devices = max((part["end_device"] for part in run["parts"]), default=0)
    if (rows, devices) != (run["rows"], run["devices"]):
        recorded = f"but {RUN_FILE} says {run['rows']} of {run['devices']}"
        raise _corrupt(directory, f"has parts with {rows} rows of {devices} devices, {recorded}")


def _check_values(run: dict[str, Any], directory: Path) -> None:
    """Raises TraceCorrupt unless lists and tables in run.json have the types that the properties
    rely on."""
    names = [*run["device_columns"], *run["where"], *run["skipped_files"]]
    times = run.get("times")
    are_as_written = (
        len(run["device_columns"]) > 0
        and all(isinstance(name, str) for name in names)
        and type(run.get("joined_ids", 0)) is int
        and isinstance(run.get("sparse_rounds", ""), str)
        and (
            times is None
            or (
                isinstance(times, dict)
                and {"column", "form", "rounds_file_form"} <= times.keys()
                and type(times.get("step", 0.0)) is float
                and isinstance(doubts := times.get("doubts", []), list)
                and all(isinstance(each, str) for each in doubts)
            )
        )
    )
    if not are_as_written:
        raise _corrupt(directory / RUN_FILE, "has malformed columns, conditions, times or notes")


def _filled(times: Float64Array, before: float) -> Float64Array:
    """Returns times [n] with NaN replaced by the last known time, at the start by `before`."""
    # Position of the last known time up to each round, or 0, that of `before`.
    known_places = np.where(np.isnan(times), 0, np.arange(1, times.size + 1))
    places = np.maximum.accumulate(known_places)
    return np.concatenate([[before], times])[places]


def _schema(run: dict[str, Any], part: dict[str, Any]) -> pa.Schema:
    """Returns the columns of a part's file."""
    if "times_digest" not in part:
        return IMPORTED_SCHEMA
    return REPEATED_SCHEMA if run["repeats"] == "once" else TIMED_SCHEMA


def name_text(value: object) -> str:
    """Returns the log's name of a device as text.

    Args:
        value: value of the log's column; bytes are shown in hexadecimal, and unprintable text is
            quoted and escaped.
    """
    name = value.hex() if isinstance(value, bytes) else str(value)
    # A name with control characters could change the terminal's display.
    return name if name.isprintable() else repr(name)


def hashed_name(value: object, devices_digest: str) -> str:
    """Returns the pseudonym of a device: `#` and twelve hex digits of BLAKE2b over its name.

    Whoever has the trace can find the device again. A reader who has only the hash cannot try
    names, unless the whole list of devices can be guessed.

    Args:
        value: the name.
        devices_digest: digest of the trace's list of devices, used as the key of the hash.
    """
    # BLAKE2b takes keys of up to 64 bytes.
    key = devices_digest.encode()[:64]
    name = name_text(value).encode()
    return f"#{hashlib.blake2b(name, key=key, digest_size=6).hexdigest()}"


def file_digest(file: Path) -> str:
    """Returns the SHA-256 of a `file`'s bytes, in hexadecimal. Raises TraceCorrupt if it cannot be
    read."""
    try:
        with file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise _corrupt(file, f"cannot be read ({error})") from None


def imported_digest(device_ids: UInt64Array, rounds: UInt32Array) -> str:
    """Returns the `columns_digest` of one part's columns, `device_ids` [A] and `rounds` [A]."""
    return columns_digest({"device_id": device_ids, "round": rounds})


def open_trace(path: str | Path, verify: bool = True) -> Trace | ImportedTrace:
    """Opens a trace of either kind, which run.json states.

    Args:
        path: the directory.
        verify: whether everything read must have its recorded digest.

    Raises:
        TraceError: the directory is not a trace.
        TraceCorrupt: a file is missing, damaged or changed.
        TraceVersion: another release of fedray wrote it.
    """
    path = fetched(path)
    if is_of_tasks(path):
        raise TraceError(
            f"{str(path)!r} has the traces of several tasks, but only one is possible here; give "
            "one of the folders in it"
        )
    document = read_document(Path(path))
    if document.get("format") == IMPORT_FORMAT:
        return ImportedTrace.open(path, verify)
    if document.get("format") != FORMAT:
        raise TraceError(
            f"{Path(path) / 'run.json'} has format={shown(document.get('format'))}; give the "
            "directory that `fedray run` or `fedray import` wrote"
        )
    return Trace.open(path, verify)
