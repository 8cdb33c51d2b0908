"""Optimises the coefficients of a banded Toeplitz strategy (McKenna 2024, "Scaling up the banded
matrix factorization mechanism").

The loss needs the power series of 1 / c, by Newton's iteration with FFTs in O(n log n); its
gradient is a convolution. L-BFGS with JAX gradients in float64 starts from the square root of the
prefix sum. Results are checked by forward substitution.
"""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

from fedray.base.arrays import Float64Array
from fedray.base.errors import InputError, OptimizationFailed
from ..band_fhu import BandFHU
from ..loss import loss
from ..participation import MinSep
from ..toeplitz import Toeplitz
from ..workload import PREFIX, Workload
from .objective import (
    Objective,
    Progress,
    error_form,
    error_weights,
)

LEAST_LOG_RATIO = -30.0
MOST_LOG_LOSS = 20.0
"""Log loss of a trial at which C^-1 grows exponentially, and the search takes too small steps."""


def optimize_toeplitz(
    participation: MinSep,
    bands: int,
    objective: Objective = "rms",
    on_progress: Progress | None = None,
    workload: Workload = PREFIX,
) -> Toeplitz:
    """Returns the banded Toeplitz strategy of least loss with c_0 = 1, validated by the slow path.

    With more bands than min-sep, coefficients are constrained not to increase, so that McMahan, Xu,
    Zhang 2024, Theorem 3.1 gives the sensitivity.

    Args:
        participation: (n, b, k) of the loss.
        bands: number of coefficients, including c_0, from 1 to n.
        objective: loss to minimise.
        on_progress: receives a line for every step of the search.
        workload: workload whose error to minimise.

    Raises:
        InputError: `bands` is not from 1 to n.
        OptimizationFailed: the result is not valid.
    """
    if not 1 <= bands <= participation.rounds:
        raise InputError.of("bands", bands, f"must be from 1 to `rounds={participation.rounds}`")
    if bands == 1:
        return Toeplitz(coefficients=(1.0,))
    # float64 only in this block, because it is a global setting of jax, and users may rely on the
    # default.
    with jax.enable_x64(True):
        squared_error = _squared_error(workload, participation.rounds, objective)
        log_loss = partial(_log_loss, participation=participation, squared_error=squared_error)
        start = _start(workload, bands)
        is_held = bands > participation.min_sep
        claimed, coefficients, is_stable = _search(log_loss, start, is_held, on_progress)
        # With few free coefficients C^-1 can grow exponentially over a long run, and the search
        # fails; with coefficients that never increase it cannot.
        if not is_stable and not is_held:
            claimed, coefficients, _ = _search(log_loss, start, True, on_progress)
    strategy = Toeplitz(coefficients=tuple(coefficients.tolist()))
    _validate(strategy, claimed, participation, objective, workload)
    return strategy


def _search(
    log_loss: Callable, start: Float64Array, is_held: bool, on_progress: Progress | None
) -> tuple[float, Float64Array, bool]:
    """Returns the least log loss found, its coefficients, and whether every trial had a loss below
    MOST_LOG_LOSS.

    Args:
        start: first coefficients.
        is_held: whether coefficients must not increase. The variables are then the logarithms of
            their ratios, which are at most 0.
    """
    compiled = jax.jit(jax.value_and_grad(partial(log_loss, is_held=is_held)))
    is_stable = True

    def value_and_gradient(p: Float64Array) -> tuple[float, Float64Array]:
        nonlocal is_stable
        value, gradient = compiled(p)
        # A loss that is not a number is not below any either.
        is_stable = is_stable and bool(value < MOST_LOG_LOSS)
        return float(value), np.asarray(gradient, np.float64)

    def report(intermediate_result) -> None:
        if on_progress:
            on_progress(f"loss {math.exp(intermediate_result.fun):.6f}")

    bound = (LEAST_LOG_RATIO, 0.0) if is_held else (None, None)
    result = minimize(
        value_and_gradient,
        np.diff(np.log(start)) if is_held else start[1:],
        jac=True,
        method="L-BFGS-B",
        bounds=[bound] * (start.size - 1),
        callback=report,
        options={"maxcor": 30, "maxiter": 2000, "maxfun": 4000, "ftol": 1e-14, "gtol": 1e-9},
    )
    coefficients = np.asarray(_coefficients(jnp.asarray(result.x), is_held))
    if is_held:
        # Rounding in the exponentials must not make a coefficient increase.
        coefficients = np.minimum.accumulate(coefficients)
    return float(result.fun), coefficients, is_stable


