"""Optimisers: golden losses with their source, gradients against JAX's, determinism, validation, cache."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from fedray.base.errors import InputError
from fedray.mechanisms.figures import mechanism_figures
from fedray.mechanisms.files import read_strategy, write_strategy
from fedray.mechanisms.loss import loss
from fedray.mechanisms.optimize import gram
from fedray.mechanisms.optimize.blt import LogLoss, optimize_blt
from fedray.mechanisms.optimize.design import (
    KINDS,
    RECIPES,
    Kind,
    MechanismRequest,
    cached_mechanism,
    optimize_mechanism,
)
from fedray.mechanisms.optimize.objective import LossOfCoefficients, Target
from fedray.mechanisms.optimize.toeplitz import log_loss, optimize_toeplitz
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import BLT, BandFHU, Dense, Identity, Toeplitz, Tree, TreeFull

pytestmark = pytest.mark.slow

STACK_OVERFLOW = MinSep(2052, 342, 6)
"""n = 2052, b = 342, k = 6: the StackOverflow setting of McMahan, Xu, Zhang 2024, Table 3."""


@pytest.mark.parametrize(
    ("optimised_for", "buffers", "objective", "max_loss", "rms_loss"),
    [
        # McMahan, Xu, Zhang 2024, Table 3, and what the same objective gives in jax-privacy: MaxLoss / RmsLoss at (2052, 342, 6).
        (MinSep(2052, 342, 1), 2, "max", 11.80, 11.15),
        (MinSep(2052, 342, 1), 5, "max", 11.40, 10.87),
        (STACK_OVERFLOW, 2, "max", 10.81, 9.34),
        (STACK_OVERFLOW, 2, "rms", 10.99, 9.18),
        (STACK_OVERFLOW, 4, "rms", 10.98, 9.17),
    ],
)
def test_blts_have_the_published_losses(
    optimised_for: MinSep, buffers: int, objective, max_loss: float, rms_loss: float
) -> None:
    found = loss(optimize_blt([Target(optimised_for)], buffers, objective), STACK_OVERFLOW)
    assert found.max_loss == pytest.approx(max_loss, abs=0.0051)
    assert found.rms_loss == pytest.approx(rms_loss, abs=0.0051)


@pytest.mark.parametrize("buffers", [3, 4])
def test_more_buffers_are_at_least_as_good_as_the_published_three(buffers: int) -> None:
    """Table 3 has 10.79 for three and more; there are better optima, of one nearly undamped buffer (10.7514, 10.7341)."""
    assert (
        loss(optimize_blt([Target(STACK_OVERFLOW)], buffers, "max"), STACK_OVERFLOW).max_loss
        < 10.7545
    )


def test_banded_toeplitz_and_band_fhu_and_full_trees_have_the_published_losses() -> None:
    """Table 3: BandToep (rms) 10.53 / 8.80, BandFHU(342) 11.05 / 8.98; TreeAgg-Full 14.98 / 12.47, online 27.27 / 19.28."""
    for strategy, max_loss, rms_loss in (
        (optimize_toeplitz(STACK_OVERFLOW, 342, "rms"), 10.53, 8.80),
        (BandFHU(bands=342), 11.05, 8.98),
        (TreeFull(rounds=2052), 14.9809, 12.4715),
        (TreeFull(rounds=2052, completion=True), 16.6163, 13.9576),
        (Tree(), 27.2721, 19.2750),
    ):
        found, digits = loss(strategy, STACK_OVERFLOW), 0.0051 if max_loss < 14 else 5.1e-5
        assert found.max_loss == pytest.approx(max_loss, abs=digits)
        assert found.rms_loss == pytest.approx(rms_loss, abs=digits)


def test_the_golden_blt_has_its_figures_to_the_digit() -> None:
    """(2052, 342, 6), max, 2 buffers: sensitivity 5.112628, MaxLoss 10.806269, RmsLoss 9.343450."""
    blt = BLT(
        theta=(0.9953348970002772, 0.8122920858683399),
        omega=(0.12828660029532482, 0.32906048602262866),
    )
    found = loss(blt, STACK_OVERFLOW)
    assert found.sensitivity.value == pytest.approx(5.112628, abs=5.1e-7)
    assert found.max_loss == pytest.approx(10.806269, abs=5.1e-7)
    assert found.rms_loss == pytest.approx(9.343450, abs=5.1e-7)


@pytest.mark.parametrize("bands", [8, 30])
@pytest.mark.parametrize("objective", ["max", "rms"])
def test_a_banded_toeplitz_optimum_is_one(bands: int, objective) -> None:
    """No coefficient changed by a thousandth either way does better; more bands than min-sep are exact, and no worse than min-sep."""
    participation = MinSep(120, 20, 4)

    def value(c) -> float:
        from fedray.mechanisms.toeplitz import Toeplitz

        found = loss(Toeplitz(coefficients=tuple(c)), participation)
        assert found.sensitivity.is_exact or bands > 20
        return found.max_loss if objective == "max" else found.rms_loss

    best = optimize_toeplitz(participation, bands, objective)
    c = np.array(best.coefficients)
    if bands <= 20:
        assert min(
            value(c + sign * 1e-3 * np.eye(bands)[i]) for i in range(bands) for sign in (-1, 1)
        ) >= value(c) * (1 - 1e-9)
    else:
        shorter = value(optimize_toeplitz(participation, 20, objective).coefficients)
        assert loss(best, participation).sensitivity.is_exact
        assert value(c) <= shorter * (1 + 1e-6)


@pytest.mark.parametrize(
    ("optimise", "mean_variance"),
    [
        # jax-privacy 2.0.0, n = 128: banded.optimize(bands=16), and dense.optimize alone and with epochs=4 (to 1e-3 of gradient).
        (lambda: gram.optimize_banded(MinSep(128, 16, 8), 16), 7.9454447580),
        (lambda: gram.optimize_dense(MinSep(128, 128, 1)), 5.34226087),
        (lambda: gram.optimize_dense(MinSep(128, 32, 4)), 23.08347159),
    ],
    ids=["banded", "single-epoch", "multi-epoch"],
)
def test_matrices_are_as_good_as_the_best_known(optimise, mean_variance: float) -> None:
    found = optimise().error_variances(128).mean()
    assert found == pytest.approx(mean_variance, rel=1e-3)
    assert found < mean_variance * (1 + 2e-6)  # where our search ends


def test_matrices_for_the_worst_round_beat_those_for_the_mean_there() -> None:
    participation = MinSep(20, 5, 4)
    for optimise in (
        lambda o: gram.optimize_banded(participation, 5, o),
        lambda o: gram.optimize_dense(participation, o),
    ):
        worst, mean = optimise("max").error_variances(20), optimise("rms").error_variances(20)
        assert worst.max() < mean.max() * 0.999
        assert mean.mean() < worst.mean()


def test_banded_columns_have_unit_norm_and_the_exact_sensitivity() -> None:
    participation = MinSep(60, 10, 4)
    strategy = gram.optimize_banded(participation, 10)
    np.testing.assert_allclose(np.linalg.norm(strategy.matrix, axis=0), 1.0, rtol=1e-12)
    assert strategy.bands == 10
    assert strategy.participation_sensitivity(participation).value == pytest.approx(2.0, rel=1e-12)
    assert not strategy.participation_sensitivity(MinSep(60, 9, 4)).is_exact


def with_unit_columns(participation: MinSep) -> Dense:
    """The dense optimum under the further rule that all columns have norm 1."""
    free = gram._free_of_devices(participation)
    start = gram._start(free, participation.rounds)
    return gram._solved(Dense, gram._UnitDiagonal(free), start, "rms", None)


def test_fewer_participations_than_turns_leave_all_norms_equal() -> None:
    """n = 40, b = 5, k = 3: any 3 rounds that follow one another 5 apart have a square of 3, and later ones may overlap."""
    strategy = gram.optimize_dense(MinSep(40, 5, 3))
    G = strategy.gram(40)
    squares = [G[np.ix_(range(s, s + 15, 5), range(s, s + 15, 5))].sum() for s in range(30)]
    np.testing.assert_allclose(squares, 3.0, rtol=1e-9)
    assert abs(G[0, 15]) > 1e-3
    assert (
        strategy.error_variances(40).mean()
        <= with_unit_columns(MinSep(40, 5, 8)).error_variances(40).mean()
    )


def test_devices_that_return_exactly_every_b_rounds_have_sensitivity_one_in_the_dense_optimum() -> (
    None
):
    participation = MinSep(40, 10, 4)
    for strategy, square in (
        (gram.optimize_dense(participation), 1.0),
        (with_unit_columns(participation), 4.0),
    ):
        G = strategy.gram(40)
        squares = [G[np.ix_(range(s, 40, 10), range(s, 40, 10))].sum() for s in range(10)]
        np.testing.assert_allclose(squares, square, rtol=1e-9)


@pytest.mark.parametrize("objective", ["max", "rms"])
def test_the_gradient_over_decays_is_that_of_jax(objective) -> None:
    """The closed form against float64 autodiff of the definitions: coefficients by powers, sensitivity by shifted columns."""
    import jax
    import jax.numpy as jnp

    targets = [
        Target(MinSep(60, 7, 4), 2.0),
        Target(MinSep(40, 3, 14)),
        Target(MinSep(300, 290, 2), 0.5),
    ]
    p = np.array([-3.0, -1.0, -0.5, 0.2, -1.0, -2.0])

    # What differs between the parameters of a test is an argument: compiled once for all of them.
    rounds_that_count = [
        np.ones(n) if objective == "max" else (n - np.arange(n)) / n
        for n in (target.participation.rounds for target in targets)
    ]

    def objective_of(p, rounds_that_count):
        y = jnp.exp(-jnp.cumsum(jnp.exp(p)))
        theta, theta_hat = y[0::2], y[1::2]

        def coefficients(own, other, n):
            differences = jnp.where(np.eye(3, dtype=bool), 1.0, own[:, None] - own)
            weights = jnp.prod(own[:, None] - other, axis=1) / jnp.prod(differences, axis=1)
            return jnp.concatenate([jnp.ones(1), (own ** np.arange(n - 1.0)[:, None]) @ weights])

        total = 0.0
        for target, times in zip(targets, rounds_that_count, strict=True):
            n, b, k = (
                target.participation.rounds,
                target.participation.min_sep,
                target.participation.max_participations,
            )
            c, beta = (
                coefficients(theta, theta_hat, n),
                jnp.cumsum(coefficients(theta_hat, theta, n)),
            )
            places = (
                np.arange(n) - b * np.arange(k)[:, None]
            )  # one gather compiles sooner than k sums
            column = jnp.where(places >= 0, c[np.maximum(places, 0)], 0.0).sum(axis=0)
            total += target.weight * 0.5 * jnp.log(jnp.sum(column**2) * jnp.sum(times * beta**2))
        return total / 3.5

    value, gradient = LogLoss(targets, objective)(p)
    with jax.enable_x64(True):
        expected, expected_gradient = jax.jit(jax.value_and_grad(objective_of))(
            jnp.asarray(p), rounds_that_count
        )
    assert value == pytest.approx(float(expected), rel=1e-12)
    np.testing.assert_allclose(gradient, np.asarray(expected_gradient), rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize(
    ("bands", "objective", "is_held"),
    [(4, "max", True), (4, "rms", False), (11, "max", False), (11, "rms", True)],
)
def test_the_gradient_over_coefficients_is_that_of_jax(
    bands: int, objective, is_held: bool
) -> None:
    """The adjoint of forward substitution against float64 autodiff through the inverse of C."""
    import jax
    import jax.numpy as jnp

    n, b, k = 40, 6, 5
    p = np.array([0.5, 0.4, 0.3, 0.25, 0.2, 0.2, 0.15, 0.1, 0.1, 0.05])[: bands - 1]
    p = -p if is_held else p
    times = np.ones(n) if objective == "max" else (n - np.arange(n)) / n
    lags = np.subtract.outer(np.arange(n), np.arange(n))

    def objective_of(p):
        c = jnp.concatenate([jnp.ones(1), jnp.exp(jnp.cumsum(p)) if is_held else p])
        padded = jnp.zeros(n).at[:bands].set(c)
        C = jnp.where(lags >= 0, padded[np.abs(lags)], 0.0)
        beta = jnp.cumsum(jnp.linalg.inv(C)[:, 0])
        column = C[:, np.arange(k) * b].sum(axis=1)
        return 0.5 * jnp.log(jnp.sum(column**2) * jnp.sum(times * beta**2))

    loss_of = LossOfCoefficients([Target(MinSep(n, b, k))], objective)
    value, gradient = log_loss(loss_of, p, is_held)
    with jax.enable_x64(True):
        expected, expected_gradient = jax.jit(jax.value_and_grad(objective_of))(jnp.asarray(p))
    assert value == pytest.approx(float(expected), rel=1e-12)
    np.testing.assert_allclose(gradient, np.asarray(expected_gradient), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("kind", "sharpness"), [("unit", 8), ("free", 8)])
def test_the_gradient_over_gram_matrices_is_that_of_jax(kind: str, sharpness: int) -> None:
    """The closed form, on the free variables, against float64 autodiff through the factorisation."""
    import jax
    import jax.numpy as jnp

    n, participation = 12, MinSep(12, 3, 4)
    free = gram._free_of_devices(participation)
    problem = gram._UnitDiagonal(free) if kind == "unit" else gram._FreeNorms(free, 3)
    x = problem.variables(gram._start(free, n))
    x = x + 0.01 * np.random.default_rng(0).normal(size=x.size)
    i, j = np.nonzero(free)

    def objective(x, sharpness):
        below = jnp.zeros((n, n)).at[i, j].set(x[: len(i)])
        X = jnp.eye(n) + below + below.T
        if kind == "free":
            weights = jnp.exp(x[len(i) :])
            totals = jnp.stack([weights[s::3].sum() for s in range(3)])[np.arange(n) % 3]
            d = jnp.sqrt(weights / totals)
            X = d[:, None] * X * d
        A = jnp.tril(jnp.ones((n, n)))
        variances = jnp.diag(A @ jnp.linalg.inv(X) @ A.T)
        return jnp.mean(variances**sharpness) ** (1 / sharpness)

    value, gradient = gram._Search(problem, np.ones_like(x), sharpness, None).value_and_gradient(x)
    with jax.enable_x64(True):
        expected, expected_gradient = jax.jit(jax.value_and_grad(objective))(
            jnp.asarray(x), float(sharpness)
        )
    assert value == pytest.approx(float(expected), rel=1e-10)
    np.testing.assert_allclose(gradient, np.asarray(expected_gradient), rtol=1e-8, atol=1e-10)


def test_several_outcomes_give_a_compromise_that_weights_move() -> None:
    """The mixture's log loss is between the specialists on each outcome, nearer to the one that weighs more."""
    one, other = MinSep(300, 100, 3), MinSep(300, 10, 20)
    specialist = {
        participation: optimize_blt([Target(participation)], 2) for participation in (one, other)
    }
    for weights, nearer in (((9.0, 1.0), one), ((1.0, 9.0), other)):
        mixture = optimize_blt([Target(one, weights[0]), Target(other, weights[1])], 2)
        regret = {
            participation: np.log(
                loss(mixture, participation).rms_loss
                / loss(specialist[participation], participation).rms_loss
            )
            for participation in (one, other)
        }
        assert all(value >= -1e-9 for value in regret.values())
        assert regret[nearer] == min(regret.values())
        expected = [
            sum(w * np.log(loss(b, s).rms_loss) for w, s in zip(weights, (one, other), strict=True))
            for b in (mixture, *specialist.values())
        ]
        assert expected[0] <= min(expected[1:]) + 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_designed_the_same_twice_cached_and_written(kind, tmp_path: Path) -> None:
    participation = MinSep(40, 10, 3)
    request = MechanismRequest(kind, participation, buffers=2 if kind == "blt" else None)
    messages: list[str] = []
    strategy, again = (
        optimize_mechanism(request),
        cached_mechanism(request, tmp_path / "cache", messages.append),
    )
    assert again == strategy
    before = len(messages)
    assert cached_mechanism(request, tmp_path / "cache", messages.append) == strategy
    assert len(messages) == before  # found, not computed
    write_strategy(strategy, tmp_path / "found.json")
    assert read_strategy(tmp_path / "found.json") == strategy
    shown = mechanism_figures(strategy, participation, 2.0, 1e-6)
    assert shown.loss.rms_loss <= shown.loss.max_loss
    assert json.loads(json.dumps(shown.to_json(), allow_nan=False))["kind"] == strategy.kind


