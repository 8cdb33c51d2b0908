"""The running sensitivity against that of every prefix, device by device."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedray.mechanisms import running
from fedray.mechanisms.accounting.calibration import largest_sensitivity
from fedray.mechanisms.accounting.events import Gaussian
from fedray.mechanisms.accounting.gdp import gdp_epsilon
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.mechanisms.registry import (
    BISR,
    BLT,
    BandFHU,
    Dense,
    Identity,
    Toeplitz,
    Tree,
    TreeFull,
)
from fedray.mechanisms.running import RunningSensitivity
from fedray.mechanisms.sensitivity import PatternSensitivities

ROUNDS = 24
SIGNS = np.tril(np.random.default_rng(1).normal(size=(ROUNDS, ROUNDS)), -1)
STRATEGIES = [
    Identity(),
    BLT(theta=(0.95, 0.6), omega=(0.2, 0.3)),
    Tree(),
    Tree(restarts=(5, 14), completion=True, rounds=ROUNDS),
    TreeFull(rounds=ROUNDS),
    BandFHU(bands=4),
    BISR(bands=3),
    Toeplitz(coefficients=(1.0, 0.2, 0.4)),
    Toeplitz(coefficients=(1.0, -0.5, 0.3)),
    Dense.from_matrix(0.2 * SIGNS + np.eye(ROUNDS), "signs.npy"),
]


def largest(strategy, patterns: list[list[int]], rounds: int) -> float:
    """The largest sensitivity of the patterns' rounds so far, one by one."""
    sensitivities = PatternSensitivities(strategy, rounds)
    so_far = [[each for each in pattern if each < rounds] for pattern in patterns]
    return max(sensitivities.exact(np.array(each)).value for each in so_far if each)


@st.composite
def participations(draw) -> list[list[int]]:
    """Who takes part in each round; somebody always does."""
    rounds = draw(st.integers(2, ROUNDS))
    return [sorted(draw(st.sets(st.integers(0, 9), min_size=1, max_size=4))) for _ in range(rounds)]


@pytest.mark.slow
@given(participations(), st.sampled_from(STRATEGIES), st.floats(0.3, 1.05), st.integers(1, 9))
@settings(max_examples=150, deadline=None)
def test_it_is_beyond_the_limit_at_the_first_round_that_is(
    cohorts: list[list[int]], strategy, share: float, ahead: int
) -> None:
    """For any horizon, and whatever part of the devices is looked at together."""
    ids = {0: 7, 1: 2**40 - 1, 2: 3}  # not in order of their first round, and far apart
    patterns = [[t for t, who in enumerate(cohorts) if device in who] for device in range(10)]
    values = [largest(strategy, patterns, n) for n in range(1, len(cohorts) + 1)]
    limit = share * values[-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "LEAST_AHEAD", ahead)
        patch.setattr(running, "MANY", ahead)
        patch.setattr(running, "CHUNK", 2)
        found = RunningSensitivity(strategy, ROUNDS, limit)
        for cohort, value in zip(cohorts, values, strict=True):
            found.add(np.sort(np.array([ids.get(each, 100 + each) for each in cohort], np.uint64)))
            beyond = found.beyond()
            if value > limit * (1 + 1e-9):
                assert beyond == pytest.approx(value, rel=1e-9)
                return
            if value < limit * (1 - 1e-9):
                assert beyond is None
    assert limit >= values[-1] * (1 - 1e-9)


@given(participations(), st.sampled_from(STRATEGIES))
@settings(max_examples=40, deadline=None)
def test_rounds_that_were_taken_up_again_count_as_if_they_had_been_asked_about(
    cohorts: list[list[int]], strategy
) -> None:
    patterns = [[t for t, who in enumerate(cohorts) if device in who] for device in range(10)]
    limit = 0.999 * largest(strategy, patterns, len(cohorts))
    found = RunningSensitivity(strategy, ROUNDS, limit)
    for cohort in cohorts:
        found.add(np.array(cohort, np.uint64))
    assert found.beyond() == pytest.approx(limit / 0.999, rel=1e-7)


