"""Fields are documented one way: by a string below each, never by a list in the docstring of their class."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("fedray", "clients", "server", "mechanisms", "scenarios")
ENTRY = re.compile(r"^ {0,4}(\w+(?:, \w+)*): ", re.MULTILINE)


def listed_fields(source: str) -> list[str]:
    """Fields, as `Class.field`, that the docstring of their class describes in a list."""
    found = []
    for owner in ast.walk(ast.parse(source)):
        if isinstance(owner, ast.ClassDef):
            fields = {
                each.target.id
                for each in owner.body
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            }
            entries = ENTRY.findall(ast.get_docstring(owner) or "")
            names = [name for entry in entries for name in entry.split(", ")]
            found += [f"{owner.name}.{name}" for name in names if name in fields]
    return found


@pytest.mark.slow
def test_no_class_lists_its_fields_in_its_docstring() -> None:
    files = [
        file
        for folder in FOLDERS
        for file in (ROOT / folder).rglob("*.py")
        if not any(each.is_symlink() for each in file.parents)
    ]
    assert len(files) > 300
    found = [
        f"{file.relative_to(ROOT)}: {name}"
        for file in files
        for name in listed_fields(file.read_text(encoding="utf-8"))
    ]
    assert not found, "write a string below each field instead"


def test_lists_of_fields_are_found_and_arguments_are_not() -> None:
    source = '''
class Both:
    """A pair.

    first, other: described here, and by no field.

    Args:
        second: described in a section.
        third: an argument of the constructor.
    """

    first: int
    """Described below as well."""
    second: int

    def __init__(self, third: int) -> None: ...
'''
    assert listed_fields(source) == ["Both.first", "Both.second"]
