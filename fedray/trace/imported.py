"""A trace that was imported from a log of somebody's own: who took part in which round, and nothing else.

    TRACE/
      run.json                  where it is from, what was left out and why, the parts, and the digest of their columns
      participations/*.parquet  device_id, round; sorted by both; each device in one file
      devices.parquet           row i: what the log calls device i

Device ids are places in devices.parquet, so that names of any kind can be taken, exactly.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fedray.errors import TraceCorrupt, TraceError, TraceVersion, shown
from fedray.trace.files import DAMAGE, check_file, first_line, read_ahead, read_columns
from fedray.trace.invariants import check_accepted
from fedray.trace.reader import (
    AcceptedPart,
    Trace,
    check_document,
    check_keys,
    check_no_strays,
    check_parts,
    integrity,
    read_document,
)
from fedray.trace.schema import DOCUMENT_DIGEST, FORMAT, columns_digest, run_digest

IMPORT_FORMAT = "fedray-import"
IMPORT_VERSION = 2
FIRST_READ_IMPORT = 1
"""The oldest that is read: without a digest of run.json."""
DEVICES_FILE = "devices.parquet"
NAMES_PER_GROUP = 1 << 18
"""Rows of devices.parquet in a row group, so that a name is found without reading the others."""
IMPORTED_SCHEMA = pa.schema([pa.field("device_id", pa.uint64(), nullable=False), pa.field("round", pa.uint32(), nullable=False)])


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Rows of the log that are no participation, by the reason; one of them, as the log has it."""

    reason: str
    rows: int
    example: str


