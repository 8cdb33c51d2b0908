"""Reads a trace. Opening it validates its files; reading validates their content
(fedray/trace/invariants.py)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedray.base.arrays import UInt32Array, UInt64Array
from fedray.base.errors import TraceCorrupt, TraceError, shown
from fedray.base.result import DrawnResult, Result
from fedray.base.storage import fetched
from fedray.base.threads import in_order
from fedray.trace.checkpoints import check_finished
from fedray.trace.columns import (
    LOSS_SCHEMA,
    ROUND_SCHEMA,
    columns_in,
    has_owners,
    is_buffered,
    schema_of,
)
from fedray.trace.files import DocumentForm, check_file, check_name, read_columns
from fedray.trace.invariants import (
    check_accepted,
    check_losses,
    check_owners,
    check_rounds,
    check_rows,
    check_totals,
    check_versions,
)
from fedray.trace.progress import read_progress
from fedray.trace.schema import (
    FORMAT,
    LOSSES_DIGEST,
    LOSSES_FILE,
    OUTCOMES,
    PARTICIPATIONS,
    ROUNDS_FILE,
    RUN_FILE,
    SCHEMA_VERSION,
    STATES,
    column_digest,
    columns_digest,
    part_file,
    run_digest,
)
from fedray.trace.trained import LIVE_TRAINING, TRAINING, TrainedRun, check_stopped
from fedray.wire.messages import Metric

_WRITTEN = "that `fedray run` or `fedray import` wrote"
COPY_AGAIN = "copy the trace from its source again"
_FORM = DocumentForm(
    RUN_FILE,
    FORMAT,
    SCHEMA_VERSION,
    {
        "digest": str,
        "rounds_digest": str,
        "ended": str,
        "written": str,
        "seed": int,
        "scenario": dict,
        "packages": dict,
        "parts": list,
    },
    _WRITTEN,
    COPY_AGAIN,
    "use the fedray release that wrote it, or run the scenario again",
    "schema_version",
)


@dataclass(frozen=True, slots=True)
class AcceptedPart:
    """Participations of one part: accepted rows of committed rounds, sorted by (device, round)."""

    device_ids: UInt64Array
    """Devices that took part, [A], in order."""
    rounds: UInt32Array
    """Committed rounds that they took part in, [A]."""
    versions: UInt32Array | None = None
    """Model version sent to each device, [A]: the number of rounds released when it started. None
    unless rounds are buffered; the version then equals the round."""
    owner_ids: UInt64Array | None = None
    """Owner of each device, [A]; None if owners are unknown."""


class OpenedTrace(Result):
    """Members that a run's trace and an imported one share.

    Args:
        path: directory of the trace.
        run: the document run.json.
        verify: whether run.json, and each column when it is read, must have its digest.
    """

    def __init__(self, path: Path, run: dict[str, Any], verify: bool = True) -> None:
        self.path = path
        self.run = run
        """The document run.json."""
        self._verify = verify

    def to_json(self) -> dict[str, Any]:
        """Returns run.json without its list of parts, and the path, as one JSON object."""
        return {"path": str(self.path), **{k: v for k, v in self.run.items() if k != "parts"}}

    @property
    def digest(self) -> str:
        """Digest of the result columns, as recorded in run.json; `verify()` recomputes it. Traces
        with the same digest have the same participations."""
        return self.run["digest"]

    @property
    def integrity(self) -> str:
        """Sentence on how figures are protected against damage, as the trace was opened."""
        if self._verify:
            return f"{RUN_FILE} and every column that was read have their recorded digests."
        return "Digests were not checked: damage or a change of the trace may have gone unnoticed."

    def names_of(self, device_ids: Sequence[int]) -> list[str]:
        """Returns the names of devices, in their order: a run's ids as text, and a log's own names,
        quoted and escaped if they cannot be printed."""
        return [str(each) for each in device_ids]

    def name_of(self, device_id: int) -> str:
        """Returns the name of the device `device_id`, as `names_of`."""
        return self.names_of([device_id])[0]

    def owner_names(self, owner_ids: Sequence[int]) -> list[str]:
        """Returns the names of persons, each given by the first device that the person owns."""
        return [str(each) for each in owner_ids]


class Trace(DrawnResult, OpenedTrace):
    """An opened trace directory; its columns are read and checked on demand.

    Raises:
        TraceError: the directory is not a trace.
        TraceCorrupt: a file is missing, damaged, changed, or breaks an invariant of the format.
        TraceVersion: another release of fedray wrote it.
    """

    TABLES: ClassVar[str] = "fedray.report.traces:trace_tables"
    SUBJECT: ClassVar[str] = "fedray.report.subjects:trace_subject"
    FIGURES: ClassVar[str] = "fedray.report.figures:trace_figures"
    PAGE: ClassVar[str] = "fedray.report.page:trace_page"

    @classmethod
    def open(cls, path: str | Path, verify: bool = True) -> Self:
        """Opens a trace and validates version, presence of files, schemas, row counts and rounds.

        Args:
            path: the directory, or its URI in a bucket (`s3://`, `gs://`), which is copied.
            verify: whether run.json, and each column when it is read, must have its digest.
        """
        directory = fetched(path)
        trace = cls(directory, _read_run(directory, verify), verify)
        check_rounds(
            trace.rounds,
            f"{directory / ROUNDS_FILE}",
            may_be_empty=trace.sampling_probability is not None,
        )
        # Footers are enough here, since columns are checked when they are read.
        for part in trace.run["parts"]:
            check_file(directory / part["file"], trace.participation_schema, part["rows"])
        if LOSSES_DIGEST in trace.run:
            check_file(directory / LOSSES_FILE, LOSS_SCHEMA, None)
        check_no_strays(trace.run["parts"], directory)
        return trace

    def __repr__(self) -> str:
        run = self.run
        said = f"{run['ended']}{self._unfinished_training()}"
        return f"<Trace {shown(str(self.path))}: {said}, digest {self.digest[:12]}>"

    def _unfinished_training(self) -> str:
        """Returns how far an unfinished training beside this trace is, after a comma."""
        told = read_progress(self.path.with_name(f"{self.path.name}{LIVE_TRAINING}"))
        return "" if told is None else f", training unfinished, {told.done} of {told.count} rounds"

    def to_arrow(self) -> pa.Table:
        """Returns the attempts at rounds in order of time, with the columns of rounds.parquet."""
        columns = self.rounds
        states = np.array(STATES)[columns["state"]]
        return pa.table({**columns, "state": states})

    @property
    def is_buffered(self) -> bool:
        """Whether rounds are buffers of reports from devices that started at different times."""
        return is_buffered(self.scenario)

    @property
    def participation_schema(self) -> pa.Schema:
        """Columns of the participations."""
        return schema_of(columns_in(PARTICIPATIONS, self.scenario))

    @property
    def has_owners(self) -> bool:
        """Whether the run had owners of devices (`population.owners`)."""
        return has_owners(self.scenario)

    @property
    def scenario(self) -> dict[str, Any]:
        """Tables of the scenario, with every default filled in."""
        return self.run["scenario"]

    @property
    def stores_uploads(self) -> bool:
        """Whether rounds drew stored uploads, so that one upload may be in several rounds."""
        return self.scenario.get("rounds", {}).get("uploads") is not None

    @property
    def sampling_probability(self) -> float | None:
        """Probability, according to run.json, that a stored upload was drawn for a round of its
        partition, independently of the others; None if rounds were not drawn so."""
        # A changed document may have anything here; other forms state no probability.
        sampling = self.run.get("sampling")
        if not isinstance(sampling, dict) or sampling.get("kind", "cyclic") == "cyclic":
            return None
        probability = sampling.get("probability")
        if not isinstance(probability, float | int) or not 0 < probability <= 1:
            return None
        return float(probability)

    @cached_property
    def committed_rounds(self) -> int:
        """Number of rounds that released a model: n of every mechanism. No abandoned attempts
        count."""
        return int((self.rounds["state"] == 0).sum())

    @cached_property
    def rounds(self) -> dict[str, NDArray]:
        """Columns of the attempts at rounds, in order of time, with the state as a code (0
        committed, 1 abandoned)."""
        columns = read_columns(self.path / ROUNDS_FILE, ROUND_SCHEMA)
        if self._verify:
            self._demand(columns_digest(columns) == self.run["rounds_digest"], ROUNDS_FILE)
        return columns

    @cached_property
    def losses(self) -> dict[str, NDArray] | None:
        """Losses of devices' histories as columns, in order of device and time; None if histories
        could not be lost. Checks invariant 7."""
        if LOSSES_DIGEST not in self.run:
            return None
        columns = read_columns(self.path / LOSSES_FILE, LOSS_SCHEMA)
        if self._verify:
            self._demand(columns_digest(columns) == self.run[LOSSES_DIGEST], LOSSES_FILE)
        check_losses(columns, str(self.path / LOSSES_FILE))
        return columns

    @cached_property
    def trained(self) -> TrainedRun | None:
        """The trained run that `fedray run` wrote with this trace; None if no model was trained.

        Raises:
            TraceCorrupt: the model was trained on another trace.
        """
        directory = self.path / TRAINING
        if not directory.exists():
            return None
        trained = TrainedRun.open(directory, self._verify)
        # The files of another run's training are consistent, so only this check reveals them.
        if trained.trace_digest != self.digest:
            raise TraceCorrupt.at(
                shown(str(directory)),
                f"was trained on the trace {trained.trace_digest[:12]}, not on this one, "
                f"{self.digest[:12]}",
                "put this trace's own training back, or move that folder away",
            )
        return trained

    @cached_property
    def metrics(self) -> dict[str, NDArray] | None:
        """Columns of the training metrics by name, with a row per committed round; None if no model
        was trained."""
        return self.trained.metrics if self.trained is not None else None

    @property
    def task_metrics(self) -> tuple[Metric, ...]:
        """Held-out metrics among `metrics`, with names, units and which values are better; empty if
        no model was trained."""
        return () if self.trained is None else self.trained.task_metrics

    def accepted(self) -> Iterator[AcceptedPart]:
        """Yields participations part by part, in order of device; every device is in only one part.
        Checks invariants 4 to 6, and 8 for buffered rounds."""
        # Invariant 6 concerns all parts together, so it is checked after the last part.
        count = self.committed_rounds
        rows_per_round = np.zeros(count, np.int64)
        for accepted in in_order(self._accepted_of, self.run["parts"]):
            rows_per_round += np.bincount(accepted.rounds, minlength=count)
            yield accepted
        check_totals(rows_per_round, self.rounds, str(self.path))

    def _accepted_of(self, part: dict[str, Any]) -> AcceptedPart:
        used = ("round", "device_id", "outcome", "version", "owner_id")
        names = [name for name in self.participation_schema.names if name in used]
        columns = self._columns_of(part, names)
        chosen = columns["outcome"] == OUTCOMES.index("accepted")
        rounds = columns["round"][chosen]
        device_ids = columns["device_id"][chosen]
        file = str(self.path / part["file"])
        first = part["first_device"]
        end = part["end_device"]
        check_accepted(device_ids, rounds, first, end, self.committed_rounds, file)
        versions = columns["version"][chosen] if self.is_buffered else None
        if versions is not None:
            check_versions(versions, rounds, self._max_staleness, file)
        owner_ids = columns["owner_id"][chosen] if self.has_owners else None
        if owner_ids is not None:
            check_owners(owner_ids, device_ids, file)
        return AcceptedPart(device_ids, rounds, versions, owner_ids)

    @property
    def _max_staleness(self) -> int | None:
        """The scenario's limit on staleness; None if it cannot be read."""
        buffer = self.scenario["rounds"].get("buffer")
        value = buffer.get("max_staleness") if isinstance(buffer, dict) else None
        return value if type(value) is int else None

    def columns(self, part: int) -> dict[str, NDArray]:
        """Returns all columns of one `part` by name, with outcomes as codes, and NaN for no report.
        Rows are sorted by device and check-in. Checks invariant 4."""
        entry = self.run["parts"][part]
        columns = self._columns_of(entry, self.participation_schema.names)
        # Rows of abandoned attempts have the number of the next commit, which may never come.
        last_round = int(self.rounds["round"].max(initial=0))
        file = str(self.path / entry["file"])
        first, end = entry["first_device"], entry["end_device"]
        check_rows(columns, first, end, last_round, self.committed_rounds, file)
        return columns

    def outcome_counts(self) -> dict[str, int]:
        """Returns the number of selected devices by outcome, in committed and abandoned rounds."""
        counts = np.zeros(len(OUTCOMES), np.int64)
        for part in self.run["parts"]:
            codes = self._columns_of(part, ("outcome",))["outcome"]
            counts += np.bincount(codes, minlength=len(OUTCOMES))
        return dict(zip(OUTCOMES, counts.tolist(), strict=True))

    def verify(self) -> None:
        """Recomputes every digest from the columns, and reads every file of a trained model. Raises
        TraceCorrupt at the first difference."""
        _FORM.check_digest(self.run, self.path)
        parts = self.run["parts"]
        for index, part in enumerate(parts):
            self._demand(columns_digest(self.columns(index)) == part["digest"], part["file"])
        # A new Trace reads rounds and metrics again, and checks their digests.
        checked = Trace(self.path, self.run)
        _ = checked.rounds, checked.losses, checked.metrics
        if checked.trained is not None:
            checked.trained.verify()

    def _columns_of(self, part: dict[str, Any], names: Sequence[str]) -> dict[str, NDArray]:
        """Returns columns of a part, each checked against its recorded digest."""
        file = self.path / part["file"]
        schema = self.participation_schema
        columns = read_columns(file, schema, part["rows"], names)
        if not self._verify:
            return columns
        for name, column in columns.items():
            has_digest = column_digest(name, column) == part["columns"].get(name)
            self._demand(has_digest, f"{part['file']}, column {name}")
        return columns

    def _demand(self, has_digest: bool, where: str) -> None:
        if not has_digest:
            raise TraceCorrupt.at(
                self.path / where,
                f"does not have the digest that {RUN_FILE} records, so it was changed or belongs "
                "to another trace",
                f"{COPY_AGAIN}, or leave digests unchecked (`verify=False`)",
            )


