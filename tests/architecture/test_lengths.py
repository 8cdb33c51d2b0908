"""Classes and functions are short enough to be read at once."""

import ast

import pytest
from test_files import ROOT, modules

MOST_LINES = {ast.ClassDef: 400, ast.FunctionDef: 150, ast.AsyncFunctionDef: 150}
"""Largest number of lines, from `class` or `def` on, docstring and comments included."""
WORDS = {ast.ClassDef: "class", ast.FunctionDef: "function", ast.AsyncFunctionDef: "function"}
LONGER = {"fedray.scenario.scenario": "Scenario"}
"""Class of a module that may be longer: its lines are the keys of a scenario, each with its meaning."""


def is_kernel(node: ast.AST) -> bool:
    """Whether numba compiles a function: calls between kernels cost time, so these may be longer."""
    names = (ast.unparse(each).partition("(")[0] for each in getattr(node, "decorator_list", ()))
    return any(name.rpartition(".")[2] == "njit" for name in names)


def too_long(file: str, text: str, longer: str | None = None) -> list[str]:
    """A line for each class or function of a file that has too many lines."""
    found = []
    # Most files are short, and parsing all of them takes two seconds.
    if text.count("\n") <= min(MOST_LINES.values()):
        return found
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        most, lines = MOST_LINES[type(node)], (node.end_lineno or 0) - node.lineno + 1
        is_function = not isinstance(node, ast.ClassDef)
        if lines > most and node.name != longer and not (is_function and is_kernel(node)):
            what = f"{WORDS[type(node)]} {node.name}"
            found.append(f"{file}:{node.lineno}: {what} has {lines} lines, at most {most}")
    return found


def test_no_class_and_no_function_is_too_long() -> None:
    """Find a part that is a value with one job and give it a name; do not cut by length."""
    found = [
        line
        for name, file in modules().items()
        for line in too_long(str(file), (ROOT / file).read_text(), LONGER.get(name))
    ]
    assert not found, "\n".join(found)


def test_classes_that_may_be_longer_are() -> None:
    for name, longer in LONGER.items():
        file = modules()[name]
        (line,) = too_long(str(file), (ROOT / file).read_text())
        assert f"class {longer} has" in line


@pytest.mark.parametrize("decorator", ["", "@njit", "@njit(cache=True)", "@numba.njit(cache=True)"])
def test_a_function_that_is_too_long_is_found_unless_it_is_a_kernel(decorator: str) -> None:
    def text(lines: int) -> str:
        return f"{decorator}\ndef f():\n" + "    pass\n" * (lines - 1)

    assert too_long("a.py", text(150)) == []
    said = "a.py:2: function f has 151 lines, at most 150"
    assert too_long("a.py", text(151)) == ([] if decorator else [said])


def test_a_class_that_is_too_long_is_found_with_its_methods() -> None:
    method = "    async def g(self):\n" + "        pass\n" * 150
    text = "class A:\n" + "    x = 1\n" * 250 + method
    assert too_long("a.py", text) == [
        "a.py:1: class A has 402 lines, at most 400",
        "a.py:252: function g has 151 lines, at most 150",
    ]
    assert len(too_long("a.py", text, "A")) == 1
