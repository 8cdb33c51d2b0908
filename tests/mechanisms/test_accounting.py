"""rho, mu and epsilon against closed forms and published tables; amplification; calibration."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from slow_twins import gaussian_delta

from fedray.mechanisms.accounting.calibration import (
    least_noise_multiplier,
    noise_multiplier_for,
)
from fedray.mechanisms.accounting.events import (
    ApproximateDP,
    Composed,
    Event,
    Gaussian,
    Repeated,
)
from fedray.mechanisms.accounting.gdp import gaussian_epsilon, mu_of
from fedray.mechanisms.accounting.pld import pld_epsilon
from fedray.mechanisms.accounting.renyi import renyi_epsilon
from fedray.mechanisms.accounting.sampled import PoissonSampling, sampled_release
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.mechanisms.figures import mechanism_figures
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import BLT, Banded, BandFHU, Identity, Toeplitz, Tree
from fedray.mechanisms.triangular import lower_factor


def released(sensitivity: float, noise_multiplier: float) -> Gaussian:
    return Gaussian(sensitivity=sensitivity, noise_multiplier=noise_multiplier)


def independent(sampling: PoissonSampling, noise_multiplier: float) -> Event:
    """Independent noise on a Poisson sample in each round."""
    return sampled_release(Identity(), sampling, noise_multiplier)


def sampled_gaussian_epsilon(sampling: PoissonSampling, z: float, delta: float) -> float:
    return pld_epsilon(independent(sampling, z), delta)


@pytest.mark.parametrize(
    ("rho", "epsilon"),
    [(0.25, 4.49), (0.32, 5.13), (0.61, 7.31), (0.89, 9.01), (0.99, 9.56), (1.86, 13.69)],
)
def test_epsilon_of_a_rho_is_the_published_one(rho: float, epsilon: float) -> None:
    """Pairs printed by Xu et al. 2023 and its companions at delta = 1e-10, rounded up to two digits."""
    found = gaussian_epsilon(math.sqrt(2 * rho), 1e-10)
    assert math.ceil(found * 100 - 1e-2) / 100 == pytest.approx(epsilon, abs=0.0101)


@pytest.mark.slow
@given(
    st.floats(-12, 1.5).map(lambda exponent: 10**exponent),
    st.floats(-30, -1e-6).map(lambda exponent: 10**exponent),
)
@example(33.25, 1e-6)  # epsilon 709.9: e^epsilon overflows
@example(1e-9, 1e-10)  # Phi - Phi cancels
@example(2.6e-10, 1e-10)
@example(0.5, 1e-30)
@settings(max_examples=150, deadline=None)
def test_epsilon_is_never_below_the_true_one_and_above_it_by_rounding_only(
    mu: float, delta: float
) -> None:
    """Against delta(epsilon) in decimals enough for every digit (Balle and Wang 2018, Theorem 8), from both sides."""
    epsilon = gaussian_epsilon(mu, delta)
    assert gaussian_delta(mu, epsilon) <= delta
    if epsilon > 0:
        assert gaussian_delta(mu, epsilon - 1e-14 * (epsilon + mu)) > delta * (1 - 2e-12)


@pytest.mark.parametrize("mu", [0.05, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-10, 1e-2])
def test_epsilon_is_that_of_the_privacy_loss_distribution(mu: float, delta: float) -> None:
    """The slow twin rounds every loss up, by a thousandth of the loss's deviation."""
    from dp_accounting.pld import privacy_loss_distribution

    twin = privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=1 / mu,
        value_discretization_interval=mu / 1e3,
        log_mass_truncation_bound=math.log(delta) - 10,
    ).get_epsilon_for_delta(delta)
    assert (
        gaussian_epsilon(mu, delta)
        <= twin * (1 + 1e-12)
        <= gaussian_epsilon(mu, delta) * (1 + 1e-4)
    )


@pytest.mark.parametrize("mu", [33.2, 33.22, 33.24, 33.25, 33.26, 33.3, 1e3, 1e6, 1e100])
def test_large_epsilons_are_numbers_that_grow_with_mu(mu: float) -> None:
    """e^epsilon is infinite in floating point from epsilon = 709.8 on."""
    epsilon = gaussian_epsilon(mu, 1e-6)
    assert mu * mu / 2 < epsilon < mu * mu / 2 + 12 * mu + 1e-14 * mu * mu
    assert gaussian_epsilon(mu * (1 + 1e-9), 1e-6) > epsilon


