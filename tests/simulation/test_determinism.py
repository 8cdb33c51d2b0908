"""Same scenario and seed, same trace: for any number of shards, in-process or on Ray, trained or not; another seed, another."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedray.runs.learning import train
from fedray.runs.pipeline import run_scenario
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.trace.reader import Trace

OVERRIDES = (
    "population.devices=400000",
    "rounds.count=25",
    "rounds.report_goal=900",
    "participation.timer_hours=6.0",
)


@pytest.fixture(scope="module")
def reference(small, tmp_path_factory) -> Trace:
    return simulate(
        small(*OVERRIDES), Placement(1, "in-process"), tmp_path_factory.mktemp("one") / "t"
    )


@pytest.mark.compiles
@pytest.mark.xdist_group("ray")  # its actors load what this compiles
@pytest.mark.parametrize("shards", [2, 5])
def test_sharding_changes_nothing(reference: Trace, small, tmp_path: Path, shards: int) -> None:
    trace = simulate(small(*OVERRIDES), Placement(shards, "in-process"), tmp_path / "t")
    assert trace.digest == reference.digest
    assert_equal_tables(trace, reference)


def test_ten_billion_devices_are_few_where_few_take_part(small, tmp_path: Path) -> None:
    """By default there are as many shards as the numbering of devices needs."""
    value = small("population.devices=10000000000", "rounds.count=3")
    by_default = simulate(value, Placement(backend="in-process"), tmp_path / "default")
    trace = simulate(value, Placement(7, "in-process"), tmp_path / "seven")
    assert trace.digest == by_default.digest
    taken = pq.read_table(trace.path / "participations", columns=["device_id"])["device_id"]
    assert int(taken.to_numpy().max()) > 2**33


@pytest.mark.slow
def test_the_same_seed_repeats_and_another_does_not(
    reference: Trace, small, tmp_path: Path
) -> None:
    again = simulate(small(*OVERRIDES), Placement(1, "in-process"), tmp_path / "a")
    other = simulate(small(*OVERRIDES, "seed=8"), Placement(1, "in-process"), tmp_path / "b")
    assert again.digest == reference.digest
    assert other.digest != reference.digest


def test_the_look_ahead_window_is_part_of_the_scenario_not_of_the_machine(reference: Trace) -> None:
    """Rates are set per window, so its length may change results; therefore it counts in the scenario's digest."""
    changed = Scenario.from_tables(reference.scenario).with_overrides(
        "rounds.look_ahead_minutes=15.0"
    )
    assert changed.digest != reference.run["scenario_digest"]


@pytest.mark.slow
def test_training_leaves_the_trace_alone_and_is_the_same_afterwards(small, tmp_path: Path) -> None:
    """To the bit; `test_cluster.py` has the same for processes of Ray."""
    untrained = simulate(small(), Placement(1, "in-process"), tmp_path / "0")
    trained = (
        "training.enabled=true",
        "training.cohort_sample=48",
        "training.devices_at_once=8",
        "training.evaluate_every=5",
        "training.checkpoint_every=4",
    )
    here = run_scenario(small(*trained), Placement(1, "in-process"), tmp_path / "a")
    assert here.digest == untrained.digest
    assert here.trained is not None
    afterwards = train(untrained, small(*trained), Placement(1, "in-process"), tmp_path / "c")
    assert (afterwards.parameters() == here.trained.parameters()).all()
    for name, column in afterwards.metrics.items():
        assert np.array_equal(column, here.trained.metrics[name], equal_nan=True)
    assert here.metrics is not None
    evaluated = np.flatnonzero(~np.isnan(here.metrics["evaluation_accuracy"]))
    assert evaluated.tolist() == [4, 9, 11]
    assert untrained.metrics is None


def assert_equal_tables(one: Trace, other: Trace) -> None:
    """Equal result columns, read with pyarrow alone."""
    for name in ("participations", "rounds.parquet"):
        assert pq.read_table(one.path / name).equals(pq.read_table(other.path / name))
