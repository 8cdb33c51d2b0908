"""Checks before a run, each made once: it can commit its rounds, how often the rules let a device
come in the worst case, and the noise that its privacy target then needs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from fedray.audit.any_run import worst_participation
from fedray.mechanisms.participation import MinSep
from fedray.runs.calibrated import calibrated_for
from fedray.runs.sustainable import check_sustainable
from fedray.scenario import Scenario, SeveralTasks
from fedray.scenario.several_tasks import tasks_of

_Kind = TypeVar("_Kind", bound=Scenario | SeveralTasks)


@dataclass(frozen=True, slots=True)
class Preflight(Generic[_Kind]):
    """A scenario that may be run, and the worst case of its rules."""

    scenario: _Kind
    """Scenario, with a noise multiplier in place of each privacy target."""
    worst: tuple[MinSep, ...]
    """`worst_participation` of each task, in the order of `tasks_of`."""


def preflight(scenario: _Kind, say: Callable[[str], None] = lambda _: None) -> Preflight[_Kind]:
    """Checks a scenario before a run, and calibrates its noise.

    Args:
        scenario: scenario of one task or several.
        say: called with a line about each calibration.

    Raises:
        Unsustainable: see `check_sustainable`.
        InputError: see `check_sustainable`, `calibrated` and `Scenario.check_scale`.
    """
    check_sustainable(scenario)
    tasks = tasks_of(scenario)
    worst = tuple(worst_participation(each.scenario) for each in tasks)
    made = tuple(
        replace(each, scenario=calibrated_for(each.scenario, own, say))
        for each, own in zip(tasks, worst, strict=True)
    )
    for each in made:
        each.scenario.check_scale()
    found: Any = made[0].scenario
    if isinstance(scenario, SeveralTasks):
        found = replace(scenario, tasks=made)
    return Preflight(found, worst)
