"""A folder that is damaged, or made to harm, is one row of a listing and hides no other run."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from fedray.trace.progress import Process

HUGE = 10**400
DEEP = "[" * 200_000


def _write(file: Path, content: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content)
    file.write_bytes(text.encode("utf-8", "surrogatepass"))


def _progress(**changes: Any) -> dict[str, Any]:
    process = Process.present()
    return {
        "format": "fedray-progress",
        "version": 1,
        "kind": "simulation",
        "process": process and asdict(process),
        "has_ended": False,
        "begun": 0.0,
        "told": 1.0,
        "done": 3,
        "count": 9,
        "seconds_left": 5.0,
        "facts": {},
    } | changes


def _is_told(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: _write(folder / "x.partial" / "progress.json", _progress(**changes))


def _trains(**facts: Any) -> Callable[[Path], None]:
    return _is_told(kind="training", facts=facts)


def _states(file: str, **keys: Any) -> Callable[[Path], None]:
    return lambda folder: _write(folder / file, keys)


def _has(name: str, make: Callable[[Path], Any]) -> Callable[[Path], None]:
    """A file or something else of a name."""

    def put(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        make(folder / name)

    return put


HOSTILE: dict[str, Callable[[Path], None]] = {
    "progress: huge count": _is_told(count=HUGE),
    "progress: process of text": _is_told(process="x"),
    "progress: facts of other types": _is_told(facts={"shards": "x", "eligible_estimate": [1]}),
    "progress: times of other types": _is_told(facts={"rounds": {"opened": 5}}),
    "progress: empty": _has("x.partial/progress.json", Path.touch),
    "progress: deep": _has("x.partial/progress.json", lambda path: path.write_text(DEEP)),
    "progress: not UTF-8": _has("x.partial/progress.json", lambda path: path.write_bytes(b"\xff")),
    "progress: pipe": _has("x.partial/progress.json", os.mkfifo),
    "training: huge loss": _trains(train_loss=HUGE),
    "training: text as a metric": _trains(train_loss=1.0, evaluation={"a": "b"}),
    "training: half a character": _trains(evaluation={"\ud800\x1b[2J\n": 1.0}),
    "run: damaged": _has("run.json", lambda path: path.write_text("{")),
    "run: pipe": _has("run.json", os.mkfifo),
    "run: directory": _has("run.json", Path.mkdir),
    "run: number": _has("run.json", lambda path: path.write_text("1")),
    "run: tables of other types": _states("run.json", scenario=[1], rounds="x", digest=5),
    "tasks: null": _has("tasks.json", lambda path: path.write_text("null")),
    "trained: huge rounds": _states("training.json", rounds=HUGE, trainers=-HUGE),
}


@pytest.fixture
def whole(tmp_path: Path, trace_of) -> Path:
    """A directory with one run that is whole."""
    trace = trace_of([[0, 2], [1]], 3)
    (tmp_path / "runs").mkdir()
    trace.path.rename(tmp_path / "runs" / "good")
    return tmp_path / "runs"


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_folder_is_one_row_and_hides_no_run(
    name: str, whole: Path, fedray_command
) -> None:
    HOSTILE[name](whole / "bad")
    code, out, err = fedray_command("status", str(whole))
    assert (code, err) == (0, "")
    assert "good" in out
    assert "bad" in out
    assert "\x1b" not in out
    code, out, err = fedray_command("status", str(whole), "--json")
    assert (code, err) == (0, "")
    entries = json.loads(out)["entries"]
    assert len(entries) == 2
    assert "good" in [each["path"] for each in entries]


@pytest.mark.parametrize("name", [b"\xff", b"a\nb", b"\x1b[2J", "ü".encode(), b"x" * 255])
def test_a_folder_of_any_name_hides_no_run(name: bytes, whole: Path, fedray_command) -> None:
    folder = Path(os.fsdecode(os.fsencode(whole) + b"/" + name))
    _write(folder / "run.json", {"ended": "completed"})
    code, out, err = fedray_command("status", str(whole))
    assert (code, err) == (0, "")
    assert "good" in out
    assert "\x1b" not in out
    assert len(json.loads(fedray_command("status", str(whole), "--json")[1])["entries"]) == 2
