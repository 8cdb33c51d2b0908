"""A claim on each night of a simulated deployment whose rounds become slower than its designer stated.

python tests/reproduction/nights.py [PNG]    simulates the rounds up to every midnight (a minute),
                                             judges the claim then, prints the nights, and draws them
"""

import sys
import tempfile
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import numpy as np

from fedray.audit.auditing import audit_trace
from fedray.audit.claims import Claim
from fedray.audit.live.nights import history_with
from fedray.audit.live.outlook import Outlook, look_ahead
from fedray.mechanisms.band_fhu import BandFHU
from fedray.report.files import drawn_figure
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario

HERE = Placement(1, "in-process")
DAY, TIMER, SLOWEST = 86_400.0, 48, 2.0
"""Seconds of a day; hours of the timer; the designer's most hours between two starts of rounds."""
SCENARIO = {
    "name": "nights",
    "seed": 2,
    "population": {"devices": 900},
    "participation": {"timer_hours": TIMER},
    "rounds": {"count": 160, "report_goal": 60, "max_days": 60.0, "min_minutes_between": 60.0},
    "privacy": {"noise_multiplier": 6.0, "mechanism": {"kind": "band-fhu", "bands": 8}},
    "training": {"enabled": False},
}
MARGIN = 1.03
"""Claimed epsilon over the most that the stated pace allows before the first round."""


def nights(folder: Path) -> Outlook:
    """Judges the claim at every midnight of the run, and returns the last outlook with all nights."""
    scenario = Scenario.from_tables(SCENARIO)
    rounds = scenario.rounds.count
    whole = simulate(scenario, HERE, folder / "whole")
    closed = whole.rounds["closed"]
    strategy = BandFHU(bands=8)
    claim = Claim(mechanism=strategy, noise_multiplier=6.0, timer_hours=TIMER)
    first = date(2026, 6, 1)
    outlook = None
    for day in range(1, int(closed[-1] // DAY) + 1):
        released = int(np.searchsorted(closed, day * DAY))
        if not released:
            continue
        part = scenario.with_overrides(f"rounds.count={released}")
        trace = simulate(part, HERE, folder / f"day{day}")
        if outlook is None:
            unjudged = look_ahead(audit_trace(trace, claim=claim), rounds, SLOWEST)
            assert unjudged.rows[1].epsilon is not None
            most = round(MARGIN * unjudged.rows[1].epsilon, 2)
            claim = claim.model_copy(update={"epsilon": most})
        outlook = look_ahead(audit_trace(trace, claim=claim), rounds, SLOWEST)
        night = outlook.night_of(first + timedelta(days=day))
        history = history_with(folder / "nights.jsonl", night)
        history.write(folder / "nights.jsonl")
        outlook = replace(outlook, nights=history.nights)
    assert outlook is not None
    return outlook


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        found = nights(Path(temporary))
    for each in found.nights:
        rows = (each.spent, each.forward, each.claimed)
        print(each.night, each.released, each.state, *(f"{row.epsilon:.4f}" for row in rows))
    if len(sys.argv) > 1:
        (figure,) = [each for each in found.figures() if each.name == "nights"]
        drawn_figure(figure).savefig(sys.argv[1], dpi=110)
