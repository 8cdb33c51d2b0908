"""A device that contributes more than once to a round: each contribution is clipped by itself, and all of them count."""

import itertools

import numpy as np
import pytest
import slow_twins as reference

from fedray.mechanisms.registry import BISR, BLT, Banded, BandFHU, Identity, Toeplitz, Tree
from fedray.mechanisms.sensitivity import PatternSensitivities
from fedray.mechanisms.triangular import lower_factor

ROUNDS = 7
PATTERNS = [(0, 0), (0, 3, 3), (2, 2, 2, 5), (1, 1, 4, 4, 6), (0, 1, 1, 2, 2, 2), (6, 6, 6)]


def banded_matrix() -> Banded:
    """A matrix of three bands, with positive entries that follow no other rule."""
    C = np.tril(np.triu(np.random.default_rng(5).uniform(0.1, 1.0, (ROUNDS, ROUNDS)), -2))
    return Banded.from_matrix(C + np.eye(ROUNDS), "c.npy")


NON_NEGATIVE = [
    Identity(),
    BLT(theta=(0.7, 0.4), omega=(0.9, 0.5)),
    BandFHU(bands=3),
    Toeplitz(coefficients=(1.0, 0.4, 0.2)),
    Tree(),
    Tree(restarts=(3,)),
    Tree(completion=True, rounds=ROUNDS),
    banded_matrix(),
]


@pytest.mark.parametrize("strategy", NON_NEGATIVE, ids=lambda strategy: strategy.kind)
@pytest.mark.parametrize("copies", [1, 4])
def test_the_sum_of_the_columns_as_often_as_they_stand_is_the_sensitivity(
    strategy, copies: int
) -> None:
    """With G >= 0 all contributions alike are worst: the norm of the summed columns, by either way of computing many patterns."""
    sensitivities = PatternSensitivities(strategy, ROUNDS)
    for pattern in PATTERNS:
        found = sensitivities.of(np.array([pattern] * copies))
        assert found.is_exact.all()
        assert found.values == pytest.approx(
            reference.pattern_sensitivity(strategy, pattern, ROUNDS), rel=1e-12
        )
        assert sensitivities.exact(np.array(pattern)).value == pytest.approx(
            found.values[0], rel=1e-12
        )


@pytest.mark.parametrize("strategy", NON_NEGATIVE, ids=lambda strategy: strategy.kind)
def test_no_contributions_of_norm_one_add_more(strategy) -> None:
    """Random and aligned contributions, each of norm 1, in every multiset of up to 4 rounds of 5."""
    generator = np.random.default_rng(0)
    C = strategy.definition(ROUNDS)
    sensitivities = PatternSensitivities(strategy, ROUNDS)
    for count in (2, 3, 4):
        patterns = list(itertools.combinations_with_replacement(range(5), count))
        values = sensitivities.of(np.array(patterns)).values
        for pattern, value in zip(patterns, values, strict=True):
            parts = generator.normal(size=(count, 3))
            parts /= np.linalg.norm(parts, axis=1, keepdims=True)
            assert np.linalg.norm(C[:, list(pattern)] @ parts) <= value * (1 + 1e-12)


@pytest.mark.parametrize(
    "strategy", [BISR(bands=4), Toeplitz(coefficients=(1.0, -0.5, 0.2))], ids=lambda s: s.kind
)
def test_with_negative_entries_the_best_of_all_signs_is_between_the_lower_and_the_upper_bound(
    strategy,
) -> None:
    """Contributions of one round are alike at the optimum, so signs per round are a brute force in one dimension."""
    C = strategy.definition(ROUNDS)
    for pattern in PATTERNS:
        signs = itertools.product((1.0, -1.0), repeat=len(pattern))
        best = max(float(np.linalg.norm(C[:, list(pattern)] @ np.array(each))) for each in signs)
        found = PatternSensitivities(strategy, ROUNDS).exact(np.array(pattern))
        assert best <= found.value * (1 + 1e-9)
        assert found.lower_bound <= found.value * (1 + 1e-9)
        distinct = np.unique(pattern)
        multiplicity = np.bincount(pattern).max()
        once = PatternSensitivities(strategy, ROUNDS).exact(distinct)
        assert found.value <= multiplicity * once.value * (1 + 1e-6)


def test_twice_in_one_round_is_twice_the_clip_norm() -> None:
    C = lower_factor(np.eye(ROUNDS))
    strategy = Banded.from_matrix(C, "c.npy")
    assert PatternSensitivities(strategy, ROUNDS).exact(np.array([2, 2])).value == pytest.approx(
        2.0
    )
    assert PatternSensitivities(Identity(), ROUNDS).exact(
        np.array([2, 2, 5])
    ).value == pytest.approx(np.sqrt(5.0))