@pytest.mark.parametrize(
    "damage", ["another mechanism", "one digit", "of another request", "empty", "no bytes of ours"]
)
def test_a_damaged_or_foreign_cache_entry_is_computed_anew_with_a_warning(
    damage: str, tmp_path: Path
) -> None:
    """Never returned: `{"kind": "identity"}` was, for a BLT."""
    request, warned = MechanismRequest("blt", MinSep(30, 10, 3), buffers=1), []
    found = cached_mechanism(request, tmp_path)
    (path,) = tmp_path.glob("*.json")
    head, _, content = path.read_bytes().partition(b"\n")
    match damage:
        case "another mechanism":
            path.write_bytes(head + b'\n{"kind": "identity"}')
        case "one digit":
            digit = content.index(b"0.") + 4
            path.write_bytes(
                head + b"\n" + content[:digit] + bytes([content[digit] ^ 1]) + content[digit + 1 :]
            )
        case "of another request":
            cached_mechanism(
                MechanismRequest("blt", MinSep(30, 9, 3), buffers=1), tmp_path / "other"
            )
            path.write_bytes(next((tmp_path / "other").glob("*.json")).read_bytes())
        case "empty":
            path.write_bytes(b"")
        case "no bytes of ours":
            path.write_bytes(b"\xff\xfe{")
    assert cached_mechanism(request, tmp_path, on_warning=warned.append) == found
    assert len(warned) == 1
    assert "recomputing it" in warned[0]
    assert cached_mechanism(request, tmp_path, on_warning=warned.append) == found  # replaced
    assert len(warned) == 1


