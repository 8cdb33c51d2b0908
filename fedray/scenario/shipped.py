"""The scenario files of the `scenarios` package."""

import importlib.util
from pathlib import Path

from fedray.base.errors import ScenarioError
from fedray.base.nearest import nearest_first
from fedray.scenario.scenario import Scenario
from fedray.scenario.several_tasks import SeveralTasks, read_scenario


def shipped_scenarios() -> list[tuple[Path, Scenario | SeveralTasks]]:
    """Returns the scenario files of the `scenarios` package with their values, sorted by path."""
    return [(file, read_scenario(file)) for file in shipped_scenario_files().values()]


def shipped_scenario_files() -> dict[str, Path]:
    """Returns the scenario files of the `scenarios` package by name, sorted by path. Paths below
    the current directory are relative."""
    # Only Python knows where the scenarios are, in an installed fedray or a checkout.
    package = importlib.util.find_spec("fedray.scenarios")
    locations = package.submodule_search_locations if package else None
    here = Path.cwd()
    found = {}
    for folder in map(Path, locations or ()):
        # The package is a symbolic link in a checkout, and users should see the real path.
        for file in sorted(folder.resolve().rglob("*.toml")):
            # Sweeps, and scenarios that need a file of the user's, are no examples.
            if file.parent.name not in ("sweeps", "with_data"):
                found[file.stem] = file.relative_to(here) if file.is_relative_to(here) else file
    return found


def find_scenario(name: str | Path) -> Path:
    """Returns the file of a scenario, given its path or the name of a shipped scenario.

    Args:
        name: a path if it has a suffix or a folder, or exists; otherwise a shipped scenario's name.

    Raises:
        ScenarioError: no shipped scenario has the name; the message lists similar names first.
    """
    path = Path(name)
    # A misspelt path is reported as a missing file, and not as an unknown scenario.
    if path.suffix or path.name != str(name) or path.exists():
        return path
    shipped = shipped_scenario_files()
    if path.name not in shipped:
        names = ", ".join(nearest_first(path.name, shipped))
        raise ScenarioError(
            f"scenario {path.name!r} is neither a file nor a shipped scenario; choose from "
            f"{names}, or give the path of a TOML file"
        )
    return shipped[path.name]
