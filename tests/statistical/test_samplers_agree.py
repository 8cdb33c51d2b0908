"""Enumeration and thinning draw the same process of check-ins, in every model that has both."""

import os

import numpy as np
import pytest
from scipy import stats

from fedray.clients.shard import PopulationShard
from fedray.scenario import Scenario
from fedray.wire.messages import CheckInOrder, CheckIns, Window

HOUR = 3600.0
FALSE_ALARM = 1e-4
"""Probability of each test's false alarm; the seeds are fixed, so that one change of the draws in some thousand is held up for no reason."""

DIVIDE = 1 if "FEDRAY_FULL_SIZE" in os.environ else 4
"""How many times smaller whole runs are, both in devices and in goal; `make laws` has all."""

MODELS = {
    "habit": [],
    "always_on": ['availability={model="always_on"}', "population.devices=6000"],
    "poisson": ['availability={model="poisson"}'],
}


def check_ins(
    overrides: list[str], window: int, rate: float, is_enumerated: bool, seed: int
) -> CheckIns:
    scenario = Scenario.from_tables(
        {
            "seed": seed,
            "population": {"devices": 60_000, "reach": 0.7},
            "rounds": {"count": 1, "report_goal": 10},
            "training": {"enabled": False},
        }
    ).with_overrides(*overrides)
    shard = PopulationShard(scenario, 0, scenario.device_ids)
    start = window * HOUR
    order = CheckInOrder(
        Window(window, start, start + HOUR, start + HOUR, rate),
        is_enumerated,
        start,
        start + 4 * HOUR,
        (),
    )
    return shard.check_ins(order)


def agree(one: CheckIns, other: CheckIns, window: int) -> bool:
    """Equal numbers (Poisson counts differ by a normal of their sum), times, and remaining eligible time, as far as samples tell."""
    difference = (one.times.size - other.times.size) / np.sqrt(one.times.size + other.times.size)
    p_values = [2 * stats.norm.sf(abs(difference)), stats.ks_2samp(one.times, other.times).pvalue]
    left = [np.minimum(each.interval_ends - each.times, 1e6) for each in (one, other)]
    p_values += [
        stats.ks_2samp(*left).pvalue,
        stats.ks_2samp(one.training_seconds, other.training_seconds).pvalue,
    ]
    return min(p_values) > FALSE_ALARM / 4


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("window", "rate"), [(2, 6.0), (35, 0.7)])
def test_both_samplers_draw_the_same_process(model: str, window: int, rate: float) -> None:
    """Night at the highest rate, where many devices would check in often, and day at a low one; and a power check on the rate."""
    one = check_ins(MODELS[model], window, rate, True, seed=3)
    other = check_ins(MODELS[model], window, rate, False, seed=4)
    assert one.times.size > 1000
    assert agree(one, other, window)
    assert not agree(one, check_ins(MODELS[model], window, rate * 2.0, False, seed=4), window)


@pytest.mark.slow
def test_whole_runs_of_both_samplers_agree(small, tmp_path) -> None:
    """Pace, supply and drop-outs of runs by either sampler: times to commit within 4 standard errors of five seeds' spread."""
    from fedray.runs.simulation import simulate
    from fedray.runtime.placement import Placement

    def hours(sampler: str, seed: int) -> float:
        scenario = small(
            f"seed={seed}",
            f"rounds.sampler={sampler}",
            f"population.devices={60_000 // DIVIDE}",
            f"rounds.report_goal={300 // DIVIDE}",
            "rounds.count=120",
        )
        trace = simulate(scenario, Placement(1, "in-process"), tmp_path / f"{sampler}-{seed}")
        return float(trace.rounds["closed"][-1]) / HOUR

    enumeration = np.array([hours("enumeration", seed) for seed in range(5)])
    thinning = np.array([hours("thinning", seed) for seed in range(5)])
    error = np.hypot(enumeration.std(ddof=1), thinning.std(ddof=1)) / np.sqrt(5)
    assert abs(enumeration.mean() - thinning.mean()) < 4 * error + 0.01 * enumeration.mean()
