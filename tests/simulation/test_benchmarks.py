"""Small versions of the benchmarks, so that they cannot rot. No time is asserted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.outside
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


@pytest.mark.outside
@pytest.mark.parametrize(
    ("script", "arguments", "last"),
    [
        ("benchmarks/bench_mechanisms.py", ["--small"], "gpu: "),
        (
            "benchmarks/bench_population.py",
            ["alternatives", "--repeats", "1", "--divide", "1000"],
            "x per device",
        ),
        (
            "benchmarks/bench_scale.py",
            ["nodes", "--divide", "200", "--most-nodes", "2"],
            "KiB",
        ),
        (
            "benchmarks/bench_audit.py",
            ["import", "--rows", "100000"],
            "pyarrow reads the same columns",
        ),
        (
            "benchmarks/bench_learning.py",
            ["overhead", "driver", "memory", "--small", "--devices", "5"],
            "memory: blt",
        ),
        (
            "benchmarks/bench_uneven.py",
            ["zipf", "even", "--small", "--rounds", "1"],
            "one by one",
        ),
        (
            "benchmarks/compare_optima.py",
            ["--first", "1", "--steps", "5"],
            "largest excess of our loss",
        ),
        (
            "benchmarks/bench_gpu.py",
            ["--device", "cpu", "--small", "--rounds", "1"],
            "noise: 1,000,000",
        ),
        ("benchmarks/peers/limit.py", ["mlp"], "per CPU s"),
    ],
)
def test_what_is_run_by_hand_still_runs(script: str, arguments: list[str], last: str) -> None:
    done = subprocess.run(
        [sys.executable, BENCHMARKS.parent / script, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert last in done.stdout.splitlines()[-1]
    if "bench_gpu" in script:
        head, lstm, cnn, _ = done.stdout.splitlines()
        assert head.startswith("on cpu")
        assert lstm.startswith("lstm: 15,050 parameters, 4 devices a round")
        assert cnn.startswith("cnn: 1,626,442 parameters, 4 devices a round")
    if "compare_optima" in script:
        assert (
            float(done.stdout.splitlines()[-1].partition("our loss ")[2].partition(";")[0]) < 1e-3
        )


@pytest.mark.outside
def test_the_benchmark_of_gpus_says_where_there_is_none() -> None:
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "bench_gpu.py"],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("no GPU: torch sees no CUDA device here; `--device cpu` runs")
