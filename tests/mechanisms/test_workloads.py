"""Workloads beside prefix sums: A, errors, gradients and optimisers against materialised matrices and jax_privacy."""

from itertools import product

import numpy as np
import pytest
import slow_twins as reference
from example_mechanisms import MECHANISMS, ROUNDS

from fedray.base.errors import InputError
from fedray.mechanisms.comparison import utility
from fedray.mechanisms.figures import mechanism_figures
from fedray.mechanisms.loss import errors, loss
from fedray.mechanisms.optimize import gram
from fedray.mechanisms.optimize.blt import LogLoss
from fedray.mechanisms.optimize.design import KINDS, RECIPES, MechanismRequest, optimize_mechanism
from fedray.mechanisms.optimize.objective import Target, error_form
from fedray.mechanisms.optimize.toeplitz import optimize_toeplitz
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import BLT, Toeplitz, Tree
from fedray.mechanisms.strategy import Strategy
from fedray.mechanisms.workload import PREFIX, Workload, workload_of

COSINE = tuple((0.5 * (1 + np.cos(np.pi * np.arange(ROUNDS) / ROUNDS))).tolist())
WORKLOADS = {
    "prefix": PREFIX,
    "momentum": Workload(0.9),
    "momentum and decay": Workload(0.9, 0.95),
    "equal momentum and decay": Workload(0.9, 0.9),
    "decay": Workload(decay=0.8),
    "schedule": Workload(rates=COSINE),
    "all": Workload(0.9, 0.95, COSINE),
}
EACH = pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
OTHERS = pytest.mark.parametrize("workload", [*WORKLOADS.values()][1:], ids=[*WORKLOADS][1:])
SETTING = MinSep(ROUNDS, 9, 4)


@EACH
def test_a_workload_is_the_recurrence_of_its_docstring(workload: Workload) -> None:
    A = reference.workload_matrix(workload, ROUNDS)
    np.testing.assert_allclose(workload.matrix(ROUNDS), A, rtol=1e-12, atol=1e-15)
    diagonals = [np.ptp(np.diagonal(A, -lag)) for lag in range(ROUNDS)]
    assert (max(diagonals) < 1e-12) == workload.is_toeplitz