def test_the_closed_form_loads_no_accountant() -> None:
    code = (
        "import sys; from fedray.mechanisms.accounting.gdp import gaussian_epsilon; gaussian_epsilon(1.0, 1e-6); "
        "print('dp_accounting' in sys.modules, 'scipy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_rho_is_half_the_squared_ratio_and_mu_the_ratio() -> None:
    assert rho_of(released(3.0, 6.0)) == 0.125
    assert mu_of(released(3.0, 6.0)) == 0.5


@pytest.mark.parametrize("delta", [1e-25, 1e-30])
def test_tiny_deltas_have_a_finite_epsilon(delta: float) -> None:
    epsilon = gaussian_epsilon(0.5, delta)
    assert gaussian_delta(0.5, epsilon) <= delta * (1 + 1e-6) < gaussian_delta(0.5, epsilon * 0.999)


@pytest.mark.parametrize("delta", [0.0, 1e-31, 1.0, math.nan])
def test_impossible_deltas_are_refused(delta: float) -> None:
    for refused in (
        lambda: gaussian_epsilon(1.0, delta),
        lambda: sampled_gaussian_epsilon(PoissonSampling(5, 0.1), 1.0, delta),
    ):
        with pytest.raises(ValueError, match="delta="):
            refused()


@pytest.mark.parametrize("sensitivity", [math.nan, math.inf, -1.0])
def test_impossible_sensitivities_are_refused(sensitivity: float) -> None:
    with pytest.raises(ValueError, match="sensitivity ="):
        released(sensitivity, 1.0)
    with pytest.raises(ValueError, match="mu="):
        gaussian_epsilon(sensitivity, 1e-6)


@pytest.mark.parametrize("multiplier", [0.0, -1.0, 1e-200, math.inf, math.nan])
def test_no_noise_is_refused(multiplier: float) -> None:
    sampling = PoissonSampling(5, 0.1)
    for refused in (
        lambda: released(1.0, multiplier),
        lambda: independent(sampling, multiplier),
    ):
        with pytest.raises(ValueError, match=r"must be from 0\.01|should be a finite number"):
            refused()


@pytest.mark.slow
def test_the_published_multiplier_of_64_bands_is_too_small_even_by_an_optimistic_estimate() -> None:
    """All losses rounded down to multiples of 1e-4: a lower bound on epsilon, and above the target of 8."""
    from dp_accounting.pld import privacy_loss_distribution

    step = privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=0.43490 * math.sqrt(6),
        sampling_prob=6 * 64 / 2052,
        value_discretization_interval=1e-4,
        pessimistic_estimate=False,
        use_connect_dots=False,
    )
    assert step.self_compose(33).get_epsilon_for_delta(1e-6) > 8.0005


def test_sampling_everybody_is_no_sampling() -> None:
    """q = 1 over n rounds: one Gaussian of sensitivity sqrt(n)."""
    assert sampled_gaussian_epsilon(PoissonSampling(9, 1.0), 6.0, 1e-6) == pytest.approx(
        gaussian_epsilon(0.5, 1e-6), rel=2e-3
    )


def test_a_strategy_is_charged_for_its_largest_column() -> None:
    sampling = PoissonSampling(30, 0.1, 3)
    double = Toeplitz(coefficients=(2.0, 0.0, 0.0))
    assert sampled_release(double, sampling, 2.0) == independent(sampling, 1.0)


LAGS = np.abs(np.subtract.outer(np.arange(30), np.arange(30)))


@pytest.mark.parametrize(
    ("strategy", "partitions"),
    [
        (BandFHU(bands=4), 3),
        (
            Banded.from_matrix(
                lower_factor(np.where(LAGS < 4, 0.5**LAGS, 0.0) + np.eye(30)), "C.npy"
            ),
            3,
        ),
        (BLT(theta=(0.5,), omega=(0.1,)), 10),
        (Tree(), 10),
    ],
    ids=lambda value: getattr(value, "kind", value),
)
def test_amplification_is_refused_where_it_is_not_proven(strategy, partitions: int) -> None:
    with pytest.raises(
        ValueError, match="amplification is proven for at most as many bands as partitions"
    ):
        sampled_release(strategy, PoissonSampling(30, 0.1, partitions), 1.0)


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ((0, 0.1), "rounds=0"),
        ((5, 0.0), "probability=0.0"),
        ((5, 1.1), "probability=1.1"),
        ((5, 0.1, 6), "partitions=6"),
        ((5, math.nan), "probability=nan"),
    ],
)
def test_impossible_sampling_is_refused(arguments, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        PoissonSampling(*arguments)


@pytest.mark.parametrize("z", [0.05, 0.3, 1.0])
def test_sampling_everybody_with_little_noise_has_an_epsilon(z: float) -> None:
    found = sampled_gaussian_epsilon(PoissonSampling(10, 1.0), z, 1e-6)
    assert found == pytest.approx(gaussian_epsilon(math.sqrt(10) / z, 1e-6), rel=2e-3)


@pytest.mark.parametrize(
    "target", [gaussian_epsilon(1.0 / 16.0, 1e-6), gaussian_epsilon(1.0, 1e-6)]
)
def test_targets_met_exactly_at_a_power_of_two_are_found(target: float) -> None:
    assert gaussian_epsilon(1.0 / noise_multiplier_for(1.0, 1e-6, epsilon=target), 1e-6) <= target


def test_rho_is_never_exceeded_by_rounding() -> None:
    rng = np.random.default_rng(0)
    for s, rho in zip(rng.uniform(0.5, 9, 2000), rng.uniform(0.01, 9, 2000), strict=True):
        assert rho_of(released(s, noise_multiplier_for(s, 1e-6, rho=rho))) <= rho


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 20.0])
def test_calibration_is_safe_and_tight(epsilon: float) -> None:
    z = noise_multiplier_for(2.5, 1e-8, epsilon=epsilon)
    assert (
        gaussian_epsilon(2.5 / z, 1e-8) <= epsilon < gaussian_epsilon(2.5 / (z * (1 - 1e-5)), 1e-8)
    )
    assert rho_of(released(2.5, noise_multiplier_for(2.5, 1e-6, rho=0.3))) == pytest.approx(
        0.3, rel=1e-15
    )


