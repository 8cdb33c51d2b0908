"""The lowest versions that pyproject.toml allows import, audit, draw, optimise and simulate as ours do."""

import json
import os
import re
import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement

pytestmark = [pytest.mark.outside, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = ("simulate", "figures")
"""Those without torch, whose lowest version is the one in constraints.txt."""
LOG = "device,round\n" + "".join(f"{device},{device % 7}\n" for device in range(70))


def lowest() -> list[str]:
    """Requirements of the core and of these extras, each at its lowest version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = (project["optional-dependencies"][each] for each in EXTRAS)
    wanted = [*project["dependencies"], *(each for names in extras for each in names)]
    found = [re.fullmatch(r"([\w-]+)>=([\d.]+)(,<[\d.]+)?", each) for each in wanted]
    assert all(found), wanted
    return [f"{each[1]}=={each[2]}" for each in found if each]


def test_the_lowest_versions_give_the_same(small: Callable, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", symlinks=True)
    python = str(tmp_path / "env" / "bin" / "python")
    # Only what is imported is compiled.
    quiet = ["--quiet", "--disable-pip-version-check", "--no-compile"]
    pip = [sys.executable, "-m", "pip", "--python", python]
    install = [*pip, "install", *quiet, *lowest()]
    subprocess.run(install, check=True, timeout=500)
    (tmp_path / "log.csv").write_text(LOG)
    scenario = small("rounds.count=4")
    (tmp_path / "s.toml").write_text(scenario.to_toml())

    def fedray(*arguments: str) -> str:
        # fedray is there by its path alone; what numba compiles is of its own version.
        more = {"PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(tmp_path / "numba")}
        more["XDG_CACHE_HOME"] = str(tmp_path / "cache")
        done = subprocess.run(
            [python, "-m", "fedray", "--quiet", *arguments],
            cwd=tmp_path,
            env={**os.environ, **more},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    columns = ["--column", "device=device", "--column", "round=round", "--rounds", "logged"]
    fedray("import", "log.csv", *columns, "--out", "log")
    audit = ["--mechanism", "tree", "--noise-multiplier", "4"]
    assert json.loads(fedray("audit", "log", *audit, "--page", "log.html", "--json"))["mechanisms"]
    setting = ["--rounds", "8", "--min-sep", "2", "--max-participations", "4"]
    fedray("optimize", "banded", *setting, "--out", "banded.json")
    fedray("run", "s.toml", "--out", "here")
    fedray("run", "s.toml", "--out", "ray", "--place", "backend=ray", "--place", "shards=2")
    fedray("report", "here", "--figures", "figures")
    expected = simulate(scenario, Placement(1, "in-process"), tmp_path / "expected").digest
    for each in ("here", "ray"):
        assert json.loads((tmp_path / each / "run.json").read_text())["digest"] == expected
