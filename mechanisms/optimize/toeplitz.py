"""Optimises the coefficients of a banded Toeplitz strategy (McKenna 2024, "Scaling up the banded
matrix factorization mechanism").

The loss needs the power series of 1 / c, by Newton's iteration with FFTs, O(n log n); its gradient
is a convolution. Gradients are JAX's, in float64, by L-BFGS from the square root of the prefix sum.
Results are checked by forward substitution.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from fedray.errors import InputError, OptimizationFailed
from mechanisms.band_fhu import BandFHU
from mechanisms.loss import loss
from mechanisms.optimize.objective import Objective, Progress
from mechanisms.participation import MinSep
from mechanisms.toeplitz import Toeplitz

LEAST_LOG_RATIO = -30.0


def optimize_toeplitz(
    participation: MinSep,
    bands: int,
    objective: Objective = "rms",
    on_progress: Progress | None = None,
) -> Toeplitz:
    """The Toeplitz strategy of so many coefficients, c_0 = 1, of least loss; validated by the slow
    path.

    With more bands than min-sep, coefficients are held from increasing, so that the sensitivity is
    Theorem 3.1's. Raises InputError for impossible arguments, OptimizationFailed if the result does
    not validate.
    """
    if not 1 <= bands <= participation.rounds:
        raise InputError(
            f"bands={bands} must be from 1 to rounds={participation.rounds}; there are no more "
            "coefficients"
        )
    if bands == 1:
        return Toeplitz(coefficients=(1.0,))
    with jax.enable_x64(True):
        compiled = jax.jit(
            jax.value_and_grad(partial(_log_loss, participation=participation, objective=objective))
        )

        def value_and_gradient(p: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            value, gradient = compiled(p)
            return float(value), np.asarray(gradient, np.float64)

        def report(intermediate_result) -> None:
            if on_progress:
                on_progress(f"loss {math.exp(intermediate_result.fun):.6f}")

        is_held = bands > participation.min_sep
        start = BandFHU(bands=bands).first_column(bands)
        result = minimize(
            value_and_gradient,
            np.diff(np.log(start)) if is_held else start[1:],
            jac=True,
            method="L-BFGS-B",
            bounds=[(LEAST_LOG_RATIO, 0.0) if is_held else (None, None)] * (bands - 1),
            callback=report,
            options={"maxcor": 30, "maxiter": 2000, "maxfun": 4000, "ftol": 1e-14, "gtol": 1e-9},
        )
        coefficients = np.asarray(_coefficients(jnp.asarray(result.x), is_held))
    strategy = Toeplitz(
        coefficients=tuple(
            np.minimum.accumulate(coefficients).tolist() if is_held else coefficients.tolist()
        )
    )
    _validate(strategy, float(result.fun), participation, objective)
    return strategy


def _validate(
    strategy: Toeplitz, claimed: float, participation: MinSep, objective: Objective
) -> None:
    measured = loss(strategy, participation)
    value = math.log(measured.max_loss if objective == "max" else measured.rms_loss)
    if not (
        measured.sensitivity.is_exact
        and abs(value - claimed) < 1e-7
        and measured.rms_loss <= measured.max_loss * (1 + 1e-12)
    ):
        raise OptimizationFailed(
            f"the optimum claims a log loss of {claimed:.9g}, the slow path finds {value:.9g} "
            f"({measured.sensitivity.theorem}); use at most min-sep bands"
        )


def _coefficients(p, is_held: bool):
    """c, [bands]: 1 and p, or with p <= 0 the logarithms of c_i / c_(i-1)."""
    return jnp.concatenate([jnp.ones(1), jnp.exp(jnp.cumsum(p)) if is_held else p])


def _log_loss(p, *, participation: MinSep, objective: Objective):
    """log(sensitivity x error)."""
    n = participation.rounds
    b = participation.min_sep
    k = participation.max_participations
    is_held = p.size >= b
    c = _coefficients(p, is_held)
    starts = b * np.arange(k)
    # Starts are at least as far apart as there are bands, so columns do not overlap.
    if not is_held:
        within = (np.arange(c.size)[:, None] < n - starts).sum(axis=1)
        squared_sensitivity = jnp.sum(within * c**2)
    else:
        column = jax.lax.fori_loop(
            0,
            k,
            lambda j, total: total.at[j * b + np.arange(c.size)].add(c, mode="drop"),
            jnp.zeros(n),
        )
        squared_sensitivity = jnp.sum(column**2)
    beta = jnp.cumsum(_inverse_series(jnp.zeros(n).at[: c.size].set(c)))
    i = np.arange(n)
    squared_error = jnp.sum((1.0 if objective == "max" else (n - i) / n) * beta**2)
    return 0.5 * jnp.log(squared_sensitivity * squared_error)


@jax.custom_vjp
def _inverse_series(c):
    """The first n coefficients of 1 / c(x), c_0 = 1: g <- g (2 - c g) doubles the correct ones."""
    n = c.size
    g = jnp.ones(1)
    while g.size < n:
        size = min(2 * g.size, n)
        correction = -_product(c[:size], g, size)
        g = _product(
            jnp.concatenate([g, jnp.zeros(size - g.size)]), correction.at[0].add(2.0), size
        )
    return g


def _inverse_forward(c):
    d = _inverse_series(c)
    return d, d


def _inverse_backward(d, cotangent):
    """d changes by -(d d) dc: the adjoint is a correlation with d d."""
    n = d.size
    return (-_product(cotangent[::-1], _product(d, d, n), n)[::-1],)


_inverse_series.defvjp(_inverse_forward, _inverse_backward)


def _product(a, b, size: int):
    """The first `size` coefficients of a(x) b(x)."""
    length = 1 << (a.size + b.size - 1).bit_length()
    return jnp.fft.irfft(jnp.fft.rfft(a, length) * jnp.fft.rfft(b, length), length)[:size]
