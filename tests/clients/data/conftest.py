"""A cache of its own for every test, and scenarios with a table of data."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedray.clients.data.factory import source_of
from fedray.clients.data.source import ExampleSource
from fedray.scenario import Scenario


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch) -> Path:
    """The folder of the cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fedray"


@pytest.fixture
def scenario_of(tmp_path: Path) -> Callable[..., Scenario]:
    """A scenario of 1,000 devices with a table of data; other tables as keywords."""

    def make(data: dict[str, Any], **tables: Any) -> Scenario:
        population = {"devices": 1000, **tables.pop("population", {})}
        rounds = {"count": 2, "report_goal": 10}
        together = {
            "seed": 3,
            "population": population,
            "rounds": rounds,
            "data": data,
            "training": {"enabled": False},
            **tables,
        }
        return Scenario.from_tables(together, directory=tmp_path)

    return make


@pytest.fixture
def source(scenario_of) -> Callable[..., ExampleSource]:
    """The source of such a scenario."""
    return lambda data, **tables: source_of(scenario_of(data, **tables))
