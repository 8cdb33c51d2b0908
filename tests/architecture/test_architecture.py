"""The house keeps its walls: import contracts, packages that are ours, names that do not collide."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ["fedray", "clients", "server", "mechanisms", "scenarios"]


def test_import_contracts_hold() -> None:
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", program, "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 broken" in done.stdout


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_is_the_one_of_this_repository(package: str) -> None:
    """Some wheels ship stray top-level folders (tests, docs); ours must win."""
    file = importlib.import_module(package).__file__
    assert file is not None
    assert Path(file).resolve() == ROOT / package / "__init__.py"


def test_tests_are_no_package() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_importing_fedray_loads_nothing_heavy() -> None:
    program = (
        "import sys, fedray\n"
        "heavy = [n for n in ('ray', 'torch', 'jax', 'numba', 'pyarrow', 'dp_accounting', 'matplotlib', 'pydantic') if n in sys.modules]\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_facade_offers_every_name_it_lists_and_no_other() -> None:
    fedray = importlib.import_module("fedray")
    assert all(getattr(fedray, name) is not None for name in fedray.__all__)
    with pytest.raises(AttributeError, match="it has AdaptiveClipping, Aggregates"):
        _ = fedray.nonsense


def test_no_public_function_shares_its_modules_name() -> None:
    """`fedray.run` would be a function or a module depending on the order of imports."""
    fedray = importlib.import_module("fedray")
    modules = {path.stem for path in (ROOT / "fedray").iterdir()}
    assert not modules & set(fedray.__all__)


SPEAK_OF_FLAGS = (ROOT / "fedray" / "commands", ROOT / "fedray" / "cli.py")
OF_RAY = "`ray start --head`"


def strings_of(source: str) -> list[str]:
    """All strings of a program but those that stand alone, which are docstrings."""
    tree = ast.parse(source)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone
    ]


@pytest.mark.slow
def test_the_library_names_arguments_and_never_flags_of_the_command() -> None:
    """`fedray/commands/flags.py` has the flags."""
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    library = [file for file in files if not any(map(file.is_relative_to, SPEAK_OF_FLAGS))]
    assert len(library) > 100
    found = [
        f"{file.relative_to(ROOT)}: {text!r}"
        for file in library
        for text in strings_of(file.read_text())
        if re.search(r"--[a-z]", text.replace(OF_RAY, ""))
    ]
    assert not found
