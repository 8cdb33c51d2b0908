"""Small versions of the benchmarks, so that they cannot rot. No time is asserted."""

import json
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


ONE_PROCESS = """
import contextlib, io, json, runpy, sys

for script, *arguments in json.loads(sys.argv[1]):
    sys.argv = [script, *arguments]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            if end.code:
                raise
    print(json.dumps(said.getvalue()))
"""
ALIKE = (
    (("bench_mechanisms.py", "--small"), "gpu: "),
    (("bench_uneven.py", "zipf", "even", "--small", "--rounds", "1"), "one by one"),
    (("compare_optima.py", "--first", "1", "--steps", "5"), "largest excess of our loss"),
    (("bench_gpu.py", "--device", "cpu", "--small", "--rounds", "1"), "| noise: 1,000,000"),
    (("bench_ledger.py", "--charges", "50"), "summed"),
    (("bench_gpu.py",), "no GPU: torch sees no CUDA device here; `--device cpu` runs"),
    (("peers/limit.py", "mlp"), "per CPU s"),
)
"""Benchmarks that start no process, with words of their last line. They run in one, which imports torch once."""


@pytest.mark.outside
def test_what_is_run_by_hand_in_one_process_still_runs() -> None:
    commands = [[str(BENCHMARKS / script), *arguments] for (script, *arguments), _ in ALIKE]
    done = subprocess.run(
        [sys.executable, "-c", ONE_PROCESS, json.dumps(commands)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = [json.loads(line).splitlines() for line in done.stdout.splitlines()]
    for lines, (command, last) in zip(said, ALIKE, strict=True):
        assert last in lines[-1], (command, lines, done.stderr)
    _, _, optima, (head, _, *gpu), *_ = said
    assert float(optima[-1].partition("our loss ")[2].partition(";")[0]) < 1e-3
    assert head.startswith("| on cpu")
    assert gpu[0].startswith("| lstm: 15,050 parameters, 4 devices in groups of 16")
    assert gpu[2].startswith("| cnn: 1,626,442 parameters, 4 devices in groups of")
    # Everything that is to be the same is.
    assert sum("| same bits | same bits |" in line for line in gpu) == 5


@pytest.mark.outside
@pytest.mark.parametrize(
    ("script", "arguments", "last"),
    [
        (
            "bench_population.py",
            ["alternatives", "--repeats", "1", "--divide", "1000"],
            "x per device",
        ),
        ("bench_scale.py", ["nodes", "--divide", "200", "--most-nodes", "2"], "KiB"),
        (
            "bench_ray_cost.py",
            [
                *("--pairs", "1", "--hosts", "1", "3", "--set", "population.devices=300000"),
                *("--set", "rounds.count=3", "--set", "rounds.report_goal=64"),
            ],
            "same bytes with all of them: True",
        ),
        ("bench_audit.py", ["import", "--rows", "100000"], "pyarrow reads the same columns"),
        (
            "bench_learning.py",
            ["overhead", "driver", "products", "memory", "--small", "--devices", "5"],
            "memory: blt",
        ),
    ],
)
def test_what_is_run_by_hand_still_runs(script: str, arguments: list[str], last: str) -> None:
    done = subprocess.run(
        [sys.executable, BENCHMARKS / script, *arguments],
        capture_output=True,
        text=True,
        # Each size starts a cluster: 90 to 180 s in all at load 3, more beside busy
        # processes.
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert last in done.stdout.splitlines()[-1]
