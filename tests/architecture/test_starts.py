"""Tests pass however they are started, and one that hangs fails without ending the others."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUITE = """
import signal
import sys

import pytest


def test_an_interruption_is_heard(start):
    process = start([sys.executable, "-c", "print('up', flush=True); input()"], stdin=-1, stdout=-1)
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait() == -signal.SIGINT


@pytest.mark.timeout(1)
def test_that_hangs(start):
    process = start([sys.executable, "-c", "input()"], stdin=-1)
    print("started", process.pid)
    process.wait()


def test_that_comes_after():
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_suite_that_cron_starts_in_the_background_hears_interruptions_and_outlives_a_test_that_hangs(
    workers: str, tmp_path: Path
) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    arguments = ["-c", str(ROOT / "pyproject.toml"), "-p", "conftest", "-n", workers]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, str(tmp_path / "test_suite.py")],
        cwd=ROOT,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "tests")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert re.search("1 failed, 2 passed", done.stdout), done.stdout
    assert "Timeout (>1.0s)" in done.stdout
    started = re.search(r"^started (\d+)$", done.stdout, flags=re.MULTILINE)
    assert started is not None
    with pytest.raises(ProcessLookupError):
        os.kill(int(started[1]), 0)


def test_every_test_has_a_time_limit_that_ends_it_alone(pytestconfig: pytest.Config) -> None:
    assert float(pytestconfig.getini("timeout")) > 0
    assert pytestconfig.getini("timeout_method") == "signal"