@pytest.mark.slow
def test_many_devices_are_kept_apart() -> None:
    """More than are merged at once: ids in any order, each with its own rounds."""
    rng = np.random.default_rng(0)
    ids = rng.permutation(300_000).astype(np.uint64) * np.uint64(977)
    found = RunningSensitivity(Tree(), 64, 100.0)
    cohorts = [np.sort(rng.choice(ids, 9_000, replace=False)) for _ in range(60)]
    for cohort in cohorts:
        found.add(cohort)
        assert found.beyond() is None
    whose = np.concatenate(cohorts)
    when = np.repeat(np.arange(60), 9_000)
    order = np.lexsort((when, whose))
    devices, starts = np.unique(whose[order], return_index=True)
    patterns = np.split(when[order], starts[1:])
    exact = PatternSensitivities(Tree(), 60)
    by_count: dict[int, list] = {}
    for pattern in patterns:
        by_count.setdefault(pattern.size, []).append(pattern)
    most = max(float(exact.of(np.array(each)).values.max()) for each in by_count.values())
    tight = RunningSensitivity(Tree(), 64, most * (1 - 1e-6))
    for cohort in cohorts:
        tight.add(cohort)
    assert tight.beyond() == pytest.approx(most, rel=1e-12)
    assert devices.size > 200_000


@pytest.mark.parametrize(
    "target",
    [{"rho": 0.3}, {"epsilon": 4.0}, {"rho": 0.3, "epsilon": 4.0}, {"rho": 9.0, "epsilon": 0.1}],
)
@pytest.mark.parametrize("z", [0.01, 3.0, 1e6])
def test_the_largest_sensitivity_is_the_last_that_is_allowed(target, z: float) -> None:
    found = largest_sensitivity(z, 1e-8, **target)

    def is_allowed(sensitivity: float) -> bool:
        release = Gaussian(noise_multiplier=z, sensitivity=sensitivity)
        return rho_of(release) <= target.get("rho", np.inf) and gdp_epsilon(
            release, 1e-8
        ) <= target.get("epsilon", np.inf)

    assert is_allowed(found)
    assert not is_allowed(found * (1 + 1e-12))


@pytest.mark.parametrize("target", [{}, {"rho": 0.0}, {"epsilon": -1.0}, {"rho": np.inf}])
def test_impossible_budgets_are_refused(target) -> None:
    with pytest.raises(ValueError, match="=None|must be positive and finite"):
        largest_sensitivity(1.0, 1e-8, **target)


@pytest.mark.parametrize(
    ("allowed", "place", "is_exact", "left"),
    [(0, 0, False, 0), (1, 1, False, 0), (2, 4, False, 0), (3, 4, True, 0), (5, 4, True, 2)],
)
def test_certificates_go_to_the_largest_bounds_of_different_patterns(
    allowed: int, place: int, is_exact: bool, left: int
) -> None:
    """Patterns that occur again take none, nor do those whose value is exact. Without any left, the
    largest bound that remains stands.

    Three neighbours cannot all be opposed, so their bound is not attained; it is above that of the
    pattern at 4, which is.
    """
    sensitivities = PatternSensitivities(Toeplitz(coefficients=(1.0, -0.5, -0.3)), 12)
    patterns = np.array([[0, 1, 2], [3, 4, 5], [0, 4, 8], [0, 1, 2], [6, 7, 9], [3, 4, 5]])
    bounds = sensitivities.of(patterns)
    assert bounds.is_exact.tolist() == [False, False, True, False, False, False]
    found, certificates = sensitivities.largest(patterns, None, bounds, 0.0, allowed)
    assert found is not None
    assert (found.place, found.is_exact, certificates) == (place, is_exact, left)
    assert found.value == pytest.approx(bounds.values[place])


def test_nothing_above_what_is_known_is_nothing() -> None:
    sensitivities = PatternSensitivities(Identity(), 4)
    patterns = np.array([[0, 1], [1, 3]])
    values = sensitivities.of(patterns)
    assert sensitivities.largest(patterns, None, values, 2.0, 9) == (None, 9)
    found, _ = sensitivities.largest(patterns, None, values, 1.0, 9)
    assert found is not None
    assert (found.value, found.is_exact, found.place) == (2**0.5, True, 0)
