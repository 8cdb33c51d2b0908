"""Ctrl-C ends every command with one line, exit code 130, and nothing that is half-written."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedray.commands.frame.exit_codes import INTERRUPTED, exit_code
from fedray.runtime.workers import ThreadWorker


@pytest.fixture
def interrupting(monkeypatch) -> Callable[..., list[str]]:
    """Makes the line of progress that has this number send SIGINT, as a terminal does, or another
    signal."""

    def at(number: int, sent: int = signal.SIGINT) -> list[str]:
        told: list[str] = []

        @contextlib.contextmanager
        def progress(title: str, is_shown: bool) -> Iterator[Callable[[str], None]]:
            del title, is_shown

            def tell(line: str) -> None:
                told.append(line)
                if len(told) == number:
                    signal.raise_signal(sent)

            yield tell

        monkeypatch.setattr("fedray.report.progress.study_progress", progress)
        return told

    return at


def assert_interrupted(done: tuple[int, str, str], message: str) -> None:
    code, out, err = done
    assert (code, out, err) == (130, "", f"fedray: {message}\n")


def test_an_import_leaves_nothing(fedray_command, interrupting, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("dev,round\na,0\nb,1\n")
    interrupting(1)
    arguments = ["--column", "device=dev", "--column", "round=round", "--rounds", "logged"]
    done = fedray_command(
        "import", str(tmp_path / "log.csv"), *arguments, "--out", str(tmp_path / "trace")
    )
    assert_interrupted(done, "interrupted; every file is either complete or not written")
    assert [file.name for file in tmp_path.iterdir()] == ["log.csv"]


@pytest.mark.slow
def test_a_fit_is_one_line(
    fedray_command, interrupting, small, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "s.toml").write_text(small().to_toml())
    interrupting(1)
    arguments = ("--min-sep", "4", "--scale", "1")
    done = fedray_command("fit-min-sep", str(tmp_path / "s.toml"), *arguments)
    assert_interrupted(done, "interrupted; what was simulated is kept, run it again to continue")


def test_an_optimisation_leaves_nothing(
    fedray_command, interrupting, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    interrupting(3)
    setting = ["--rounds", "64", "--min-sep", "8", "--max-participations", "4"]
    done = fedray_command("optimize", "blt", *setting, "--out", str(tmp_path / "found.json"))
    assert_interrupted(done, "interrupted; every file is either complete or not written")
    assert not list(tmp_path.iterdir())


def test_what_an_interruption_breaks_is_an_interruption(capsys) -> None:
    """numba says that there is no compiled object yet, where it is interrupted."""

    def command() -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise RuntimeError("no compiled object yet")  # noqa: B904

    assert exit_code(command) == INTERRUPTED
    assert capsys.readouterr().err.count("\n") == 1

    def broken() -> None:
        raise RuntimeError("a mistake of ours")

    with pytest.raises(RuntimeError, match="of ours"):
        exit_code(broken)


STILL_TRAINING = """
import threading
import torch

begun = threading.Event()

def train():
    numbers = torch.ones(300, 300)
    while True:
        numbers @ numbers
        begun.set()

def command(**options):
    threading.Thread(target=train, daemon=True).start()
    begun.wait()
    raise KeyboardInterrupt
"""
AT_AN_IMPORT = """
def command(**options):
    exec("raise KeyboardInterrupt")
"""
"""Imports execute texts: that of a dataclass, for example."""


@pytest.mark.slow
@pytest.mark.parametrize("command", [STILL_TRAINING, AT_AN_IMPORT], ids=["training", "import"])
def test_the_exit_code_is_130_whatever_is_interrupted(command: str, tmp_path: Path) -> None:
    ended = "from fedray import cli\ncli.app = command\ncli.main()\n"
    (tmp_path / "interrupted.py").write_text(command + ended)
    done = subprocess.run(
        [sys.executable, "-m", "interrupted"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = "fedray: interrupted; every file is either complete or not written\n"
    assert (done.returncode, done.stderr) == (INTERRUPTED, said)


class Endless:
    def __init__(self, begun: threading.Event) -> None:
        self._begun = begun

    def train(self) -> None:
        self._begun.set()
        while True:
            pass


@pytest.mark.slow
def test_a_worker_that_is_closed_while_it_works_leaves_no_thread() -> None:
    before, begun = threading.active_count(), threading.Event()
    worker = ThreadWorker(Endless, begun)
    worker.call("train")
    begun.wait()
    worker.close()
    assert threading.active_count() == before


class Held:
    """Waits in a call until it is let go."""

    def __init__(self, begun: threading.Event, end: threading.Event) -> None:
        self._begun, self._end = begun, end

    def wait(self) -> None:
        self._begun.set()
        self._end.wait()


class Ended:
    """Calls of a thread that `close` ends between two of them."""

    def get(self) -> None:
        raise SystemExit


def test_a_worker_that_is_closed_between_two_calls_ends_without_a_word(monkeypatch) -> None:
    """On a busy machine; pytest makes an error of a thread's exception."""
    begun, end = threading.Event(), threading.Event()
    worker = ThreadWorker(Held, begun, end)
    answer = worker.call("wait")
    begun.wait()
    told: list[object] = []
    monkeypatch.setattr(threading, "excepthook", told.append)
    monkeypatch.setattr(worker, "_calls", Ended())
    end.set()
    answer.result()
    worker._thread.join(timeout=60.0)
    assert not worker._thread.is_alive()
    assert told == []