def _validate(
    strategy: Toeplitz,
    claimed: float,
    participation: MinSep,
    objective: Objective,
    workload: Workload,
) -> None:
    measured = loss(strategy, participation, workload)
    value = math.log(measured.max_loss if objective == "max" else measured.rms_loss)
    is_as_claimed = abs(value - claimed) < 1e-7
    if not (measured.sensitivity.is_exact and is_as_claimed):
        raise OptimizationFailed(
            f"the optimum claims a log loss of {claimed:.9g}, the slow path finds {value:.9g} "
            f"({measured.sensitivity.theorem}); use at most min-sep bands"
        )


def _coefficients(p, is_held: bool):
    """Returns c, [bands], from p: c_1, c_2, ..., or if held the logarithms of c_i / c_(i-1)."""
    return jnp.concatenate([jnp.ones(1), jnp.exp(jnp.cumsum(p)) if is_held else p])


def _start(workload: Workload, bands: int) -> Float64Array:
    """Returns the first coefficients of the square root of the workload without its rates, which is
    nearly optimal (Kalinin and Lampert 2024)."""
    prefix = BandFHU(bands=bands).first_column(bands)
    if workload.is_prefix:
        return prefix
    # (1 - q x)^(-1/2) has the coefficients of (1 - x)^(-1/2), times q^i.
    i = np.arange(bands)
    of_momentum = prefix * workload.momentum**i
    of_decay = prefix * workload.decay**i
    root = np.convolve(of_momentum, of_decay)[:bands]
    # In theory they never increase; rounding must not make them increase or become 0.
    return np.maximum(np.minimum.accumulate(root), 1e-12)


def _squared_error(workload: Workload, n: int, objective: Objective):
    """Returns the squared error as a function of d, [n], the coefficients of C^-1."""
    workload.check_rounds(n)
    if not workload.is_toeplitz:
        Q = jnp.asarray(error_form(objective, workload, n))
        return lambda d: d @ (Q @ d)
    weights = 1.0 if objective == "max" else error_weights(objective, n)
    a = jnp.asarray(workload.applied(np.eye(1, n)[0]))

    def of_toeplitz(d):
        beta = jnp.cumsum(d) if workload.is_prefix else _product(a, d, n)
        return jnp.sum(weights * beta**2)

    return of_toeplitz


def _log_loss(p, *, is_held: bool, participation: MinSep, squared_error: Callable):
    n = participation.rounds
    b = participation.min_sep
    k = participation.max_participations
    c = _coefficients(p, is_held)
    starts = b * np.arange(k)
    if c.size <= b:
        # With at most min-sep bands columns do not overlap: c_i counts once for each column that
        # has a row i before the end of the run.
        within = (np.arange(c.size)[:, None] < n - starts).sum(axis=1)
        squared_sensitivity = jnp.sum(within * c**2)
    else:

        def with_column(j, total):
            # "drop" ignores rows after the last round.
            rounds = j * b + np.arange(c.size)
            return total.at[rounds].add(c, mode="drop")

        # One column at a time, in O(n) memory for any number of bands and any k.
        column = jax.lax.fori_loop(0, k, with_column, jnp.zeros(n))
        squared_sensitivity = jnp.sum(column**2)
    padded = jnp.zeros(n).at[: c.size].set(c)
    return 0.5 * jnp.log(squared_sensitivity * squared_error(_inverse_series(padded)))


@jax.custom_vjp
def _inverse_series(c):
    """Returns the first n coefficients of 1 / c(x), c_0 = 1. Each step of Newton's iteration, g <-
    g (2 - c g), doubles the number of correct coefficients."""
    n = c.size
    g = jnp.ones(1)
    while g.size < n:
        size = min(2 * g.size, n)
        correction = -_product(c[:size], g, size)
        padded = jnp.concatenate([g, jnp.zeros(size - g.size)])
        g = _product(padded, correction.at[0].add(2.0), size)
    return g


def _inverse_forward(c):
    d = _inverse_series(c)
    return d, d


def _inverse_backward(d, cotangent):
    # The derivative of d = 1 / c is -(d d) dc, whose adjoint is a correlation with d d.
    n = d.size
    square = _product(d, d, n)
    return (-_product(cotangent[::-1], square, n)[::-1],)


_inverse_series.defvjp(_inverse_forward, _inverse_backward)


def _product(a, b, size: int):
    """Returns the first `size` coefficients of a(x) b(x)."""
    # A transform shorter than the product would wrap its end onto its start.
    length = 1 << (a.size + b.size - 1).bit_length()
    transformed = jnp.fft.rfft(a, length) * jnp.fft.rfft(b, length)
    return jnp.fft.irfft(transformed, length)[:size]
