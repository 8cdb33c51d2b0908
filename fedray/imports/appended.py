"""Appends the new rows of a log to its trace: only new files, and new ends of files, are parsed.

A trace that is appended to keeps the rows of each file as they were read (`rows/`), and the state
of the reading. An append digests all files of the log, parses the new ones, and makes the whole
trace again from the kept rows and the new ones. So the result is what one import of everything
gives, and only the sort is in proportion to the whole log. A file is parsed again from its start if
its rows have another meaning now: a rounds file lists a round that it lacked before. All files are
if one import could read old rows otherwise (`_reason_to_read_all`).
"""

import base64
import contextlib
import decimal
import hashlib
import inspect
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedray.base.atomic import write_whole
from fedray.base.errors import InputError, TraceCorrupt, shown
from fedray.base.file_digests import FileDigests, ReadFile
from fedray.imports.importer import (
    USUAL_MEMORY,
    Answers,
    check_memory,
    checked_numbering,
    import_log,
    read_digests,
    writing,
    written_trace,
)
from fedray.imports.log import Log, LogLayout, Tally, Unused
from fedray.imports.log_files import BATCH_ROWS, WHOLE, is_text, shown_path
from fedray.imports.log_rounds import Numbering, ReleasedRounds
from fedray.trace.imported import ImportedTrace, file_digest
from fedray.trace.provenance import package_versions
from fedray.trace.writer import TraceWriter

__all__ = ["ImportOptions", "append_log"]

ROWS, STATE = "rows", "state.json"
_SETTINGS = ("log", "out", "memory_mebibytes", "on_progress")
"""Arguments of an import that later appends may give other values."""
State = dict[str, Any]


class ImportOptions(TypedDict, total=False):
    """Options of `import_log` that hold for all appends."""

    device_column: str | Sequence[str]
    round_column: str
    rounds: int | None
    renumber: bool
    rounds_file: str | Path | None
    repeats: str
    owner_column: str | None
    time_column: str | None
    time_unit: str | None
    time_format: str | Sequence[str] | None
    time_zone: str | None
    where: Sequence[str]
    delimiter: str | None
    leave_out_invalid: bool
    join_ids: bool | None
    keep_ids: Sequence[str]


def append_log(
    log: str | Path,
    trace: str | Path,
    *,
    memory_mebibytes: int = USUAL_MEMORY,
    on_progress: Callable[[str], None] = lambda text: None,
    **options: Unpack[ImportOptions],
) -> ImportedTrace:
    """Appends what is new in a log to its trace; the first time, imports the log.

    The trace is the same as after one import of the whole log, but for the time of writing in
    run.json, and it is replaced in one step. It keeps the rows as they were read, 10 to 30 bytes
    each.

    Args:
        log: the file or directory, which has all files of before. Files may be new, and CSV or JSON
            Lines may have grown at their end.
        trace: directory of the trace; a new one if there is none yet.
        memory_mebibytes, on_progress: as `import_log` has them.
        options: options of `import_log`. The first time those without a default are needed; later
            ones may be left out, and must not differ. The rounds file may have further rounds.

    Returns:
        The trace, opened and checked.

    Raises:
        InputError: a file has changed or is missing, an option differs, or the log is one that
            `import_log` refuses; the trace is as it was.
        RunFailed: the disk is full or fails, or there is too little memory; likewise.
    """
    check_memory(memory_mebibytes)
    path, folder = Path(log), Path(trace)
    with TraceWriter(folder, replaces=True) as writer, writing(folder):
        old = _Kept(writer.directory)
        given = _plain(options)
        for name in (name for name in given if old.exists and given[name] != old.options[name]):
            rule = f"differs from the first import, which had {shown(old.options[name])}"
            raise InputError.of(name, given[name], rule, "leave it out, or import to a new trace")
        whole = _with_defaults({**old.options, **given})
        layout = _layout(whole)
        ways = {name: whole[name] for name in ("rounds", "renumber", "rounds_file")}
        numbering = checked_numbering(layout, whole["repeats"], writer.partial, **ways)
        source = _opened(path, layout, numbering, old, on_progress)
        with FileDigests(source.found.files) as digests:
            files = read_digests(source, digests)
            grown = _grown(source, files, old)
            reason = _reason_to_read_all(source, files, grown, old) if old.exists else ""
            if reason:
                on_progress(f"all files are read again: {reason}")
            elif old.exists and files == old.files and old.is_listed(numbering):
                return ImportedTrace.open(folder)
            elif old.exists and source.times is not None:
                source.times.restore(old.settled("times"))
            state = _read(source, files, writer.partial / ROWS, old, grown, bool(reason))
            # A file that was changed while it was parsed is noticed here.
            read_digests(source, digests)
        answers = Answers(
            whole["repeats"],
            whole["leave_out_invalid"],
            whole["join_ids"],
            whole["keep_ids"],
            memory_mebibytes,
        )
        document = written_trace(
            source,
            files,
            writer.partial / ROWS,
            writer,
            answers,
            whole["rounds_file"],
            on_progress,
        )
        state |= {"options": whole, "listed": _listed(numbering)}
        state["listed_times"] = _listed_times(numbering.released)
        content = (json.dumps(state, indent=1) + "\n").encode()
        write_whole(writer.partial / ROWS / STATE, content, f"state of {str(folder)!r}")
        document["rows_digest"] = hashlib.sha256(content).hexdigest()
        return ImportedTrace.open(writer.publish(document))


