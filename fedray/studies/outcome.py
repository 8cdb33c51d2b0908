"""What a small simulated run came to, for studies that need hundreds of them."""

import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fedray.audit.participation import read_patterns
from fedray.errors import InputError, Starved
from fedray.placement import Placement
from fedray.scenario import Scenario
from fedray.simulation import simulate


@dataclass(frozen=True, slots=True)
class Outcome:
    """The three figures of a run that published tables have, or imply."""

    min_sep: int
    """The gap."""
    max_participations: int
    """k."""
    days: float
    """Simulated time to the last commit."""


def outcome_of(scenario: Scenario) -> Outcome:
    """Runs a scenario in this process, and keeps nothing of it but three figures.

    Args:
        scenario: untrained.

    Raises:
        InputError: if the run starves, or no device takes part twice.
    """
    with tempfile.TemporaryDirectory(prefix="fedray-outcome-") as folder:
        placement = Placement(1, "in-process", checkpoint_seconds=math.inf)
        try:
            trace = simulate(scenario, placement, Path(folder) / "trace")
        except Starved as error:
            raise InputError(f"{scenario.name}: {error}") from None
        ended = trace.run["ended"]
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
