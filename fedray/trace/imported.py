"""A trace that was imported from a log of somebody's own: who took part in which round, and nothing else.

    TRACE/
      run.json                  where it is from, what was left out and why, the parts, and the digest of their columns
      participations/*.parquet  device_id, round; sorted by both; each device in one file
      devices.parquet           row i: what the log calls device i

Device ids are places in devices.parquet, so that names of any kind can be taken, exactly.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fedray.errors import TraceCorrupt, TraceError, TraceVersion
from fedray.trace.files import DAMAGE, check_file, first_line, read_ahead, read_table
from fedray.trace.invariants import check_accepted
from fedray.trace.reader import AcceptedPart, Trace, check_keys, check_no_strays, check_parts, read_document
from fedray.trace.schema import FORMAT, columns_digest, run_digest

IMPORT_FORMAT = "fedray-import"
IMPORT_VERSION = 1
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

    def __init__(self, path: Path, run: dict[str, Any]) -> None:
        self.path = path
        self.run = run
        """The document run.json."""

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Opens and validates: version, every file present, schemas, row counts."""
        directory = Path(path)
        run = read_document(directory)
        if run.get("format") != IMPORT_FORMAT:
            raise TraceError(f"{directory} does not say format={IMPORT_FORMAT!r}; give the directory that `fedray import` wrote")
        if run.get("version") != IMPORT_VERSION:
            raise TraceVersion(
                f"{directory} has version={run.get('version')!r}, this release reads {IMPORT_VERSION}; import it again"
            )
        kinds = {
            "digest": str, "devices_digest": str, "log": str, "written": str, "packages": dict, "rounds": int, "rows_read": int,
            "rows": int, "devices": int, "left_out": list, "parts": list,
        }  # fmt: skip
        check_keys(run, kinds, directory)
        if not all(isinstance(each, dict) and set(each) == {"reason", "rows", "example"} for each in run["left_out"]):
            raise TraceCorrupt(f"{directory}: run.json has an entry of left_out in another form; import the log again")
        check_parts(run["parts"], directory)
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
        return cls(directory, run)

    @property
    def digest(self) -> str:
        """Digest of the columns, as recorded; `verify` recomputes it."""
        return self.run["digest"]

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
        table = read_table(file, IMPORTED_SCHEMA)
        device_ids, rounds = table.column("device_id").to_numpy(), table.column("round").to_numpy()
        check_accepted(device_ids, rounds, part["first_device"], part["end_device"], self.committed_rounds, str(file))
        return AcceptedPart(device_ids, rounds)

    def name_of(self, device_id: int) -> str:
        """What the log calls a device; in quotes, escaped, where that cannot be printed."""
        file = self.path / DEVICES_FILE
        try:
            with pq.ParquetFile(file, page_checksum_verification=True) as parquet:
                group = parquet.read_row_group(device_id // NAMES_PER_GROUP)
            value = group.column(0)[device_id % NAMES_PER_GROUP].as_py()
        except DAMAGE as error:
            raise TraceCorrupt(f"{file} is missing or damaged ({first_line(error)}); import the log again") from None
        name = value.hex() if isinstance(value, bytes) else str(value)
        return name if name.isprintable() else repr(name)

    def verify(self) -> None:
        """Recomputes every digest from the columns. Raises TraceCorrupt at the first that differs."""
        for part, accepted in zip(self.run["parts"], self.accepted(), strict=True):
            if imported_digest(accepted.device_ids, accepted.rounds) != part["digest"]:
                raise TraceCorrupt(f"{part['file']}: the digest of its columns is not the recorded one; the rows were changed")
        if run_digest([part["digest"] for part in self.run["parts"]], str(self.committed_rounds)) != self.digest:
            raise TraceCorrupt(f"{self.path}: the digest of the parts and rounds is not the recorded one; it was changed")
        if file_digest(self.path / DEVICES_FILE) != self.run["devices_digest"]:
            raise TraceCorrupt(
                f"{self.path / DEVICES_FILE} does not have its recorded digest; names were changed, import the log again"
            )


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


def open_trace(path: str | Path) -> Trace | ImportedTrace:
    """A trace of either kind, by what its run.json says it is."""
    document = read_document(Path(path))
    if document.get("format") == IMPORT_FORMAT:
        return ImportedTrace.open(path)
    if document.get("format") != FORMAT:
        raise TraceError(
            f"{Path(path) / 'run.json'} says format={json.dumps(document.get('format'))}; give the directory that `fedray run` or "
            "`fedray import` wrote"
        )
    return Trace.open(path)
