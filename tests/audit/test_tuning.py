"""The best of a random number of trainings: its bound by hand, by brute force, and its distribution."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq, minimize_scalar
from scipy.special import ndtr
from slow_twins import gaussian_delta

from fedray.audit.tuning import RandomRuns
from fedray.base.errors import InputError
from fedray.mechanisms.accounting.events import Gaussian, Repeated
from fedray.mechanisms.accounting.gdp import gdp_epsilon
from fedray.mechanisms.accounting.renyi import best_of_epsilon, renyi_epsilon

DELTA = 1e-6


def gamma_of(mean: float, eta: float) -> float:
    """Papernot and Steinke 2022, Definition 1."""
    return float(brentq(lambda g: eta * (1 / g - 1) / (1 - g**eta) - mean, 1e-9, 1 - 1e-9))


def converted(divergence: float, order: float, delta: float) -> float:
    """Canonne, Kamath and Steinke 2020, Proposition 12."""
    return divergence + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)


def divergence(rho: float, order: float, mean: float, eta: float) -> float:
    """Theorem 2 at the best lambda-hat, in closed form."""
    log_gamma = math.log(gamma_of(mean, eta))
    hat = max(1.0, math.sqrt(-log_gamma / rho))
    return (
        rho * order
        + (1 + eta) * ((1 - 1 / hat) * rho * hat - log_gamma / hat)
        + math.log(mean) / (order - 1)
    )


@pytest.mark.parametrize("eta", [0.5, 1.0, 3.0])
@pytest.mark.parametrize(("sigma", "mean"), [(2.0, 5.0), (4.0, 30.0), (1.0, 2.0)])
def test_epsilon_of_the_best_is_that_of_theorem_2_by_hand(sigma: float, mean: float, eta) -> None:
    """Its orders are a grid, so it is a little above the least over all orders."""
    rho = 1 / (2 * sigma**2)
    found = best_of_epsilon(Gaussian(noise_multiplier=sigma), mean, eta, DELTA)
    least = minimize_scalar(
        lambda log: converted(
            divergence(rho, 1 + math.exp(log), mean, eta), 1 + math.exp(log), DELTA
        ),
        bounds=(-2, 6),
        method="bounded",
    ).fun
    assert least * (1 - 1e-9) <= found <= least * 1.02


@pytest.mark.parametrize("eta", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("order", [1.5, 4.0, 20.0])
def test_the_library_has_theorem_2_at_single_orders(order: float, eta: float) -> None:
    """At a single order, which is then also lambda-hat."""
    from dp_accounting import GaussianDpEvent
    from dp_accounting.dp_event import RepeatAndSelectDpEvent
    from dp_accounting.rdp import RdpAccountant

    rho, mean = 0.125, 6.0
    event = RepeatAndSelectDpEvent(GaussianDpEvent(2.0), mean, eta)
    found = RdpAccountant(orders=[order]).compose(event).get_epsilon(1e-9)
    by_hand = (
        rho * order
        + (1 + eta) * (1 - 1 / order) * rho * order
        - (1 + eta) * math.log(gamma_of(mean, eta)) / order
        + math.log(mean) / (order - 1)
    )
    assert found == pytest.approx(converted(by_hand, order, 1e-9), rel=1e-6)


def test_epsilon_of_the_best_of_a_poisson_number_is_that_of_theorem_6_by_hand() -> None:
    """With the exact delta-hat it would be smaller; with that of the Renyi curve it is found."""
    rho, mean = 0.125, 6.0
    found = best_of_epsilon(Gaussian(noise_multiplier=2.0), mean, "poisson", DELTA)

    def bound(order: float, is_exact: bool) -> float:
        hat = math.log1p(1 / (order - 1))
        logs = [
            (a - 1) * (rho * a - hat + math.log1p(-1 / a)) - math.log(a)
            for a in np.arange(1.02, 60, 0.04)
        ]
        delta_hat = float(gaussian_delta(0.5, hat)) if is_exact else math.exp(min(0.0, min(logs)))
        penalty = mean * delta_hat + math.log(mean) / (order - 1)
        return converted(rho * order + penalty, order, DELTA)

    orders = np.arange(1.5, 30, 0.5)
    least, most = (min(bound(each, is_exact) for each in orders) for is_exact in (True, False))
    assert least <= found <= most * 1.02


@pytest.mark.parametrize("shape", [0.5, 1.0, 3.0, "poisson"])
def test_the_largest_of_random_runs_keeps_its_epsilon_and_not_that_of_one_run(shape) -> None:
    """The largest of N values has the distribution function G(F), of the generating function G of N,
    so that delta is a sum over the cells of a fine grid."""
    mean, mu = 6.0, 0.5

    def generating(z):
        if shape == "poisson":
            return np.exp(mean * (z - 1))
        gamma = gamma_of(mean, shape)
        return ((1 - (1 - gamma) * z) ** -shape - 1) / (gamma**-shape - 1)

    edges = np.linspace(-9, 9, 200_001)
    # The first cell has no run at all, for Poisson.
    p, q = (np.diff(generating(ndtr(edges - shift)), prepend=0.0) for shift in (mu, 0.0))
    assert p.sum() == pytest.approx(1, abs=1e-9)

    def delta(epsilon: float) -> float:
        return max(np.maximum(a - math.exp(epsilon) * b, 0).sum() for a, b in ((p, q), (q, p)))

    one = Gaussian(noise_multiplier=1 / mu)
    assert delta(gdp_epsilon(one, DELTA)) > 2 * DELTA
    assert delta(best_of_epsilon(one, mean, shape, DELTA)) <= DELTA


def test_other_releases_are_composed_with_the_best() -> None:
    one = Gaussian(noise_multiplier=2.0)
    alone = best_of_epsilon(one, 4.0, 1.0, DELTA)
    both = best_of_epsilon(one, 4.0, 1.0, DELTA, (one,))
    assert alone < both
    # The best of hardly more than one run on average is one run, so that both are nearly two; the
    # constant of the theorem is 0 only beyond dp_accounting's largest order.
    nearly = best_of_epsilon(one, 1.000001, 1.0, DELTA, (one,))
    assert nearly == pytest.approx(renyi_epsilon(Repeated(event=one, count=2), DELTA), rel=1e-2)


@pytest.mark.parametrize("shape", [0.1, 1.0, 2.0, 20.0, "poisson"])
def test_numbers_have_the_distribution_of_the_theorem(shape) -> None:
    """Chi-square over 10,000 draws; a wrong gamma, or a zero kept, fails it. False alarm: 1e-6."""
    runs, random = RandomRuns(mean=5.0, shape=shape), np.random.default_rng(3)
    draws = np.array([runs.number(random) for _ in range(10_000)])
    if shape == "poisson":
        probabilities = stats.poisson(5.0).pmf(np.arange(400))
    else:
        probabilities = stats.nbinom(shape, gamma_of(5.0, shape)).pmf(np.arange(400))
        probabilities[0] = 0.0
        probabilities /= probabilities.sum()
        assert draws.min() == 1
    bins = 12
    expected = 10_000 * np.append(probabilities[:bins], 1 - probabilities[:bins].sum())
    seen = np.bincount(np.minimum(draws, bins), minlength=bins + 1)
    kept = expected > 5
    assert not seen[~kept].sum() > 40
    statistic = ((seen - expected)[kept] ** 2 / expected[kept]).sum()
    assert statistic < stats.chi2(kept.sum() - 1).isf(1e-6)
    wrong = 10_000 * stats.geom(0.25).pmf(np.arange(bins))[kept[:bins]]
    power = ((seen[:bins][kept[:bins]] - wrong) ** 2 / np.maximum(wrong, 1)).sum()
    assert power > 2 * stats.chi2(bins).isf(1e-6), "the test can reject"


def test_a_mean_of_one_and_an_unknown_shape_are_refused() -> None:
    for keys in ({"mean": 1.0}, {"mean": 2.0, "shape": "uniform"}, {"mean": 2.0, "shape": 0.0}):
        with pytest.raises(InputError, match="RandomRuns"):
            RandomRuns(**keys)  # pyright: ignore[reportArgumentType]
