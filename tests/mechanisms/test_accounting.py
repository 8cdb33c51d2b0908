"""rho and epsilon against closed forms and published pairs."""

import math

import pytest

from mechanisms.accounting.pld import gaussian_epsilon
from mechanisms.accounting.zcdp import gaussian_rho
from mechanisms.reference import gaussian_delta


@pytest.mark.parametrize(("rho", "epsilon"), [(0.25, 4.49), (0.32, 5.13), (0.61, 7.31), (0.89, 9.01), (0.99, 9.56), (1.86, 13.69)])
def test_epsilon_of_a_rho_is_the_published_one(rho: float, epsilon: float) -> None:
    """Pairs printed by Xu et al. 2023 and its companions at delta = 1e-10, rounded up to two digits."""
    found = gaussian_epsilon(math.sqrt(2 * rho), 1.0, 1e-10)
    assert math.ceil(found * 100 - 1e-2) / 100 == pytest.approx(epsilon, abs=0.0101)


@pytest.mark.parametrize("mu", [0.05, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-10, 1e-6, 1e-2])
def test_epsilon_is_never_below_and_hardly_above_the_closed_form(mu: float, delta: float) -> None:
    """delta(epsilon) in closed form (Balle and Wang 2018, Theorem 8) bounds it from both sides."""
    epsilon = gaussian_epsilon(mu, 1.0, delta)
    assert gaussian_delta(mu, epsilon) <= delta * (1 + 1e-6)
    if epsilon > 1e-3:
        assert gaussian_delta(mu, epsilon * 0.999) > delta


def test_rho_is_half_the_squared_ratio() -> None:
    assert gaussian_rho(3.0, 6.0) == 0.125


@pytest.mark.parametrize("delta", [1e-25, 1e-30])
def test_tiny_deltas_have_a_finite_epsilon(delta: float) -> None:
    epsilon = gaussian_epsilon(0.5, 1.0, delta)
    assert gaussian_delta(0.5, epsilon) <= delta * (1 + 1e-6) < gaussian_delta(0.5, epsilon * 0.999)


@pytest.mark.parametrize("delta", [0.0, 1e-31, 1.0, math.nan])
def test_impossible_deltas_are_refused(delta: float) -> None:
    with pytest.raises(ValueError, match="delta="):
        gaussian_epsilon(1.0, 1.0, delta)


@pytest.mark.parametrize("sensitivity", [math.nan, math.inf, -1.0])
def test_impossible_sensitivities_are_refused(sensitivity: float) -> None:
    with pytest.raises(ValueError, match="sensitivity="):
        gaussian_epsilon(sensitivity, 1.0, 1e-6)


@pytest.mark.parametrize("multiplier", [0.0, -1.0, 1e-200, math.inf, math.nan])
def test_no_noise_is_refused(multiplier: float) -> None:
    with pytest.raises(ValueError, match="must be from 0.01"):
        gaussian_rho(1.0, multiplier)
    with pytest.raises(ValueError, match="must be from 0.01"):
        gaussian_epsilon(1.0, multiplier, 1e-6)
