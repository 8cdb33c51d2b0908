"""What a small simulated run came to, for studies that need hundreds of them."""

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedray.audit.participation import read_patterns
from fedray.base.errors import InputError, Starved
from fedray.runs.simulation import simulate
from fedray.runtime.cluster import run_tasks
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Outcome:
    """The three figures of a run that published tables have, or imply."""

    min_sep: int
    """The gap."""
    max_participations: int
    """k."""
    days: float
    """Simulated time to the last commit."""


def outcomes_of(
    scenarios: Sequence[Scenario],
    placement: Placement,
    on_run: Callable[[int, int], None] | None = None,
) -> list[Outcome]:
    """Runs scenarios, and keeps nothing of each but three figures.

    Args:
        scenarios: untrained.
        placement: where they run, a task each.
        on_run: hears how many runs are done, of how many.

    Returns:
        An outcome per scenario.

    Raises:
        InputError: if a run starves, or no device takes part twice.
    """
    found: dict[int, Outcome] = {}
    for place, result in run_tasks(outcome_of, scenarios, placement):
        found[place] = result
        if on_run is not None:
            on_run(len(found), len(scenarios))
    # Tasks end in any order, and outcomes are wanted in that of the scenarios.
    return [found[place] for place in range(len(scenarios))]


def outcome_of(scenario: Scenario) -> Outcome:
    """Runs a scenario in this process, and keeps nothing of it but three figures.

    Args:
        scenario: untrained.

    Raises:
        InputError: if the run starves, or no device takes part twice.
    """
    with tempfile.TemporaryDirectory(prefix="fedray-outcome-") as folder:
        # A lost task is begun anew as a whole, so no checkpoint would be read.
        placement = Placement(1, "in-process", checkpoint_seconds=math.inf)
        try:
            trace = simulate(scenario, placement, Path(folder) / "trace")
        except Starved as error:
            raise InputError(f"{scenario.name}: {error}") from None
        ended = trace.run["ended"]
        # A run that ended early cannot be compared with published ones of all rounds.
        if ended != "completed":
            raise InputError(f"{scenario.name}: {ended}")
        patterns = read_patterns(trace)
        days = float(trace.rounds["closed"][-1]) / 86_400.0
    if patterns.max_participations < 2:
        raise InputError(
            f"{scenario.name}: no device took part twice in {scenario.rounds.count} rounds, so "
            "there is no min-sep; simulate more rounds, or a smaller population"
        )
    return Outcome(patterns.min_sep, patterns.max_participations, days)
