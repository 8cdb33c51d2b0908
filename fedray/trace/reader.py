"""Reads a trace. Opening validates its shape; reading validates what is read (fedray/trace/invariants.py)."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedray.errors import TraceCorrupt, TraceError, TraceVersion
from fedray.trace.files import check_file, read_ahead, read_table, to_numpy
from fedray.trace.invariants import check_accepted, check_rounds, check_rows, check_totals
from fedray.trace.schema import (
    FORMAT,
    METRIC_SCHEMA,
    METRICS_FILE,
    OUTCOMES,
    PARTICIPATION_SCHEMA,
    PARTICIPATIONS,
    ROUND_SCHEMA,
    ROUNDS_FILE,
    RUN_FILE,
    SCHEMA_VERSION,
    STATES,
    columns_digest,
    part_file,
    run_digest,
)


@dataclass(frozen=True, slots=True)
class AcceptedPart:
    """Participations of one part: accepted rows of committed rounds, sorted by (device, round); [A] each."""

    device_ids: NDArray[np.uint64]
    rounds: NDArray[np.uint32]


class Trace:
    """A trace directory, opened. Raises TraceError, TraceCorrupt or TraceVersion."""

    def __init__(self, path: Path, run: dict[str, Any]) -> None:
        self.path = path
        self.run = run
        """The document run.json."""

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Opens and validates: versions, every file present and whole, schemas, row counts, the rounds' invariants."""
        directory = Path(path)
        trace = cls(directory, _read_run(directory))
        check_rounds(trace.rounds, f"{directory / ROUNDS_FILE}")
        for part in trace.run["parts"]:
            check_file(directory / part["file"], PARTICIPATION_SCHEMA, part["rows"])
        check_no_strays(trace.run["parts"], directory)
        return trace

    @property
    def digest(self) -> str:
        """Digest of the result columns, as recorded; `verify` recomputes it."""
        return self.run["digest"]

    @property
    def scenario(self) -> dict[str, Any]:
        """The scenario's tables."""
        return self.run["scenario"]

    @cached_property
    def committed_rounds(self) -> int:
        """Rounds that released something: n of every mechanism."""
        return int((self.rounds["state"] == 0).sum())

    @cached_property
    def rounds(self) -> dict[str, NDArray]:
        """Columns of the attempts in order of time; the state as a code (0 committed, 1 abandoned)."""
        table = read_table(self.path / ROUNDS_FILE, ROUND_SCHEMA)
        return {name: to_numpy(table.column(name), STATES) for name in ROUND_SCHEMA.names}

    @cached_property
    def metrics(self) -> dict[str, NDArray] | None:
        """Columns of the training metrics, or None if no model was trained."""
        if not (self.path / METRICS_FILE).exists():
            return None
        table = read_table(self.path / METRICS_FILE, METRIC_SCHEMA)
        return {name: to_numpy(table.column(name), ()) for name in METRIC_SCHEMA.names}

    def accepted(self) -> Iterator[AcceptedPart]:
        """Participations, part by part in order of device; every device is in one part only. Checks invariants 4 to 6."""
        count = self.committed_rounds
        rows_per_round = np.zeros(count, np.int64)
        for accepted in read_ahead(self._accepted_of, self.run["parts"]):
            rows_per_round += np.bincount(accepted.rounds, minlength=count)
            yield accepted
        check_totals(rows_per_round, self.rounds, str(self.path))

    def _accepted_of(self, part: dict[str, Any]) -> AcceptedPart:
        file = self.path / part["file"]
        table = read_table(file, PARTICIPATION_SCHEMA, ["round", "device_id", "outcome"])
        chosen = to_numpy(table.column("outcome"), OUTCOMES) == OUTCOMES.index("accepted")
        rounds = to_numpy(table.column("round"), ())[chosen]
        device_ids = to_numpy(table.column("device_id"), ())[chosen]
        check_accepted(device_ids, rounds, part["first_device"], part["end_device"], self.committed_rounds, str(file))
        return AcceptedPart(device_ids, rounds)

    def name_of(self, device_id: int) -> str:
        """What the source calls a device: here its id."""
        return str(device_id)

    def columns(self, part: int) -> dict[str, NDArray]:
        """All columns of one part's rows; outcomes as codes, NaN for no report. Checks invariant 4."""
        entry = self.run["parts"][part]
        table = read_table(self.path / entry["file"], PARTICIPATION_SCHEMA)
        columns = {name: to_numpy(table.column(name), OUTCOMES) for name in PARTICIPATION_SCHEMA.names}
        last_round = int(self.rounds["round"].max(initial=0))
        check_rows(columns, entry["first_device"], entry["end_device"], last_round, str(self.path / entry["file"]))
        return columns

    def outcome_counts(self) -> dict[str, int]:
        """Selected devices by outcome."""
        counts = np.zeros(len(OUTCOMES), np.int64)
        for part in self.run["parts"]:
            table = read_table(self.path / part["file"], PARTICIPATION_SCHEMA, ["outcome"])
            counts += np.bincount(to_numpy(table.column("outcome"), OUTCOMES), minlength=len(OUTCOMES))
        return dict(zip(OUTCOMES, counts.tolist(), strict=True))

    def verify(self) -> None:
        """Recomputes every digest from the columns. Raises TraceCorrupt at the first that differs."""
        parts = self.run["parts"]
        for index, part in enumerate(parts):
            if columns_digest(self.columns(index)) != part["digest"]:
                raise TraceCorrupt(f"{part['file']}: the digest of its columns is not the recorded one; the rows were changed")
        rounds_digest = columns_digest(self.rounds)
        if run_digest([part["digest"] for part in parts], rounds_digest) != self.digest:
            raise TraceCorrupt(f"{ROUNDS_FILE}: the digest of the run is not the recorded one; the rows were changed")


