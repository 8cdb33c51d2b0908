"""A progress file tells watchers how far something is, and never touches what is made."""

import errno
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedray.trace import progress
from fedray.trace.partial import PartialDirectory, partial_directory
from fedray.trace.progress import PROGRESS_FILE, Process, ProgressFile, read_progress


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """The seconds of time.monotonic, to be set."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_what_is_told_is_read(tmp_path: Path, clock) -> None:
    file = ProgressFile(tmp_path)
    file.begin("simulation", 10, 50)
    first = read_progress(tmp_path)
    assert first is not None
    assert (first.kind, first.done, first.count) == ("simulation", 10, 50)
    assert first.seconds_left is None
    clock[0] += 8.0
    file.tell(14, lambda: {"eligible_estimate": 3})
    told = read_progress(tmp_path)
    assert told is not None
    # Four rounds took 8 seconds, and 36 are left; those before it went on do not count.
    assert (told.done, told.seconds_left, told.facts) == (14, 72.0, {"eligible_estimate": 3})
    assert told.process == Process.present()
    assert told.process is not None
    assert told.process.is_running()


@pytest.mark.parametrize(("written", "read"), [("1e999", None), ("null", None), ("3", 3.0)])
def test_a_time_left_that_is_not_finite_hides_nothing_else(
    tmp_path: Path, written: str, read: float | None
) -> None:
    ProgressFile(tmp_path).begin("simulation", 10, 50)
    file = tmp_path / PROGRESS_FILE
    text = file.read_text()
    assert '"seconds_left": null' in text
    file.write_text(text.replace('"seconds_left": null', f'"seconds_left": {written}'))
    told = read_progress(tmp_path)
    assert told is not None
    assert (told.done, told.seconds_left) == (10, read)


def test_it_is_written_once_a_second_at_most(tmp_path: Path, clock) -> None:
    file = ProgressFile(tmp_path)
    file.begin("training", 0, 1000)
    asked: list[int] = []
    for done in range(100):
        clock[0] += 0.05
        file.tell(done, lambda done=done: asked.append(done) or {})
    assert 4 <= len(asked) <= 5


def test_a_slow_disk_is_written_less_often(tmp_path: Path, clock) -> None:
    file = ProgressFile(tmp_path)
    file.begin("training", 0, 1000)
    asked: list[int] = []

    def slow() -> dict[str, int]:
        clock[0] += 1.0
        asked.append(1)
        return {}

    for done in range(1000):
        clock[0] += 0.5
        file.tell(done, slow)
    # 500 seconds of work, of which a share of 0.01 is 5 seconds; the first version took none.
    assert len(asked) <= 6


def test_a_place_that_cannot_be_written_costs_one_warning(
    tmp_path: Path, clock, caplog, monkeypatch
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(progress, "whole_file", full)
    file = ProgressFile(tmp_path)
    with caplog.at_level(logging.WARNING, "fedray"):
        file.begin("training", 0, 10)
        for done in range(5):
            clock[0] += 10.0
            file.tell(done, dict)
        file.end()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "No space left on device" in caplog.text


def test_a_process_that_has_ended_runs_no_more_and_its_number_alone_is_not_enough(start) -> None:
    own = Process.present()
    assert own is not None
    other = start([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    stat = Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()
    process = Process(other.pid, int(stat[19]), own.machine)
    assert process.is_running()
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    assert process.is_running() is False  # nobody has waited for it
    other.wait()
    assert process.is_running() is False
    assert Process(own.pid, own.started + 1, own.machine).is_running() is False
    assert Process(own.pid, own.started, "another").is_running() is None


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"format": "fedray-progress", "version": 2}', '{"a": 1, "a": 1}'],
)
def test_what_is_no_progress_file_says_nothing(content: str, tmp_path: Path) -> None:
    (tmp_path / PROGRESS_FILE).write_text(content)
    assert read_progress(tmp_path) is None


def test_what_is_kept_says_that_it_was_given_up(tmp_path: Path) -> None:
    with pytest.raises(KeyError), PartialDirectory(tmp_path / "t", "run.json") as made:
        made.progress.begin("simulation", 0, 5)
        made.progress.tell(3, lambda: {"shards": 2})  # too soon to be written by itself
        (made.partial / "checkpoints").mkdir()
        (made.partial / "checkpoints" / "0.npz").touch()
        raise KeyError
    told = read_progress(partial_directory(tmp_path / "t"))
    assert told is not None
    assert told.has_ended
    assert (told.done, told.facts) == (3, {"shards": 2})


def test_what_is_finished_has_no_progress_file(tmp_path: Path) -> None:
    with PartialDirectory(tmp_path / "t", "run.json") as made:
        made.progress.begin("simulation", 0, 5)
        # What a writer leaves that is killed between two system calls.
        (made.partial / f".{PROGRESS_FILE}.0123.new").touch()
        made.publish({})
    assert [file.name for file in (tmp_path / "t").iterdir()] == ["run.json"]
    assert json.loads((tmp_path / "t" / "run.json").read_text())
