"""Damaged and hostile inputs, by the hundred thousand, in one process: `make fuzz`, or python tests/fuzz/fuzz.py --help.

A case is a function of (seed, target, number). What may come of it: the figures of the undamaged input, to the last bit, or one
FedrayError. Everything else is a finding: another exception, another figure, a message of several lines, a case of over a minute,
the end of the process. Cases run in a child process, a chunk of them each, so that the last of these is found too.
With --valid, inputs are valid ones at the edges (valid_inputs.py), and the operations that cases reach are counted.
"""

import argparse
import contextlib
import faulthandler
import io
import json
import multiprocessing
import os
import pickle
import random
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from drawn_folders import (
    PACKINGS,
    Folder,
    data_rows,
    drawn_data,
    drawn_log,
    log_rows,
    packed,
)
from valid_inputs import Finding, run_command, valid_targets

from fedray.audit.assumptions import assumptions_of_import
from fedray.audit.auditing import audit_trace
from fedray.audit.claims import read_claim
from fedray.audit.participation import read_patterns
from fedray.audit.released import read_events
from fedray.base.errors import FedrayError, InputError, one_line
from fedray.clients.data.factory import source_of
from fedray.clients.data.source import DamagedExamples
from fedray.imports.foreign_sessions import read_fedscale, read_flash
from fedray.imports.importer import import_log
from fedray.imports.inspected import inspect_log
from fedray.imports.log_records import RecordColumns
from fedray.mechanisms.registry import Tree
from fedray.runs.design import evaluate_mechanisms
from fedray.scenario import Scenario, SeveralTasks
from fedray.scenarios.gboard_rows import published_runs, select
from fedray.studies.habits.read import read_observed_log
from fedray.studies.sweep.sweep import Sweep
from fedray.trace.ids import key_of, means_no_id
from fedray.trace.imported import ImportedTrace, name_text, open_trace
from fedray.trace.reader import Trace
from fedray.trace.several_tasks import TASKS_FILE, TasksRun
from fedray.trace.trained import TRAINING, TrainedRunWriter
from fedray.trace.unfinished import Journal, read_unfinished, write_unfinished
from fedray.trace.writer import TraceWriter, encode_part
from fedray.wire.messages import (
    Evaluated,
    Evaluation,
    Measured,
    Metric,
    Outcome,
    RoundRecord,
    Settlement,
    TaskDescription,
    TrainingMetrics,
    TrainReport,
)

SECONDS = 60
"""Most seconds of one case."""
MEMORY = 12 << 30
"""Address space of a child, bytes: what asks for more gets a MemoryError and not the machine's."""
CHUNK = 500
SCENARIO = {
    "name": "fuzz",
    "seed": 7,
    "population": {"devices": 100_000},
    "participation": {"timer_hours": 12.0},
    "rounds": {"count": 8, "report_goal": 30},
    "training": {"enabled": False},
    "privacy": {"noise_multiplier": 2.0, "mechanism": {"kind": "tree"}},
}


def same(left: Any, right: Any) -> bool:
    """Whether two values of dicts, lists, arrays and numbers are equal, NaN included."""
    if isinstance(left, np.ndarray):
        return (
            isinstance(right, np.ndarray)
            and left.dtype == right.dtype
            and np.array_equal(left, right, left.dtype.kind == "f")
        )
    if isinstance(left, dict):
        return (
            isinstance(right, dict)
            and left.keys() == right.keys()
            and all(same(left[key], right[key]) for key in left)
        )
    if isinstance(left, list):
        return isinstance(right, list) and len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and (left == right or left != left)


# Mutations of bytes and texts.

NUMBERS = [
    "nan",
    "inf",
    "-inf",
    "-1",
    "0",
    "1",
    "1e308",
    "1e-300",
    "-0.0",
    "9" * 30,
    "9" * 5000,
    "0x" + "f" * 5000,
    "1_0",
    "1e5",
]
VALUES = [
    *NUMBERS, '""', '"x"', "true", "false", "[]", "{}", "[[1]]", "[1, 2]", "1979-05-27T07:32:00Z", "12:00:00", "null",
    '"' + "x" * 5000 + '"', "[" * 2000, "[" * 200 + "]" * 200, "{a=" * 200 + "1" + "}" * 200, "{a=1}", '{"a": 1}', '"\\u0000"', '"\\ud800"',
    '"../../etc/passwd"', '"[bold]"', '"habit"', '"custom"', '"matrix"', '"blt"', "'''", '"', "\x00", "\x1b[31m", "\u202e", "é",
]  # fmt: skip


def changed_bytes(content: bytes, rng: random.Random) -> bytes:
    """A flipped bit, mostly; else a cut, a changed byte, a block that is zeroed, doubled, dropped or random."""
    if not content:
        return b"x"
    new, place, kind = bytearray(content), rng.randrange(len(content)), rng.random()
    end = min(len(new), place + rng.choice([1, 4, 16, 64]))
    if kind < 0.6:
        new[place] ^= 1 << rng.randrange(8)
    elif kind < 0.7:
        del new[place:]
    elif kind < 0.8:
        new[place] = rng.randrange(256)
    elif kind < 0.85:
        new[place:end] = bytes(end - place)
    elif kind < 0.9:
        new[place:place] = new[place:end]
    elif kind < 0.95:
        del new[place:end]
    else:
        new[place:end] = rng.randbytes(end - place)
    return bytes(new)


def changed_lines(text: str, separator: str, rng: random.Random) -> str:
    """Keys and values of `key = value` lines (or `"key": value`) replaced, lines doubled, dropped, moved; up to three times."""
    lines = text.split("\n")
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        place = rng.randrange(len(lines))
        key, found, value = lines[place].partition(separator)
        kind = rng.random()
        if kind < 0.5 and found:
            comma = "," if value.rstrip().endswith(",") else ""
            lines[place] = f"{key}{separator}{rng.choice(VALUES)}{comma}"
        elif kind < 0.6 and found:
            lines[place] = f"{rng.choice(VALUES)}{separator}{value}"
        elif kind < 0.7 and found and value.strip().rstrip(",").replace(".", "", 1).isdigit():
            number = float(value.strip().rstrip(",")) * 10 ** rng.uniform(-12, 12)
            whole = abs(number) < 1e30 and rng.random() < 0.5
            lines[place] = (
                f"{key}{separator}{int(number) if whole else number}{',' if ',' in value else ''}"
            )
        elif kind < 0.8:
            lines.insert(rng.randrange(len(lines) + 1), lines[place])
        elif kind < 0.9 and len(lines) > 1:
            del lines[place]
        else:
            lines.insert(place, rng.choice(VALUES))
    return "\n".join(lines)


def changed_text(text: str, separator: str, rng: random.Random) -> bytes:
    """A text that is changed by lines or by bytes."""
    return (
        changed_bytes(text.encode(), rng)
        if rng.random() < 0.3
        else changed_lines(text, separator, rng).encode()
    )