class _Kept:
    """What a trace keeps for appends; nothing if there is no trace.

    Raises InputError if the directory holds no such trace, and TraceCorrupt if it is damaged.
    """

    def __init__(self, trace: Path) -> None:
        self.folder = trace / ROWS
        self.exists = trace.is_dir() and any(trace.iterdir())
        self._state: State = {}
        if not self.exists:
            return
        digest = ImportedTrace.open(trace).run.get("rows_digest")
        if digest is None:
            rule = "does not keep the rows of its log, because it was not made by an append"
            remedy = "append the whole log to a new trace, once"
            raise InputError.of("append", str(trace), rule, remedy)
        file = self.folder / STATE
        if file_digest(file) != digest:
            raise TraceCorrupt.at(file, "does not have its recorded digest", "import the log again")
        self._state = json.loads(file.read_bytes())

    @property
    def options(self) -> dict[str, Any]:
        return self._state.get("options", {})

    @property
    def files(self) -> list[ReadFile]:
        return [ReadFile(**entry["file"]) for entry in self._state.get("files", ())]

    def entry(self, name: str) -> State | None:
        """Returns the entry of a file of the log; None if it is new."""
        entries = self._state.get("files", ())
        return next((each for each in entries if each["file"]["name"] == name), None)

    @property
    def schemas(self) -> dict[str, pa.Schema]:
        """Own columns of the files, by name."""
        entries = self._state.get("files", ())
        return {each["file"]["name"]: _schema(each["schema"]) for each in entries}

    def settled(self, name: str) -> Any:
        """Returns what the reading of the whole log has settled; None without a trace."""
        return self._state.get(name)

    def is_listed(self, numbering: Numbering) -> bool:
        """Returns whether the rounds file has the same rounds, at the same times."""
        return self._state["listed_times"] == _listed_times(numbering.released)


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options as JSON has them."""
    found = {}
    for name, value in options.items():
        if name == "device_column" and isinstance(value, str):
            found[name] = [value]
        elif isinstance(value, Path):
            found[name] = str(value)
        else:
            found[name] = list(value) if isinstance(value, tuple) else value
    return found


def _with_defaults(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all options of an import. Raises InputError if one without a default is missing."""
    found = {}
    for name, each in inspect.signature(import_log).parameters.items():
        if name in _SETTINGS:
            continue
        default = None if name == "rounds" else each.default
        found[name] = options.get(name, default)
        if found[name] is inspect.Parameter.empty:
            rule = "is needed for the first import, which makes the trace"
            raise InputError(f"`{name}=NAME` {rule}; name a column of the log")
    return _plain(found)


def _layout(options: Mapping[str, Any]) -> LogLayout:
    return LogLayout(
        devices=tuple(options["device_column"]),
        round=options["round_column"],
        owner=options["owner_column"],
        time=options["time_column"],
        time_unit=options["time_unit"],
        time_format=options["time_format"],
        time_zone=options["time_zone"],
        where=tuple(options["where"]),
        delimiter=options["delimiter"],
    )


def _opened(
    path: Path,
    layout: LogLayout,
    numbering: Numbering,
    old: _Kept,
    on_progress: Callable[[str], None],
) -> Log:
    known, texts = {}, None
    # Another release may see other columns in the same files.
    if old.settled("packages") == package_versions():
        sizes = {each["name"]: each["bytes"] for each in old.files}
        for name, schema in old.schemas.items():
            file = path / name if path.is_dir() else path
            # A file that grew may have other columns, if they are those of its first block.
            if file.is_file() and file.stat().st_size == sizes[name]:
                known[name] = schema
        texts = old.settled("texts")
    return Log(path, layout, numbering, on_progress, known, texts)


