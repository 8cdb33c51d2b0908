"""Optimises matrices by their Gram matrix X = C'C: banded, and dense for one or many
participations.

Minimises tr(A'A X^-1) over positive definite X whose free entries are a band, or all entries except
those of two rounds of one device (Choquette-Choo et al. 2023, Problem 2; 2022, section 4; Denisov
et al. 2022, equation 6). The problem is convex, and with M = A X^-1 its gradient is -M'M on the
free entries, computed directly because that costs a third of differentiating through the
factorisation; tests/mechanisms/test_optimize.py compares it with that of JAX. L-BFGS is scaled by
the diagonal of the Hessian at the start: d2f/dX_ij^2 = 2 (S_ii R_jj + S_jj R_ii), R = X^-1, S =
M'M, without its off-diagonal part.
"""

import math
from typing import TypeVar

import numpy as np
from scipy.linalg import get_lapack_funcs
from scipy.optimize import minimize

from fedray.base.arrays import BoolArray, Float64Array, Int64Array
from fedray.base.errors import InputError, OptimizationFailed
from ..band_fhu import BandFHU
from ..loss import Objective
from ..matrix_files import Banded, Dense
from ..participation import MinSep, most_of_device
from ..triangular import MOST_MATRIX_ROUNDS, lower_factor
from ..workload import PREFIX, Workload
from .objective import Progress
from .toeplitz import optimize_toeplitz

Kind = TypeVar("Kind", Banded, Dense)
_potrf, _potri = get_lapack_funcs(("potrf", "potri"), dtype=np.float64)

COLUMNS_TOGETHER = 256
"""Number of columns of M per matrix product."""

SHARPNESS: dict[Objective, tuple[int, ...]] = {"rms": (1,), "max": (1, 8, 64, 512)}
"""Successive powers p for minimising the mean over rounds of variance^p. At p = 512, the largest
variance is at most n^(1/512) times the smallest possible one: 1.5 % more at 2052 rounds, and half
of that in the error."""


def optimize_banded(
    participation: MinSep,
    bands: int,
    objective: Objective = "rms",
    on_progress: Progress | None = None,
    workload: Workload = PREFIX,
) -> Banded:
    """Returns the banded C with unit columns of least error, starting from the best banded Toeplitz
    strategy, validated by the slow path.

    With at most min-sep bands, the loss is this error times the exact sensitivity sqrt(k)
    (Choquette-Choo et al. 2023, Theorem 2). With more bands, the error is still minimised, but the
    sensitivity has only an upper bound.

    Args:
        participation: (n, b, k) of the loss; n is the size of C.
        bands: number of nonzero diagonals of C, including the main one.
        objective: error to minimise.
        on_progress: receives a line every ten iterations.
        workload: workload whose error to minimise.

    Raises:
        InputError: the bands are not within 1 to n, or n is too large for a matrix.
        OptimizationFailed: the slow path computes another error.
    """
    n = _check(participation, bands, workload)
    # With more than b bands, the Toeplitz search would force the coefficients not to increase.
    start_bands = min(bands, participation.min_sep)
    # For a schedule, Toeplitz strategies can be optimised only for the mean.
    first = objective if workload.is_toeplitz else "rms"
    toeplitz = optimize_toeplitz(participation, start_bands, first, None, workload)
    C = _unit_columns(toeplitz.first_column(n))
    lags = _lags(n)
    is_free = (lags > 0) & (lags < bands)
    problem = _UnitDiagonal(is_free, workload)
    return _solved(Banded, problem, C.T @ C, objective, on_progress)


def optimize_dense(
    participation: MinSep,
    objective: Objective = "rms",
    on_progress: Progress | None = None,
    workload: Workload = PREFIX,
) -> Dense:
    """Returns the C of least loss for devices that take part at most k times, exactly b rounds
    apart, validated by the slow path.

    The columns of one device's rounds are orthogonal, and their squared norms add up to 1
    (Choquette-Choo et al. 2022); if k is less than ceil(n / b), all norms are equal instead. With
    one participation this is the optimum of Denisov et al. 2022. The sensitivity is exact in a
    fixed order; for participations more than b rounds apart, it has only an upper bound.

    Args:
        participation: (n, b, k) of the loss; n is the size of C.
        objective: error to minimise.
        on_progress: receives a line every ten iterations.
        workload: workload whose error to minimise.

    Raises:
        InputError: n is too large for a matrix.
        OptimizationFailed: the slow path computes another error.
    """
    n = _check(participation, participation.rounds, workload)
    free = _free_of_devices(participation)
    most_turns = most_of_device(n, participation.min_sep)
    takes_every_turn = participation.max_participations == most_turns > 1
    # With ceil(n / b) participations, a pattern is a residue class modulo b, whose squared norms
    # need only add up to 1; with fewer, all norms are equal.
    if takes_every_turn:
        problem = _FreeNorms(free, participation.min_sep, workload)
    else:
        problem = _UnitDiagonal(free, workload)
    return _solved(Dense, problem, _start(free, n), objective, on_progress)