# Targets: what is damaged, what is asked of it, and what it says undamaged.


class Traces:
    """A trace of ours or an imported one; each case damages one file, or takes files of another trace."""

    def __init__(
        self,
        folder: Path,
        make: Callable[[Path, int], None],
        read: Callable[[Path, bool], dict[str, Any]],
    ) -> None:
        self._folder, self._read = folder, read
        for name, seed in (("a", 1), ("b", 2)):
            make(folder / name, seed)
        shutil.copytree(folder / "a", folder / "t")
        self._names = sorted(
            str(file.relative_to(folder / "a"))
            for file in (folder / "a").rglob("*")
            if file.is_file()
        )
        self._contents = {
            key: {name: (folder / key / name).read_bytes() for name in self._names}
            for key in ("a", "b")
        }
        self._figures = {key: read(folder / key, True) for key in ("a", "b")}
        self._audits = {key: self._audit(folder / key) for key in ("a", "b")}

    def case(self, rng: random.Random) -> bool:
        """Whether the damage was refused. Raises Finding, or whatever is not caught."""
        mine, other = self._contents["a"], self._contents["b"]
        if rng.random() < 0.05:
            taken = [name for name in self._names if rng.random() < 0.4] or [
                rng.choice(self._names)
            ]
            new: dict[str, bytes | None] = {name: other[name] for name in taken}
        else:
            name = rng.choice(self._names)
            new = {name: changed_bytes(mine[name], rng)} if rng.random() < 0.98 else {name: None}
            if name == "run.json" and rng.random() < 0.5:
                new[name] = changed_text(mine[name].decode(), ": ", rng)
        try:
            for name, content in new.items():
                (self._folder / "t" / name).unlink() if content is None else (
                    self._folder / "t" / name
                ).write_bytes(content)
            with contextlib.suppress(
                FedrayError
            ):  # nothing is promised of figures here, but that reading ends well
                self._read(self._folder / "t", False)
            figures = self._read(self._folder / "t", True)
            matches = [key for key in ("a", "b") if same(figures, self._figures[key])]
            if not matches:
                wrong = [
                    key for key in figures if not same(figures[key], self._figures["a"].get(key))
                ]
                raise Finding(f"{sorted(new)}: {', '.join(wrong)} changed without a word")
            if rng.random() < 0.02 and self._audit(self._folder / "t") not in [
                self._audits[key] for key in matches
            ]:
                raise Finding("the audit changed without a word")
            return False
        finally:
            for name in new:
                (self._folder / "t" / name).write_bytes(mine[name])

    def _audit(self, path: Path) -> str:
        return json.dumps(
            audit_trace(open_trace(path), 2.0, 1e-6, [Tree()]).to_json(), sort_keys=True
        ).replace(str(path), "")


def read_own(path: Path, verify: bool) -> dict[str, Any]:
    """Everything that an audit or a page can see of a trace of ours: equal, so are all figures."""
    trace = open_trace(path, verify)
    assert isinstance(trace, Trace)
    patterns = read_patterns(trace)
    Scenario.from_tables(trace.scenario, directory=trace.path)
    return {
        "run": trace.run,
        "rounds": trace.rounds,
        "metrics": trace.metrics,
        "trained": trace.trained.document if trace.trained is not None else None,
        "model": trace.trained.parameters() if trace.trained is not None else None,
        "outcomes": trace.outcome_counts(),
        "columns": [trace.columns(part) for part in range(len(trace.run["parts"]))],
        "patterns": vars(patterns)["rounds"],
        "integrity": trace.integrity,
    }


def read_imported(path: Path, verify: bool) -> dict[str, Any]:
    """The same of an imported trace, with the names of all its devices."""
    trace = open_trace(path, verify)
    assert isinstance(trace, ImportedTrace)
    patterns = read_patterns(trace)
    return {
        "run": trace.run,
        "left_out": [vars_of(each) for each in trace.left_out],
        "assumptions": [it.text for it in assumptions_of_import(trace)],
        "round_labels": [
            trace.round_label(index) for index in range(min(patterns.committed_rounds, 50))
        ],
        "round_times": list(trace.round_times() or ()),
        "times": [list(trace.times(part) or ()) for part in range(len(trace.run["parts"]))],
        "device_ids": patterns.device_ids,
        "counts": patterns.counts,
        "rounds": patterns.rounds,
        "committed": patterns.committed_rounds,
        "names": [trace.name_of(device) for device in range(min(trace.run["devices"], 50))],
        "integrity": trace.integrity,
    }


def vars_of(each: Any) -> dict[str, Any]:
    return {name: getattr(each, name) for name in each.__dataclass_fields__}


def make_own(path: Path, seed: int) -> None:
    """Two parts, all outcomes, metrics; some hundred rows."""
    rng, rounds, scenario = np.random.default_rng(seed), 8, Scenario.from_tables(SCENARIO)
    chosen = np.sort(rng.choice(100_000, 90, replace=False))
    device, index = (each.ravel() for each in np.meshgrid(chosen, np.arange(rounds), indexing="ij"))
    kept = rng.random(device.size) < 0.4
    device, index = device[kept], index[kept]
    others = rng.integers(1, Outcome.EXCLUDED, device.size)
    outcome = np.where(rng.random(device.size) < 0.7, 0, others)
    # A device that was excluded has no later row.
    is_last = np.append(np.diff(device) > 0, True)
    outcome[is_last & (rng.random(device.size) < 0.1)] = Outcome.EXCLUDED
    with TraceWriter(path) as writer:
        for first, end in ((0, 65_536), (65_536, 100_000)):
            inside = (device >= first) & (device < end)
            times = 100.0 * index[inside] + 1.0
            columns = {
                "round": index[inside].astype(np.uint32),
                "device_id": device[inside].astype(np.uint64),
                "checkin_time": times,
                "report_time": np.where(outcome[inside] < 2, times + 30.0, np.nan),
                "outcome": outcome[inside].astype(np.uint8),
                "examples": rng.integers(1, 99, int(inside.sum())).astype(np.uint32),
            }
            writer.add_part(encode_part(first, end, columns))
        accepted = np.bincount(index[outcome == 0], minlength=rounds)
        records = [
            RoundRecord(
                t, 100.0 * t, 100.0 * t, 100.0 * t + 60, *(3 * [int(accepted[t])]), True, 1000
            )
            for t in range(rounds)
        ]
        run = {
            "ended": "completed",
            "seed": 7,
            "scenario_digest": scenario.digest,
            "scenario": scenario.to_tables(),
            "written": "now",
        }
        writer.finish(records, run)
    loss = Metric("loss", "nats per word", "lower")
    description = TaskDescription({"w": (3, 3)}, (loss,), {"loss": 0.25})
    evaluation = Evaluation({"loss": Measured(1.5, 0.125)}, Evaluated(36, 36, 9, 9))
    metrics = [
        TrainingMetrics(
            TrainReport(round_index=t, devices=4, trained=3, damaged=1, loss_sum=seed << 40),
            evaluation if t % 2 else None,
        )
        for t in range(rounds)
    ]
    parameters = rng.random(9).astype(np.float32)
    document = {
        "trace_digest": Trace.open(path).digest,
        "trace": "..",
        "update_noise": 0.0,
        "noise_warning": "",
        "start": {},
        "start_errors": {},
        "evaluated": {"examples": 36, "available": 36, "devices": 9, "held_out_devices": 9},
        "rounds": rounds,
        "seed": 7,
        "scenario": scenario.to_tables(),
        "encoding": {"kind": "fixed_point", "bits_per_parameter": 64.0, "inflation": 1.0},
        "notes": [],
    }
    with TrainedRunWriter(path / TRAINING) as trained:
        trained.finish(metrics, description, parameters, document)


