"""Ctrl-C ends every command with one line, exit code 130, and nothing that is half-written."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedray.commands.frame.exit_codes import INTERRUPTED, exit_code
from fedray.mechanisms.files import read_strategy
from fedray.mechanisms.loss import loss
from fedray.mechanisms.optimize.design import Kind, MechanismRequest, cached_mechanism
from fedray.mechanisms.participation import MinSep
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
def test_a_fit_is_one_line(fedray_command, interrupting, small, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(small().to_toml())
    interrupting(1)
    arguments = ("--min-sep", "4", "--scale", "1", "--no-cache")
    done = fedray_command("fit-min-sep", str(tmp_path / "s.toml"), *arguments)
    assert_interrupted(done, "interrupted; nothing is kept without a cache")


@pytest.mark.parametrize(
    ("kind", "sent"), [("band-fhu", signal.SIGINT), ("blt", signal.SIGINT), ("blt", signal.SIGTERM)]
)
def test_an_optimisation_writes_the_best_so_far(
    kind: str, sent: int, fedray_command, interrupting, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    told, out = interrupting(3, sent), tmp_path / "found.json"
    setting = ["--rounds", "64", "--min-sep", "8", "--max-participations", "4"]
    setting += ["--workload", "prefix", "--out", str(out)]
    code, stdout, err = fedray_command("optimize", kind, *setting, "--json")
    assert (code, err) == (
        130,
        "fedray: interrupted; the mechanism is the best that was found so far\n",
    )
    assert len(told) == 3
    assert json.loads(stdout)["interrupted"]
    figures = loss(read_strategy(out), MinSep(64, 8, 4))
    best = min(float(line.rpartition(" ")[2]) for line in told)
    found = figures.max_loss if kind == "blt" else figures.rms_loss
    assert found == pytest.approx(best, abs=1e-6)
    assert [file.name for file in tmp_path.iterdir()] == ["found.json"]  # nothing is cached


def test_an_optimisation_in_the_background_of_a_script_ignores_sigint_as_the_shell_asked(
    fedray_command, interrupting
) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        interrupting(3)
        setting = ["--rounds", "64", "--min-sep", "8", "--max-participations", "4", "--no-cache"]
        code, _, err = fedray_command("optimize", "blt", *setting)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (code, err) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["banded-toeplitz", "banded", "dense"])
def test_what_a_listener_ended_is_not_taken_from_the_cache_later(
    kind: Kind, tmp_path: Path
) -> None:
    request = MechanismRequest(kind, MinSep(64, 8, 4))

    def end(line: str) -> None:
        raise StopIteration

    first = cached_mechanism(request, tmp_path, end)
    whole = cached_mechanism(request, tmp_path)
    assert whole != first
    assert cached_mechanism(request, tmp_path) == whole
    setting = MinSep(64, 8, 4)
    assert loss(whole, setting).rms_loss < loss(first, setting).rms_loss


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
