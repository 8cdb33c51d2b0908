"""A pipe in place of a file of a trace, training or unfinished run is refused in one line: reading it would wait for a writer forever."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedray.base.errors import CheckpointError, TraceCorrupt
from fedray.imports.importer import import_log
from fedray.trace.checkpoints import load_npz
from fedray.trace.imported import open_trace
from fedray.trace.partial import Lock
from fedray.trace.trained import TrainedRun
from fedray.trace.unfinished import Journal, read_unfinished
from fedray.wire.messages import Settlement


def error_of(read: Callable[[], Any]) -> Exception:
    """The error of a call that must not wait."""
    found: list[Exception] = []

    def call() -> None:
        try:
            read()
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(30.0)
    assert not thread.is_alive(), "it waits for a writer"
    (error,) = found
    return error


def replaced_by_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def read_whole(path: Path) -> None:
    trace = open_trace(path)
    trace.verify()


def refused(read: Callable[[], Any], kind: type[Exception]) -> None:
    error = error_of(read)
    assert isinstance(error, kind)
    assert "it is a pipe, not a regular file" in str(error)
    assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize("name", ["run.json", "rounds.parquet", "participations"])
def test_a_pipe_in_a_trace_is_refused(name: str, trace_of) -> None:
    trace = trace_of([[0, 2], [1]], 3)
    file = next((trace.path / name).iterdir()) if name == "participations" else trace.path / name
    replaced_by_pipe(file)
    refused(lambda: read_whole(trace.path), TraceCorrupt)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("name", ["run.json", "log_rounds.parquet"])
def test_a_pipe_in_an_imported_log_is_refused(name: str, verify: bool, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("device,round\na,0\nb,1\na,2\n")
    trace = import_log(tmp_path / "log.csv", "device", "round", 3, tmp_path / "t")
    replaced_by_pipe(trace.path / name)
    refused(lambda: open_trace(trace.path, verify), TraceCorrupt)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("training.json", TrainedRun.open),
        ("metrics.parquet", lambda path: TrainedRun.open(path).metrics),
        ("model.safetensors", lambda path: TrainedRun.open(path).named_parameters()),
    ],
)
def test_a_pipe_in_a_training_is_refused(name: str, read, trace_of, trained_of) -> None:
    trained = trained_of("m", trace_of([[0, 2], [1]], 3), {"loss": 1.0})
    replaced_by_pipe(trained.path / name)
    refused(lambda: read(trained.path), TraceCorrupt)


def settlement() -> Settlement:
    one = np.ones(1)
    codes, seconds = one.astype(np.uint8), one.astype(np.uint32)
    return Settlement(
        0, 0, one.astype(np.uint64), one, one, codes, seconds, one.astype(bool), seconds
    )


def test_a_pipe_in_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    partial = tmp_path / "t.partial"
    partial.mkdir()
    journal = Journal(partial, "run")
    journal.append(settlement())
    journal.save({"state": np.zeros(1)})
    (segment,) = (partial / "journal").iterdir()
    replaced_by_pipe(segment)
    refused(lambda: load_npz(segment, "0" * 64), CheckpointError)
    refused(lambda: Journal(partial, "run").load(), CheckpointError)
    os.mkfifo(partial / "unfinished.json")
    refused(lambda: read_unfinished(tmp_path / "t"), CheckpointError)


def test_a_lock_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    assert "is not a regular file" in str(error_of(lambda: Lock(tmp_path)))
