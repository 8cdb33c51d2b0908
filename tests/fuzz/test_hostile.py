"""The smaller cases of `tests/fuzz/hostile.py` in every run of the suite."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.slow  # 30 s: two hundred files, each read in a process of its own
def test_hostile_files_are_refused_in_one_line_within_limits_of_time_and_memory() -> None:
    # In a process without threads, which can be forked.
    command = [sys.executable, str(HERE / "hostile.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    findings = [line for line in done.stdout.splitlines() if "FOUND" in line]
    assert (done.returncode, findings) == (0, []), done.stderr
    assert " 0 findings" in done.stdout.splitlines()[-1]
    assert done.stdout.count("refused: ") > 100
