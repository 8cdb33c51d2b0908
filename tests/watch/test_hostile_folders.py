"""A folder that is damaged, or made to harm, is one line of a listing and hides no other run."""

import json
import os
import socket
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedray.trace.progress import Process
from fedray.watch.entries import Runs

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


def _spends(**columns: Any) -> Callable[[Path], None]:
    """A run under way whose times of rounds are hostile."""
    rounds = {key: [1.0] for key in ("opened", "started", "closed", "accepted")} | columns

    def make(folder: Path) -> None:
        partial = folder / "x.partial"
        _write(partial / "progress.json", _progress(facts={"rounds": rounds}))
        tables = {
            "name": "s",
            "population": {"devices": 10_000},
            "rounds": {"count": 9, "report_goal": 100},
        }
        _write(partial / "unfinished.json", {"scenario": tables})

    return make


def _has(name: str, make: Callable[[Path], Any]) -> Callable[[Path], None]:
    """A file or something else of a name."""

    def put(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        make(folder / name)

    return put


def _measures(table: Callable[[], pa.Table], **options: Any) -> Callable[[Path], None]:
    """A trained run with a table of metrics."""

    def make(folder: Path) -> None:
        _write(folder / "training.json", {"rounds": 3})
        pq.write_table(table(), folder / "metrics.parquet", **options)

    return make


def _bomb() -> pa.Table:
    """Sixty million zeros, which take a few kB."""
    return pa.table({"train_loss": np.zeros(60_000_000)})


def _listens(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        # The path of a socket has at most 107 characters, and that of a test has more.
        server.bind(f"/proc/self/fd/{os.open(path.parent, os.O_RDONLY)}/{path.name}")


def _ancient(path: Path) -> None:
    path.write_text("{}")
    os.utime(path, (-(2**40), -(2**40)))


HOSTILE: dict[str, Callable[[Path], None]] = {
    "progress: huge count": _is_told(count=HUGE),
    "progress: huge rounds done": _is_told(done=HUGE),
    "progress: negative rounds": _is_told(done=-5),
    "progress: infinite start": lambda folder: _write(
        folder / "x.partial" / "progress.json",
        json.dumps(_progress(begun=1)).replace('"begun": 1', '"begun": 1e999'),
    ),
    "progress: NaN as a time": _is_told(told=float("nan")),
    "progress: huge seconds left": _is_told(seconds_left=HUGE),
    "progress: huge process number": _is_told(process={"pid": HUGE, "started": 1, "machine": ""}),
    "progress: process of text": _is_told(process="x"),
    "progress: list": _has("x.partial/progress.json", lambda path: path.write_text("[]")),
    "progress: empty": _has("x.partial/progress.json", Path.touch),
    "progress: deep": _has("x.partial/progress.json", lambda path: path.write_text(DEEP)),
    "progress: not UTF-8": _has("x.partial/progress.json", lambda path: path.write_bytes(b"\xff")),
    "progress: pipe": _has("x.partial/progress.json", os.mkfifo),
    "progress: socket": _has("x.partial/progress.json", _listens),
    "progress: directory": _has("x.partial/progress.json", Path.mkdir),
    "progress: endless device": _has(
        "x.partial/progress.json", lambda path: path.symlink_to("/dev/zero")
    ),
    "progress: link to a process": _has(
        "x.partial/progress.json", lambda path: path.symlink_to("/proc/self/environ")
    ),
    "progress: link to itself": _has(
        "x.partial/progress.json", lambda path: path.symlink_to(path.name)
    ),
    "progress: large": _has(
        "x.partial/progress.json", lambda path: (path.touch(), os.truncate(path, 1 << 40))
    ),
    "progress: digits beyond Python": _has(
        "x.partial/progress.json", lambda path: path.write_text('{"format": ' + "9" * 5000 + "}")
    ),
    "training: huge loss": _trains(train_loss=HUGE),
    "training: text as a loss": _trains(train_loss="low", evaluation={"a": "b"}),
    "training: NaN as a loss": _trains(train_loss=float("nan"), evaluation={"a": float("inf")}),
    "training: list as metrics": _trains(evaluation=[1]),
    "training: half a character": _trains(evaluation={"\ud800\x1b[2J\n": 1.0}),
    "training: many metrics": _trains(evaluation={str(name): 1.0 for name in range(100_000)}),
    "training: long name": _trains(evaluation={"x" * 1_000_000: 1.0}),
    "training: huge trainers": _trains(trainers=HUGE),
    "bound: huge time": _spends(opened=[HUGE]),
    "bound: text": _spends(opened=["x"]),
    "bound: deep": _spends(opened=[json.loads("[" * 500 + "]" * 500)]),
    "bound: NaN": _spends(opened=[float("nan")], accepted=[float("nan")]),
    "bound: other lengths": _spends(opened=[1.0, 2.0, 3.0]),
    "bound: accepted nobody": _spends(accepted=[-(2**70)]),
    "run: damaged": _has("run.json", lambda path: path.write_text("{")),
    "run: pipe": _has("run.json", os.mkfifo),
    "run: directory": _has("run.json", Path.mkdir),
    "run: number": _has("run.json", lambda path: path.write_text("1")),
    "run: tables of other types": _states("run.json", scenario=[1], rounds="x", digest=5),
    "run: huge numbers": _states("run.json", shards=HUGE, wall_seconds=HUGE, written=7),
    "run: negative time": _states("run.json", wall_seconds=-1e300, ended="completed"),
    "run: half a character": _states("run.json", scenario={"name": "\ud800\x1b]0;x\x07\n"}),
    "run: long name": _states("run.json", scenario={"name": "x" * 5_000_000}),
    "tasks: null": _has("tasks.json", lambda path: path.write_text("null")),
    "trained: huge rounds": _states("training.json", rounds=HUGE, trainers=-HUGE),
    "trained: metrics are a pipe": lambda folder: (
        _states("training.json", rounds=3)(folder),
        os.mkfifo(folder / "metrics.parquet"),
    )[0],
    "trained: metrics are text": lambda folder: (
        _states("training.json", rounds=3)(folder),
        _write(folder / "metrics.parquet", "PAR1" * 9),
    )[0],
    "trained: bomb": _measures(_bomb, compression="zstd", row_group_size=60_000_000),
    "trained: text as a loss": _measures(lambda: pa.table({"train_loss": ["x"]})),
    "trained: NaN as a loss": _measures(
        lambda: pa.table({"train_loss": [float("nan")], "evaluation_a": [float("inf")]})
    ),
    "trained: no rows": _measures(lambda: pa.table({"train_loss": pa.array([], pa.float64())})),
    "trained: columns of one name": _measures(
        lambda: pa.table([[1.0], [2.0]], names=["train_loss", "train_loss"])
    ),
    "trained: nested loss": _measures(lambda: pa.table({"train_loss": [[[{"a": 1.0}]]]})),
    "trained: many columns": _measures(
        lambda: pa.table({f"evaluation_{name}": [1.0] for name in range(2000)})
    ),
    "study: pipe": _has("results.json", os.mkfifo),
    "study: dangling link": _has("plan.json", lambda path: path.symlink_to("nowhere")),
    "study: before our era": _has("results.json", _ancient),
    "many folders": lambda folder: [
        (folder / str(place)).mkdir(parents=True) for place in range(300)
    ].clear(),
}


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A directory with one run that is whole."""
    document = {"ended": "completed", "scenario": {"name": "good", "rounds": {"count": 7}}}
    _write(tmp_path / "runs" / "good" / "run.json", document)
    return tmp_path / "runs"


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=[pytest.mark.slow] if "bomb" in each else []) for each in HOSTILE],
)
def test_a_hostile_folder_is_one_line_and_hides_no_run(
    name: str, whole: Path, fedray_command
) -> None:
    HOSTILE[name](whole / "bad")
    code, out, err = fedray_command("status", str(whole))
    assert (code, err) == (0, "")
    assert "good" in out
    assert "\x1b" not in out
    code, out, err = fedray_command("status", str(whole), "--json")
    assert (code, err) == (0, "")
    entries = json.loads(out)["entries"]
    assert [each["path"] for each in entries if each["name"] == "good"] == ["good"]
    assert len(entries) <= 2
    assert len(json.dumps(entries)) < 50_000


@pytest.mark.parametrize("name", [b"\xff", b"a\nb", b"\x1b[2J", "ü".encode(), b"x" * 255])
def test_a_folder_of_any_name_hides_no_run(name: bytes, whole: Path, fedray_command) -> None:
    folder = Path(os.fsdecode(os.fsencode(whole) + b"/" + name))
    _write(folder / "run.json", {"ended": "completed"})
    code, out, err = fedray_command("status", str(whole))
    assert (code, err) == (0, "")
    assert "good" in out
    assert "\x1b" not in out
    assert len(json.loads(fedray_command("status", str(whole), "--json")[1])["entries"]) == 2


def test_a_hostile_file_beside_a_sound_run_leaves_its_other_facts(whole: Path) -> None:
    """Nothing is lost of a document when only one of its values is refused."""
    _states("run.json", scenario={"name": "half"}, shards=HUGE, wall_seconds=4.5)(whole / "half")
    found = {entry.name: entry for entry in Runs(whole).list().entries}
    assert (found["half"].shards, found["half"].wall_seconds) == (None, 4.5)


def test_a_bound_that_takes_long_is_shown_by_a_later_listing(whole: Path, monkeypatch) -> None:
    from threading import Event

    from fedray.watch import entries

    may_end, bound = Event(), entries._bound
    monkeypatch.setattr(entries, "SECONDS_FOR_BOUNDS", 0.05)
    monkeypatch.setattr(entries, "_bound", lambda *given: may_end.wait() and bound(*given))
    _spends()(whole / "slow")
    runs = Runs(whole)

    def reason() -> str:
        (privacy,) = (entry.privacy for entry in runs.list().entries if entry.privacy)
        return privacy.reason

    assert reason() == reason() == "its computation takes long; look again"
    may_end.set()
    while "takes long" in reason():
        pass