def make_imported(path: Path, seed: int) -> None:
    """Some hundred rows with times and gaps in the rounds; a few of them left out, some repeated."""
    rng = np.random.default_rng(seed)
    rows = [
        (f"phone {device}", 3 * t) for device in range(40) for t in range(12) if rng.random() < 0.3
    ]
    lines = [
        f"{device},{t},{1000 * t + place}" for place, (device, t) in enumerate([*rows, *rows[:3]])
    ]
    log = path.with_suffix(".csv")
    log.write_text("\n".join(["dev,round,when", *lines, ",9,9", "phone 1,,9"]) + "\n")
    import_log(
        log, "dev", "round", None, path,
        renumber=True, repeats="once", time_column="when", time_unit="seconds", leave_out_invalid=True,
    )  # fmt: skip


@dataclass
class Texts:
    """A text file that is read as something; undamaged variants are `bases`."""

    file: Path
    bases: list[str]
    separator: str
    read: Callable[[Path], object]

    def case(self, rng: random.Random) -> bool:
        if rng.random() < 0.05:
            return self._encoded(rng)
        self.file.write_bytes(changed_text(rng.choice(self.bases), self.separator, rng))
        self.read(self.file)
        return False

    def _encoded(self, rng: random.Random) -> bool:
        """Another encoding is refused, or read as the same."""
        base = rng.choice(self.bases)
        self.file.write_text(base)
        plain: object = "refused"
        with contextlib.suppress(FedrayError):
            plain = self.read(self.file)
        self.file.write_bytes(encoded(base, rng))
        found = self.read(self.file)
        if str(found) != str(plain):
            raise Finding("another encoding changed what is read")
        return False


ENCODINGS = ("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1", "cp500")


def encoded(text: str, rng: random.Random) -> bytes:
    """A text in an encoding that is not UTF-8, with a mark of the order of bytes at the start of a line."""
    if rng.random() < 0.3:
        lines = text.split("\n")
        lines.insert(rng.choice([0, rng.randrange(len(lines))]), "\ufeff")
        return "\n".join(lines).replace("\ufeff\n", "\ufeff").encode()
    return text.encode(rng.choice(ENCODINGS), errors="replace")


def read_scenario(file: Path) -> None:
    scenario = Scenario.from_toml(file)
    if Scenario.from_tables(scenario.to_tables(), directory=file.parent) != scenario:
        raise Finding("a scenario is not what its own tables say")
    _ = scenario.digest, scenario.to_toml()


def read_tasks(file: Path) -> None:
    several = SeveralTasks.from_toml(file)
    document = json.loads(json.dumps(several.to_document()))
    again = SeveralTasks.of_document(document, "recorded", file.parent)
    if again.digest != several.digest or again.tasks != several.tasks:
        raise Finding("several tasks are not what their own document says")


class Overrides:
    """`--set`, on a scenario that is fine."""

    def __init__(self) -> None:
        self._scenario = Scenario.from_tables(SCENARIO)
        tables = self._scenario.to_tables()
        self._keys = [
            f"{name}.{key}"
            for name, table in tables.items()
            if isinstance(table, dict)
            for key in table
        ]
        self._keys += list(tables)

    def case(self, rng: random.Random) -> bool:
        texts = []
        for _ in range(rng.randint(1, 2)):
            key = rng.choice(self._keys) if rng.random() < 0.9 else rng.choice(VALUES)
            text = f"{key}={rng.choice(VALUES)}"
            texts.append(
                changed_bytes(text.encode(), rng).decode(errors="replace")
                if rng.random() < 0.2
                else text
            )
        _ = self._scenario.with_overrides(*texts).digest
        return False


class Matrices:
    """A .npy file: its header and its bytes."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "matrix.npy"
        buffer = io.BytesIO()
        np.save(buffer, np.tril(np.ones((4, 4))) / 2)
        self._content = buffer.getvalue()

    def case(self, rng: random.Random) -> bool:
        if rng.random() < 0.5:
            self._file.write_bytes(changed_bytes(self._content, rng))
        else:
            shape = rng.choice(["(4, 4)", "(True, True)", "(4,)", "(2**9, 4)", "(-1, -4)", "(0, 0)", "(99999, 99999)", "()", "(4, 4.0)", "None", "(1,)*70"])  # fmt: skip
            kind = rng.choice(["'<f8'", "'>f8'", "'|O'", "'<c16'", "'<i8'", "'<f2'", "'<U3'", "[('a', '<f8')]", "''", "7", "'<f8' * 9", "'<M8[s]'", "'|b1'"])  # fmt: skip
            order = rng.choice(["False", "True", "2", "None", "[" * 300])
            header = f"{{'descr': {kind}, 'fortran_order': {order}, 'shape': {shape}}}".encode()
            header = header if rng.random() < 0.7 else changed_bytes(header, rng)
            version = rng.choice([b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x00"])
            length = len(header).to_bytes(2 if version[0] == 1 else 4, "little")
            self._file.write_bytes(b"\x93NUMPY" + version + length + header + self._content[128:])
        evaluate_mechanisms([self._file], 4, 2, 2, 1.0, 1e-6)
        return False


class Logs:
    """What is imported: CSV and Parquet; a log that is accepted says what the undamaged rows say is not asked, but that it ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        rows = [(f"d{device}", t) for device in range(8) for t in range(6) if (device + t) % 3]
        self._csv = "dev,round,when\n" + "".join(
            f'"{device}",{t},2026-01-0{t + 1}T00:00:00Z\n' for device, t in rows
        )
        buffer = io.BytesIO()
        pq.write_table(
            pa.table(
                {
                    "dev": [device for device, _ in rows],
                    "round": [t for _, t in rows],
                    "when": [1e9 + t for _, t in rows],
                }
            ),
            buffer,
        )
        self._parquet = buffer.getvalue()

    def case(self, rng: random.Random) -> bool:
        is_csv, out = rng.random() < 0.7, self._folder / "out"
        log = self._folder / ("log.csv" if is_csv else "log.parquet")
        content = changed_text(self._csv, ",", rng) if is_csv else changed_bytes(self._parquet, rng)
        log.write_bytes(content)
        before = sorted(path.name for path in self._folder.iterdir())
        try:
            import_log(
                log,
                "dev",
                "round",
                None,
                out,
                renumber=True,
                repeats=rng.choice(["refuse", "once", "each"]),
                time_column="when" if rng.random() < 0.5 else None,
                time_format=rng.choice([None, None, "%Y-%m-%dT%H:%M:%S", hostile_format(rng)]),
                time_zone=rng.choice([None, None, "Europe/Berlin", "Nowhere"]),
                leave_out_invalid=rng.random() < 0.5,
            )
            read_imported(out, True)
        finally:
            shutil.rmtree(out, ignore_errors=True)
            if sorted(path.name for path in self._folder.iterdir()) != before:
                raise Finding(
                    f"left behind: {sorted(path.name for path in self._folder.iterdir())}"
                )
        return False


