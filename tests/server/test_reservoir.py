"""Rounds that draw their devices among the waiting."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fedray.base.errors import ScenarioError
from fedray.base.rng import Stream, stream_key
from fedray.runs.simulation import resume, simulate
from fedray.runtime.placement import Placement
from fedray.server.rounds.reservoir import drawn_cohort
from fedray.trace.reader import Trace

KEY = stream_key(1, Stream.RESERVOIR)
PACED = (
    "population.devices=60000",
    "rounds.min_minutes_between=20.0",
    "rounds.max_checkins_per_hour=0.5",
    "rounds.pace_multiple=10.0",
    "rounds.count=8",
)
RESERVOIR = (*PACED, "rounds.selection=reservoir", "rounds.waiting_multiple=20.0")
"""Room for all who come."""


def test_all_sets_of_so_many_are_drawn_alike() -> None:
    """2 of 5 devices in 20,000 attempts: ten sets, by chi-square with a false alarm of 1e-4."""
    ids = np.array([3, 2**40 - 1, 17, 90_000, 4], np.uint64)
    drawn = [drawn_cohort(KEY, ids, attempt, 2) for attempt in range(20_000)]
    assert all(each.sum() == 2 for each in drawn)
    sets, counts = np.unique(np.array(drawn) @ (1 << np.arange(5)), return_counts=True)
    assert sets.size == 10
    assert stats.chisquare(counts)[1] > 1e-4


def test_who_is_drawn_does_not_depend_on_the_order_of_the_waiting() -> None:
    ids = np.arange(50, dtype=np.uint64)
    drawn = drawn_cohort(KEY, ids, 3, 20)
    assert (drawn_cohort(KEY, ids[::-1].copy(), 3, 20)[::-1] == drawn).all()
    # The others would be drawn next.
    assert (drawn_cohort(KEY, ids, 3, 21) >= drawn).all()


def waits_of(trace: Trace) -> np.ndarray:
    """How long the selected of each round but the first had waited, as a share of the longest
    wait of its round."""
    columns = trace.columns(0)
    started = trace.rounds["started"][columns["round"]]
    waits = started - columns["checkin_time"]
    longest = np.zeros(trace.rounds["round"].size)
    np.maximum.at(longest, columns["round"], waits)
    return (waits / longest[columns["round"]])[columns["round"] > 0]


def test_a_reservoir_takes_late_comers_as_gladly_as_early_ones(small, tmp_path: Path) -> None:
    """Rounds start every 20 minutes, and enough for one come in a few: who comes first has waited
    for most of the time, who is drawn for half of it."""
    first = simulate(small(*PACED), Placement(1, "in-process"), tmp_path / "first")
    drawn = simulate(small(*RESERVOIR), Placement(1, "in-process"), tmp_path / "drawn")
    assert waits_of(first).mean() > 0.75
    assert 0.4 < waits_of(drawn).mean() < 0.6
    assert (drawn.rounds["selected"] == first.rounds["selected"]).all()


@pytest.mark.slow
def test_a_drawn_trace_is_the_same_for_any_shards_and_after_a_resume(small, tmp_path: Path) -> None:
    value = small(*RESERVOIR, "population.devices=140000", "population.reach=0.15")
    whole = simulate(value, Placement(1, "in-process"), tmp_path / "1")
    assert simulate(value, Placement(3, "in-process"), tmp_path / "3").digest == whole.digest

    def stop(progress) -> None:
        if progress.committed == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(
            value, Placement(1, "in-process", checkpoint_seconds=0.0), tmp_path / "broken", stop
        )
    assert resume(tmp_path / "broken", Placement(2, "in-process")).digest == whole.digest


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["rounds.waiting_multiple=2.0"], "with selection='first' only the devices to select wait"),
        (
            [
                "rounds.mode=buffered",
                "rounds.buffer={concurrency=10,max_staleness=2}",
                "rounds.selection=reservoir",
            ],
            "selection is given with mode='buffered'",
        ),
        (
            [
                'rounds.mode="upload-then-train"',
                "rounds.uploads={window_hours=24,schedule={kind='cyclic',min_sep=2}}",
                "rounds.selection=reservoir",
            ],
            "selection is a rule for devices that wait",
        ),
    ],
)
def test_a_reservoir_where_nobody_waits_is_refused(
    overrides: list[str], expected: str, small
) -> None:
    tables = small().to_tables()
    with pytest.raises(ScenarioError, match=expected):
        _ = type(small()).from_tables(_with(tables, overrides))


def _with(tables: dict, overrides: list[str]) -> dict:
    from fedray.scenario.overrides import apply_override

    for override in overrides:
        apply_override(tables, override)
    return tables
