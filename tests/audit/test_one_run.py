"""Lower bounds from one run: against exact laws at small m, linear programs, and published code's figures.

Everything here is exact or an inequality that always holds, except one test of exact Gaussians: `make canary` draws 1,000 times, the suite 100. A
bound may be wrong in 5 % of them, and more wrong ones than the test allows have a probability below 1e-4 over its nine kinds of bounds.
"""

import itertools
import math
import os

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import linprog
from scipy.special import ndtr

from fedray.audit.one_run import (
    CONFIDENCE,
    bounds_of_scores,
    epsilon_bound,
    gaussian_bound,
    is_possible,
    mu_bound,
    probability_bound,
    right_guesses,
)
from fedray.mechanisms.accounting.gdp import gaussian_epsilon

ERROR = 1 - CONFIDENCE
RUNS = 1000 if os.environ.get("FEDRAY_ALL_SEEDS") else 100


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("r", [1, 4, 6])
def test_without_delta_randomised_response_attains_the_bound(epsilon: float, r: int) -> None:
    """All 2^r patterns of right answers, each guess being right with probability e^epsilon / (1 + e^epsilon)."""
    right = math.exp(epsilon) / (1 + math.exp(epsilon))
    for v in range(r + 1):
        exact = sum(
            right ** sum(answers) * (1 - right) ** (r - sum(answers))
            for answers in itertools.product((0, 1), repeat=r)
            if sum(answers) >= v
        )
        assert probability_bound(r, r, v, epsilon, 0.0) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("delta", [1e-3, 0.1])
def test_a_mechanism_that_fails_with_probability_delta_stays_below_the_bound(delta: float) -> None:
    """With probability delta each, independently, a coin is published; otherwise randomised response: (epsilon, delta)-private. And with the same
    failure for all coins at once, which is delta-private for every coin, too."""
    m, epsilon = 8, 0.7
    right = delta + (1 - delta) * math.exp(epsilon) / (1 + math.exp(epsilon))
    for v in range(m + 1):
        alone = stats.binom.sf(v - 1, m, right)
        together = delta + (1 - delta) * stats.binom.sf(
            v - 1, m, math.exp(epsilon) / (1 + math.exp(epsilon))
        )
        assert max(alone, together) <= probability_bound(m, m, v, epsilon, delta) * (1 + 1e-12)


def test_the_sum_over_fewer_guesses_is_that_of_the_theorem() -> None:
    """The slow twin: delta m times twice the largest (P[W >= v - i] - P[W >= v]) / i, W binomial."""
    for m, r, v, epsilon, delta in (
        (20, 12, 9, 0.8, 1e-3),
        (50, 50, 31, 0.1, 1e-2),
        (5, 4, 4, 2.0, 0.05),
    ):
        law = stats.binom(r, 1 / (1 + math.exp(-epsilon)))
        worst = max((law.sf(v - i - 1) - law.sf(v - 1)) / i for i in range(1, v + 1))
        expected = min(1.0, law.sf(v - 1) + 2 * delta * m * worst)
        assert probability_bound(m, r, v, epsilon, delta) == pytest.approx(expected, rel=1e-10)


def test_a_larger_epsilon_or_mu_is_never_easier_to_refute() -> None:
    """Bisection finds the largest refuted value, because refutation ends there."""
    grid = np.linspace(0, 6, 121)
    for m, r, v in ((64, 64, 50), (64, 16, 16), (400, 100, 80)):
        for delta in (1e-10, 1e-5, 1e-3):
            bounds = [probability_bound(m, r, v, epsilon, delta) for epsilon in grid]
            is_refuted = np.array(bounds) <= ERROR
            assert (np.diff(is_refuted.astype(int)) <= 0).all()
            found = epsilon_bound(m, r, v, delta, ERROR)
            assert is_refuted[grid <= found].all()
            assert not is_refuted[grid > found + 1e-3].any()
        possible = np.array([is_possible(m, r, v, ERROR, mu) for mu in grid])
        assert (np.diff(possible.astype(int)) >= 0).all()
        assert not possible[grid <= mu_bound(m, r, v, ERROR)].any()


def _most_probable(m: int, r: int, v: int, mu: float) -> float:
    """The slow twin of `is_possible`: the largest P[v or more right] that the inequalities W_(j-1) >= Phi(Phi^-1(R_j) - mu) for j = 1 .. r permit,
    as a linear program with tangents of the trade-off function (which lie below it, so the result is an upper bound)."""
    counts = np.arange(r + 1)
    rows, limits = [], []
    # Tangents at x = R: Phi(Phi^-1(x) - mu) has the slope exp(mu q - mu^2 / 2), with q = Phi^-1(x).
    for q in np.linspace(-6, 6, 400):
        x, value, slope = ndtr(q), ndtr(q - mu), math.exp(mu * q - mu**2 / 2)
        for j in range(1, r + 1):
            right = np.where(counts >= j, counts, 0) / m
            wrong = np.where(counts >= j - 1, r - counts, 0) / m
            rows.append(slope * right - wrong)
            limits.append(slope * x - value)
    goal = -(counts >= v).astype(float)
    found = linprog(goal, rows, limits, np.ones((1, r + 1)), [1.0], bounds=(0, 1))
    assert found.status == 0
    return -found.fun


