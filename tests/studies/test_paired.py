"""Means over seeds, with intervals; paired differences."""

import math

import numpy as np
import pytest
from scipy import stats

from fedray.studies.paired import (
    MeanInterval,
    difference_text,
    interval_text,
    mean_interval,
    paired_difference,
    with_error,
)


def test_the_interval_is_students():
    values = [0.21, 0.24, 0.19, 0.25, 0.22]
    found = mean_interval(values)
    low, high = stats.t.interval(0.95, 4, loc=np.mean(values), scale=stats.sem(values))
    assert (found.mean, found.count) == (pytest.approx(np.mean(values)), 5)
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    assert (found.high - found.low) / 2 == pytest.approx((high - low) / 2)


def test_one_value_has_no_interval_and_none_no_mean():
    one, none = mean_interval([0.5]), mean_interval([])
    # Equal values may differ by rounding, and show no interval.
    assert interval_text(mean_interval([0.1 + 0.2, 0.3]), ".4f") == "0.3000"
    assert one.to_json() == {"count": 1, "mean": 0.5, "low": None, "high": None}
    assert none.to_json() == {"count": 0, "mean": None, "low": None, "high": None}
    assert not one.is_from_zero


def test_an_interval_ends_where_no_mean_can_lie_and_then_shows_its_ends():
    found = MeanInterval(0.9, 3, 0.7, 1.1)
    assert found.within(0.0, 2.0) == found
    assert interval_text(found, ".4f") == "0.90 ± 0.20"
    assert found.within(0.0, 1.0) == MeanInterval(0.9, 3, 0.7, 1.0)
    assert interval_text(found.within(0.0, 1.0), ".4f") == "0.9000 [0.7000, 1.0000]"
    # A metric that is called a share without being one keeps its mean, and one seed no interval.
    assert MeanInterval(1.2, 3, 1.1, 1.3).within(0.0, 1.0) == MeanInterval(1.2, 3, 1.1, 1.2)
    assert math.isnan(mean_interval([0.5]).within(0.0, 1.0).low)


def test_two_values_that_leave_the_sign_open_are_too_few_to_tell():
    two, three = mean_interval([0.1, 0.12], 0.99), mean_interval([0.1, -0.12, 0.1])
    assert (two.is_of_too_few, three.is_of_too_few) == (True, False)
    assert difference_text(two, "+.4f") == "+0.1100, too few to tell"
    assert difference_text(three, "+.4f").startswith("+0.03 ± 0.")
    # Two that differ less are an interval without zero, which is right at its confidence.
    sure = mean_interval([0.1, 0.101])
    assert not sure.is_of_too_few
    assert difference_text(sure, "+.4f") == "+0.1005 ± 0.0064"
    assert difference_text(mean_interval([math.nan, 1.0]), "+.4f") == "-"


def test_a_value_that_is_not_finite_makes_the_mean_unknown():
    found = mean_interval([0.5, math.nan, 0.4])
    assert found.count == 3
    assert math.isnan(found.mean)
    assert not found.is_from_zero


def test_intervals_hold_the_mean_as_often_as_they_promise():
    """2000 samples of 4: the share within is 0.95 with a standard error of 0.005, so that a
    correct interval fails here with a probability below 1e-4. A normal quantile gives 0.86."""
    draws = np.random.default_rng(7).normal(3.0, 2.0, (2000, 4))
    found = [mean_interval(sample) for sample in draws]
    share = np.mean([each.low <= 3.0 <= each.high for each in found])
    assert 0.93 < share < 0.97


def test_pairs_are_seeds_that_both_have_and_common_noise_cancels():
    luck = {seed: float(seed) for seed in range(6)}
    better = {seed: 0.5 + value + 1e-3 * (seed % 2) for seed, value in luck.items() if seed != 2}
    found = paired_difference(better, luck | {9: 100.0})
    assert found.count == 5
    assert found.mean == pytest.approx(0.5006)
    assert found.is_from_zero
    alone = mean_interval(better.values())
    assert (found.high - found.low) / 2 < 1e-3 < (alone.high - alone.low) / 2


@pytest.mark.parametrize(
    ("mean", "error", "text"),
    [
        (0.31, 0.12706, "0.31 ± 0.13"),
        (0.83117, 0.00213, "0.8312 ± 0.0021"),
        (-0.3, 0.0996, "-0.30 ± 0.10"),
        (12.34, 15.8, "12 ± 16"),
        (0.5, 0.0, "0.5000"),
        (0.5, math.nan, "0.5000"),
    ],
)
def test_a_mean_has_the_decimals_of_two_digits_of_its_error(
    mean: float, error: float, text: str
) -> None:
    assert with_error(mean, error) == text
    assert with_error(abs(mean), error, "+").startswith("+")
