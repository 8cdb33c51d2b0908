"""What `pip install fedray` brings: one top-level name, and audits without the extras."""

import json
import shutil
import subprocess
import sys
import textwrap
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fedray.base.extras import EXTRAS
from fedray.trace.reader import Trace

pytestmark = pytest.mark.outside

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_EXTRAS = """
import sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.path[:0] = [{site!r}]
sys.meta_path.insert(0, Absent())
import fedray
assert fedray.__file__.startswith({site!r}), fedray.__file__
from fedray.cli import main
main()
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the wheel installs, unpacked. It is built from a copy, since building writes beside it."""
    source = tmp_path_factory.mktemp("source")
    for name in ("fedray", "clients", "server", "mechanisms", "scenarios"):
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=unwanted)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    built = tmp_path_factory.mktemp("built")
    options = ["--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", str(built)]
    command = [sys.executable, "-m", "pip", "wheel", *options, str(source)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    site = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        wheel.extractall(site)
    return site


def command_without_extras(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = WITHOUT_EXTRAS.format(absent=set(EXTRAS), site=str(site))
    return subprocess.run(
        [sys.executable, "-I", "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_a_wheel_has_one_top_level_name(site: Path) -> None:
    names = {path.name for path in site.iterdir() if path.suffix != ".dist-info"}
    assert names == {"fedray"}
    files = {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()}
    for file in (
        "fedray/py.typed",
        "fedray/__init__.pyi",
        "fedray/mechanisms/__init__.pyi",
        "fedray/scenario/__init__.pyi",
        "fedray/clients/shard.py",
        "fedray/server/rounds/coordinator.py",
        "fedray/mechanisms/blt.py",
        "fedray/scenarios/quickstart.toml",
        "fedray/scenarios/gboard/later.csv",
        "fedray/scenarios/gboard/published.csv",
        "fedray/report/page.html.j2",
    ):
        assert file in files


@pytest.mark.slow
def test_an_audit_needs_no_extra(site: Path, trace_of: Callable[..., Trace]) -> None:
    trace = trace_of([[0, 2], [1, 3], [0, 3]], 4)
    page = trace.path.parent / "audit.html"
    done = command_without_extras(site, "audit", str(trace.path), "--page", str(page), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["mechanisms"]
    assert "</html>" in page.read_text()


@pytest.mark.slow
def test_a_missing_extra_is_one_line_with_the_command_that_installs_it(site: Path) -> None:
    done = command_without_extras(site, "run", "quickstart")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "fedray: package 'numba' is not installed, and this needs it; "
        "`pip install 'fedray[simulate]'` installs it"
    )


def test_every_extra_is_known_to_the_message_and_to_the_installer() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    modules = {"pillow": "PIL", "protobuf": "google"}
    installed = {
        extra: {modules.get(name.partition(">")[0], name.partition(">")[0]) for name in names}
        for extra, names in project["optional-dependencies"].items()
        # No code of fedray imports what `cluster` brings.
        if extra not in ("all", "cluster", "docs", "dev")
    }
    for package, extra in EXTRAS.items():
        assert package in installed[extra]
    assert len(EXTRAS) == sum(len(names - {"fedray[simulate]"}) for names in installed.values())


def test_all_that_is_required_has_a_reason_to_be_imported() -> None:
    """A package that nothing of the core imports is not required."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    modules = {"tomli-w": "tomli_w", "dp-accounting": "dp_accounting"}
    text = "\n".join(
        path.read_text()
        for name in ("fedray", "clients", "server", "mechanisms")
        for path in (ROOT / name).rglob("*.py")
    )
    for requirement in project["dependencies"]:
        name = requirement.partition(">")[0]
        module = modules.get(name, name)
        assert f"import {module}" in text or f"from {module}" in text, textwrap.shorten(name, 80)