class Folders:
    """A folder of a log, or of training data, of which one file is damaged, lost, linked or renamed.

    Undamaged, it is read as pyarrow reads each file, or refused by name (`drawn_folders.py`); damaged, it is refused, or read as the twin
    reads what is there: a damaged file of text may be another log, so only what is compressed or Parquet is asked to be the same.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def case(self, rng: random.Random) -> bool:
        place = self._folder / "case"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        before = os.environ.get("XDG_CACHE_HOME")
        os.environ["XDG_CACHE_HOME"] = str(place / "cache")
        try:
            return self._log(place, rng) if rng.random() < 0.7 else self._data(place, rng)
        finally:
            shutil.rmtree(place, ignore_errors=True)
            os.environ.pop("XDG_CACHE_HOME")
            if before is not None:
                os.environ["XDG_CACHE_HOME"] = before

    def _log(self, place: Path, rng: random.Random) -> bool:
        folder = drawn_log(place, rng)
        wanted, is_damaged = log_rows(folder), rng.random() < 0.5
        if is_damaged:
            damage_file(folder, rng)
        out, given = place / "out", {"where": folder.where}
        try:
            trace = import_log(folder.path, "device", "round", None, out, renumber=True, **given)
        except InputError as error:
            if not is_damaged and wanted:
                self._check_refused(folder, error)
            if out.exists() or (place / "out.partial").exists():
                raise Finding("something was left behind") from None
            return True
        if not is_damaged and folder.refusals:
            raise Finding(f"read in spite of {folder.refusals}")
        rows = {(name, int(trace.round_label(number))) for name, number in _imported_rows(trace)}
        if not is_damaged and rows != wanted:
            raise Finding(f"{len(rows)} rows of {len(wanted)} were read")
        inspect_log(folder.path, {"device": ["device"], "round": ["round"]}, folder.where)
        return False

    def _data(self, place: Path, rng: random.Random) -> bool:
        folder = drawn_data(place, rng)
        wanted, is_damaged = data_rows(folder), rng.random() < 0.5
        if is_damaged:
            damage_file(folder, rng)
        keys = {"kind": "parquet", "file": str(folder.path), "client": "user", "inputs": "x", "targets": "y"}  # fmt: skip
        try:
            source = source_of(Scenario.from_tables({**SCENARIO, "data": keys}))
        except InputError as error:
            if not is_damaged:
                self._check_refused(folder, error)
            return True
        if is_damaged:
            return False
        if folder.refusals:
            raise Finding(f"read in spite of {folder.refusals}")
        test = sum(split == "test" for split, _ in wanted) or source.held_out_devices
        if source.people(Scenario.from_tables({**SCENARIO, "data": keys}))["clients"] + test != len(wanted):  # fmt: skip
            raise Finding("some clients were not read")
        return False

    def _check_refused(self, folder: Folder, error: InputError) -> None:
        if not folder.refusals and not folder.doubts:
            raise Finding(f"refused: {error}") from None
        if not any(name in str(error) for name in folder.names):
            raise Finding(f"refused without a name: {error}") from None


def _imported_rows(trace: ImportedTrace) -> Iterator[tuple[str, int]]:
    for part in trace.accepted():
        names = trace.names_of(part.device_ids.tolist())
        yield from zip(names, part.rounds.tolist(), strict=True)


def damage_file(folder: Folder, rng: random.Random) -> None:
    """Changes the bytes of a data file, or replaces it by a pipe, a link or nothing, or gives it another name."""
    file = rng.choice(folder.files).path
    kind = rng.random()
    if kind < 0.6:
        file.write_bytes(changed_bytes(file.read_bytes(), rng))
        return
    if kind < 0.7:
        file.rename(file.with_name(rng.choice(["x", "=", "_x", ".x", "a=b", "é\udcff", "x" * 200])))
        return
    file.unlink()
    if kind < 0.8:
        os.mkfifo(file)
    elif kind < 0.9:
        file.symlink_to(rng.choice([folder.path, file, "/nowhere", folder.files[0].path]))


class JsonLines:
    """JSON Lines whose values are of any type: a device or round that is read is the one that is written, to the letter."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def case(self, rng: random.Random) -> bool:
        # A key with values of several types is refused.
        mixed = [*JSON_TEXTS, *JSON_WHOLES, *JSON_OTHERS] if rng.random() < 0.1 else []
        least = rng.choice([0, -(2**63)])
        wholes = [each for each in JSON_WHOLES if each >= least and (each < 2**63 or not least)]
        devices = mixed or rng.choice([JSON_TEXTS, wholes])
        extras = mixed or rng.choice([["x", "2026-03-01", None], [1, 2.5], [{"a": ["2026-03-01"]}]])
        is_text = rng.random() < 0.3
        rows = [
            {"device": rng.choice(devices), "round": str(number) if is_text else number, "extra": rng.choice(extras)}
            for number in rng.choices([*range(9), 10**18 - 1, 2**53 + 1], k=rng.randint(1, 12))
        ]  # fmt: skip
        for row in rows:
            if rng.random() < 0.1:
                del row[rng.choice(list(row))]
        text = rng.choice(["", " ", "\ufeff"]) + "".join(
            json.dumps(row, ensure_ascii=rng.random() < 0.5) + rng.choice(["\n", "\r\n", "\n\n"])
            for row in rows
        )
        content = text.encode(errors="surrogatepass")
        is_damaged = rng.random() < 0.4
        content = changed_bytes(content, rng) if is_damaged else content
        log, out = self._folder / "log", self._folder / "out"
        log.write_bytes(packed(content, rng.choice(["", "", *PACKINGS])))
        options = {"repeats": "once", "leave_out_invalid": rng.random() < 0.5}
        try:
            trace = import_log(log, "device", "round", None, out, renumber=True, **options)
            found = {(name, trace.round_label(number)) for name, number in _imported_rows(trace)}
        finally:
            shutil.rmtree(out, ignore_errors=True)
        lost = sum(each.rows for each in trace.left_out)
        wanted = {
            (name_text(str(row["device"])), str(int(row["round"])))
            for row in rows
            if row.get("device") not in (None, "") and row.get("round") is not None
        }
        if not is_damaged and not (found <= wanted and (found == wanted or lost)):
            raise Finding(f"{sorted(found - wanted)[:3]} for {sorted(wanted - found)[:3]}")
        return False


