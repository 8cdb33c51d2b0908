"""Min-sep, participations and days of many small simulated runs, for predictions that need
hundreds of them."""

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import fedray
from fedray import InputError
from fedray.base.errors import Starved
from fedray.mechanisms import Identity
from .reproduction import PartDone, Progress

SCALE = 0.01
"""Default size of the runs, as a share of population and report goal."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of a run that published tables state or imply."""

    min_sep: int
    """The gap."""
    max_participations: int
    """k."""
    days: float
    """Simulated time to the last commit, in days."""


def outcomes_of(
    scenarios: Sequence["fedray.Scenario"],
    placement: "fedray.Placement | None",
    on_progress: Progress,
) -> list[Outcome]:
    """Runs untrained scenarios, a task each, and keeps only three figures of each.

    Raises:
        InputError: if a run starves or ends early, or no device takes part twice.
    """
    count = len(scenarios)
    found: dict[int, Outcome] = {}
    for place, result in fedray.run_jobs(outcome_of, scenarios, placement):
        found[place] = result
        on_progress(PartDone(f"{len(found)} of {count} runs simulated", len(found), count))
    # Tasks end in any order, but outcomes are returned in the order of the scenarios.
    return [found[place] for place in range(count)]


def outcome_of(scenario: "fedray.Scenario") -> Outcome:
    """Runs an untrained scenario in this process.

    Raises:
        InputError: if the run starves or ends early, or no device takes part twice.
    """
    with tempfile.TemporaryDirectory(prefix="fedray-outcome-") as folder:
        # A lost task starts from the beginning, so no checkpoint would be read.
        placement = fedray.Placement(1, "in-process", checkpoint_seconds=math.inf)
        try:
            trace = fedray.simulate(scenario, placement, Path(folder) / "trace")
        except Starved as error:
            raise InputError(f"{scenario.name}: {error}") from None
        ended = trace.run["ended"]
        # A run that ended early cannot be compared with published ones of all rounds.
        if ended != "completed":
            raise InputError(f"{scenario.name}: {ended}")
        # Only its participations are used, which do not depend on the mechanism.
        audit = fedray.audit_trace(trace, mechanism=Identity())
        days = float(trace.rounds["closed"][-1]) / 86_400.0
    if audit.min_sep is None:
        raise InputError(
            f"{scenario.name}: no device took part twice in {scenario.rounds.count} rounds, so "
            "there is no min-sep; simulate more rounds, or a smaller population"
        )
    return Outcome(audit.min_sep, audit.max_participations, days)
