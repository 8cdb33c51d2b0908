"""Optimises a BLT's decays for the loss under one (n, b, k), or under a weighted set of them.

A BLT and its inverse are given by their decays theta and theta_hat (Dvijotham et al. 2024, Lemma 5.2). The parameters p are
free: t = cumsum(exp p), y = exp(-t), theta = y[0::2], theta_hat = y[1::2], so that 1 > theta_1 > theta_hat_1 > theta_2 > ... > 0,
which makes every omega positive. The loss is in closed form, O(n) per buffer; gradients are JAX's, in float64; L-BFGS from
several starts, as there are local optima.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from mechanisms.blt import BLT
from mechanisms.loss import loss
from mechanisms.optimize.objective import Objective, Progress, Target

ValueAndGradient = Callable[[NDArray[np.float64]], tuple[float, NDArray[np.float64]]]

MOST_BUFFERS = 10
MOST_UNROLLED = 4
"""Targets compiled each for its own rounds; more share one compiled loop, padded to the longest."""
POLISHED = 3
"""Starts that are followed to their end, of those best after a few iterations."""
SMALLEST_STEP, LARGEST_STEP = math.log(1e-13), math.log(13.0)
"""Logarithms of gaps of t: two decays nearer than 1e-13 are one, a decay below exp(-13) is none."""


def optimize_blt(targets: Sequence[Target], buffers: int, objective: Objective = "max", on_progress: Progress | None = None) -> BLT:
    """The BLT of least weighted mean log loss (for one target: of least loss), validated by the slow path.

    Raises ValueError for impossible arguments, ArithmeticError if no start ends at a valid BLT.
    """
    if not targets:
        raise ValueError(
            "targets=[] must name at least one (rounds, min_sep, max_participations); there is nothing to optimise for"
        )
    if not 1 <= buffers <= MOST_BUFFERS:
        raise ValueError(f"buffers={buffers} must be from 1 to {MOST_BUFFERS}; more than a handful gain nothing")
    with jax.enable_x64(True):
        value_and_gradient = _objective(targets, objective)
        found = []
        for number, start in enumerate(_starts(max(target.schema.rounds for target in targets), buffers), 1):
            found.append(_descend(value_and_gradient, start, iterations=50))
            if on_progress:
                on_progress(f"start {number}: loss {math.exp(min(value for value, _ in found)):.6f}")
        found.sort(key=lambda each: each[0])
        for place, (_, p) in enumerate(found[:POLISHED]):
            found[place] = _descend(value_and_gradient, p, iterations=3000)
            if on_progress:
                on_progress(f"polish {place + 1}: loss {math.exp(min(value for value, _ in found)):.6f}")
        return _best_valid(found, targets, objective)


def _starts(rounds: int, buffers: int) -> list[NDArray[np.float64]]:
    starts = []
    for low in (1e-3, 1.0, 6.0, 30.0):
        for high in (0.3, 1.0, 3.0):
            t = np.geomspace(min(low / rounds, high / 10), high, 2 * buffers)
            starts.append(np.log(np.diff(t, prepend=0.0)))
    return starts


def _descend(
    value_and_gradient: ValueAndGradient, start: NDArray[np.float64], iterations: int
) -> tuple[float, NDArray[np.float64]]:
    result = minimize(
        value_and_gradient,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=[(SMALLEST_STEP, LARGEST_STEP)] * len(start),
        options={"maxcor": 50, "maxiter": iterations, "maxfun": 10 * iterations, "ftol": 1e-15, "gtol": 1e-9},
    )
    return float(result.fun), result.x


def _best_valid(found: list[tuple[float, NDArray[np.float64]]], targets: Sequence[Target], objective: Objective) -> BLT:
    """The best result that is a BLT and has, computed without JAX and without closed forms of theta_hat, the loss claimed."""
    for value, p in sorted(found, key=lambda each: each[0]):
        t, _, omega, _ = _buffers(p, np)
        try:
            blt = BLT(theta=tuple(np.exp(-t).tolist()), omega=tuple(omega.tolist()))
        except ValueError:
            continue
        if _is_confirmed(blt, value, targets, objective):
            return blt
    raise ArithmeticError("no start ended at a valid BLT; use fewer buffers")


def _is_confirmed(blt: BLT, claimed: float, targets: Sequence[Target], objective: Objective) -> bool:
    weights = sum(target.weight for target in targets)
    value = 0.0
    for target in targets:
        measured = loss(blt, target.schema)
        if not measured.sensitivity.is_exact or measured.rms_loss > measured.max_loss * (1 + 1e-12):
            return False
        value += target.weight / weights * math.log(measured.max_loss if objective == "max" else measured.rms_loss)
    return abs(value - claimed) < 1e-7


def _objective(targets: Sequence[Target], objective: Objective) -> ValueAndGradient:
    schemas = [target.schema for target in targets]
    weights = np.array([target.weight for target in targets])
    compiled = jax.jit(
        jax.value_and_grad(
            partial(
                _mean_log_loss,
                rounds=np.array([schema.rounds for schema in schemas]),
                min_seps=np.array([schema.min_sep for schema in schemas]),
                participations=np.array([schema.max_participations for schema in schemas]),
                weights=weights / weights.sum(),
                objective=objective,
            )
        )
    )

    def value_and_gradient(p: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        value, gradient = compiled(p)
        return float(value), np.asarray(gradient, np.float64)

    return value_and_gradient


def _mean_log_loss(p, *, rounds, min_seps, participations, weights, objective):
    """Weighted mean over targets of log(sensitivity x error); all arrays over targets are [T]."""
    buffers, longest = _buffers(p), int(rounds.max())
    if len(rounds) <= MOST_UNROLLED:
        squares = [
            _squared_loss(buffers, n, b, k, int(n), objective) for n, b, k in zip(rounds, min_seps, participations, strict=True)
        ]
        return 0.5 * sum(weight * jnp.log(square) for weight, square in zip(weights, squares, strict=True))
    schemas = (rounds, min_seps, participations)
    squares = jax.lax.map(lambda each: _squared_loss(buffers, each[0], each[1], each[2], longest, objective), schemas)
    return 0.5 * jnp.sum(weights * jnp.log(squares))


def _squared_loss(buffers, n, b, k, length: int, objective: Objective):
    """Squared sensitivity x squared error over n <= length rounds."""
    t, t_hat, omega, omega_hat = buffers
    i = np.arange(length)
    beta = _prefix_coefficients(t_hat, omega_hat, length)
    times = jnp.where(i < n, 1.0 if objective == "max" else (n - i) / n, 0.0)
    return _squared_sensitivity(t, omega, n, b, k, length) * jnp.sum(times * beta**2)


def _buffers(p, xp=jnp):
    """(t, t_hat, omega, omega_hat), each [buffers], theta = exp(-t) (Dvijotham et al. 2024, Lemma 5.2)."""
    t = xp.cumsum(xp.exp(p))
    t, t_hat = t[0::2], t[1::2]
    return t, t_hat, _weights(t, t_hat, xp), -_weights(t_hat, t, xp)


def _weights(t, other, xp):
    """|prod_i (theta_j - theta_hat_i) / prod_{i != j} (theta_j - theta_i)|: interlaced, omega is positive, omega_hat negative."""
    is_own = np.eye(t.size, dtype=bool)
    across = xp.log(xp.abs(xp.expm1(t[:, None] - other)))  # log |1 - theta_hat_i / theta_j|
    within = xp.log(xp.where(is_own, 1.0, xp.abs(xp.expm1(xp.where(is_own, 1.0, t[:, None] - t)))))
    return xp.exp(-t + across.sum(axis=1) - within.sum(axis=1))


def _prefix_coefficients(t_hat, omega_hat, n: int):
    """beta_i = 1 + sum_j omega_hat_j (1 - theta_hat_j^i) / (1 - theta_hat_j): coefficients of A C^-1, [n]."""
    i = np.arange(n, dtype=np.float64)
    series = -jnp.expm1(-i[:, None] * t_hat) / -jnp.expm1(-t_hat)
    return 1.0 + series @ omega_hat


def _squared_sensitivity(t, omega, n, b, k, length: int):
    """|| sum_{j < k} C[:, j b] ||^2 over rounds 0 .. n-1 (McMahan, Xu, Zhang 2024, Theorem 3.1), geometric series summed.

    Round m >= 1 sees participations j = 0 .. q, q = min(k - 1, (m - 1) // b), each with omega theta^(m - 1 - j b),
    and 1 of its own.
    """
    m = np.arange(length)
    q = jnp.minimum(k - 1, (m - 1) // b)
    latest = (m - 1 - q * b)[:, None] * t
    series = jnp.exp(-latest) * -jnp.expm1(-(b * (q + 1))[:, None] * t) / -jnp.expm1(-b * t)
    own = (m % b == 0) & (m // b < k)
    column = own + jnp.where(m > 0, series @ omega, 0.0)
    return jnp.sum(jnp.where(m < n, column, 0.0) ** 2)