def test_a_cached_matrix_that_was_changed_is_computed_anew(tmp_path: Path) -> None:
    request, warned = MechanismRequest("banded", MinSep(20, 5, 3)), []
    found = cached_mechanism(request, tmp_path)
    (matrix,) = tmp_path.glob("*.npy")
    np.save(matrix, np.eye(20))
    assert cached_mechanism(request, tmp_path, on_warning=warned.append) == found
    assert "holds a different matrix" in warned[0]


def test_the_cache_is_keyed_by_every_input(tmp_path: Path) -> None:
    participation = MinSep(30, 10, 3)
    requests = [
        MechanismRequest("blt", participation, buffers=1),
        MechanismRequest("blt", participation, buffers=2),
        MechanismRequest("blt", participation, buffers=1, objective="max"),
        MechanismRequest("blt", MinSep(30, 9, 3), buffers=1),
        MechanismRequest("blt", MinSep(30, 10, 2), buffers=1),
        MechanismRequest(
            "blt",
            participation,
            buffers=1,
            targets=(Target(participation, 2.0), Target(MinSep(20, 5, 2))),
        ),
        MechanismRequest("band-fhu", participation),
        MechanismRequest("band-fhu", participation, bands=3),
    ]
    for number, request in enumerate(requests, 1):
        cached_mechanism(request, tmp_path)
        assert len(list(tmp_path.glob("*.json"))) == number


