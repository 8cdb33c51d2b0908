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

from fedray.base.errors import InputError, OptimizationFailed
from fedray.mechanisms.band_fhu import BandFHU
from fedray.mechanisms.loss import loss
from fedray.mechanisms.optimize.objective import Objective, Progress
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.toeplitz import Toeplitz

LEAST_LOG_RATIO = -30.0


def optimize_toeplitz(
    participation: MinSep,
    bands: int,
    objective: Objective = "rms",
    on_progress: Progress | None = None,
) -> Toeplitz:
    """Returns the Toeplitz strategy of `bands` coefficients, c_0 = 1, of least loss; validated by
    the slow path.

    With more bands than min-sep, coefficients must not increase, so that the sensitivity is that of
    McMahan, Xu, Zhang 2024, Theorem 3.1.

    Args:
        participation: (n, b, k) of the loss.
        bands: number of coefficients, c_0 included, from 1 to n.
        objective: the loss: root mean square over rounds, or of the worst round.
        on_progress: called with a line at every step of the search.

    Raises:
        InputError: the bands are not within 1 to n.
        OptimizationFailed: the result does not validate.
    """
    if not 1 <= bands <= participation.rounds:
        raise InputError.of(
            "bands",
            bands,
            f"must be from 1 to `rounds={participation.rounds}`",
            "there are no more coefficients",
        )
    if bands == 1:
        return Toeplitz(coefficients=(1.0,))
    # float64 only within this block: it is a global setting of jax, and users may have their own.
    with jax.enable_x64(True):
        log_loss = partial(_log_loss, participation=participation, objective=objective)
        compiled = jax.jit(jax.value_and_grad(log_loss))

        def value_and_gradient(p: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            value, gradient = compiled(p)
            return float(value), np.asarray(gradient, np.float64)

        def report(intermediate_result) -> None:
            if on_progress:
                on_progress(f"loss {math.exp(intermediate_result.fun):.6f}")

        # Held coefficients are searched by the logarithms of their ratios, which are at most 0.
        is_held = bands > participation.min_sep
        start = BandFHU(bands=bands).first_column(bands)
        # The search begins at the square root of the prefix sum, which is nearly the best.
        first_point = np.diff(np.log(start)) if is_held else start[1:]
        bound = (LEAST_LOG_RATIO, 0.0) if is_held else (None, None)
        result = minimize(
            value_and_gradient,
            first_point,
            jac=True,
            method="L-BFGS-B",
            bounds=[bound] * (bands - 1),
            callback=report,
            options={"maxcor": 30, "maxiter": 2000, "maxfun": 4000, "ftol": 1e-14, "gtol": 1e-9},
        )
        coefficients = np.asarray(_coefficients(jnp.asarray(result.x), is_held))
    if is_held:
        # Rounding in the exponentials must not make one larger than the one before it.
        coefficients = np.minimum.accumulate(coefficients)
    strategy = Toeplitz(coefficients=tuple(coefficients.tolist()))
    _validate(strategy, float(result.fun), participation, objective)
    return strategy


def _validate(
    strategy: Toeplitz, claimed: float, participation: MinSep, objective: Objective
) -> None:
    measured = loss(strategy, participation)
    value = math.log(measured.max_loss if objective == "max" else measured.rms_loss)
    is_as_claimed = abs(value - claimed) < 1e-7
    is_consistent = measured.rms_loss <= measured.max_loss * (1 + 1e-12)
    if not (measured.sensitivity.is_exact and is_as_claimed and is_consistent):
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
    # There are p.size + 1 bands, so this is whether they are more than min-sep.
    is_held = p.size >= b
    c = _coefficients(p, is_held)
    starts = b * np.arange(k)
    if not is_held:
        # Starts are at least as far apart as there are bands, so columns do not overlap: c_i
        # counts once for each column that has not ended with the run by then.
        within = (np.arange(c.size)[:, None] < n - starts).sum(axis=1)
        squared_sensitivity = jnp.sum(within * c**2)
    else:

        def with_column(j, total):
            # "drop" leaves out what would lie beyond the last round.
            rounds = j * b + np.arange(c.size)
            return total.at[rounds].add(c, mode="drop")

        # Column after column, in memory of n whatever bands and k are.
        column = jax.lax.fori_loop(0, k, with_column, jnp.zeros(n))
        squared_sensitivity = jnp.sum(column**2)
    padded = jnp.zeros(n).at[: c.size].set(c)
    beta = jnp.cumsum(_inverse_series(padded))
    # beta_i is in the error of every round from i on (McMahan, Xu, Zhang 2024, Proposition 3.3).
    i = np.arange(n)
    weights = 1.0 if objective == "max" else (n - i) / n
    squared_error = jnp.sum(weights * beta**2)
    return 0.5 * jnp.log(squared_sensitivity * squared_error)


@jax.custom_vjp
def _inverse_series(c):
    """The first n coefficients of 1 / c(x), c_0 = 1: g <- g (2 - c g) doubles the correct ones."""
    n = c.size
    g = jnp.ones(1)
    while g.size < n:
        # Each step of Newton's doubles the coefficients that are correct.
        size = min(2 * g.size, n)
        correction = -_product(c[:size], g, size)
        padded = jnp.concatenate([g, jnp.zeros(size - g.size)])
        g = _product(padded, correction.at[0].add(2.0), size)
    return g


def _inverse_forward(c):
    d = _inverse_series(c)
    return d, d


def _inverse_backward(d, cotangent):
    """d changes by -(d d) dc: the adjoint is a correlation with d d."""
    n = d.size
    square = _product(d, d, n)
    return (-_product(cotangent[::-1], square, n)[::-1],)


_inverse_series.defvjp(_inverse_forward, _inverse_backward)


def _product(a, b, size: int):
    """The first `size` coefficients of a(x) b(x)."""
    # Room for the whole product: a shorter transform would wrap its end onto its start.
    length = 1 << (a.size + b.size - 1).bit_length()
    transformed = jnp.fft.rfft(a, length) * jnp.fft.rfft(b, length)
    return jnp.fft.irfft(transformed, length)[:size]
