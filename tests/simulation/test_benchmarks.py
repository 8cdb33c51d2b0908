"""Small versions of the benchmarks, so that they cannot rot. No time is asserted."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.slow
@pytest.mark.ray
def test_the_quickstart_benchmark_runs() -> None:
    small = ["population.devices=20000", "rounds.report_goal=200", "rounds.count=3"]
    arguments = [word for override in small for word in ("--set", override)]
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "bench_quickstart.py", "--repeats", "1", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "same digest in all runs" in done.stdout
    assert done.stdout.rstrip().endswith("True")
