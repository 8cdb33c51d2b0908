"""Descriptions of parameters in docstrings."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_ENTRY = re.compile(r" {4}(\w+)(?: \((.+?)\))?: (.*)")


class Described(NamedTuple):
    """Description of a parameter.

    text: line of help.
    metavar: word for the value; None for the usual one.
    heading: heading that lists it; None for the usual one.
    """

    text: str
    metavar: str | None
    heading: str | None


def parsed(doc: str) -> tuple[str, Mapping[str, Described]]:
    """Splits a docstring into the text before its sections, and its descriptions by parameter."""
    lines = doc.splitlines()
    # Only a line with an entry below it is a heading: prose may end with a colon too.
    starts = [i for i, line in enumerate(lines[:-1]) if _is_heading(line, lines[i + 1])]
    first = starts[0] if starts else len(lines)
    return "\n".join(lines[:first]).strip(), dict(_entries(lines[first:]))


def _is_heading(line: str, below: str) -> bool:
    return re.fullmatch(r"\S.*:", line) is not None and _ENTRY.fullmatch(below) is not None


def _entries(lines: list[str]) -> Iterator[tuple[str, Described]]:
    heading = None
    for place, line in enumerate(lines):
        if not line.startswith(" "):
            # "Args" is the usual heading, for which typer has names of its own.
            heading = None if line == "Args:" else line.rstrip(":")
        elif (found := _ENTRY.fullmatch(line)) is not None:
            text = " ".join(each.strip() for each in (found[3], *_continued(lines[place + 1 :])))
            yield found[1], Described(text[0].upper() + text[1:], found[2], heading)


def _continued(lines: list[str]) -> Iterator[str]:
    for line in lines:
        if not line.startswith(" " * 8):
            return
        yield line