def _check(participation: MinSep, bands: int, workload: Workload) -> int:
    if not 1 <= bands <= participation.rounds:
        raise InputError.of("bands", bands, f"must be from 1 to `rounds={participation.rounds}`")
    n = participation.rounds
    if n > MOST_MATRIX_ROUNDS:
        raise InputError.of(
            "rounds", n, f"is more than {MOST_MATRIX_ROUNDS}", "use banded-toeplitz or blt"
        )
    workload.check_rounds(n)
    return n


def _free_of_devices(participation: MinSep) -> BoolArray:
    """Returns whether each entry below the diagonal is free, [n, n]: no device has both its
    rounds."""
    # Choquette-Choo et al. 2022 require X[i, j] = 0 for two rounds of one device: then signs of its
    # contributions do not matter, and the sensitivity has a closed form. Whether non-zero entries
    # would be better is open here.
    lags = _lags(participation.rounds)
    longest_lag = participation.max_participations * participation.min_sep
    is_multiple = lags % participation.min_sep == 0
    is_joined = is_multiple & (lags < longest_lag)
    return (lags > 0) & ~is_joined


def _lags(n: int) -> Int64Array:
    """Returns the row minus the column of every entry, [n, n]."""
    rounds = np.arange(n)
    return np.subtract.outer(rounds, rounds)


def _start(free: BoolArray, n: int) -> Float64Array:
    """Returns the X of the square root of the prefix sum with unit columns, restricted to free
    entries and shrunk until positive definite."""
    C = _unit_columns(BandFHU(bands=n).first_column(n))
    below = np.where(free, C.T @ C, 0.0)
    # With entries set to zero, X may be indefinite. Shrinking X towards the identity, which is
    # positive definite, must end. The second result of potrf is 0 if X is positive definite.
    while _potrf(np.eye(n) + below + below.T, lower=1)[1] != 0:
        below *= 0.9
    return np.eye(n) + below + below.T


def _unit_columns(c: Float64Array) -> Float64Array:
    """Returns the lower-triangular Toeplitz matrix of c [n] with columns scaled to norm 1."""
    lags = _lags(c.size)
    C = np.where(lags >= 0, c[np.abs(lags)], 0.0)
    return C / np.linalg.norm(C, axis=0)


class _UnitDiagonal:
    """Parametrisation of X by its free entries below a unit diagonal."""

    def __init__(self, free: BoolArray, workload: Workload = PREFIX) -> None:
        self.n = len(free)
        self.workload = workload
        self.A = None if workload.is_prefix else workload.matrix(self.n)
        self._places = np.flatnonzero(free)
        rows, columns = np.nonzero(free)
        largest_lag = int(np.max(np.subtract(rows, columns), initial=0))
        self._band = largest_lag + 1

    def variables(self, X: Float64Array) -> Float64Array:
        return X.ravel()[self._places]

    def matrix(self, x: Float64Array) -> Float64Array:
        """Returns X for variables x, [n, n], with zeros above its diagonal, because the
        factorisation reads only one triangle."""
        X = np.eye(self.n)
        X.ravel()[self._places] = x
        return X

    def pull_back(self, gradient: Float64Array, x: Float64Array) -> Float64Array:
        """Returns the gradient by the variables, from the gradient by X, [n, n], on and below the
        diagonal."""
        del x
        # Each variable occurs twice in X, below the diagonal and above.
        return 2.0 * gradient.ravel()[self._places]

    def curvature(self, S: Float64Array, R: Float64Array) -> Float64Array:
        """Returns the diagonal of the Hessian, [variables], from the diagonals of S and R, [n]
        each (see the head of this file)."""
        i, j = np.divmod(self._places, self.n)
        return 2.0 * (S[i] * R[j] + S[j] * R[i])

    def band_gradient(self, M: Float64Array) -> Float64Array:
        """Returns M'M within the band, on and below the diagonal, [n, n]."""
        S = np.zeros((self.n, self.n))
        # For a narrow band, blocks save most of the n^3 products.
        for start in range(0, self.n, COLUMNS_TOGETHER):
            end = start + COLUMNS_TOGETHER
            first = max(0, start - self._band + 1)
            S[start:end, first:end] = M[:, start:end].T @ M[:, first:end]
        return S