JSON_TEXTS = ["0012", "12", "2026-03-01", "2026-03-01T00:00:00Z", "1e3", "true", "null", "", "é", "a|b", "\x00x", "{", "[]"]  # fmt: skip
JSON_WHOLES = [0, 12, 7, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, -3, -(2**63)]
JSON_OTHERS: list[Any] = [1.5, 1e300, True, False, None, [1], {"a": 1}, [{"a": ["2026-03-01"]}], 2**64, 10**30]  # fmt: skip


class OddLogs:
    """Logs with copies, retries, rows of other outcomes, columns of every type, ids that mean nothing, ids in several spellings, and
    encodings of every kind.

    The command that an inspection proposes runs, and counts what was drawn; or the log is refused.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def case(self, rng: random.Random) -> bool:
        names = [
            *rng.sample(SENTINELS, 4),
            "a",
            "A",
            "b",
            "phone 1",
            rng.choice(SPELLINGS)("Phone 1"),
        ]
        joins, keeps = rng.random() < 0.5, rng.random() < 0.5
        unit, start = rng.choice([1, 10**3, 10**6, 10**9]), 1_772_366_400
        rows = [
            (device, number, (start + 3600 * number + place) * unit, "accepted", place)
            for number in range(5)
            for place, device in enumerate(names)
            if rng.random() < 0.7 or place < 2
        ]
        retries = [
            (*row[:2], row[2] + 1800 * unit, *row[3:])
            for row in rng.sample(rows, rng.choice([0, 0, 1, 3]))
        ]
        kept = [*rows, *retries]
        copies = rng.choices(kept, k=rng.choice([0, 1, 9]))
        lost = [(*row[:3], "late", row[4]) for row in rng.sample(rows, rng.choice([0, 3]))]
        everything = [*kept, *copies, *lost]
        rng.shuffle(everything)
        columns: dict[str, Any] = dict(
            zip(("client_id", "round", "logged", "outcome", "size"), zip(*everything, strict=True), strict=True)
        )  # fmt: skip
        log, is_plain = self._written(columns, rng)
        out = self._folder / "out"
        before = sorted(path.name for path in self._folder.iterdir())
        try:
            missing = [each for each in SENTINELS if means_no_id(each)]
            of_ids = {"join_ids": joins, "keep_ids": missing if keeps else ()}
            found = inspect_log(log, {}, leave_out_invalid=True, out=out, **of_ids)
            if not found.is_importable:
                if is_plain:
                    raise Finding(f"not importable: {found.problems}")
                return True
            code, errors = run_command(list(found.command[1:]))
            if code:
                raise Finding(f"the proposed command: {code}, {errors[:200]}")
            trace = ImportedTrace.open(out)
            if trace.run["rows"] + sum(each.rows for each in trace.left_out) + trace.filtered_rows != trace.run["rows_read"]:  # fmt: skip
                raise Finding("rows do not add up")
            is_usable = lambda row: keeps or row[0] not in missing  # noqa: E731
            times = {
                number: {row[2] for row in kept if row[1] == number and is_usable(row)}
                for number in range(5)
            }
            # Equal rows of a round with one time may be contributions of their own.
            counted = [*kept, *(row for row in copies if len(times[row[1]]) == 1)]
            usable = [
                (key_of(row[0]) if joins else row[0], row[1]) for row in counted if is_usable(row)
            ]
            again, devices = len(usable) - len({*usable}), len({device for device, _ in usable})
            wanted = (len(usable), len(lost), again, len(everything), devices)
            run = trace.run
            counts = (
                run["rows"],
                run["filtered_rows"],
                run["repeated_rows"],
                run["rows_read"],
                run["devices"],
            )
            if is_plain and counts != wanted:
                raise Finding(f"counts {counts} instead of {wanted}")
            if not is_plain and counts[0] < wanted[0] and not trace.incompleteness:
                raise Finding(f"participations were lost without a word: {counts} of {wanted}")
            return False
        finally:
            shutil.rmtree(out, ignore_errors=True)
            if sorted(path.name for path in self._folder.iterdir()) != before:
                raise Finding("something was left behind")

    def _written(self, columns: dict[str, Any], rng: random.Random) -> tuple[Path, bool]:
        """The log's file, and whether its counts must be those that were drawn."""
        for file in self._folder.iterdir():
            file.unlink()
        if rng.random() < 0.5:
            log = self._folder / "log.csv"
            lines = [",".join(columns)]
            for row in zip(*columns.values(), strict=True):
                lines.append(",".join('"' + str(each).replace('"', '""') + '"' for each in row))
            text = "\n".join(lines) + "\n"
            is_plain = rng.random() < 0.6
            log.write_bytes(text.encode() if is_plain else encoded(text, rng))
            return log, is_plain
        log, count = self._folder / "log.parquet", len(columns["round"])
        table = pa.table({name: pa.array(values) for name, values in columns.items()})
        for number in range(rng.randrange(3)):
            name = rng.choice(list(ODD_TYPES))
            values = pa.array([rng.choice(ODD_TYPES[name][1])] * count, ODD_TYPES[name][0])
            table = table.append_column(f"odd{number}", values)
        # DuckDB does not read the first two, so that rows cannot be compared; of two times, none is proposed.
        others = {pa.float16(), pa.decimal256(60, 0), pa.timestamp("ns"), pa.timestamp("ms", "UTC")}
        is_plain = not others.intersection(table.schema.types)
        if rng.random() < 0.2:
            name = rng.choice(list(ODD_TYPES))
            values = pa.array([rng.choice(ODD_TYPES[name][1])] * count, ODD_TYPES[name][0])
            role = rng.choice(["client_id", "round", "logged", "outcome"])
            table = table.set_column(table.schema.get_field_index(role), role, values)
            is_plain = False
        pq.write_table(table, log, row_group_size=rng.choice([1, 7, 1000]))
        return log, is_plain


SENTINELS = ["nan", "None", "NULL", "N/A", "(null)", "undefined", "unknown", "00000000-0000-0000-0000-000000000000", " x", "x", "{x}", "caf\u00e9", "cafe\u0301", "007", "7", '"']  # fmt: skip
SPELLINGS: list[Callable[[str], str]] = [str, str.upper, "{{{}}}".format, "b'{}'".format, lambda text: text.replace(" ", "-"),
             lambda text: unicodedata.normalize("NFD", text), lambda text: text.translate({each: each + 0xFEE0 for each in range(33, 127)})]  # fmt: skip
