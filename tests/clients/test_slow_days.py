"""Slow days: how often they are, and what they leave, against the same population without them."""

import numpy as np
import pytest

from fedray.base.errors import ScenarioError
from fedray.clients.availability.factory import availability_of
from fedray.clients.availability.intervals import DAY, Intervals, joined
from fedray.clients.availability.model import Listing
from fedray.scenario import Scenario

DEVICES = np.arange(150, dtype=np.uint64) * 1009 + 3
DAYS = 300
TABLE = {
    "seed": 11,
    "population": {"devices": 500_000},
    "rounds": {"count": 2, "report_goal": 10},
    "training": {"enabled": False},
}


def intervals(*overrides: str) -> Intervals:
    """Those of all devices that end within the days."""
    model = availability_of(Scenario.from_tables(TABLE).with_overrides(*overrides))
    parts = []
    # Few days at a time: a device may have so many sessions in one list and no more.
    for first in range(0, DAYS, 5):
        low, high = first * DAY, (first + 5) * DAY
        found = model.list_intervals(Listing(DEVICES, np.zeros(DEVICES.size), low, high))
        parts.append(found.take((found.end_times >= low) & (found.end_times < high)))
    return joined(parts)


def by_day(found: Intervals) -> np.ndarray:
    """How many intervals end on each day."""
    return np.bincount((found.end_times // DAY).astype(np.int64), minlength=DAYS)


def test_a_share_of_the_spells_is_slow_and_leaves_a_share_of_the_intervals() -> None:
    """Within five standard deviations of binomial counts: a false alarm in 10^6 runs at most.

    The intervals that are left are some of those without slow days, to the bit.
    """
    everything = intervals()
    left = intervals("availability.slow_days={share=0.3,factor=0.4,days=2}")
    both = {*zip(everything.local.tolist(), everything.end_times.tolist(), strict=True)}
    assert {*zip(left.local.tolist(), left.end_times.tolist(), strict=True)} < both
    before, after = by_day(everything), by_day(left)
    assert before.min() > 20
    is_slow = after < before
    # Days 2 m and 2 m + 1 are one spell: both are slow, or none is.
    assert (is_slow[0::2] == is_slow[1::2]).all()
    spells = DAYS / 2
    assert abs(is_slow[0::2].sum() - 0.3 * spells) < 5 * np.sqrt(0.3 * 0.7 * spells)
    of_slow, left_of_slow = before[is_slow].sum(), after[is_slow].sum()
    assert abs(left_of_slow - 0.4 * of_slow) < 5 * np.sqrt(0.4 * 0.6 * of_slow)


def test_another_seed_has_other_slow_days() -> None:
    key = "availability.slow_days={share=0.5,factor=0.0}"
    first, second = (by_day(intervals(key, f"seed={seed}")) > 0 for seed in (1, 2))
    assert 0.3 < (first != second).mean() < 0.7
    # With nothing left on slow days, half of the days have intervals.
    assert 0.35 < first.mean() < 0.65


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("availability={model='always_on',slow_days={share=0.1,factor=0.5}}", "never ends"),
        ("availability.slow_days={share=0.0,factor=0.5}", "share"),
        ("availability.slow_days={share=0.1,factor=1.0}", "factor"),
        ("availability.slow_days={share=0.1}", "factor"),
    ],
)
def test_slow_days_that_change_nothing_or_cannot_be_are_refused(key: str, reason: str) -> None:
    with pytest.raises(ScenarioError, match=reason) as caught:
        Scenario.from_tables(TABLE).with_overrides(key)
    assert "\n" not in str(caught.value)
