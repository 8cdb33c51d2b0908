"""Processes of a test, as /proc lists them."""

import contextlib
from collections.abc import Iterator
from pathlib import Path


def children_of(process: int) -> Iterator[int]:
    """All descendants of a process."""
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, file.read_text().split()):
                yield child
                yield from children_of(child)