ODD_TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "uuid": (pa.uuid(), [b"x" * 16, bytes(16), None]),
    "list": (pa.list_(pa.int64()), [[1], [], None]),
    "struct": (pa.struct({"a": pa.int64(), "b": pa.list_(pa.string())}), [{"a": 1, "b": ["x"]}, None]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1)], None]),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["a", None]),
    "view": (pa.string_view(), ["a", "", None]),
    "bytes": (pa.binary(), [b"\xff", b"", None]),
    "nothing": (pa.null(), [None]),
    "truth": (pa.bool_(), [True, False, None]),
    "half": (pa.float16(), [1.0, None]),
    "double": (pa.float64(), [1.5, float("nan"), float("inf"), 1e300, None]),
    "decimal": (pa.decimal128(20, 2), [7, None]),
    "long decimal": (pa.decimal256(60, 0), [7, None]),
    "unsigned": (pa.uint64(), [0, 2**64 - 1, None]),
    "duration": (pa.duration("ns"), [1, None]),
    "date": (pa.date32(), [0, 10**6, None]),
    "hour": (pa.time64("ns"), [1, None]),
    "nanoseconds": (pa.timestamp("ns"), [0, 2**63 - 1, 1_772_366_400 * 10**9 + 1, None]),
    "milliseconds": (pa.timestamp("ms", "UTC"), [0, 2**62, -(2**62), 1_772_366_400_000, None]),
}  # fmt: skip


class Pipes:
    """A pipe in place of a file, which nobody writes to: it is refused, and nothing waits for it.

    Scenarios, claims and mechanisms are left out: a shell may hand them over by a pipe.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        make_own(folder / "own", 1)
        make_imported(folder / "imported", 1)
        (folder / "log.csv").write_text("dev,round\na,0\nb,1\n")
        (folder / "r.txt").write_text("0\n1\n")
        (folder / "imported.csv").unlink()
        self._files = sorted(file for file in folder.rglob("*") if file.is_file())
        (folder / "c.toml").write_text(CLAIM)

    def _read(self, file: Path) -> None:
        place = self._folder
        top = file.relative_to(place).parts[0]
        if top in ("own", "imported"):
            trace = open_trace(place / top)
            audit_trace(trace, 2.0, 1e-6, [Tree()], claim=read_claim(place / "c.toml"))
            if isinstance(trace, ImportedTrace):
                trace.verify()
                trace.name_of(0)
        else:
            inspect_log(place / "log.csv", {"device": ["dev"]})
            try:
                import_log(place / "log.csv", "dev", "round", None, place / "out", rounds_file=place / "r.txt")  # fmt: skip
            finally:
                shutil.rmtree(place / "out", ignore_errors=True)

    def case(self, rng: random.Random) -> bool:
        file = rng.choice(self._files)
        content = file.read_bytes()
        name = file.relative_to(self._folder)

        def stop(*_: object) -> None:
            raise Finding(f"{name}: waits for a pipe")

        file.unlink()
        os.mkfifo(file)
        before = signal.signal(signal.SIGALRM, stop)
        signal.alarm(5)
        # Code outside Python does not hear the alarm.
        faulthandler.dump_traceback_later(9, exit=True)
        try:
            self._read(file)
        finally:
            faulthandler.cancel_dump_traceback_later()
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
            file.unlink()
            file.write_bytes(content)
        raise Finding(f"{name}: a pipe is read as a file")


def hostile_format(rng: random.Random) -> str:
    """A format of times of any directives, with anything between them."""
    pieces = ("%d", "%m", "%Y", "%y", "%H", "%I", "%M", "%p", "%z", "%Z", "%%", "%", "'", "\0", "é")
    return "".join(rng.choices(pieces, k=rng.randrange(8)))


class Sessions:
    """Published traces of devices, and logs of eligibility: sessions come of them, or a refusal.

    A pickle that would run something makes a file, which is a finding.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mark = folder / "mark"
        clients = {
            number: {"active": [9 * number, 200], "inactive": [150, 300], "finish_time": 999}
            for number in range(1, 6)
        }
        calls = b"cos\nmkdir\n(V" + str(self._mark).encode() + b"\ntR."
        self._pickles = [pickle.dumps(clients, protocol) for protocol in range(6)] + [calls]
        messages = "\n".join(
            f"2020-01-30 22:0{minute}:00\t{state}"
            for minute, state in enumerate(("screen_off", "wifi", "battery_charged_on", "4G"))
        )
        self._flash = json.dumps({"a": {"messages": messages}, "b": {"messages": messages}})
        rows = "".join(f"d{day % 3},{86_400 * day + 9},{86_400 * day + 99}\n" for day in range(9))
        self._log = f"device,start,end\n{rows}"

    def case(self, rng: random.Random) -> bool:
        file = self._folder / "trace.csv"
        kind = rng.choice(["fedscale", "flash", "log"])
        if kind == "fedscale":
            file.write_bytes(changed_bytes(rng.choice(self._pickles), rng))
        else:
            text, separator = (self._flash, ":") if kind == "flash" else (self._log, ",")
            file.write_bytes(changed_text(text, separator, rng))
        try:
            if kind == "log":
                read_observed_log(file, RecordColumns(time_unit="seconds"))
            else:
                found = read_fedscale(file) if kind == "fedscale" else read_flash(file)
                assert (found.start < found.end).all()
        finally:
            if self._mark.exists():
                raise Finding("a pickle was run")
        return False