def _reason_to_read_all(
    source: Log, files: Sequence[ReadFile], grown: Mapping[str, int], old: _Kept
) -> str:
    """Returns why one import could read the old rows otherwise than they were read; "" if it
    could not."""
    if old.settled("packages") != package_versions():
        return "they were read by other versions of packages"
    if old.settled("columns") != _columns(source):
        return "columns have changed"
    rounds = old.settled("listed")
    if rounds is not None and _listed(source.numbering, rounds["count"]) != rounds:
        return "earlier lines of the rounds file have changed"
    if source.times is None:
        return ""
    # Such a line may be a time that was cut off.
    if 0 in grown.values():
        return "a last line without an end may have had another time"
    # The first times determine the form of all.
    for each in files:
        entry = old.entry(each["name"])
        if entry is None or _has_new_rounds(entry, source):
            return "the first rows have changed"
        if entry["tally"]["staged_rows"]:
            return ""
        if each["name"] in grown:
            return "the first rows have changed"
    return ""


def _has_new_rounds(entry: State, source: Log) -> bool:
    """Returns whether a file has rows in rounds that the rounds file lacked before."""
    released = source.numbering.released
    rounds = entry["tally"]["unreleased_rounds"]
    return released is not None and bool(np.isin(rounds, released.numbers).any())


def _columns(source: Log) -> State:
    """Returns all by which the rows of a log are compared and staged."""
    staged = [[each.name, str(each.type)] for each in source.schema]
    used = {name: str(kind) for name, kind in source.files.types.items()}
    # Only rows with a time are compared by all columns.
    whole = [list(each) for each in source.files.columns] if source.times is not None else []
    return {"staged": staged, "used": used, "whole": whole}


def _listed(numbering: Numbering, count: int | None = None) -> State | None:
    """Returns number and digest of the first `count` rounds of the rounds file; None without."""
    if numbering.released is None:
        return None
    numbers = numbering.released.numbers[:count]
    return {"count": numbers.size, "digest": hashlib.sha256(numbers.tobytes()).hexdigest()}


def _listed_times(released: ReleasedRounds | None) -> str:
    """Returns the digest of all that a rounds file says; "" without one."""
    if released is None:
        return ""
    seconds = None if released.seconds is None else released.seconds.tolist()
    said = [released.numbers.tolist(), seconds, released.form, released.step, released.doubts]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def _grown(source: Log, files: Sequence[ReadFile], old: _Kept) -> dict[str, int]:
    """Returns, by the name of a file that grew, the byte at which its new rows begin; 0 if it must
    be read from its start. Raises InputError if a file has changed or is missing."""
    missing = [each["name"] for each in old.files if each["name"] not in {f["name"] for f in files}]
    name = shown_path(source.path)
    if missing:
        raise InputError(
            f"log {name} lacks {missing[0]!r}, which was imported before; restore it, or import "
            "to a new trace"
        )
    grown = {}
    before = {each["name"]: each for each in old.files}
    for place, each in enumerate(files):
        known = before.get(each["name"])
        if known is None or known == each:
            continue
        if each["bytes"] > known["bytes"]:
            end = source.files.end_of_rows(place, known["bytes"])
            if _digest_to(source.found.files[place].path, known["bytes"]) == known["sha256"]:
                grown[each["name"]] = end
                continue
        raise InputError(
            f"log {name} has {each['name']!r}, whose rows that were imported before have changed; "
            "restore it, or import to a new trace"
        )
    return grown


def _digest_to(file: Path, size: int) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while size and (chunk := stream.read(min(size, 1 << 20))):
            digest.update(chunk)
            size -= len(chunk)
    return digest.hexdigest()


