"""Statistics of attacks: against their definitions, pair by pair and rank by rank."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from fedray.studies.inference import (
    area_under_curve,
    exposure_without_memory,
    exposures,
    found_members,
    mean_interval,
)


def test_exposure_is_the_rank_among_random_phrases() -> None:
    references = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    # Rank 1 of 8 has all three bits, the last one none.
    found = exposures(np.array([0.5, 1.5, 3.5, 9.0]), references)
    assert found == pytest.approx([3.0, 2.0, 1.0, 0.0])


def test_exposure_without_memory_is_that_of_a_uniform_rank() -> None:
    for count in (1, 7, 100):
        ranks = np.arange(1, count + 2)
        expected = np.mean(math.log2(count + 1) - np.log2(ranks))
        assert exposure_without_memory(count) == pytest.approx(expected)
    assert exposure_without_memory(100_000) == pytest.approx(1 / math.log(2), abs=1e-3)


def test_the_area_is_the_share_of_pairs_and_its_error_that_of_delong() -> None:
    generator = np.random.default_rng(0)
    members, others = generator.integers(2, 9, 30) * 1.0, generator.integers(0, 7, 50) * 1.0
    wins = (members[:, None] > others) + 0.5 * (members[:, None] == others)
    found = area_under_curve(members, others)
    assert found.value == pytest.approx(wins.mean())
    # Structural components: means of rows and columns of the pairs.
    variance = wins.mean(axis=1).var(ddof=1) / 30 + wins.mean(axis=0).var(ddof=1) / 50
    assert (found.high - found.low) / 2 == pytest.approx(1.959964 * variance**0.5, rel=1e-6)


def test_intervals_cover_as_often_as_they_say() -> None:
    """400 samples: fewer than 360 hits have a probability below 1e-4 if intervals hold 95 %. The normal interval of the area is an estimate."""
    generator = np.random.default_rng(1)
    hits = np.zeros(2)
    for _ in range(400):
        members, others = generator.normal(1, 1, 60), generator.normal(0, 1, 60)
        area, mean = area_under_curve(members, others), mean_interval(members)
        hits += area.low <= 0.7602499 <= area.high, mean.low <= 1.0 <= mean.high
    assert binom.cdf(359, 400, 0.95) < 1e-4
    assert (hits >= 360).all()


def test_members_are_found_beyond_the_hundredth_of_the_others() -> None:
    others = np.arange(200.0)
    # Two of 200 may be accused, so the threshold is the third largest, 197.
    found = found_members(np.array([197.0, 197.5, 300.0, 5.0]), others)
    assert found.value == 0.5
    assert found.low < 0.1 < 0.9 < found.high


def test_a_single_value_has_no_interval() -> None:
    for values in (np.array([2.0]), np.empty(0)):
        assert all(map(math.isnan, mean_interval(values)))
