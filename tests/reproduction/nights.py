"""Three weeks of a deployment that is off its estimate, judged every night: the picture of the README.

python tests/reproduction/nights.py [PNG]    simulates it (a minute), prints the nights, and draws

A timer of 24 hours was taken to keep 24 rounds between two participations of a device, but rounds
take 80 minutes or more. On the fifth night the server adopts the change that the audit advises.
"""

import sys
import tempfile
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import numpy as np

from fedray.audit.auditing import audit_trace
from fedray.audit.claims import Claim
from fedray.audit.guarantees import round_times
from fedray.audit.live.outlook import Night, Outlook, look_ahead
from fedray.audit.noise import ServerNoise, released
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.band_fhu import BandFHU
from fedray.mechanisms.participation import MinSep
from fedray.report.files import drawn_figure
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario

HERE = Placement(1, "in-process")
NIGHTS, PLANNED, ANNOUNCED = 21, 380, 24
ADOPTED = 5
"""Night on which the change is adopted."""
FIRST = date(2026, 11, 1)
NOISE, DELTA = 4.0, 1e-10
TABLES = {
    "name": "off-its-estimate",
    "population": {"devices": 60_000},
    "participation": {"timer_hours": 24.0},
    "rounds": {"count": PLANNED, "report_goal": 500, "min_minutes_between": 80.0},
    "privacy": {"mechanism": {"kind": "band-fhu", "bands": 16}, "noise_multiplier": NOISE},
    "training": {"enabled": False},
}


def claim_of() -> Claim:
    """Returns what was announced: epsilon of the separation that was expected."""
    strategy = BandFHU(bands=16)
    designed = MinSep(PLANNED, ANNOUNCED, -(-PLANNED // ANNOUNCED))
    sensitivity = strategy.participation_sensitivity(designed).value
    epsilon = epsilon_of(released(ServerNoise(NOISE), sensitivity, 1), DELTA).epsilon
    return Claim(mechanism=strategy, noise_multiplier=NOISE, epsilon=epsilon, delta=DELTA)


def nights_of(folder: Path, count: int = NIGHTS, *overrides: str) -> Outlook:
    """Returns the outlook of the last of some nights, with all of them as its history."""
    claim, scenario = claim_of(), Scenario.from_tables(TABLES).with_overrides(*overrides)
    nights: list[Night] = []
    whole = simulate(scenario, HERE, folder / "whole")
    for number in range(1, count + 1):
        times = round_times(whole)
        assert times is not None
        rounds = int(np.searchsorted(times[0], number * 86_400.0))
        cut = scenario.with_overrides(f"rounds.count={rounds}")
        trace = simulate(cut, HERE, folder / f"night-{number}")
        slowest = float(np.diff(times[0][:rounds]).max()) / 3600.0
        outlook = look_ahead(audit_trace(trace, claim=claim), PLANNED, slowest)
        nights.append(outlook.night_of(FIRST + timedelta(days=number - 1)))
        if number == ADOPTED:
            scenario = adopted(scenario, outlook, rounds)
            whole = simulate(scenario, HERE, folder / "adopted")
    return replace(outlook, nights=tuple(nights))


def adopted(scenario: Scenario, outlook: Outlook, rounds: int) -> Scenario:
    """Returns the scenario with the change that the audit advises, from the next round on."""
    change = outlook.advised
    assert change is not None, "the claim is in danger, and a change keeps it"
    print(f"Adopted on night {ADOPTED}: {change.text}")
    tables = scenario.to_tables()
    rules = {
        "round_separation": change.separation,
        "max_participations": change.max_participations,
    }
    later = {key: value for key, value in rules.items() if value is not None}
    tables["participation"] |= {"from_round": rounds, "later": later}
    return Scenario.from_tables(tables)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        found = nights_of(Path(place))
    for each in found.nights:
        rows = (each.spent, each.forward, each.claimed)
        print(each.night, each.state.value, each.released, *(f"{row.epsilon:.4f}" for row in rows))
    if len(sys.argv) > 1:
        figure = next(each for each in found.figures() if each.name == "nights")
        drawn_figure(figure).savefig(sys.argv[1], dpi=130)