def read_document(directory: Path) -> dict[str, Any]:
    """Returns the document run.json of a trace's directory, in any format and version.

    Raises:
        TraceError: the directory or its run.json does not exist.
        TraceCorrupt: run.json cannot be read.
    """
    # A path that Parquet cannot open is reported first.
    check_name(directory)
    if directory.is_file():
        raise TraceError(
            f"trace {str(directory)!r} is a file, not a directory; make a trace from a log with "
            "`fedray import`"
        )
    if not directory.is_dir():
        check_finished(directory)
        raise TraceError(
            f"trace {str(directory)!r} is not a directory; give the directory {_WRITTEN}"
        )
    run = _FORM.read(directory)
    # Valid JSON may be any value, such as a list, which has no format.
    return run if isinstance(run, dict) else {}


def _read_run(directory: Path, verify: bool) -> dict[str, Any]:
    file = directory / RUN_FILE
    run = read_document(directory)
    _FORM.check(run, directory, verify)
    check_stopped(run, file)
    if LOSSES_DIGEST in run and not isinstance(run[LOSSES_DIGEST], str):
        raise TraceCorrupt.at(file, f"has no digest at {LOSSES_DIGEST}")
    # Entries are checked first, because the code below relies on their keys.
    check_parts(run["parts"], directory, {"columns": dict})
    if not verify:
        return run
    # Parts are checked when they are read; here, only that their digests make up the trace's.
    part_digests = [part["digest"] for part in run["parts"]]
    digest = run_digest(part_digests, run["rounds_digest"], run.get(LOSSES_DIGEST))
    if digest != run["digest"]:
        raise TraceCorrupt.at(file, "has a digest that does not match its parts and rounds")
    return run


