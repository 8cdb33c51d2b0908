"""Phones that a known habit model makes, in the form of the file of FLASH's phones."""

from pathlib import Path

import numpy as np

import fedray
from fedray.clients.sessions import population_sessions
from fedray.studies.habits.observed import on_grid

HABITS = {
    "night_propensity": [0.7, 0.9],
    "night_center_hours": 3.0,
    "night_center_between_hours": 2.0,
    "night_center_within_hours": 0.4,
    "night_length_hours": 7.0,
    "night_length_between": 0.5,
    "night_length_within": 0.15,
    "day_sessions": 0.6,
    "day_length_minutes": 70.0,
}
"""Phones differ much and keep their hours, which neither a Poisson process nor a replay knows."""


def written_phones(folder: Path, phones: int = 400, days: int = 5, seed: int = 11) -> Path:
    """Writes the half hours of some days and of one half hour more, a sixth of them unknown."""
    scenario = fedray.Scenario.from_tables(
        {
            "seed": seed,
            "population": {"devices": phones},
            "rounds": {"count": 1, "report_goal": 1},
            "training": {"enabled": False},
            "availability": HABITS,
        }
    )
    (block,) = population_sessions(scenario, phones, days + 1)
    shape = phones, 48 * (days + 1)
    hours = block.start / 3600, block.end / 3600
    states = on_grid(block.device, *hours, shape, days + 1)[:, : 48 * days + 1]
    draws = np.random.default_rng(seed)
    since = draws.integers(0, 96, (phones, 1)) * draws.integers(0, 2, (phones, 1))
    until = states.shape[1] - draws.integers(0, 48, (phones, 1))
    steps = np.arange(states.shape[1])
    known = (since <= steps) & (steps < until)
    file = folder / "phones.npz"
    np.savez(
        file,
        eligible=np.packbits((states & known).T, axis=0),
        known=np.packbits(known.T, axis=0),
        shape=np.array(states.T.shape),
    )
    return file
