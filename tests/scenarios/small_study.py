"""A study of scenarios/learning/ whose models train in seconds."""

from pathlib import Path
from typing import Any

from fedray.runtime.placement import Placement
from fedray.scenarios.reproduction import Reproduced, Reproduction

SMALL_STUDY = (
    "population.devices=1500",
    "participation.timer_hours=8",
    "rounds.count=12",
    "rounds.report_goal=60",
    "training.cohort_sample=6",
    "training.evaluate_every=1",
    "training.evaluation_devices=16",
    "privacy.noise_multiplier=2.0",
)
"""Keys of its scenarios."""
SMALL_REQUEST: dict[str, Any] = {
    "scenarios": "language",
    "seeds": 2,
    "overrides": SMALL_STUDY,
    "placement": Placement(backend="in-process"),
}
"""Arguments of its reproductions."""


def studied(reproduction: Reproduction, folder: Path, **given: Any) -> Reproduced:
    """The only result of a reproduction in a folder, with these arguments instead."""
    (found,) = reproduction.results(**{"out": folder, **SMALL_REQUEST, **given})
    return found


def refused(*_: Any, **__: Any) -> Any:
    """In place of a training that must not start."""
    raise AssertionError("a finished training was started")
