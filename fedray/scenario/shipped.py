"""The scenario files of the `scenarios` package."""

import importlib.util
from pathlib import Path

from fedray.scenario.scenario import Scenario
from fedray.scenario.several_tasks import SeveralTasks, read_scenario


def shipped_scenarios() -> list[tuple[Path, Scenario | SeveralTasks]]:
    """The scenario files of the `scenarios` package, with their values, in order of path."""
    package = importlib.util.find_spec("scenarios")
    folders = (
        [Path(folder) for folder in (package.submodule_search_locations or [])] if package else []
    )
    files = sorted(
        file
        for folder in folders
        for file in folder.rglob("*.toml")
        if file.parent.name != "stress"
    )  # those are sweeps
    here = Path.cwd()
    return [
        (file.relative_to(here) if file.is_relative_to(here) else file, read_scenario(file))
        for file in files
    ]