@pytest.mark.parametrize("kind", ["band-fhu", "bisr"])
def test_the_number_of_bands_found_is_that_of_least_loss(kind) -> None:
    participation = MinSep(60, 15, 4)
    best = loss(optimize_mechanism(MechanismRequest(kind, participation)), participation).rms_loss
    every = [
        loss(
            optimize_mechanism(MechanismRequest(kind, participation, bands=bands)), participation
        ).rms_loss
        for bands in range(1, 61)
    ]
    assert best == pytest.approx(min(every), rel=1e-12)


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"kind": "forest"}, "kind='forest' is unknown"),
        ({"kind": "matrix"}, "kind='matrix' has no recipe, since its parameters are your own"),
        (
            {"kind": "tree", "buffers": 2},
            "buffers=2 does not apply to tree; leave it out, or choose blt$",
        ),
        ({"kind": "blt", "bands": 2}, "bands=2 does not apply to blt"),
        ({"kind": "banded", "bands": 31}, "bands=31 must be from 1 to `rounds=30`"),
        ({"kind": "banded", "objective": "mean"}, "must be max or rms"),
        (
            {"kind": "tree", "targets": (Target(MinSep(30, 10, 3)),)},
            "targets=.* does not apply to tree",
        ),
    ],
    ids=str,
)
def test_requests_that_make_no_sense_are_refused(arguments, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        MechanismRequest(participation=MinSep(30, 10, 3), **arguments)


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_takes_exactly_the_options_of_its_recipe(kind: Kind) -> None:
    participation = MinSep(30, 10, 3)
    given = {"bands": 2, "buffers": 2, "targets": (Target(participation),)}
    for option, value in given.items():
        if option in RECIPES[kind].options:
            MechanismRequest(kind, participation, **{option: value})
        else:
            with pytest.raises(
                InputError, match=f"^{option}=.* does not apply to {kind}; leave it out"
            ):
                MechanismRequest(kind, participation, **{option: value})


@pytest.mark.parametrize("buffers", [0, 11])
def test_numbers_of_buffers_that_make_no_sense_are_refused(buffers: int) -> None:
    with pytest.raises(ValueError, match=f"buffers={buffers} must be from 1 to 10"):
        optimize_blt([Target(MinSep(30, 10, 3))], buffers)


def test_a_target_without_a_weight_above_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="weight=-1.0 of a target must be positive"):
        Target(MinSep(5, 1, 1), -1.0)