def read_document(directory: Path) -> dict[str, Any]:
    """The document run.json of a trace's directory. Raises TraceError, TraceCorrupt."""
    file = directory / RUN_FILE
    if not directory.is_dir():
        raise TraceError(f"trace {str(directory)!r} is not a directory; give the directory that `fedray run --out` wrote")
    try:
        run = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TraceError(f"trace {str(directory)!r} has no {RUN_FILE}; give the directory that `fedray run` wrote") from None
    except (OSError, ValueError, RecursionError) as error:
        raise TraceCorrupt(f"{file} cannot be read ({error}); take the trace from its source again") from None
    if not isinstance(run, dict):
        raise TraceError(f"{file} does not say format={FORMAT!r}; give the directory that `fedray run` wrote")
    return run


def _read_run(directory: Path) -> dict[str, Any]:
    file, run = directory / RUN_FILE, read_document(directory)
    if run.get("format") != FORMAT:
        raise TraceError(f"{file} does not say format={FORMAT!r}; give the directory that `fedray run` wrote")
    if run.get("schema_version") != SCHEMA_VERSION:
        raise TraceVersion(
            f"{file} has schema_version={run.get('schema_version')!r}, this release reads {SCHEMA_VERSION}; "
            "use the fedray release that wrote it, or run the scenario again"
        )
    kinds = {"digest": str, "ended": str, "written": str, "seed": int, "scenario": dict, "packages": dict, "parts": list}
    check_keys(run, kinds, directory)
    check_parts(run["parts"], directory)
    return run


def check_keys(run: dict[str, Any], kinds: Mapping[str, type], directory: Path) -> None:
    """Raises TraceCorrupt unless run.json has the keys, in values of their kinds."""
    wrong = [key for key, kind in kinds.items() if not isinstance(run.get(key), kind)]
    if wrong:
        file = directory / RUN_FILE
        raise TraceCorrupt(f"{file} lacks {', '.join(wrong)}, or has them in another form; take the trace from its source again")


def check_no_strays(parts: list[Any], directory: Path) -> None:
    """Raises TraceCorrupt if there are files among the parts that are none."""
    known = {Path(part["file"]).name for part in parts}
    strays = sorted(file.name for file in (directory / PARTICIPATIONS).glob("*") if file.name not in known)
    if strays:
        raise TraceCorrupt(f"{directory / PARTICIPATIONS} holds {strays[0]!r}, which is no part of the trace; move it away")


def check_parts(parts: list[Any], directory: Path) -> None:
    """Raises TraceCorrupt unless they are entries of parts in order of device, apart, under their own names."""
    file, after = directory / RUN_FILE, 0
    for part in parts:
        if not isinstance(part, dict) or not {"file", "first_device", "end_device", "rows", "digest"} <= part.keys():
            raise TraceCorrupt(f"{file} has an incomplete entry in parts; take the trace from its source again")
        numbers = [part[key] for key in ("first_device", "end_device", "rows")]
        if not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
            raise TraceCorrupt(f"{file} has an entry in parts whose numbers are {numbers}; take the trace from its source again")
        if not after <= part["first_device"] < part["end_device"]:
            raise TraceCorrupt(f"{file} has parts that overlap or are out of order at {part['file']!r}; take the trace again")
        after = part["end_device"]
        if part["file"] != part_file(part["first_device"]):
            raise TraceCorrupt(f"{file} names {part['file']!r}, which is not the name of its part; take the trace again")
