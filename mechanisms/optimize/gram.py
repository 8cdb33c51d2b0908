"""Optimizes whole matrices over their Gram matrix X = C'C: banded, and dense for one participation
or for many.

minimise tr(A'A X^-1) over positive definite X whose free entries are a band, or all except those of
rounds that one device may join (Choquette-Choo et al. 2023, Problem 2; 2022, section 4; Denisov et
al. 2022, equation 6). The problem is convex, and with M = A X^-1 its gradient is -M'M on the free
entries (checked against JAX's by tests/mechanisms/test_optimize.py; forming it directly costs a
third of differentiating through the factorisation). L-BFGS, scaled by the diagonal of the Hessian
at the start: d2f/dX_ij^2 = 2 (S_ii R_jj + S_jj R_ii), R = X^-1, S = M'M, without its off-diagonal
part.
"""

import math
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import get_lapack_funcs
from scipy.optimize import minimize

from fedray.base.errors import InputError, OptimizationFailed
from fedray.mechanisms.band_fhu import BandFHU
from fedray.mechanisms.banded import Banded
from fedray.mechanisms.dense import Dense
from fedray.mechanisms.loss import loss
from fedray.mechanisms.optimize.objective import Objective, Progress
from fedray.mechanisms.optimize.toeplitz import optimize_toeplitz
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.triangular import MOST_ROUNDS, MatrixFile, lower_factor

Kind = TypeVar("Kind", Banded, Dense)
_potrf, _potri = get_lapack_funcs(("potrf", "potri"), dtype=np.float64)

COLUMNS_TOGETHER = 256
"""Columns of M whose products are taken together."""

SHARPNESS: dict[Objective, tuple[int, ...]] = {"rms": (1,), "max": (1, 8, 64, 512)}
"""Powers p of the mean over rounds of variance^p that is minimised, one after another. For the
worst round p ends at 512: the largest variance is then at most n^(1/512) times the least possible,
1.5 % at 2052 rounds, and half of that in error."""


def optimize_banded(
    participation: MinSep,
    bands: int,
    objective: Objective = "rms",
    on_progress: Progress | None = None,
) -> Banded:
    """The banded C of unit columns of least error, from the best banded Toeplitz one; validated by
    the slow path.

    With at most min-sep bands its error times the exact sensitivity sqrt(k) is the loss
    (Choquette-Choo et al. 2023, Theorem 2). With more, the error is minimised all the same, and the
    sensitivity is known by an upper bound only.

    Args:
        participation: (n, b, k) that the loss is for; n is the size of C.
        bands: diagonals of C that are not zero, the main one included.
        objective: which error: the root mean square over rounds, or that of the worst round.
        on_progress: hears a line every ten iterations.

    Raises:
        InputError: the bands are not within 1 to n, or n is too large for a matrix.
        OptimizationFailed: the slow path finds another error than the optimum claims.
    """
    n = _check(participation, bands)
    # With more than b bands the Toeplitz search would hold coefficients from increasing.
    start_bands = min(bands, participation.min_sep)
    toeplitz = optimize_toeplitz(participation, start_bands, objective)
    C = _unit_columns(toeplitz.first_column(n))
    lags = _lags(n)
    is_free = (lags > 0) & (lags < bands)
    problem = _UnitDiagonal(is_free)
    return _solved(Banded, problem, C.T @ C, participation, objective, on_progress)


