"""Imports between files: no circle, whether an import is at the top, inside a function or for types only."""

import ast
import graphlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def modules() -> dict[str, Path]:
    """Every module by the only name that it is imported by; packages end in `.__init__`."""
    inner = {each.name for each in (ROOT / "fedray").iterdir() if each.is_symlink()}
    files = [
        file.relative_to(ROOT)
        for top in ("fedray", *inner)
        for file in (ROOT / top).rglob("*.py")
        if not (top == "fedray" and file.relative_to(ROOT).parts[1] in inner)
    ]
    return {
        ".".join(("fedray", *file.parts[file.parts[0] == "fedray" :]))[:-3]: file for file in files
    }


def imported(name: str, text: str, known: dict[str, Path]) -> set[str]:
    """The known modules that the text of a module imports."""
    wanted: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            wanted += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = name.split(".")[: -node.level] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{source}.{alias.name}" for alias in node.names]
            # A name that is not a module belongs to the module that it is imported from.
            wanted += [
                each if {each, f"{each}.__init__"} & known.keys() else source for each in names
            ]
    found = {module for each in wanted for module in (each, f"{each}.__init__") if module in known}
    return found - {name}


def test_no_file_imports_itself_by_way_of_others() -> None:
    known = modules()
    assert len(known) > 300
    graph = {name: imported(name, (ROOT / file).read_text(), known) for name, file in known.items()}
    assert sum(map(len, graph.values())) > 1500
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_a_circle_of_local_and_typing_imports_is_found() -> None:
    known = {"fedray.a": Path(), "fedray.b": Path(), "fedray.c.__init__": Path()}
    texts = {
        "fedray.a": "def f():\n    from fedray import b",
        "fedray.b": "if TYPE_CHECKING:\n    from .c import x",
        "fedray.c.__init__": "import fedray.a",
    }
    graph = {name: imported(name, text, known) for name, text in texts.items()}
    assert graph["fedray.b"] == {"fedray.c.__init__"}
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("package", ["clients", "server", "mechanisms", "scenarios"])
def test_a_linked_folder_imports_itself_relatively(package: str) -> None:
    """Tools that do not follow the link see these walls too."""
    nodes = [
        (file.name, node)
        for file in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
    ]
    found = [
        f"{name}:{node.lineno}"
        for name, node in nodes
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"fedray.{package}.")
    ]
    assert not found