def _read(
    source: Log,
    files: Sequence[ReadFile],
    folder: Path,
    old: _Kept,
    grown: Mapping[str, int],
    again: bool,
) -> State:
    """Writes the rows of each file to a folder, and returns the state of the reading.

    Args:
        source: the log.
        files: its files.
        folder: folder to make.
        old: what the trace of before keeps.
        grown: bytes at which the new rows of files begin, by name.
        again: whether all files are parsed from their start.
    """
    folder.mkdir()
    entries, tallies = [], []
    for place, each in enumerate(files):
        known = None if again else old.entry(each["name"])
        begin = grown.get(each["name"])
        # Rows of a round that the list lacked may count now.
        if known is not None and (begin == 0 or _has_new_rounds(known, source)):
            known = None
        before = Tally() if known is None else _tally(known["tally"], source.schema)
        rows = folder / f"{place:06d}.parquet"
        kept = None if known is None else old.folder / known["rows"]
        digest = "" if known is None else known["rows_digest"]
        if kept is not None and file_digest(kept) != digest:
            raise TraceCorrupt.at(kept, "does not have its recorded digest", "import again")
        if kept is not None and begin is None:
            _linked(kept, rows)
            tally = before
        else:
            with _RowsFile(rows, source.schema) as writer:
                if kept is not None:
                    with pq.ParquetFile(kept) as found:
                        for batch in found.iter_batches(BATCH_ROWS):
                            writer.add(batch)
                begin = 0 if known is None or begin is None else begin
                tally = before + source.read_file(place, writer.add, begin)
            digest = file_digest(rows)
        tallies.append(tally)
        schema = source.files.schemas[each["name"]]
        entries.append(
            {
                "file": each,
                "rows": rows.name,
                "rows_digest": digest,
                "tally": _tally_state(tally),
                "schema": base64.b64encode(schema.remove_metadata().serialize()).decode(),
            }
        )
    source.count(tallies)
    return {
        "files": entries,
        "columns": _columns(source),
        "packages": package_versions(),
        "texts": source.texts,
        "times": None if source.times is None else source.times.state(),
    }


class _RowsFile:
    """Writes rows in groups of BATCH_ROWS, so that the file does not depend on the batches."""

    def __init__(self, file: Path, schema: pa.Schema) -> None:
        self._schema, self._pending = schema, schema.empty_table()
        # Rounds and times of a file are few, and names many.
        few = [name for name in schema.names if name in ("round", "time")]
        self._writer = pq.ParquetWriter(
            file,
            schema,
            compression="zstd",
            use_dictionary=few,  # pyright: ignore[reportArgumentType]
            write_page_checksum=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None and len(self._pending):
            self._write()
        self._writer.close()

    def add(self, batch: pa.RecordBatch) -> None:
        table = pa.Table.from_batches([batch], self._schema)
        self._pending = pa.concat_tables([self._pending, table])
        while len(self._pending) >= BATCH_ROWS:
            self._write()

    def _write(self) -> None:
        # One chunk, because the bytes of the file depend on the chunks.
        group = self._pending[:BATCH_ROWS].combine_chunks()
        self._writer.write_table(group, BATCH_ROWS)
        self._pending = self._pending[BATCH_ROWS:]


def _linked(kept: Path, file: Path) -> None:
    """Gives a file a second name, or copies it where there are no such links."""
    with contextlib.suppress(OSError):
        file.hardlink_to(kept)
        return
    shutil.copyfile(kept, file)


def _schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _tally_state(tally: Tally) -> State:
    left_out = {
        each.reason: [each.rows, [[_written(device), text] for device, text in each.examples]]
        for each in tally.left_out.values()
    }
    return {
        "rows": tally.rows,
        "filtered_rows": tally.filtered_rows,
        "staged_rows": tally.staged_rows,
        "out_of_range": tally.out_of_range,
        "unreleased_rows": tally.unreleased_rows,
        "unreleased_rounds": tally.unreleased_rounds.tolist(),
        "left_out": left_out,
    }


def _tally(state: State, schema: pa.Schema) -> Tally:
    """Returns the counts of a file, from what `_tally_state` made of them."""
    kind = schema.field("device").type
    left_out = {
        reason: Unused(reason, rows, [(_scalar(device, kind), text) for device, text in examples])
        for reason, (rows, examples) in state["left_out"].items()
    }
    rounds = np.array(state["unreleased_rounds"], np.int64)
    return Tally(**{**state, "unreleased_rounds": rounds, "left_out": left_out})


def _written(value: pa.Scalar) -> str | None:
    plain = value.as_py()
    if plain is None:
        return None
    return plain.hex() if isinstance(plain, bytes) else str(plain)


def _scalar(text: str | None, kind: pa.DataType) -> pa.Scalar:
    if text is None or is_text(kind):
        return pa.scalar(text, kind)
    if pa.types.is_binary(kind):
        return pa.scalar(bytes.fromhex(text), kind)
    return pa.scalar(decimal.Decimal(text) if kind == WHOLE else int(text), kind)