@EACH
def test_later_rounds_of_a_workload_are_its_lower_right_block(workload: Workload) -> None:
    X = np.random.default_rng(0).normal(size=(ROUNDS - 7, 3))
    A = reference.workload_matrix(workload, ROUNDS)
    expected = A[7:, 7:] @ X
    np.testing.assert_allclose(workload.applied(X.copy(), 7), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("strategy", MECHANISMS.values(), ids=MECHANISMS)
def test_errors_are_those_of_the_materialised_workload(strategy: Strategy) -> None:
    for workload, rounds in product(WORKLOADS.values(), (1, 20, ROUNDS)):
        expected = reference.error_variances(strategy, rounds, workload)
        found = strategy.error_variances(rounds, workload)
        np.testing.assert_allclose(found, expected, rtol=1e-8, err_msg=f"{workload}, {rounds}")
        worst, rms = errors(strategy, rounds, workload)
        assert worst == pytest.approx(expected.max() ** 0.5, rel=1e-8)
        assert rms == pytest.approx(expected.mean() ** 0.5, rel=1e-8)


def test_prefix_sums_in_pieces_are_bit_for_bit_the_usual_errors() -> None:
    """A workload that is not the constant PREFIX, but equal to it, takes the same path."""
    for strategy in MECHANISMS.values():
        usual = strategy.error_variances(ROUNDS)
        assert (
            strategy.error_variances(ROUNDS, Workload.parse("prefix")).tobytes() == usual.tobytes()
        )
        assert strategy.error_variances(ROUNDS, Workload(0.0, 1.0)).tobytes() == usual.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("rates", [(), COSINE], ids=["constant", "cosine"])
def test_workloads_without_decay_are_those_of_jax_privacy(momentum: float, rates) -> None:
    """Theirs have no factor 1 - momentum."""
    jax = pytest.importorskip("jax")
    streaming = pytest.importorskip("jax_privacy.matrix_factorization.streaming_matrix")
    dense = pytest.importorskip("jax_privacy.matrix_factorization.dense")
    with jax.enable_x64(True):
        given = jax.numpy.asarray(rates) if rates else None
        theirs = streaming.momentum_sgd_matrix(momentum, given).materialize(ROUNDS)
        A = np.asarray(theirs) * (1 - momentum)
        workload = Workload(momentum, rates=rates)
        np.testing.assert_allclose(workload.matrix(ROUNDS), A, rtol=1e-12, atol=1e-14)
        strategy = MECHANISMS["dense"]
        C = jax.numpy.asarray(strategy.definition(ROUNDS))
        variances = dense.per_query_error(strategy_matrix=C, workload_matrix=jax.numpy.asarray(A))
    found = strategy.error_variances(ROUNDS, workload)
    np.testing.assert_allclose(found, np.asarray(variances), rtol=1e-9)


@OTHERS
def test_the_error_form_is_the_mean_error_of_a_toeplitz_inverse(workload: Workload) -> None:
    strategy = Toeplitz(coefficients=(1.0, 0.7, 0.4, 0.2))
    d = strategy.inverse_first_column(ROUNDS)
    expected = reference.error_variances(strategy, ROUNDS, workload).mean()
    assert d @ error_form("rms", workload, ROUNDS) @ d == pytest.approx(expected, rel=1e-10)


@OTHERS
@pytest.mark.parametrize("objective", ["max", "rms"])
def test_the_gradient_of_a_blt_is_that_of_finite_differences(workload: Workload, objective) -> None:
    if objective == "max" and not workload.is_toeplitz:
        with pytest.raises(
            InputError, match="^loss='max' is not available for a Toeplitz strategy"
        ):
            LogLoss([Target(SETTING)], objective, workload)
        return
    targets = [Target(SETTING), Target(MinSep(30, 5, 3), 2.0)]
    value_and_gradient = LogLoss(targets, objective, workload)
    p = np.array([-3.0, -1.0, -0.5, 0.2])
    _, gradient = value_and_gradient(p)
    for place, step in enumerate(np.eye(4) * 1e-6):
        difference = value_and_gradient(p + step)[0] - value_and_gradient(p - step)[0]
        assert gradient[place] == pytest.approx(difference / 2e-6, rel=1e-5, abs=1e-8)


@OTHERS
def test_the_gradient_over_gram_matrices_is_that_of_finite_differences(workload: Workload) -> None:
    lags = np.subtract.outer(np.arange(ROUNDS), np.arange(ROUNDS))
    problem = gram._UnitDiagonal((lags > 0) & (lags < 4), workload)
    x = problem.variables(0.3 ** np.abs(lags))
    search = gram._Search(problem, np.ones(x.size), 1, None)
    value, gradient = search.value_and_gradient(x)
    X = problem.matrix(x)
    A = reference.workload_matrix(workload, ROUNDS)
    inverse = np.linalg.inv(X + np.tril(X, -1).T)
    assert value == pytest.approx(np.trace(A @ inverse @ A.T) / ROUNDS, rel=1e-10)
    for place in (0, 50, x.size - 1):
        step = 1e-6 * np.eye(1, x.size, place)[0]
        above, below = (search.value_and_gradient(x + sign * step)[0] for sign in (1, -1))
        assert gradient[place] == pytest.approx((above - below) / 2e-6, rel=1e-4, abs=1e-7)


@pytest.mark.slow
@OTHERS
@pytest.mark.parametrize("kind", ["blt", "banded-toeplitz", "banded", "dense", "band-fhu", "bisr"])
def test_an_optimum_for_a_workload_beats_that_for_prefix_sums(kind, workload: Workload) -> None:
    """And the reverse for prefix sums, so that the workload reaches the search."""
    made, usual = (
        optimize_mechanism(MechanismRequest(kind, SETTING, objective="rms", workload=each))
        for each in (workload, PREFIX)
    )
    # Dense matrices are made for unit sensitivity at participations exactly b apart; the loss has a
    # bound for all others.
    figure = "rms_error" if kind == "dense" else "rms_loss"
    own, of_usual = (getattr(loss(each, SETTING, workload), figure) for each in (made, usual))
    assert own <= of_usual * (1 + 1e-9)
    if kind not in ("band-fhu", "bisr"):
        assert own < of_usual * (1 - 1e-4)
        assert getattr(loss(usual, SETTING), figure) < getattr(loss(made, SETTING), figure)


@pytest.mark.slow
@OTHERS
def test_wider_families_have_no_larger_error(workload: Workload) -> None:
    """Each is validated by the slow path within its optimiser; this is the order that theory gives."""
    made = {
        kind: optimize_mechanism(
            MechanismRequest(kind, SETTING, objective="rms", workload=workload)
        )
        for kind in ("banded-toeplitz", "banded")
    }
    found = {kind: loss(each, SETTING, workload).rms_loss for kind, each in made.items()}
    assert found["banded"] <= found["banded-toeplitz"] * (1 + 1e-6)


@pytest.mark.slow
def test_the_optimum_over_toeplitz_matrices_with_a_schedule_is_a_stationary_point() -> None:
    workload = WORKLOADS["all"]
    made = optimize_toeplitz(SETTING, 4, "rms", None, workload)
    least = loss(made, SETTING, workload).rms_loss
    for place in range(1, 4):
        for step in (-1e-3, 1e-3):
            c = np.array(made.coefficients)
            c[place] += step
            near = Toeplitz(coefficients=tuple(c.tolist()))
            assert loss(near, SETTING, workload).rms_loss > least


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("prefix", PREFIX),
        ("momentum=0.9", Workload(0.9)),
        ("momentum=0.9,decay=0.95", Workload(0.9, 0.95)),
        ("decay=0.5,momentum=0", Workload(decay=0.5)),
    ],
)
def test_a_workload_is_read_from_its_text_and_names_itself(text: str, expected: Workload) -> None:
    found = workload_of(text)
    assert found == expected
    assert workload_of(str(found)) == found