class _FreeNorms(_UnitDiagonal):
    """X = D Y D, with the free entries of Y, whose diagonal is 1, and D^2 as a softmax of free
    variables over the rounds b apart."""

    def __init__(self, free: BoolArray, min_sep: int, workload: Workload = PREFIX) -> None:
        super().__init__(free, workload)
        self._class = np.arange(self.n) % min_sep

    def variables(self, X: Float64Array) -> Float64Array:
        return np.concatenate([super().variables(X), np.zeros(self.n)])

    def matrix(self, x: Float64Array) -> Float64Array:
        d = self._norms(x)
        Y = super().matrix(x[: -self.n])
        return d[:, None] * Y * d

    def pull_back(self, gradient: Float64Array, x: Float64Array) -> Float64Array:
        d = self._norms(x)
        by_Y = d[:, None] * np.tril(gradient) * d
        Y = super().matrix(x[: -self.n])
        products = by_Y * Y
        # The derivatives by log d_i: rows plus columns, because both triangles of X count, but the
        # diagonal only once.
        by_log_d = products.sum(axis=0) + products.sum(axis=1)
        by_log_d = 2.0 * by_log_d - 2.0 * np.diag(products)
        # log d_i is half the log of a softmax, whose derivative subtracts the class's total times
        # the share.
        share = d * d
        totals = np.bincount(self._class, by_log_d)[self._class]
        by_weight = 0.5 * (by_log_d - share * totals)
        return np.concatenate([super().pull_back(by_Y, x), by_weight])

    def curvature(self, S: Float64Array, R: Float64Array) -> Float64Array:
        # d_i d_j is about 1 / class size, and its square is in second derivatives by Y. The small
        # term keeps the scale finite.
        class_size = np.bincount(self._class)[self._class].mean()
        by_Y = super().curvature(S, R) / class_size**2
        by_weight = S * R / class_size**2 + 1e-12
        return np.concatenate([by_Y, by_weight])

    def _norms(self, x: Float64Array) -> Float64Array:
        """Returns d, [n], the square root of the softmax."""
        exponents = x[-self.n :]
        # The largest exponent is 0, so that none overflows.
        weights = np.exp(exponents - exponents.max())
        totals = np.bincount(self._class, weights)[self._class]
        return np.sqrt(weights / totals)


def _solved(
    kind: type[Kind],
    problem: _UnitDiagonal,
    X: Float64Array,
    objective: Objective,
    on_progress: Progress | None,
) -> Kind:
    """Searches from a first X; returns the factor of the optimal X, validated."""
    x = problem.variables(X)
    # Each sharpness starts at the optimum of the previous one, because at the start the sharpest
    # mean would depend on almost nothing but the worst round.
    for sharpness in SHARPNESS[objective]:
        x = _minimised(problem, x, sharpness, on_progress)
    lower = problem.matrix(x)
    whole = lower + np.tril(lower, -1).T
    C = lower_factor(whole).copy()
    # This removes rounding errors of the column norms.
    C *= np.sqrt(np.diag(lower)) / np.linalg.norm(C, axis=0)
    strategy = kind.from_matrix(C, f"{kind.model_fields['kind'].default}.npy")
    claimed = _Evaluation(problem, x).variances
    measured = strategy.error_variances(problem.n, problem.workload)
    if not np.allclose(measured, claimed, rtol=1e-7):
        raise OptimizationFailed(
            f"the optimum claims a mean variance of {claimed.mean():.9g}, the slow path finds "
            f"{measured.mean():.9g}"
        )
    return strategy


