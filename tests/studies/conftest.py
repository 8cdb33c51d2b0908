"""A cache of their own for all studies."""

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def other_cache(monkeypatch, tmp_path: Path, tmp_path_factory) -> Callable[[], Path]:
    """A cache of cells for each test, and another one with each call; mechanisms are designed once for all, in whichever process."""
    base = tmp_path_factory.getbasetemp()
    designs = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "designs"
    designs.mkdir(exist_ok=True)
    names = itertools.chain(["cache"], (f"cache-{number}" for number in itertools.count(2)))

    def other() -> Path:
        folder = tmp_path / next(names)
        (folder / "fedray").mkdir(parents=True)
        (folder / "fedray" / "designs").symlink_to(designs)
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
        return folder

    other()
    return other