@pytest.mark.parametrize("target", [0.0, -1.0, math.inf, math.nan])
def test_impossible_targets_are_refused(target: float) -> None:
    with pytest.raises(ValueError, match="must be positive and finite"):
        noise_multiplier_for(1.0, 1e-6, epsilon=target)
    with pytest.raises(ValueError, match="must be positive and finite"):
        noise_multiplier_for(1.0, 1e-6, rho=target)


def test_targets_beyond_the_range_of_multipliers_are_refused() -> None:
    with pytest.raises(ValueError, match="needs a noise multiplier above"):
        noise_multiplier_for(1e7, 1e-6, epsilon=1e-3)
    with pytest.raises(ValueError, match="needs a noise multiplier below"):
        least_noise_multiplier(lambda z: 0.1 / z, 1e4)


def test_orders_that_do_not_converge_print_no_warnings(caplog: pytest.LogCaptureFixture) -> None:
    """They are left out, and the bound is looser: ten lines of a library about it help no user."""
    event = independent(PoissonSampling(1, 0.5, 1), 3739.689728)
    assert pld_epsilon(event, 1e-10) < renyi_epsilon(event, 1e-10) < 1
    assert caplog.records == []


def test_the_renyi_figure_is_of_the_noise_that_the_strategy_leaves() -> None:
    """C = 2 I with noise multiplier 2 is C = I with 1: both figures follow the columns' norm."""
    sampling, participation = PoissonSampling(50, 0.01), MinSep(50, 1, 50)
    doubled = mechanism_figures(
        Toeplitz(kind="toeplitz", coefficients=(2.0,)), participation, 2.0, 1e-6, sampling
    )
    plain = mechanism_figures(Identity(kind="identity"), participation, 1.0, 1e-6, sampling)
    assert doubled.amplified_renyi_epsilon == pytest.approx(plain.amplified_renyi_epsilon)
    assert doubled.amplified_epsilon == pytest.approx(plain.amplified_epsilon)
    assert plain.amplified_epsilon < plain.amplified_renyi_epsilon


@pytest.mark.parametrize(
    ("noise", "epsilon", "count", "delta"),
    [(2.265, 1.0, 2, 1e-10), (1.0, 0.5, 7, 1e-6), (0.2, 1.0, 3, 1e-6), (40.0, 0.1, 1, 1e-3)],
)
def test_a_gaussian_beside_stated_guarantees_is_their_convolution(
    noise: float, epsilon: float, count: int, delta: float
) -> None:
    """Against dp_accounting's distributions on a grid of 1e-4, and against the sum of both."""
    from dp_accounting.pld import privacy_loss_distribution
    from dp_accounting.pld.common import DifferentialPrivacyParameters

    step: dict = {"value_discretization_interval": 1e-4}
    stated = DifferentialPrivacyParameters(epsilon, 0.0)
    one = privacy_loss_distribution.from_privacy_parameters(stated, **step).self_compose(count)
    whole = privacy_loss_distribution.from_gaussian_mechanism(noise, **step).compose(one)
    part = Repeated(event=ApproximateDP(epsilon=epsilon, theorem="any"), count=count)
    both = Composed(events=(released(1.0, noise), part))
    found = pld_epsilon(both, delta)
    assert found == pytest.approx(whole.get_epsilon_for_delta(delta), rel=1e-4)
    assert found <= count * epsilon + gaussian_epsilon(1.0 / noise, delta)
