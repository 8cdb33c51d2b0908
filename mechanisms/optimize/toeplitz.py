"""Optimises the coefficients of a banded Toeplitz strategy (McKenna 2024, "Scaling up the banded
matrix factorization mechanism").

The loss needs the coefficients d of C^-1, by forward substitution, and its gradient a convolution.
L-BFGS starts from the square root of the prefix sum. tests/mechanisms/test_optimize.py compares the
gradient with that of JAX.
"""

import math

import numpy as np
from scipy.optimize import minimize
from scipy.signal import fftconvolve, lfilter

from fedray.base.arrays import Float64Array
from fedray.base.errors import InputError, OptimizationFailed
from ..band_fhu import BandFHU
from ..loss import Objective, loss
from ..participation import MinSep
from ..toeplitz import Toeplitz
from ..workload import PREFIX, Workload
from .objective import LossOfCoefficients, Progress, Target

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
    loss_of = LossOfCoefficients([Target(participation)], objective, workload)
    start = _start(workload, bands)
    is_held = bands > participation.min_sep
    claimed, coefficients, is_stable = _search(loss_of, start, is_held, on_progress)
    # With few free coefficients C^-1 can grow exponentially over a long run, and the search fails;
    # with coefficients that never increase it cannot.
    # Proof: (1 - x) c(x) is 1 minus a power series of non-negative coefficients whose sum is at
    # most 1, so its inverse is a renewal sequence, within [0, 1]. C^-1 has the differences of that
    # sequence, which are all at most 1.
    if not is_stable and not is_held:
        claimed, coefficients, _ = _search(loss_of, start, True, on_progress)
    strategy = Toeplitz(coefficients=tuple(coefficients.tolist()))
    _validate(strategy, claimed, participation, objective, workload)
    return strategy


def _search(
    loss_of: LossOfCoefficients, start: Float64Array, is_held: bool, on_progress: Progress | None
) -> tuple[float, Float64Array, bool]:
    """Returns the least log loss found, its coefficients, and whether every trial had a loss below
    MOST_LOG_LOSS.

    Args:
        loss_of: loss of the coefficients of C and C^-1.
        start: first coefficients.
        is_held: whether coefficients must not increase. The variables are then the logarithms of
            their ratios, which are at most 0.
    """
    is_stable = True

    def value_and_gradient(p: Float64Array) -> tuple[float, Float64Array]:
        nonlocal is_stable
        value, gradient = log_loss(loss_of, p, is_held)
        # A loss that is not a number is not below any either.
        is_stable = is_stable and value < MOST_LOG_LOSS
        return value, gradient

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
    coefficients = _coefficients(result.x, is_held)
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
    value = math.log(measured.of(objective))
    is_as_claimed = abs(value - claimed) < 1e-7
    if not (measured.sensitivity.is_exact and is_as_claimed):
        raise OptimizationFailed(
            f"the optimum claims a log loss of {claimed:.9g}, the slow path finds {value:.9g} "
            f"({measured.sensitivity.theorem}); use at most min-sep bands"
        )


def _coefficients(p: Float64Array, is_held: bool) -> Float64Array:
    """Returns c, [bands], from p: c_1, c_2, ..., or if held the logarithms of c_i / c_(i-1)."""
    return np.concatenate([[1.0], np.exp(np.cumsum(p)) if is_held else p])


def log_loss(
    loss_of: LossOfCoefficients, p: Float64Array, is_held: bool
) -> tuple[float, Float64Array]:
    """Returns the log loss of the coefficients of p, [bands - 1], and its gradient by p."""
    n = loss_of.rounds
    c = _coefficients(p, is_held)
    # An overflow means that C^-1 grows exponentially: a loss that is not finite.
    with np.errstate(over="ignore", invalid="ignore"):
        # The filter 1 / c(x) is forward substitution.
        d = np.asarray(lfilter([1.0], c, np.eye(1, n)[0]), np.float64)
        value, by_c, by_d = loss_of(np.pad(c, (0, n - c.size)), d)
        # d = 1 / c as a power series, so its derivative is -(d d) dc, whose adjoint is a
        # correlation with d d.
        square = fftconvolve(d, d)[:n]
        by_c = by_c - fftconvolve(by_d[::-1], square)[:n][::-1]
    by_later = by_c[1 : c.size]
    if is_held:
        # p_i scales c_i and all later coefficients, hence the reversed cumulative sum.
        by_later = np.cumsum((by_later * c[1:])[::-1])[::-1]
    return value, by_later


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
