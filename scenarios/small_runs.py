"""Min-sep, participations and days of many small simulated runs, for predictions that need
hundreds of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import fedray
from fedray import InputError
from .reproduction import PartDone, Progress, simulated

SCALE = 0.01
"""Default size of the runs, as a share of population and report goal."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of a run that published tables state or imply."""

    min_sep: int
    """The gap; the number of rounds if no device took part twice."""
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
        InputError: if a run starves or ends early.
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
        InputError: if the run starves or ends early.
    """
    truth = simulated(scenario)
    # A run that ended early cannot be compared with published ones of all rounds.
    if truth.note or truth.participation is None or truth.days is None:
        raise InputError(f"{scenario.name}: {truth.note}")
    found = truth.participation
    return Outcome(truth.min_sep or found.rounds, found.max_participations, truth.days)
