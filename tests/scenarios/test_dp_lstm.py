"""The tables of McMahan, Ramage, Talwar and Zhang 2018: every printed epsilon, and audits of simulated runs of DP-FedAvg.

A run of a small population has the sampling probability and the rounds of a row, and the audit its
event. By the moments accountant of 2016 that event has the printed epsilon.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from fedray.audit.auditing import audit_trace
from fedray.mechanisms.accounting.events import Event, PoissonSampled, Repeated
from fedray.mechanisms.accounting.gdp import sampled_noise
from fedray.mechanisms.accounting.pld import pld_epsilon
from fedray.mechanisms.accounting.renyi import renyi_epsilon
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.scenarios import dp_lstm
from fedray.scenarios.cells import ROUNDED, Figures, Row
from fedray.scenarios.reproduction import Request


def moments_of(event: Event, delta: float) -> float:
    """Epsilon of repeated Poisson samples, as computed in 2016."""
    assert isinstance(event, Repeated)
    assert isinstance(event.event, PoissonSampled)
    noise = sampled_noise(event.event)
    return dp_lstm.moments_epsilon(event.event.probability, noise, event.count, delta)


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


def test_every_printed_cell_agrees_with_the_accountant_of_2016() -> None:
    """Today's epsilons, which take a minute, are left out; two epsilons of the text are cut off, all others are rounded."""

    def without_today(row: Row, request: Request) -> Figures:
        del request
        return dp_lstm.of_the_paper(row)

    cells = [
        cell
        for table in dp_lstm.RESULT.tables
        for row in table.rows
        for cell in replace(table, figures=without_today).computed(row, Request()).cells
    ]
    assert len(cells) == 42 + 12 + 6
    assert all(cell.agrees for cell in cells)
    assert [c.printed for c in cells if not ROUNDED.holds(c.printed, c.obtained)] == [
        "1.97",
        "3.81",
    ]


@pytest.mark.parametrize(("rounds", "printed"), [(1, 0.97), (10, 0.98), (100, 1.00), (1000, 1.07)])
def test_an_audited_run_has_the_epsilon_of_table_1(
    tmp_path: Path, rounds: int, printed: float
) -> None:
    """K = 10^5, C = 100, z = 1, delta = K^-1.1. Renyi DP and ours, beside it, are tighter."""
    event, delta = event_of_run(tmp_path, 100 / 10**5, rounds), 1e5**-1.1
    then = moments_of(event, delta)
    assert then == pytest.approx(printed, abs=0.0051)
    assert pld_epsilon(event, delta) < renyi_epsilon(event, delta) < then


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "per_round", "printed"), [(763_430, 5000, 4.634), (10**8, 1250, 0.987)]
)
def test_an_audited_run_has_the_epsilon_of_table_2(
    tmp_path: Path, devices: int, per_round: int, printed: float
) -> None:
    """5000 rounds, delta = 1e-9, z = 1."""
    event = event_of_run(tmp_path, per_round / devices, 5000)
    assert moments_of(event, 1e-9) == pytest.approx(printed, abs=0.00051)
