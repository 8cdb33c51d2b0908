"""The same parameters give the same figures as in jax-privacy 2.0.0, an independent implementation.

Compared: coefficients, errors, sensitivities and streams, to 1e-9. Not compared: Algorithm 4 for one participation, where ours is
exact; optimised parameters, as those of equal loss differ: the losses they reach are compared by
tests/benchmarks/compare_optima.py.
"""

import numpy as np
import pytest

from fedray.mechanisms.blt import BLT
from fedray.mechanisms.loss import loss
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import Banded, BandFHU, Dense, Toeplitz
from fedray.mechanisms.sensitivity import any_strategy_sensitivity
from fedray.mechanisms.triangular import lower_factor

jax = pytest.importorskip("jax")
factorization = pytest.importorskip("jax_privacy.matrix_factorization")
pytestmark = pytest.mark.slow
PARTICIPATIONS = [MinSep(200, 50, 3), MinSep(128, 1, 20), MinSep(77, 77, 1)]
THETA, OMEGA = (0.99, 0.6), (0.15, 0.3)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("participation", PARTICIPATIONS, ids=str)
def test_blt_losses_and_sensitivities(participation: MinSep) -> None:
    from jax_privacy.matrix_factorization import buffered_toeplitz, toeplitz

    n, b, k = participation.rounds, participation.min_sep, participation.max_participations
    found, theirs = (
        loss(BLT(theta=THETA, omega=OMEGA), participation),
        buffered_toeplitz.BufferedToeplitz.build(THETA, OMEGA),
    )
    squared = toeplitz.minsep_sensitivity_squared(
        theirs.toeplitz_coefs(n), min_sep=b, max_participations=k, n=n
    )
    assert found.sensitivity.value == pytest.approx(float(squared) ** 0.5, rel=1e-9)
    for error, ours in (("max", found.max_loss), ("mean", found.rms_loss)):
        target = buffered_toeplitz.LossFn.build_min_sep(
            n=n, error=error, min_sep=b, max_participations=k
        )
        assert ours == pytest.approx(float(target.loss(theirs)) ** 0.5, rel=1e-9)


@pytest.mark.parametrize(
    "strategy", [BandFHU(bands=20), Toeplitz(coefficients=(0.8, 0.4, 0.1))], ids=lambda s: s.kind
)
@pytest.mark.parametrize("participation", PARTICIPATIONS, ids=str)
def test_toeplitz_losses_and_sensitivities(strategy, participation: MinSep) -> None:
    from jax_privacy.matrix_factorization import toeplitz

    n, found = participation.rounds, loss(strategy, participation)
    c = jax.numpy.asarray(strategy.first_column(n))
    squared = toeplitz.minsep_sensitivity_squared(
        c, min_sep=participation.min_sep, max_participations=participation.max_participations, n=n
    )
    variances = np.asarray(toeplitz.per_query_error(strategy_coef=c, n=n))
    assert found.sensitivity.value == pytest.approx(float(squared) ** 0.5, rel=1e-9)
    np.testing.assert_allclose(strategy.error_variances(n), variances, rtol=1e-9)


@pytest.mark.parametrize(
    "participation",
    [MinSep(40, 8, 3), MinSep(40, 4, 6)],
    ids=str,
)
def test_matrix_sensitivities_and_errors(participation: MinSep) -> None:
    """Exact where bands allow; else the same upper bound (Algorithm 4)."""
    from jax_privacy.matrix_factorization import dense, sensitivity

    lags = np.abs(np.subtract.outer(np.arange(40), np.arange(40)))
    b, k = participation.min_sep, participation.max_participations
    for strategy in (
        Banded.from_matrix(
            lower_factor(np.where(lags < 8, 0.8**lags, 0.0) + np.eye(40)), "banded.npy"
        ),
        Dense.from_matrix(lower_factor(0.95**lags), "dense.npy"),
    ):
        C, found = (
            jax.numpy.asarray(strategy.matrix),
            strategy.participation_sensitivity(participation),
        )
        theirs = sensitivity.get_min_sep_sensitivity_upper_bound(C, min_sep=b, max_participations=k)
        assert any_strategy_sensitivity(strategy, participation).value == pytest.approx(
            float(theirs), rel=1e-9
        )
        if strategy.bands <= b:
            exact = sensitivity.get_sensitivity_banded(C, min_sep=b, max_participations=k)
            assert found.value == pytest.approx(float(exact), rel=1e-9)
        variances = np.asarray(dense.per_query_error(strategy_matrix=C))
        np.testing.assert_allclose(strategy.error_variances(40), variances, rtol=1e-9)


def test_streams_are_the_same_map_of_the_same_draws() -> None:
    """Their streaming inverse against the inverse coefficients that our float32 streams are held to elsewhere."""
    from jax_privacy.matrix_factorization import buffered_toeplitz, toeplitz

    z = np.random.default_rng(0).normal(size=(50, 7))
    for strategy, theirs in (
        (
            BLT(theta=THETA, omega=OMEGA),
            buffered_toeplitz.BufferedToeplitz.build(THETA, OMEGA).inverse_as_streaming_matrix(),
        ),
        (
            BandFHU(bands=9),
            toeplitz.inverse_as_streaming_matrix(
                jax.numpy.asarray(BandFHU(bands=9).first_column(9))
            ),
        ),
    ):
        inverse = strategy.inverse_first_column(50)
        ours = np.stack([sum(inverse[t - s] * z[s] for s in range(t + 1)) for t in range(50)])
        np.testing.assert_allclose(
            np.asarray(theirs @ jax.numpy.asarray(z)), ours, rtol=1e-9, atol=1e-9
        )