def test_a_schedule_takes_the_rates_given() -> None:
    found = Workload.parse("momentum=0.9,schedule", COSINE)
    assert found == Workload(0.9, rates=COSINE)
    assert str(found) == "momentum=0.9,schedule"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "workload='' is not a workload; give"),
        ("momentum", "workload='momentum' has a part that is not a number"),
        ("momentum=x", "has a part that is not a number"),
        ("momentum=0.9,momentum=0.8", "is not a workload"),
        ("velocity=0.9", "is not a workload"),
        ("momentum=1", "momentum=1.0 must be from 0 to below 1"),
        ("momentum=nan", "momentum=nan must be"),
        ("decay=0", "decay=0.0 must be above 0 and at most 1"),
        ("schedule", "workload='schedule' needs the rates of a scenario"),
    ],
)
def test_texts_that_are_no_workload_are_refused_in_one_line(text: str, rule: str) -> None:
    with pytest.raises(InputError, match=rule) as refused:
        workload_of(text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("rates", [(1.0, -0.5), (0.0, 0.0), (1.0, float("nan"))])
def test_rates_that_are_no_step_sizes_are_refused(rates) -> None:
    with pytest.raises(InputError, match="^rates="):
        Workload(rates=rates)


def test_a_schedule_of_fewer_rounds_is_refused() -> None:
    short = Workload(rates=(1.0, 0.5, 0.25))
    for strategy in (BLT(theta=(0.9,), omega=(0.3,)), Tree(), MECHANISMS["dense"]):
        with pytest.raises(
            InputError, match=r"^rounds=4 is more than the workload has rates \(3\)"
        ):
            errors(strategy, 4, short)
    for kind in KINDS:
        if RECIPES[kind].searched != "nothing":
            with pytest.raises(InputError, match="^rounds=4 is more than the workload"):
                optimize_mechanism(MechanismRequest(kind, MinSep(4, 2, 2), workload=short))


def test_figures_are_of_the_workload_and_name_it() -> None:
    strategy = MECHANISMS["blt"]
    usual = mechanism_figures(strategy, SETTING, 2.0, 1e-6)
    found = mechanism_figures(strategy, SETTING, 2.0, 1e-6, workload="momentum=0.9")
    assert found.loss == loss(strategy, SETTING, Workload(0.9))
    assert found.loss.sensitivity == usual.loss.sensitivity
    assert found.epsilon == usual.epsilon
    assert found.to_json()["workload"] == "momentum=0.9"
    assert "workload" not in usual.to_json()
    assert "error of the workload momentum=0.9, max / rms" in str(found.tables()[0])
    assert "error of prefix sums, max / rms" in str(usual.tables()[0])


def test_a_comparison_takes_the_errors_of_its_workload() -> None:
    strategy = MECHANISMS["blt"]
    found = utility(strategy, ROUNDS, 2.0, 0.5, workload="decay=0.8")
    worst, rms = errors(strategy, ROUNDS, Workload(decay=0.8))
    assert (found.max_loss, found.rms_loss) == (2.0 * worst, 2.0 * rms)
    assert (found.max_prefix_error, found.rms_prefix_error) == (2.0 * worst, 2.0 * rms)