class ImportedTrace:
    """An imported trace, opened. Raises TraceError, TraceCorrupt or TraceVersion."""

    def __init__(self, path: Path, run: dict[str, Any], verify: bool = True) -> None:
        self.path = path
        self.run = run
        """The document run.json."""
        self._verify = verify

    @classmethod
    def open(cls, path: str | Path, verify: bool = True) -> Self:
        """Opens and validates: version, every file present, schemas, row counts.

        verify: whether run.json and, as it is read, everything else must have its recorded digest.
        """
        directory = Path(path)
        run = read_document(directory)
        if run.get("format") != IMPORT_FORMAT:
            raise TraceError(f"{directory} does not say format={IMPORT_FORMAT!r}; give the directory that `fedray import` wrote")
        version = run.get("version")
        if type(version) is not int or not FIRST_READ_IMPORT <= version <= IMPORT_VERSION:
            raise TraceVersion(
                f"{directory} has version={shown(version)}, this release reads {FIRST_READ_IMPORT} to {IMPORT_VERSION}; "
                "import it again"
            )
        kinds = {
            "digest": str, "devices_digest": str, "log": str, "written": str, "packages": dict, "rounds": int, "rows_read": int,
            "rows": int, "devices": int, "left_out": list, "parts": list,
            **({DOCUMENT_DIGEST: str} if version > FIRST_READ_IMPORT else {}),
        }  # fmt: skip
        check_keys(run, kinds, directory)
        if verify:
            check_document(run, directory)
        if not all(isinstance(each, dict) and set(each) == {"reason", "rows", "example"} for each in run["left_out"]):
            raise TraceCorrupt(f"{directory}: run.json has an entry of left_out in another form; import the log again")
        check_parts(run["parts"], directory)
        if verify and run_digest([part["digest"] for part in run["parts"]], str(run["rounds"])) != run["digest"]:
            raise TraceCorrupt(f"{directory}: its digest is not that of its parts and rounds; import the log again")
        rows, devices = sum(part["rows"] for part in run["parts"]), max((part["end_device"] for part in run["parts"]), default=0)
        if (rows, devices) != (run["rows"], run["devices"]):
            raise TraceCorrupt(
                f"{directory}: its parts have {rows} rows of {devices} devices, run.json says {run['rows']} of {run['devices']}; "
                "import the log again"
            )
        check_no_strays(run["parts"], directory)
        if not (directory / DEVICES_FILE).is_file():
            raise TraceCorrupt(f"{directory / DEVICES_FILE} is missing; import the log again")
        for part in run["parts"]:
            check_file(directory / part["file"], IMPORTED_SCHEMA, part["rows"])
        return cls(directory, run, verify)

    @property
    def digest(self) -> str:
        """Digest of the columns, as recorded; `verify` recomputes it."""
        return self.run["digest"]

    @property
    def integrity(self) -> str:
        """What protects the figures of this trace against damage, as it was opened: a sentence."""
        return integrity(self._verify, DOCUMENT_DIGEST in self.run)

    @property
    def committed_rounds(self) -> int:
        """Rounds that released something, as the importer was told."""
        return self.run["rounds"]

    @property
    def left_out(self) -> list[LeftOut]:
        """What the importer left out of the log."""
        return [LeftOut(each["reason"], each["rows"], each["example"]) for each in self.run["left_out"]]

    def accepted(self) -> Iterator[AcceptedPart]:
        """Participations, part by part in order of device; every device is in one part only. Checks invariants 4 and 5."""
        yield from read_ahead(self._accepted_of, self.run["parts"])

    def _accepted_of(self, part: dict[str, Any]) -> AcceptedPart:
        file = self.path / part["file"]
        columns = read_columns(file, IMPORTED_SCHEMA, part["rows"])
        device_ids, rounds = columns["device_id"], columns["round"]
        if self._verify and imported_digest(device_ids, rounds) != part["digest"]:
            raise TraceCorrupt(
                f"{file} does not have the digest that run.json records; it was changed, or is another trace's: import the log "
                "again, or leave digests unchecked (--no-verify)"
            )
        check_accepted(device_ids, rounds, part["first_device"], part["end_device"], self.committed_rounds, str(file))
        return AcceptedPart(device_ids, rounds)

    def name_of(self, device_id: int) -> str:
        """What the log calls a device; in quotes, escaped, where that cannot be printed."""
        file = self._names_file
        try:
            with pq.ParquetFile(file, page_checksum_verification=True) as parquet:
                group = parquet.read_row_group(device_id // NAMES_PER_GROUP)
            value = group.column(0)[device_id % NAMES_PER_GROUP].as_py()
        except DAMAGE as error:
            raise TraceCorrupt(f"{file} is missing or damaged ({first_line(error)}); import the log again") from None
        name = value.hex() if isinstance(value, bytes) else str(value)
        return name if name.isprintable() else repr(name)

    def verify(self) -> None:
        """Recomputes every digest, of what is read and what is not. Raises TraceCorrupt at the first that differs."""
        checked = ImportedTrace.open(self.path)
        for _ in checked.accepted():
            pass
        _ = checked._names_file

    @cached_property
    def _names_file(self) -> Path:
        """The file of the devices' names, its digest checked once."""
        file = self.path / DEVICES_FILE
        if self._verify and file_digest(file) != self.run["devices_digest"]:
            raise TraceCorrupt(f"{file} does not have its recorded digest; names were changed, import the log again")
        return file


def file_digest(file: Path) -> str:
    """SHA-256 of a file's bytes. Raises TraceCorrupt."""
    try:
        with file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise TraceCorrupt(f"{file} cannot be read ({error}); import the log again") from None


def imported_digest(device_ids: NDArray[np.uint64], rounds: NDArray[np.uint32]) -> str:
    """Digest of one part's columns."""
    return columns_digest({"device_id": device_ids, "round": rounds})


def open_trace(path: str | Path, verify: bool = True) -> Trace | ImportedTrace:
    """A trace of either kind, by what its run.json says it is; `verify` as for both."""
    document = read_document(Path(path))
    if document.get("format") == IMPORT_FORMAT:
        return ImportedTrace.open(path, verify)
    if document.get("format") != FORMAT:
        raise TraceError(
            f"{Path(path) / 'run.json'} says format={shown(document.get('format'))}; give the directory that `fedray run` or "
            "`fedray import` wrote"
        )
    return Trace.open(path, verify)