@pytest.mark.parametrize("mu", [0.3, 1.0, 2.0])
@pytest.mark.parametrize(("m", "r"), [(4, 4), (8, 8), (12, 6)])
def test_the_recursion_permits_what_a_linear_program_does(mu: float, m: int, r: int) -> None:
    for v in range(1, r + 1):
        most = _most_probable(m, r, v, mu)
        if most < 1 - 1e-6:
            assert not is_possible(m, r, v, min(1.0, most * 1.01 + 1e-6), mu)
        assert is_possible(m, r, v, most * 0.99, mu)


@pytest.mark.parametrize("mu", [0.0, 0.5, 1.5])
def test_the_best_guesses_of_independent_gaussians_are_possible(mu: float) -> None:
    """The exact law of the best guesses: each of m is right with Phi(mu / 2); and guesses of the only coin that a mechanism publishes."""
    for m in (1, 2, 5, 20):
        for v in range(m + 1):
            exact = float(stats.binom.sf(v - 1, m, ndtr(mu / 2)))
            assert is_possible(m, m, v, exact * (1 - 1e-9), mu)


def test_one_guess_of_one_coin_is_bounded_exactly() -> None:
    """m = r = v = 1: the bound is Phi(mu / 2), that of the best guess."""
    for mu in (0.2, 1.0, 3.0):
        assert is_possible(1, 1, 1, ndtr(mu / 2) - 1e-9, mu)
        assert not is_possible(1, 1, 1, ndtr(mu / 2) + 1e-9, mu)


def test_groups_of_units_divide_mu_and_compose_epsilon() -> None:
    one = mu_bound(400, 400, 320, ERROR)
    assert mu_bound(400, 400, 320, ERROR, units=4) == pytest.approx(one / 4, abs=2e-4)
    whole = epsilon_bound(400, 400, 320, 1e-12, ERROR)
    assert epsilon_bound(400, 400, 320, 1e-12, ERROR, units=2) == pytest.approx(whole / 2, abs=2e-4)
    # delta of a group of two is (1 + e^epsilon) delta.
    pair = epsilon_bound(400, 400, 320, 1e-4, ERROR, units=2)
    assert probability_bound(400, 400, 320, 2 * pair, (1 + math.exp(pair)) * 1e-4) <= ERROR


def test_guesses_are_the_extreme_scores_and_know_nothing_of_the_coins() -> None:
    scores = np.array([5.0, -1.0, 3.0, 0.0, 2.0, -7.0])
    is_in = np.array([True, True, False, True, False, False])
    assert right_guesses(scores, is_in, 6) == (6, 2)
    assert right_guesses(scores, is_in, 5) == (4, 2)
    assert right_guesses(scores, is_in, 2) == (2, 2)


def test_a_negative_difference_is_no_evidence() -> None:
    """Means far apart in the wrong direction: |mu| would be about 5."""
    generator = np.random.default_rng(0)
    included, others = generator.normal(-5, 1, 100), generator.normal(0, 1, 100)
    bound = gaussian_bound(included, others, 1e-6)
    assert (bound.mu, bound.epsilon) == (0.0, 0.0)
    scores, is_in = np.concatenate([included, others]), np.arange(200) < 100
    assert [each.epsilon for each in bounds_of_scores(scores, is_in, 1e-6)] == [0.0, 0.0]


def test_the_bound_of_normal_scores_is_the_noncentral_quantile() -> None:
    generator = np.random.default_rng(1)
    included, others = generator.normal(3.0, 2.0, 40), generator.normal(0.0, 2.0, 60)
    bound = gaussian_bound(included, others, 1e-5)
    t = stats.ttest_ind(included, others).statistic
    assert bound.mu is not None
    ncp = bound.mu / math.sqrt(1 / 40 + 1 / 60)
    assert stats.nct.sf(t, 98, ncp) == pytest.approx(ERROR, abs=1e-4)
    assert bound.epsilon == gaussian_epsilon(bound.mu, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.0, 1.0, 3.0])
def test_bounds_of_exact_gaussians_are_wrong_no_more_often_than_stated(mu: float) -> None:
    generator = np.random.default_rng(2)
    wrong = np.zeros(3, int)
    for _ in range(RUNS):
        is_in = generator.random(128) < 0.5
        scores = mu * is_in + generator.standard_normal(128)
        bounds = (
            *bounds_of_scores(scores, is_in, 1e-6),
            gaussian_bound(scores[is_in], scores[~is_in], 1e-6),
        )
        wrong += [each.epsilon > gaussian_epsilon(mu, 1e-6) for each in bounds]
    assert (wrong <= stats.binom.isf(1e-4 / 9, RUNS, ERROR)).all(), wrong


def test_scores_of_equal_rank_are_in_the_order_of_the_canaries() -> None:
    is_in = np.array([True, False, True, False])
    assert right_guesses(np.zeros(4), is_in, 4) == (4, 2)
