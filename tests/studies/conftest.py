"""A cache of their own for all studies."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def designs(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("designs")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path: Path, designs: Path) -> None:
    """A cache of cells for each test; mechanisms are designed once for all."""
    (tmp_path / "cache" / "fedray").mkdir(parents=True)
    (tmp_path / "cache" / "fedray" / "designs").symlink_to(designs)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