def check_no_strays(parts: list[Any], directory: Path) -> None:
    """Raises TraceCorrupt if the folder of parts has other files.

    Other tools read the whole folder, and would count files that are not part of the trace.
    """
    known = {Path(part["file"]).name for part in parts}
    found = [file.name for file in (directory / PARTICIPATIONS).glob("*")]
    strays = sorted(name for name in found if name not in known)
    if strays:
        problem = f"has {strays[0]!r}, which is not part of the trace"
        raise TraceCorrupt.at(directory / PARTICIPATIONS, problem, "move it away")


def check_parts(
    parts: list[Any], directory: Path, further: Mapping[str, type] | None = None
) -> None:
    """Raises TraceCorrupt unless `parts` are entries of parts in order of device, without overlap,
    and with the right file names.

    Args:
        parts: entries of run.json.
        directory: its directory, for messages.
        further: type of the value of each key beyond those of every part.
    """
    file = directory / RUN_FILE
    kinds = {"digest": str, **(further or {})}
    after = 0
    for part in parts:
        if not (
            isinstance(part, dict)
            and {"file", "first_device", "end_device", "rows", "digest"} <= part.keys()
            and all(isinstance(part.get(key), kind) for key, kind in kinds.items())
        ):
            raise TraceCorrupt.at(file, "has an incomplete entry in parts")
        # A document may have any values, so types are checked before numbers are compared.
        numbers = [part[key] for key in ("first_device", "end_device", "rows")]
        if not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
            raise TraceCorrupt.at(file, f"has an entry in parts with the numbers {shown(numbers)}")
        name = shown(part["file"])
        if not after <= part["first_device"] < part["end_device"]:
            raise TraceCorrupt.at(file, f"has parts that overlap or are out of order at {name}")
        after = part["end_device"]
        # With names that follow from devices, no document can refer to files outside of the trace.
        if part["file"] != part_file(part["first_device"]):
            raise TraceCorrupt.at(file, f"names {name}, which is not the name of its part")