class _Evaluation:
    """X^-1, A X^-1 and the variances of the rounds at one point. Raises FloatingPointError if X is
    not positive definite."""

    def __init__(self, problem: _UnitDiagonal, x: Float64Array) -> None:
        # LAPACK is column-major; passing the transpose, which is upper triangular, avoids a copy.
        factor, failed = _potrf(problem.matrix(x).T, lower=0, overwrite_a=1, clean=1)
        if failed:
            raise FloatingPointError
        inverse = _potri(factor, lower=0, overwrite_c=1)[0]
        # potri fills one triangle; adding its transpose counts the diagonal twice.
        full = inverse + inverse.T
        full[np.diag_indices(problem.n)] *= 0.5
        self.inverse_diagonal = np.diag(full).copy()
        # A X^-1, in place, because the matrix has 32 MB at 2000 rounds.
        self.M = problem.workload.applied(full)
        # (A X^-1 A')[t, t]. Row t of the prefix sum has ones up to t.
        weighted = np.tril(self.M) if problem.A is None else self.M * problem.A
        self.variances = weighted.sum(axis=1)


def _minimised(
    problem: _UnitDiagonal, start: Float64Array, sharpness: int, on_progress: Progress | None
) -> Float64Array:
    """Returns the variables at which L-BFGS ends, scaled by the curvature at the start."""
    first = _Evaluation(problem, start)
    weights = _weights(first.variances, sharpness)[1]
    S = np.einsum("ti,t,ti->i", first.M, weights, first.M)
    curvature = problem.curvature(S, first.inverse_diagonal)
    scale = 1.0 / np.sqrt(curvature)
    search = _Search(problem, scale, sharpness, on_progress)
    result = minimize(
        search.value_and_gradient,
        start / scale,
        jac=True,
        method="L-BFGS-B",
        callback=search.accepted,
        options={
            "maxcor": 15,
            "maxiter": 1500 if sharpness == 1 else 300,
            "maxfun": 3000,
            # Ends within a relative 2e-6 of the best known variances
            # (tests/mechanisms/test_optimize.py).
            "ftol": 2e-7 if sharpness == 1 else 1e-8,
            "gtol": 1e-9,
        },
    )
    return result.x * scale


def _weights(variances: Float64Array, sharpness: int) -> tuple[float, Float64Array]:
    """Returns (mean over t of v_t^p)^(1/p), and its derivatives by v_t."""
    # Relative to the largest variance, because 512th powers would overflow.
    largest = variances.max()
    powers = (variances / largest) ** sharpness
    value = largest * powers.mean() ** (1 / sharpness)
    shares = powers / powers.sum()
    return float(value), value * shares / variances


class _Search:
    """Objective and gradient for L-BFGS.

    If X is not positive definite, the search returns the value f + |s| and the slope 3 |s| at a
    step d from the last accepted point (value f, slope s < 0). They belong to the parabola through
    that point with its minimum at a quarter of the step, so the line search continues there.
    """

    def __init__(
        self,
        problem: _UnitDiagonal,
        scale: Float64Array,
        sharpness: int,
        on_progress: Progress | None,
    ) -> None:
        self._problem = problem
        self._scale = scale
        self._sharpness = sharpness
        self._on_progress = on_progress
        self._latest: tuple[Float64Array, float, Float64Array] | None = None
        self._accepted = self._latest
        self._iterations = 0

    def value_and_gradient(self, y: Float64Array) -> tuple[float, Float64Array]:
        x = y * self._scale
        try:
            point = _Evaluation(self._problem, x)
        except FloatingPointError:
            assert self._accepted is not None, "the start is positive definite"
            at, value, gradient = self._accepted
            slope = float(gradient @ (y - at))
            return value + abs(slope), -3.0 * gradient
        value, weights = _weights(point.variances, self._sharpness)
        # The gradient by X is -M'M (see the head of this file), with a weight for each round's row.
        M = np.sqrt(weights)[:, None] * point.M
        by_X = self._problem.band_gradient(M)
        gradient = -self._problem.pull_back(by_X, x) * self._scale
        self._latest = (y.copy(), value, gradient)
        self._accepted = self._accepted or self._latest
        return value, gradient

    def accepted(self, y: Float64Array) -> None:
        del y
        self._accepted = self._latest
        self._iterations += 1
        if self._on_progress and self._iterations % 10 == 0 and self._latest:
            error = math.sqrt(self._latest[1])
            self._on_progress(f"iteration {self._iterations}: error {error:.6f}")
