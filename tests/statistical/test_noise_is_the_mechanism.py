"""The aggregator's output has the covariance of the mechanism: what was released is what is accounted for.

Every round of the real aggregator is run on zero updates. Its released sums are E = sigma M Z with M the noise map of
mechanisms/reference.py; whitening by the reference covariance must give independent standard normals. Two statistics over
W = L^-1 E / sigma, [rounds, D]: the total sum of squares is chi-square with rounds x D degrees of freedom, and so is the
largest of many random one-dimensional projections after correcting for their number.

False alarms: each test rejects at p < 1e-5 for a fixed seed, so one in 100,000 changes of the draws. Power: with 30 x 20,000
values the standard deviation of the mean square is 0.18 %, so 10 % too much or too little noise is 50 deviations away.
"""

import numpy as np
import pytest
import slow_twins as reference
from example_mechanisms import OF_EACH_KIND
from numpy.typing import NDArray
from scipy import stats

from fedray.mechanisms.registry import (
    Identity,
    Tree,
)
from fedray.mechanisms.strategy import Strategy
from fedray.scenario import Scenario
from fedray.server.learning.aggregator import ModelAggregator

ROUNDS, DIMENSION, ALARM = 30, 20_000, 1e-5
STRATEGIES: dict[str, Strategy] = {
    **OF_EACH_KIND,
    "tree, completed": Tree(restarts=(11,), completion=True, rounds=ROUNDS),
}
KINDS = pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)


def released(scenario: Scenario, strategy: Strategy) -> np.ndarray:
    """[ROUNDS, DIMENSION]: what the aggregator releases when every update is zero."""
    privacy = scenario.privacy.model_copy(update={"mechanism": strategy})
    aggregator = ModelAggregator(scenario.model_copy(update={"privacy": privacy}))
    aggregator.start(np.zeros(DIMENSION, np.float32))
    return np.stack([aggregator.release().double().numpy() for _ in range(ROUNDS)])


def p_values(rows: np.ndarray, strategy: Strategy, sigma: float) -> list[float]:
    """Two-sided p-values: of the whitened sum of squares, and of the most extreme of 50 projections (Bonferroni)."""
    M = reference.noise_map(strategy, ROUNDS)
    whitened = np.linalg.solve(np.linalg.cholesky(M @ M.T), rows / sigma)
    directions = np.random.default_rng(1).normal(size=(50, ROUNDS))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    squares = ((directions @ whitened) ** 2).sum(axis=1)
    return [
        float(two_sided((whitened**2).sum(), whitened.size)),
        min(1.0, 50 * float(two_sided(squares, DIMENSION).min())),
    ]


def two_sided(squares: NDArray[np.float64] | float, freedom: int) -> NDArray[np.float64]:
    law = stats.chi2(freedom)
    return 2 * np.minimum(law.cdf(squares), law.sf(squares))


@pytest.mark.slow
@KINDS
def test_released_noise_is_that_of_the_mechanism_and_nothing_ten_percent_off(
    small, strategy: Strategy
) -> None:
    scenario = small(
        "training.enabled=true",
        "privacy.noise_multiplier=3.0",
        "privacy.clip_norm=0.5",
        f"rounds.count={ROUNDS}",
    )
    rows = released(scenario, strategy)
    sigma = 3.0 * 0.5  # noise multiplier x clip norm
    assert min(p_values(rows, strategy, sigma)) > ALARM
    assert p_values(1.1 * rows, strategy, sigma)[0] < ALARM
    assert p_values(0.9 * rows, strategy, sigma)[0] < ALARM


@pytest.mark.slow
@KINDS
def test_noise_of_another_mechanism_is_noticed(small, strategy: Strategy) -> None:
    scenario = small(
        "training.enabled=true", "privacy.noise_multiplier=1.0", f"rounds.count={ROUNDS}"
    )
    rows = released(scenario, strategy)
    for other in STRATEGIES.values():
        if other is not strategy:
            assert min(p_values(rows, other, 1.0)) < ALARM


def test_coordinates_are_independent_standard_normals(small) -> None:
    rows = released(
        small("training.enabled=true", "privacy.noise_multiplier=1.0", f"rounds.count={ROUNDS}"),
        Identity(),
    )
    assert stats.kstest(rows.ravel()[:100_000], stats.norm.cdf).pvalue > ALARM
    neighbours = float((rows[:, 1:] * rows[:, :-1]).mean())
    assert abs(neighbours) < 4.4 / np.sqrt(rows.size)  # p = 1e-5
    rounds = float((rows[1:] * rows[:-1]).mean())
    assert abs(rounds) < 4.4 / np.sqrt(rows.size)