def test_identity_needs_nothing() -> None:
    assert optimize_mechanism(MechanismRequest("identity", MinSep(5, 5, 1))) == Identity()
    assert list(itertools.islice(KINDS, 2)) == ["blt", "banded"]


@pytest.mark.slow
@pytest.mark.parametrize("bands", [2, 3, 4])
def test_a_few_bands_over_a_long_run_are_optimised_and_not_left_at_the_start(bands: int) -> None:
    """Free coefficients let C^-1 grow exponentially there, and a search of them stopped at once.

    Two bands are compared with a search of one number; of more, no coefficient can be moved.
    """
    setting = MinSep(2052, bands, -(-2052 // bands))

    def value(coefficients: Sequence[float]) -> float:
        return loss(Toeplitz(coefficients=tuple(coefficients)), setting).rms_loss

    found = optimize_toeplitz(setting, bands, "rms").coefficients
    if bands == 2:
        scalar = minimize_scalar(
            lambda c: value((1.0, float(c))), bounds=(0.0, 1.0), method="bounded"
        )
        assert value(found) == pytest.approx(scalar.fun, rel=1e-6)
    for place in range(1, bands):
        for step in (-1e-3, 1e-3):
            moved = np.array(found)
            moved[place] += step
            assert value(moved.tolist()) > value(found)