def optimize_dense(
    participation: MinSep, objective: Objective = "rms", on_progress: Progress | None = None
) -> Dense:
    """The C of least loss for devices that take part at most k times, exactly b apart; validated by
    the slow path.

    The columns of one device's rounds are orthogonal, and their squared norms sum to 1
    (Choquette-Choo et al. 2022); where k is less than ceil(n / b), all norms are equal instead.
    With one participation this is the optimum of Denisov et al. 2022. For gaps of more than b an
    upper bound says what holds.

    Args:
        participation: (n, b, k) that the loss is for; n is the size of C.
        objective: which error: the root mean square over rounds, or that of the worst round.
        on_progress: hears a line every ten iterations.

    Raises:
        InputError: n is too large for a matrix.
        OptimizationFailed: the slow path finds another error than the optimum claims.
    """
    n = _check(participation, participation.rounds)
    free = _free_of_devices(participation)
    most_turns = -(-n // participation.min_sep)
    takes_every_turn = participation.max_participations == most_turns > 1
    # With this many participations a pattern is a whole class of rounds modulo b, whose squared
    # norms need only sum to 1; with fewer, norms are held equal.
    problem = _FreeNorms(free, participation.min_sep) if takes_every_turn else _UnitDiagonal(free)
    return _solved(Dense, problem, _start(free, n), participation, objective, on_progress)


def optimize_dense_unit_columns(
    participation: MinSep, objective: Objective = "rms", on_progress: Progress | None = None
) -> Dense:
    """Runs `optimize_dense` with all columns of unit norm: every round is protected alike, at a
    percent more loss.

    Its `participation`, `objective` and `on_progress`, and its errors, are those of
    `optimize_dense`.
    """
    n = _check(participation, participation.rounds)
    free = _free_of_devices(participation)
    problem = _UnitDiagonal(free)
    return _solved(Dense, problem, _start(free, n), participation, objective, on_progress)


def _check(participation: MinSep, bands: int) -> int:
    if not 1 <= bands <= participation.rounds:
        raise InputError.of(
            "bands",
            bands,
            f"must be from 1 to `rounds={participation.rounds}`",
            "there are no more diagonals",
        )
    if participation.rounds > MOST_ROUNDS:
        raise InputError.of(
            "rounds",
            participation.rounds,
            f"is more than {MOST_ROUNDS}",
            "use banded-toeplitz or blt for so many",
        )
    return participation.rounds


def _free_of_devices(participation: MinSep) -> NDArray[np.bool_]:
    """Entries below the diagonal of rounds that no device joins, [n, n]."""
    lags = _lags(participation.rounds)
    longest_lag = participation.max_participations * participation.min_sep
    is_multiple = lags % participation.min_sep == 0
    is_joined = is_multiple & (lags < longest_lag)
    return (lags > 0) & ~is_joined


def _lags(n: int) -> NDArray[np.int64]:
    """Row minus column of every entry, [n, n]."""
    rounds = np.arange(n)
    return np.subtract.outer(rounds, rounds)


def _start(free: NDArray[np.bool_], n: int) -> NDArray[np.float64]:
    """Returns the square root of the prefix sum, columns normalised, with only its free entries;
    shrunk until positive definite."""
    C = _unit_columns(BandFHU(bands=n).first_column(n))
    below = np.where(free, C.T @ C, 0.0)
    # Entries that are not free were set to zero, after which X may be indefinite. The identity is
    # positive definite, so shrinking towards it ends. potrf's second result is 0 if it is so.
    while _potrf(np.eye(n) + below + below.T, lower=1)[1] != 0:
        below *= 0.9
    return np.eye(n) + below + below.T


def _unit_columns(c: NDArray[np.float64]) -> NDArray[np.float64]:
    """The lower-triangular Toeplitz matrix of c [n], each column scaled to norm 1."""
    lags = _lags(c.size)
    C = np.where(lags >= 0, c[np.abs(lags)], 0.0)
    return C / np.linalg.norm(C, axis=0)


class _UnitDiagonal:
    """X by its free entries below a diagonal of ones."""

    def __init__(self, free: NDArray[np.bool_]) -> None:
        self.n = len(free)
        self._places = np.flatnonzero(free)
        rows, columns = np.nonzero(free)
        largest_lag = int(np.max(np.subtract(rows, columns), initial=0))
        self._band = largest_lag + 1

    def variables(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        return X.ravel()[self._places]

    def matrix(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """X of the variables x, with zeros above its diagonal, [n, n]; the factorisation reads one
        triangle only."""
        X = np.eye(self.n)
        X.ravel()[self._places] = x
        return X

    def pull_back(
        self, gradient: NDArray[np.float64], x: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Gradient in the variables, of one with respect to X, [n, n] on and below the diagonal."""
        del x
        # Each variable stands in X twice, below the diagonal and above.
        return 2.0 * gradient.ravel()[self._places]

    def curvature(self, S: NDArray[np.float64], R: NDArray[np.float64]) -> NDArray[np.float64]:
        """Diagonal of the Hessian, [variables], from the diagonals of S and R, [n] each (the head
        of this file)."""
        i, j = np.divmod(self._places, self.n)
        return 2.0 * (S[i] * R[j] + S[j] * R[i])

    def band_gradient(self, M: NDArray[np.float64]) -> NDArray[np.float64]:
        """M'M within the band, on and below the diagonal, [n, n]."""
        S = np.zeros((self.n, self.n))
        # Blocks of rows meet only the columns within the band, which saves most of the n^3
        # products where the band is narrow.
        for start in range(0, self.n, COLUMNS_TOGETHER):
            end = start + COLUMNS_TOGETHER
            first = max(0, start - self._band + 1)
            S[start:end, first:end] = M[:, start:end].T @ M[:, first:end]
        return S


class _FreeNorms(_UnitDiagonal):
    """X = D Y D, Y of unit diagonal by its free entries; D^2 sums to 1 over rounds b apart, by a
    softmax of free variables."""

    def __init__(self, free: NDArray[np.bool_], min_sep: int) -> None:
        super().__init__(free)
        self._class = np.arange(self.n) % min_sep

    def variables(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.concatenate([super().variables(X), np.zeros(self.n)])

    def matrix(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        d = self._norms(x)
        Y = super().matrix(x[: -self.n])
        return d[:, None] * Y * d

    def pull_back(
        self, gradient: NDArray[np.float64], x: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        d = self._norms(x)
        by_Y = d[:, None] * np.tril(gradient) * d
        Y = super().matrix(x[: -self.n])
        products = by_Y * Y
        # The derivatives by log d_i: rows and columns are added, because X is symmetric and both
        # its triangles count; the diagonal counts once.
        by_log_d = products.sum(axis=0) + products.sum(axis=1)
        by_log_d = 2.0 * by_log_d - 2.0 * np.diag(products)
        # log d_i is half of the logarithm of a softmax, whose derivative takes off the share's
        # part of the class's total.
        share = d * d
        totals = np.bincount(self._class, by_log_d)[self._class]
        by_weight = 0.5 * (by_log_d - share * totals)
        return np.concatenate([super().pull_back(by_Y, x), by_weight])

    def curvature(self, S: NDArray[np.float64], R: NDArray[np.float64]) -> NDArray[np.float64]:
        # X = D Y D with d_i d_j of about one over the class's size, which second derivatives by Y
        # have squared. The small term keeps the scale finite.
        class_size = np.bincount(self._class)[self._class].mean()
        by_Y = super().curvature(S, R) / class_size**2
        by_weight = S * R / class_size**2 + 1e-12
        return np.concatenate([by_Y, by_weight])

    def _norms(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """d [n], the softmax's square root; the largest exponent is 0, so that none overflows."""
        exponents = x[-self.n :]
        weights = np.exp(exponents - exponents.max())
        totals = np.bincount(self._class, weights)[self._class]
        return np.sqrt(weights / totals)


def _solved(
    kind: type[Kind],
    problem: _UnitDiagonal,
    X: NDArray[np.float64],
    participation: MinSep,
    objective: Objective,
    on_progress: Progress | None,
) -> Kind:
    """The factor of the best X that the search reaches from a first one, validated."""
    x = problem.variables(X)
    # Each sharpness begins at the optimum of the one before: at the start, the sharpest would see
    # nearly nothing but the worst round.
    for sharpness in SHARPNESS[objective]:
        x = _minimised(problem, x, sharpness, on_progress)
    lower = problem.matrix(x)
    whole = lower + np.tril(lower, -1).T
    C = lower_factor(whole).copy()
    # The factor's norms are right but for rounding; this sets their last digit.
    C *= np.sqrt(np.diag(lower)) / np.linalg.norm(C, axis=0)
    strategy = kind.from_matrix(C, f"{kind.model_fields['kind'].default}.npy")
    _validate(strategy, problem, x, participation)
    return strategy


def _validate(
    strategy: MatrixFile, problem: _UnitDiagonal, x: NDArray[np.float64], participation: MinSep
) -> None:
    """Columns have the norms asked for, and forward substitution finds the error that was
    minimised."""
    claimed = _Evaluation(problem, x).variances
    measured = strategy.error_variances(participation.rounds)
    if not np.allclose(measured, claimed, rtol=1e-7):
        raise OptimizationFailed(
            f"the optimum claims a mean variance of {claimed.mean():.9g}, the slow path finds "
            f"{measured.mean():.9g}"
        )
    figures = loss(strategy, participation)
    if not figures.rms_loss <= figures.max_loss * (1 + 1e-12):
        raise OptimizationFailed(
            f"rms loss {figures.rms_loss} above max loss {figures.max_loss}; this is a bug"
        )


class _Evaluation:
    """X^-1, A X^-1 and the rounds' variances at one point. Raises FloatingPointError where X is not
    positive definite."""

    def __init__(self, problem: _UnitDiagonal, x: NDArray[np.float64]) -> None:
        # LAPACK is column-major: X's transpose, upper triangular, is taken in place of a copy.
        factor, failed = _potrf(problem.matrix(x).T, lower=0, overwrite_a=1, clean=1)
        if failed:
            raise FloatingPointError
        inverse = _potri(factor, lower=0, overwrite_c=1)[0]
        # potri fills one triangle; adding its transpose counts the diagonal twice.
        full = inverse + inverse.T
        full[np.diag_indices(problem.n)] *= 0.5
        self.inverse_diagonal = np.diag(full).copy()
        # A, the prefix sum, times X^-1; in place, as each of these is 32 MB at 2000 rounds.
        self.M = np.cumsum(full, axis=0, out=full)
        # Row t of A has ones up to t, so (A X^-1 A')[t, t] sums M's row up to its diagonal.
        self.variances = np.tril(self.M).sum(axis=1)


def _minimised(
    problem: _UnitDiagonal, start: NDArray[np.float64], sharpness: int, on_progress: Progress | None
) -> NDArray[np.float64]:
    """The variables at which L-BFGS ends, in variables scaled by the curvature at the start."""
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
            "ftol": 2e-7 if sharpness == 1 else 1e-8,
            "gtol": 1e-9,
        },
    )
    return result.x * scale


def _weights(variances: NDArray[np.float64], sharpness: int) -> tuple[float, NDArray[np.float64]]:
    """(mean over t of v_t^p)^(1/p), and its derivatives by v_t."""
    # Powers of 512 would overflow; relative to the largest, all are at most 1.
    largest = variances.max()
    powers = (variances / largest) ** sharpness
    value = largest * powers.mean() ** (1 / sharpness)
    shares = powers / powers.sum()
    return float(value), value * shares / variances


class _Search:
    """The function that L-BFGS evaluates; if X is not positive definite, a parabola that turns it
    back.

    At a step d from the last accepted point (value f, slope s < 0) it answers f + |s| and slope 3
    |s|: those of the parabola through the point with its least value a quarter of the way, so that
    the line search continues from there.
    """

    def __init__(
        self,
        problem: _UnitDiagonal,
        scale: NDArray[np.float64],
        sharpness: int,
        on_progress: Progress | None,
    ) -> None:
        self._problem = problem
        self._scale = scale
        self._sharpness = sharpness
        self._on_progress = on_progress
        self._latest: tuple[NDArray[np.float64], float, NDArray[np.float64]] | None = None
        self._accepted = self._latest
        self._iterations = 0

    def value_and_gradient(self, y: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        x = y * self._scale
        try:
            point = _Evaluation(self._problem, x)
        except FloatingPointError:
            assert self._accepted is not None, "the start is positive definite"
            at, value, gradient = self._accepted
            slope = float(gradient @ (y - at))
            return value + abs(slope), -3.0 * gradient
        value, weights = _weights(point.variances, self._sharpness)
        # The gradient by X is -M'M (the head of this file); each round's row has its weight.
        M = np.sqrt(weights)[:, None] * point.M
        by_X = self._problem.band_gradient(M)
        gradient = -self._problem.pull_back(by_X, x) * self._scale
        self._latest = (y.copy(), value, gradient)
        self._accepted = self._accepted or self._latest
        return value, gradient

    def accepted(self, y: NDArray[np.float64]) -> None:
        del y
        self._accepted = self._latest
        self._iterations += 1
        if self._on_progress and self._iterations % 10 == 0 and self._latest:
            error = math.sqrt(self._latest[1])
            self._on_progress(f"iteration {self._iterations}: error {error:.6f}")
