"""Cuts a trace after its first rounds: the trace that the simulation would have if it had ended
there.

Rows of later rounds, and of attempts at them, are left out; so are the losses of histories and the
counts by class that follow from these rows. Its digest is that of a simulation that ended after the
last kept round.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedray.clients.parts import PartEncoder
from fedray.scenario import Scenario
from fedray.trace.reader import Trace
from fedray.trace.schema import (
    DOCUMENT_DIGEST,
    LOSSES_DIGEST,
    LOSSES_FILE,
    REPORT_FILE,
    ROUNDS_FILE,
    RUN_FILE,
)
from fedray.trace.writer import TraceWriter
from fedray.wire.messages import ClassCounts, RoundRecord

_WRITTEN_AGAIN = (RUN_FILE, ROUNDS_FILE, LOSSES_FILE, REPORT_FILE)
"""Files of a trace that are not copied as they are."""
_OF_CONTENT = {
    *("format", "schema_version", "digest", "rounds_digest", LOSSES_DIGEST, "parts"),
    DOCUMENT_DIGEST,
}
"""Keys of run.json that follow from the rows."""


def cut_trace(
    trace: Trace, scenario: Scenario, rounds: int, directory: Path, changes: Mapping[str, Any]
) -> Trace:
    """Writes the trace of the first rounds of a run, and opens it.

    Args:
        trace: trace of one task, with more rounds.
        scenario: scenario of its population and rules.
        rounds: number of committed rounds to keep.
        directory: directory of the new trace, which may be that of `trace`; it is then replaced
            when the new one is whole.
        changes: keys of run.json with other values.

    Raises:
        TraceCorrupt: the trace is damaged.
        InputError, RunFailed: the directory cannot be written.
    """
    encoder = PartEncoder(scenario)
    with TraceWriter(directory, replaces=directory == trace.path) as writer:
        for path in trace.path.iterdir():
            if path.is_file() and path.name not in _WRITTEN_AGAIN:
                writer.save_content(path.name, path.read_bytes())
        for place, part in enumerate(trace.run["parts"]):
            columns = trace.columns(place)
            # An abandoned attempt has the number of the round that it attempted.
            is_kept = columns["round"] < rounds
            rows = {name: column[is_kept] for name, column in columns.items()}
            writer.add_part(encoder.encoded(part["first_device"], part["end_device"], rows))
        records = [each for each in _records(trace.rounds) if each.round_index < rounds]
        classes = _classes(trace.run.get("classes", []), writer.class_counts)
        uploads = _uploads(trace.run.get("uploads", []), rounds)
        kept = {name: each for name, each in trace.run.items() if name not in _OF_CONTENT}
        document = {**kept, **classes, **uploads, **changes}
        return Trace.open(writer.finish(records, document))


def _records(columns: Mapping[str, NDArray]) -> list[RoundRecord]:
    """Returns the rows of rounds.parquet as records."""
    names = ("opened", "started", "closed", "selected", "reported", "accepted")
    values = [columns[name].tolist() for name in ("round", *names)]
    states, eligible = (columns["state"] == 0).tolist(), columns["eligible_estimate"].tolist()
    return [RoundRecord(*row) for row in zip(*values, states, eligible, strict=True)]


def _classes(entries: list[dict[str, Any]], counts: ClassCounts | None) -> dict[str, Any]:
    """Returns the key of run.json on classes of devices, with new counts; empty without classes."""
    if counts is None:
        return {}
    columns = {name: column.tolist() for name, column in counts._asdict().items()}
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    return {"classes": [{**each, **row} for each, row in zip(entries, rows, strict=True)]}


def _uploads(entries: list[dict[str, Any]], rounds: int) -> dict[str, Any]:
    """Returns the key of run.json on upload windows, without uploads of windows after the last kept
    round; empty if rounds store none."""
    kept, first = [], 0
    for each in entries:
        counts = dict.fromkeys(each.keys() - {"window", "rounds"}, 0)
        kept.append(each if first < rounds else {**each, **counts})
        first += each["rounds"]
    return {"uploads": kept} if entries else {}
