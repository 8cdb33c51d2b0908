"""The tables of McMahan, Ramage, Talwar and Zhang 2018, from audits of simulated runs of DP-FedAvg.

A run of a small population has the sampling probability and the rounds of a row, and the audit its
event. By the moments accountant of 2016 that event has the printed epsilon.
"""

from pathlib import Path

import pytest
from moments_of_2016 import moments_epsilon

from fedray.audit.auditing import audit_trace
from fedray.mechanisms.accounting.events import Event
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario


def event_of_run(folder: Path, probability: float, rounds: int) -> Event:
    """What the audit of a simulated run says was released, at noise multiplier 1."""
    scenario = Scenario.from_tables(
        {
            "seed": 2018,
            "population": {"devices": 5000},
            "availability": {"model": "always_on"},
            "rounds": {
                "mode": "upload-then-train",
                "count": rounds,
                "report_goal": 1,
                "uploads": {
                    "window_hours": 1.0,
                    "schedule": {"kind": "poisson", "probability": probability},
                },
            },
            "training": {"enabled": False},
            "privacy": {"mechanism": {"kind": "identity"}, "noise_multiplier": 1.0},
        }
    )
    trace = simulate(scenario, Placement(1, "in-process"), folder / "t")
    assert trace.committed_rounds == rounds
    sampled = audit_trace(trace).mechanisms[0].sampled
    assert sampled is not None
    assert sampled.event is not None, sampled.reason
    return sampled.event


@pytest.mark.parametrize(("rounds", "printed"), [(1, 0.97), (10, 0.98), (100, 1.00), (1000, 1.07)])
def test_table_1(tmp_path: Path, rounds: int, printed: float) -> None:
    """K = 10^5, C = 100, z = 1, delta = K^-1.1. (Rows of up to 10^6 rounds are those of the same
    event, repeated: tests/mechanisms/test_accounting.py.)"""
    event = event_of_run(tmp_path, 100 / 10**5, rounds)
    assert moments_epsilon(event, 1e5**-1.1) == pytest.approx(printed, abs=0.0051)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "per_round", "printed"),
    [
        (763_430, 5000, 4.634),
        (763_430, 1667, 2.314),
        (763_430, 1250, 2.038),
        (10**8, 5000, 1.152),
        (10**8, 1667, 0.991),
        (10**8, 1250, 0.987),
    ],
)
def test_table_2(tmp_path: Path, devices: int, per_round: int, printed: float) -> None:
    """5000 rounds, delta = 1e-9, z = 1."""
    event = event_of_run(tmp_path, per_round / devices, 5000)
    assert moments_epsilon(event, 1e-9) == pytest.approx(printed, abs=0.00051)