class DataFiles:
    """Files of examples in every format. Whatever is in them is data, so it is asked only that reading ends as it may."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._contents: list[tuple[str, dict[str, str], bytes]] = []
        for kind, make in DATA_FILES.items():
            file = folder / kind
            keys = {"kind": kind, **make(file)}
            self._contents.append((kind, keys, file.read_bytes()))

    def case(self, rng: random.Random) -> bool:
        name, keys, content = rng.choice(self._contents)
        (self._folder / name).write_bytes(changed_bytes(content, rng))
        tables = {**SCENARIO, "data": {**keys, "file": name}}
        before = os.environ.get("XDG_CACHE_HOME")
        os.environ["XDG_CACHE_HOME"] = str(self._folder / "cache")
        try:
            source = source_of(Scenario.from_tables(tables, directory=self._folder))
            devices = np.arange(3, dtype=np.uint64)
            devices = devices[source.examples_on(devices) > 0]
            source.examples(devices, np.zeros((devices.size, 1), np.int64))
        except DamagedExamples as error:
            raise InputError(str(error)) from None
        finally:
            shutil.rmtree(self._folder / "cache", ignore_errors=True)
            os.environ.pop("XDG_CACHE_HOME")
            if before is not None:
                os.environ["XDG_CACHE_HOME"] = before
        return False


def _sqlite(file: Path) -> dict[str, str]:
    features = bytes.fromhex(
        "0a1b 0a0d0a017812081206 0a040000803f 0a0a0a017912051a030a0101".replace(" ", "")
    )
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.execute(
            "CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)"
        )
        rows = [("train", f"c{number // 2}", features) for number in range(8)]
        connection.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
        connection.commit()
    return {"inputs": "x", "targets": "y"}


def _parquet(file: Path) -> dict[str, str]:
    columns = {"client": list("abab"), "x": [[1.0, 2.0]] * 4, "y": [0, 1, 2, 0]}
    pq.write_table(pa.table(columns), file)
    return {"inputs": "x", "targets": "y"}


DATA_FILES = {"tff_sqlite": _sqlite, "parquet": _parquet}
"""What writes a small file of each format of data, and gives the keys that it needs."""


class Unfinished:
    """An interrupted run's directory: its description, checkpoint and journal."""

    def __init__(self, folder: Path) -> None:
        self._partial = folder / "u.partial"
        self._partial.mkdir()
        scenario = Scenario.from_tables(SCENARIO)
        ids = np.arange(5, dtype=np.uint64)
        document = {"scenario": scenario.to_tables(), "scenario_digest": scenario.digest}
        journal = Journal(self._partial, write_unfinished(self._partial, document))
        for attempt in range(3):
            columns = (ids, ids * 1.0, ids * 2.0, np.zeros(5, np.uint8), ids * 3.0, ids < 3, ids)
            journal.append(Settlement(attempt, attempt, *columns))
        journal.save({"coordinator.x": np.arange(9)})
        self._contents = {
            file: file.read_bytes() for file in self._partial.rglob("*") if file.is_file()
        }
        self._expected = self._read()

    def _read(self) -> dict[str, Any]:
        partial, document, run = read_unfinished(self._partial)
        scenario = Scenario.from_tables(document["scenario"], directory=partial)
        journal = Journal(partial, run)
        state = journal.load()
        settlements = [vars_of(each) for batch in journal.settlements(0, 100_000) for each in batch]
        return {"state": state, "settlements": settlements, "digest": scenario.digest}

    def case(self, rng: random.Random) -> bool:
        file = rng.choice(list(self._contents))
        try:
            file.write_bytes(changed_bytes(self._contents[file], rng))
            found = self._read()
        finally:
            file.write_bytes(self._contents[file])
        if not same(found, self._expected):
            raise Finding(f"{file.name}: an unfinished run changed without a word")
        return False


class Commands:
    """The command's own options, on a trace and a mechanism that are fine."""

    def __init__(self, folder: Path, trace: Path) -> None:
        (folder / "m.json").write_text('{"kind": "tree"}')
        (folder / "log.csv").write_text("dev,round\na,0\nb,1\n")
        self._lines = [
            ["audit", str(trace), "--noise-multiplier", "?", "--delta", "?"],
            ["audit", str(trace), "--claim", "?"],
            ["audit", str(trace), "--mechanism", "?", "--json"],
            ["report", "?"],
            [
                "mechanism",
                str(folder / "m.json"),
                "--rounds",
                "?",
                "--min-sep",
                "2",
                "--max-participations",
                "?",
            ],
            [
                "import",
                str(folder / "log.csv"),
                "--column",
                "?",
                "--column",
                "round=round",
                "--rounds",
                "2",
                "--out",
                str(folder),
            ],
            ["run", "?", "--out", str(folder)],
            ["run", "--resume", "?"],
            ["plan", "--epsilon", "?", "--timers", "?"],
            ["?", "?"],
        ]

    def case(self, rng: random.Random) -> bool:
        values = [
            *(value for value in VALUES if "\x00" not in value),
            "/",
            ".",
            "/dev/null",
            "\udcff",
            "x" * 300,
            "",
            "-",
            "--json",
        ]
        line = [rng.choice(values) if each == "?" else each for each in rng.choice(self._lines)]
        line = [part[:100_000] for part in line]
        code, errors = run_command(line)
        # Each mistake of a file has a line of its own.
        told = errors.splitlines()
        is_told = bool(told) and all(each.startswith("fedray: ") for each in told)
        if code not in (0, 1, 2) or (code and not is_told and "Usage" not in errors):
            raise Finding(f"{shorten(line)}: exit code {code}, {errors[:300]!r}")
        return code != 0


def shorten(line: list[str]) -> str:
    return " ".join(part[:60] for part in line)


MECHANISMS = [
    '{\n "kind": "blt",\n "theta": [0.9, 0.5],\n "omega": [0.1, 0.3]\n}',
    '{\n "kind": "toeplitz",\n "coefficients": [1.0, 0.5, 0.25]\n}',
    '{\n "kind": "tree"\n}',
    '{\n "kind": "bisr",\n "bands": 3\n}',
]
CLAIM = 'mechanism = { kind = "tree" }\nnoise_multiplier = 2.0\nrounds = 8\nmin_sep = 1\nepsilon = 6.6\ndelta = 1e-6\ntimer_hours = 3.0\n'
TASKS = (
    '{\n "format": "fedray-tasks",\n "version": 1,\n "digest": "0",\n "written": "",\n'
    ' "scenario": {},\n "traces": [\n  {\n   "task": "a",\n   "digest": "0"\n  }\n ],\n'
    ' "document_digest": "0"\n}'
)


EVENTS = (
    '{\n "format": "fedray-events",\n "version": 1,\n "events": [\n  {\n   "mechanism": "tree",\n'
    '   "guarantee": "observed",\n   "scope": "this run",\n   "delta": 1e-06,\n   "event": {\n'
    '    "kind": "composed",\n    "events": [\n     {\n      "kind": "strategy-release",\n'
    '      "noise_multiplier": 2.0,\n      "strategy": {\n       "kind": "tree"\n      },\n'
    '      "rounds": 8,\n      "sensitivity": {\n       "value": 2.0,\n       "is_exact": true,\n'
    '       "theorem": "t",\n       "lower_bound": 2.0,\n       "worst_pattern": [0]\n      }\n'
    '     },\n     {\n      "kind": "discrete-gaussian-sum",\n      "sensitivity": 1.0,\n'
    '      "device_variance": 2.0,\n      "devices": 3,\n      "dimension": 4\n     }\n    ]\n'
    "   }\n  }\n ]\n}"
)


def targets(folder: Path, is_valid: bool) -> Iterator[tuple[str, float, Any]]:
    """(name, share of the cases, target) of each, of valid inputs or of damaged ones."""
    return valid_targets(folder, DATA_FILES) if is_valid else damaged_targets(folder)


