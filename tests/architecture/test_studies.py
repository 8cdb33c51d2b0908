"""The core works without the studies: they are deleted from a copy of the project, whose tests then run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COPIED = (
    "fedray",
    "clients",
    "server",
    "mechanisms",
    "scenarios",
    "tests",
    "docs",
    "pyproject.toml",
)
STUDIES = (
    *("fedray/studies", "fedray/watch", "fedray/commands/studies", "scenarios/[a-z]*.py"),
    *("scenarios/sweeps", "tests/studies", "tests/watch", "tests/scenarios/test_*.py"),
)
"""Studies and their tests. A scenario is a file of the core, a reproduction a module beside it."""
OF_THE_WHOLE = (
    *("tests/architecture", "tests/benchmarks", "tests/callbacks", "tests/deploy", "tests/frozen"),
    *("tests/fuzz", "tests/reproduction", "tests/fedray/test_facade.py"),
    *(f"tests/report/test_{name}.py" for name in ("browser", "documents", "paper")),
    *("tests/clients/data/test_data_folders.py", "tests/trace/test_log_folders.py"),
)
"""Tests of the whole product: its files, digests, public names, pages and documents."""
RUN = ("test_alone.py", "audit/test_audit.py", "audit/test_claims.py", "server/test_closing.py")
"""Tests of the core that run, below tests/; all others are collected. They need not run again:
`test_no_file_of_the_core_names_a_study` is about all that they could reach."""
ONLY_THE_COPY = """
import sys

# The finder of an editable installation would find the studies in the checkout.
sys.meta_path[:] = [each for each in sys.meta_path if "__editable__" not in each.__module__]
"""
ALONE = """
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import fedray


def test_only_the_copy_can_be_imported():
    assert fedray.__file__ == {file!r}
    for name in ("studies", "watch", "commands.studies", "scenarios.gboard_predict"):
        with pytest.raises(ModuleNotFoundError, match=name):
            importlib.import_module(f"fedray.{{name}}")


def test_every_module_that_is_left_can_be_imported():
    found = [each.name for each in pkgutil.walk_packages(fedray.__path__, "fedray.")]
    assert len(found) > 300
    for name in found:
        if name != "fedray.__main__":
            importlib.import_module(name)


LATER = {{"fedray/commands/frame/described.py"}}


def test_no_file_of_the_core_names_a_study():
    # But for one, which needs it for the keys of a sweep.
    copy = Path(fedray.__file__).parents[1]
    study = re.compile(
        r"^\\s*(from|import)\\b.*\\b(studies|watch)\\b|\\bfedray\\.(studies|watch|commands\\.studies)\\b",
        re.MULTILINE,
    )
    files = [each for name in {packages!r} for each in (copy / name).rglob("*.py")]
    assert len(files) > 300
    named = {{str(each.relative_to(copy)) for each in files if study.search(each.read_text())}}
    assert named == LATER


def test_a_public_name_of_a_study_is_missing_when_it_is_asked_for():
    assert callable(fedray.audit_trace)
    with pytest.raises(ImportError, match="fedray.studies"):
        fedray.make_plan


def test_the_command_has_the_commands_of_the_core(fedray_command):
    code, out, _ = fedray_command("--help")
    assert code == 0
    assert "  audit " in out
    assert "  plan " not in out
    assert fedray_command("plan")[0] == 2
    assert fedray_command("reproduce") == (0, "", "")
"""


def without_studies(copy: Path) -> None:
    """Copies the project with what numba compiled, whose caches know a file by its time, and deletes the studies there."""
    # Other tests may write caches now, under other names first.
    unfinished = shutil.ignore_patterns("*.pyc.*", "*.tmp.*")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=unfinished)
        else:
            shutil.copy2(ROOT / name, copy)
    for pattern in (*STUDIES, *OF_THE_WHOLE):
        found = [*copy.glob(pattern)]
        assert found, pattern
        for each in found:
            shutil.rmtree(each) if each.is_dir() else each.unlink()
    (copy / "sitecustomize.py").write_text(ONLY_THE_COPY)
    alone = ALONE.format(file=str(copy / "fedray" / "__init__.py"), packages=COPIED[:5])
    (copy / "tests" / "test_alone.py").write_text(alone)


@pytest.mark.slow
def test_the_core_works_without_the_studies(tmp_path: Path) -> None:
    without_studies(tmp_path)
    kinds = "not slow and not ray and not outside and not compiles"
    tests = [each.relative_to(tmp_path / "tests") for each in tmp_path.glob("tests/**/test_*.py")]
    names = {str(each) for each in tests}
    assert names > set(RUN)
    others = [f"--deselect=tests/{name}" for name in sorted(names - set(RUN))]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=short", "-m", kinds, *others],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-10_000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 70
