"""The house keeps its walls: import contracts, packages that are ours, names that do not collide."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INNER = ["clients", "server", "mechanisms", "scenarios"]
PACKAGES = ["fedray", *INNER]


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


@pytest.mark.parametrize("package", INNER)
def test_a_top_level_folder_is_imported_from_inside_fedray(package: str) -> None:
    """An installed fedray has no top-level `clients` or `server` that could hide a user's own."""
    file = importlib.import_module(f"fedray.{package}").__file__
    assert file is not None
    assert Path(file) == ROOT / "fedray" / package / "__init__.py"
    assert Path(file).resolve() == ROOT / package / "__init__.py"


def test_nothing_imports_a_top_level_folder_by_its_own_name() -> None:
    """A module that is imported by two names would be there twice."""
    files = [
        *(ROOT / "tests").rglob("*.py"),
        *(f for p in PACKAGES for f in (ROOT / p).rglob("*.py")),
    ]
    # To parse every file takes two seconds, so only those are parsed with a line that may import one.
    may_import = re.compile(rf"\b(import|from)\b.*(?<![.\w])({'|'.join(INNER)})\b")
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file, text in texts.items()
        # What a backslash parts is one line.
        if may_import.search(text.replace("\\\n", " "))
        for node in ast.walk(ast.parse(text))
        for name in imported_by(node)
        if name.partition(".")[0] in INNER
    ]
    assert not found


def imported_by(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


def test_tests_are_no_package() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))


@pytest.mark.parametrize("module", ["fedray", "fedray.cli"])
def test_importing_fedray_and_its_command_loads_nothing_heavy(module: str) -> None:
    program = (
        f"import sys, {module}\n"
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
    with pytest.raises(AttributeError, match="it has Answers, Audit, Calib"):
        _ = fedray.nonsense


def test_no_public_function_shares_its_modules_name() -> None:
    """`fedray.run` would be a function or a module depending on the order of imports."""
    fedray = importlib.import_module("fedray")
    modules = {path.stem for path in (ROOT / "fedray").iterdir()}
    assert modules & set(fedray.__all__) == {"mechanisms", "scenario"}  # packages in both


ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
EXTENDING = (ROOT / "docs/extending.md").read_text()


def paths_of_the_house() -> Iterator[str]:
    """The files and folders of the house, a line each or a few; what is indented is in the folder above."""
    block = ARCHITECTURE.split("```\n")[1]
    folders: list[str] = []
    for line in filter(None, block.splitlines()):
        depth = (len(line) - len(line.lstrip())) // 2
        names = line.strip().split("  ")[0].split()
        del folders[depth:]
        yield from ("".join([*folders, name]) for name in names)
        folders.append(names[0])


def paths_of_the_text() -> Iterator[str]:
    for name in re.findall(r"`([\w./-]+(?:\.\w+|/))`", ARCHITECTURE + EXTENDING):
        if "/" in name:
            yield name
        elif name.endswith(".py"):
            assert any(True for package in PACKAGES for _ in (ROOT / package).rglob(name)), name


def test_every_path_that_the_architecture_names_exists() -> None:
    paths = [*paths_of_the_house(), *paths_of_the_text()]
    assert len(paths) > 150
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_the_architecture_is_short() -> None:
    assert len(ARCHITECTURE.splitlines()) <= 210
    assert max(map(len, ARCHITECTURE.splitlines())) <= 100


SPEAK_OF_FLAGS = tuple(
    ROOT / "fedray" / name
    for name in (
        "commands",
        "cli.py",
        "watch",
        "imports/inspected.py",
        "audit/verdict.py",
        "studies/habits/page.py",
    )
)
"""Watching tells how to go on with an interrupted run, an inspection how to import, a verdict how to spend a target, and a fit how to fit again: by which command."""
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
    """`fedray/commands/frame/flags.py` has the flags."""
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