def damaged_targets(folder: Path) -> Iterator[tuple[str, float, Any]]:
    """(name, share of the cases, target) of each."""
    places = {
        name: folder / name
        for name in (
            "own",
            "imported",
            "texts",
            "matrices",
            "logs",
            "odd",
            "folders",
            "lines",
            "pipes",
            "data",
            "sessions",
            "unfinished",
            "commands",
        )
    }
    for place in places.values():
        place.mkdir()
    root = Path(__file__).resolve().parents[2]
    scenarios = [
        Scenario.from_tables(SCENARIO).to_toml(),
        *(file.read_text() for file in [root / "scenarios/quickstart.toml"]),
    ]
    sweeps = [
        file.read_text()
        for file in sorted((root / "scenarios/sweeps").glob("*.toml"))
        if "scenario =" not in file.read_text()
    ]
    texts, schema = places["texts"], (8, 2, 2)
    own = Traces(places["own"], make_own, read_own)
    yield "own trace", 0.33, own
    yield "imported trace", 0.22, Traces(places["imported"], make_imported, read_imported)
    yield "scenario", 0.06, Texts(texts / "s.toml", scenarios, " = ", read_scenario)
    root_file = root / "scenarios/several-tasks.toml"
    tasks = Texts(texts / "t.toml", [root_file.read_text()], " = ", read_tasks)
    yield "several tasks", 0.03, tasks
    joined = Texts(texts / TASKS_FILE, [TASKS], ": ", lambda file: TasksRun.open(file.parent))
    yield "tasks.json", 0.01, joined
    yield "override", 0.07, Overrides()
    yield "claim", 0.03, Texts(texts / "c.toml", [CLAIM], " = ", read_claim)
    yield "sweep", 0.03, Texts(texts / "w.toml", sweeps, " = ", Sweep.from_toml)
    mechanism = Texts(
        texts / "m.json",
        MECHANISMS,
        ": ",
        lambda file: evaluate_mechanisms([file], *schema, 1.0, 1e-6),
    )
    yield "mechanism", 0.04, mechanism
    events = Texts(
        texts / "e.json", [EVENTS], ": ", lambda file: [each.epsilon for each in read_events(file)]
    )
    yield "events", 0.04, events
    rows = Texts(
        texts / "r.csv",
        [(root / "scenarios/gboard/published.csv").read_text()],
        ",",
        lambda file: [run.scenario() for run in select(str(file), published_runs())],
    )
    yield "rows", 0.01, rows
    yield "matrix", 0.03, Matrices(places["matrices"])
    yield "log", 0.01, Logs(places["logs"])
    yield "odd log", 0.025, OddLogs(places["odd"])
    yield "folder", 0.02, Folders(places["folders"])
    yield "JSON Lines", 0.01, JsonLines(places["lines"])
    yield "pipe", 0.001, Pipes(places["pipes"])
    yield "data", 0.02, DataFiles(places["data"])
    yield "sessions", 0.03, Sessions(places["sessions"])
    yield "unfinished", 0.03, Unfinished(places["unfinished"])
    yield "command", 0.01, Commands(places["commands"], places["own"] / "a")


def run_case(target: Any, seed: int, name: str, number: int) -> str:
    """ "refused", "same", "reached" with operations, or what was found."""
    try:
        is_refused = target.case(random.Random(f"{seed}/{name}/{number}"))
        result = "refused" if is_refused else "same"
    except FedrayError as error:
        line = str(error)
        if "\n" in line or one_line(line) == "":
            return f"FOUND a message of {len(line)} characters: {line[:200]!r}"
        result = "refused"
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = next((each for each in reversed(traceback.extract_tb(error.__traceback__)) if "/fedray/" in each.filename or "/mechanisms/" in each.filename), last)  # fmt: skip
        return f"FOUND {type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {str(error)[:160]!r}"
    reached = getattr(target, "reached", ())
    return f"reached {', '.join(reached)}" if reached else result


def run_cases(
    cases: int,
    seed: int,
    only: str | None = None,
    first: int = 0,
    status: Path | None = None,
    is_valid: bool = False,
    after: tuple[str, int] | None = None,
) -> Iterator[tuple[str, int, str]]:
    """(target, number, what came of it) of each case; `first` is where each target starts.

    Cases up to `after` are passed over: those that a child did before it ended.
    """
    with tempfile.TemporaryDirectory(
        prefix="fedray-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None
    ) as folder:
        for name, share, target in targets(Path(folder), is_valid):
            if only not in (None, name):
                continue
            for number in range(
                first, first + max(1, round(cases * (share if only is None else 1)))
            ):
                if after is not None:
                    after = None if after == (name, number) else after
                    continue
                if status is not None:
                    status.write_text(f"{name}/{number}")
                    faulthandler.dump_traceback_later(SECONDS, exit=True)
                yield name, number, run_case(target, seed, name, number)


def _child(
    cases: int,
    options: argparse.Namespace,
    first: int,
    after: tuple[str, int] | None,
    status: Path,
    out: Any,
) -> None:
    pa.set_cpu_count(1)  # the files are tiny
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    faulthandler.enable(open(status.with_suffix(".log"), "w"))  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    given = cases, options.seed, options.target, first, status, options.valid, after
    for result in run_cases(*given):
        out.send(result)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number at which each target starts")
    parser.add_argument("--target", help="only this one")
    parser.add_argument("--valid", action="store_true", help="valid inputs at the edges")
    parser.add_argument(
        "--case", type=int, help="only this number of --target, here, with its traceback"
    )
    options = parser.parse_args()
    if options.case is not None:
        with tempfile.TemporaryDirectory() as folder:
            target = next(
                each
                for name, _, each in targets(Path(folder), options.valid)
                if name == options.target
            )
            print(target.case(random.Random(f"{options.seed}/{options.target}/{options.case}")))
        return 0
    started, found, tally, done = time.monotonic(), Counter(), Counter(), 0
    status = Path(tempfile.mkdtemp(prefix="fedray-fuzz-status-")) / "case"
    after: tuple[str, int] | None = None
    while done < options.cases:
        count = min(CHUNK, options.cases - done)
        receive, send = multiprocessing.Pipe(False)
        arguments = count, options, options.first + done, after, status, send
        process = multiprocessing.Process(target=_child, args=arguments)
        process.start()
        send.close()
        with contextlib.suppress(EOFError):
            while True:
                name, number, result = receive.recv()
                end, _, told = result.partition(" ")
                tally[f"{name}: {end.lower()}"] += 1
                if end == "reached":
                    tally.update(f"{name} reached {each}" for each in told.split(", "))
                if end != "FOUND":
                    continue
                key = f"{name}: {result.split(': ')[0]}"
                found[key] += 1
                if found[key] <= 3:
                    print(f"{name} {number}: {result}", flush=True)
        process.join()
        after = None
        if process.exitcode:
            found[f"the process ended with {process.exitcode}"] += 1
            case = status.read_text()
            print(f"{case}: FOUND the process ended with {process.exitcode}", flush=True)
            # Another child does what is left of the chunk.
            after = case.partition("/")[0], int(case.partition("/")[2])
            continue
        done += count
        seconds = time.monotonic() - started
        print(
            f"{done:,} of {options.cases:,} cases, {sum(found.values())} findings, {seconds:.0f} s",
            file=sys.stderr,
            flush=True,
        )
    for key, count in sorted(tally.items()):
        print(f"{key:<28} {count:>8,}")
    for key, count in found.most_common():
        print(f"{count:>6} x {key}")
    shutil.rmtree(status.parent, ignore_errors=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
