"""A cache of their own for all studies."""

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path: Path, tmp_path_factory) -> None:
    """A cache of cells for each test; mechanisms are designed once for all, in whichever process."""
    base = tmp_path_factory.getbasetemp()
    designs = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "designs"
    designs.mkdir(exist_ok=True)
    (tmp_path / "cache" / "fedray").mkdir(parents=True)
    (tmp_path / "cache" / "fedray" / "designs").symlink_to(designs)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
