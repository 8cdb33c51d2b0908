"""Optimises the decays of a BLT for the loss under one (n, b, k), or under a weighted set of them.

A BLT and its inverse are determined by their decays theta and theta_hat (Dvijotham et al. 2024,
Lemma 5.2). The parameters p are unconstrained: t = cumsum(exp p), y = exp(-t), theta = y[0::2],
theta_hat = y[1::2], so 1 > theta_1 > theta_hat_1 > theta_2 > ... > 0, which makes every omega
positive. L-BFGS starts from several points, because there are local optima.

Loss and gradient have closed forms, O(n) per buffer and target. The gradient is explicit, because
XLA takes longer to compile it than the whole search takes; tests/mechanisms/test_optimize.py
compares it with that of JAX.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import minimize

from fedray.base.arrays import Float64Array
from fedray.base.errors import InputError, OptimizationFailed
from ..blt import BLT, LEAST_DECAY
from ..loss import Objective, loss
from ..workload import PREFIX, Workload
from .objective import LossOfCoefficients, Progress, Target

ValueAndGradient = Callable[[Float64Array], tuple[float, Float64Array]]

MOST_BUFFERS = 10
POLISHED = 3
"""Number of starts that are optimised to the end: the best ones after a few iterations."""
SMALLEST_STEP, LARGEST_STEP = math.log(LEAST_DECAY), math.log(13.0)
"""Bounds on the log gaps of t: decays that differ by less than 1e-13 count as equal, and decays
below exp(-13) are negligible."""


def optimize_blt(
    targets: Sequence[Target],
    buffers: int,
    objective: Objective = "rms",
    on_progress: Progress | None = None,
    workload: Workload = PREFIX,
) -> BLT:
    """Returns the BLT with the smallest weighted mean of the log losses (for one target: the
    smallest loss), validated by the slow path.

    Args:
        targets: weighted outcomes, at least one.
        buffers: number of pairs of theta and omega, from 1 to MOST_BUFFERS.
        objective: loss to minimise.
        on_progress: receives a line for every start, and for every polished start.
        workload: workload whose error to minimise.

    Raises:
        InputError: an argument is impossible.
        OptimizationFailed: no start ends at a valid BLT.
    """
    if not targets:
        raise InputError.of(
            "targets", [], "must name at least one (rounds, min_sep, max_participations)"
        )
    if not 1 <= buffers <= MOST_BUFFERS:
        raise InputError.of(
            "buffers",
            buffers,
            f"must be from 1 to {MOST_BUFFERS}",
            "more than a handful gain nothing",
        )
    value_and_gradient = LogLoss(targets, objective, workload)
    longest = max(target.participation.rounds for target in targets)
    found: list[tuple[float, Float64Array]] = []

    def report(step: str) -> None:
        if on_progress:
            best = min(value for value, _ in found)
            on_progress(f"{step}: loss {math.exp(best):.6f}")

    for number, start in enumerate(_starts(longest, buffers), 1):
        # A few iterations show which starts are worth polishing; most are not.
        found.append(_descend(value_and_gradient, start, iterations=30))
        report(f"start {number}")
    found.sort(key=lambda each: each[0])
    for place, (_, p) in enumerate(found[:POLISHED]):
        found[place] = _descend(value_and_gradient, p, iterations=3000)
        report(f"polish {place + 1}")
    return _best_valid(found, targets, objective, workload)


def _starts(rounds: int, buffers: int) -> list[Float64Array]:
    """Returns starting points p, with t geometric from about low / rounds to high."""
    starts = []
    # Which local optimum is the best is unknown, so the slowest decay ranges from a thousand runs
    # to a thirtieth of a run.
    for low in (1e-3, 1.0, 6.0, 30.0):
        for high in (0.3, 1.0, 3.0):
            t = np.geomspace(min(low / rounds, high / 10), high, 2 * buffers)
            starts.append(np.log(np.diff(t, prepend=0.0)))
    return starts


def _descend(
    value_and_gradient: ValueAndGradient, start: Float64Array, iterations: int
) -> tuple[float, Float64Array]:
    """Returns (log loss, p) at which L-BFGS ends."""
    bounds = [(SMALLEST_STEP, LARGEST_STEP)] * len(start)
    result = minimize(
        value_and_gradient,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={
            "maxcor": 3 * len(start),
            "maxiter": iterations,
            "maxfun": 10 * iterations,
            "ftol": 1e-13,
            "gtol": 1e-8,
        },
    )
    return float(result.fun), result.x


def _best_valid(
    found: list[tuple[float, Float64Array]],
    targets: Sequence[Target],
    objective: Objective,
    workload: Workload,
) -> BLT:
    """Returns the best result that is a valid BLT and whose loss is confirmed by the strategy's own
    code, which does not use theta_hat."""
    for value, p in sorted(found, key=lambda each: each[0]):
        t, t_hat = _decays(p)
        theta = np.exp(-t)
        omega = np.exp(_log_weights(t, t_hat)[0])
        try:
            blt = BLT(theta=tuple(theta.tolist()), omega=tuple(omega.tolist()))
        except ValueError:
            # Decays became equal or too small, or the noise grows; another start may be valid.
            continue
        if _is_confirmed(blt, value, targets, objective, workload):
            return blt
    raise OptimizationFailed("no start ended at a valid BLT; use fewer buffers")


def _is_confirmed(
    blt: BLT,
    claimed: float,
    targets: Sequence[Target],
    objective: Objective,
    workload: Workload,
) -> bool:
    weights = sum(target.weight for target in targets)
    value = 0.0
    for target in targets:
        measured = loss(blt, target.participation, workload)
        # An upper bound is a looser loss, which the search did not minimise.
        if not measured.sensitivity.is_exact:
            return False
        share = target.weight / weights
        value += share * math.log(measured.of(objective))
    return abs(value - claimed) < 1e-7


class LogLoss:
    """Weighted mean over targets of log(sensitivity x error), and its gradient, as functions of p
    [2 buffers]."""

    def __init__(
        self, targets: Sequence[Target], objective: Objective, workload: Workload = PREFIX
    ) -> None:
        self._loss = LossOfCoefficients(targets, objective, workload)
        self._rounds = np.arange(self._loss.rounds, dtype=np.float64)

    def __call__(self, p: Float64Array) -> tuple[float, Float64Array]:
        t, t_hat = _decays(p)
        # For the inverse, theta and theta_hat swap, and the weights are negative (Lemma 5.2).
        log_omega, by_t, by_t_hat = _log_weights(t, t_hat)
        log_omega_hat, hat_by_t_hat, hat_by_t = _log_weights(t_hat, t)
        omega = np.exp(log_omega)
        omega_hat = -np.exp(log_omega_hat)
        powers = _powers(t, self._rounds.size)
        powers_hat = _powers(t_hat, self._rounds.size)
        c = np.concatenate([[1.0], omega @ powers[:, :-1]])
        # d are the coefficients of C^-1.
        d = np.concatenate([[1.0], omega_hat @ powers_hat[:, :-1]])
        value, by_c, by_d = self._loss(c, d)

        # The chain rule, backwards. A decay t has a direct effect (d theta^s / dt = -s theta^s) and
        # one through the weights omega and omega_hat.
        by_omega = powers[:, :-1] @ by_c[1:]
        direct_t = -omega * (powers[:, :-1] @ (by_c[1:] * self._rounds[:-1]))
        suffix = np.append(by_d[1:], 0.0)
        by_omega_hat = powers_hat @ suffix
        direct_t_hat = -omega_hat * (powers_hat @ (suffix * self._rounds))
        by_log_omega = by_omega * omega
        by_log_omega_hat = by_omega_hat * omega_hat
        gradient_t = direct_t + by_log_omega @ by_t + by_log_omega_hat @ hat_by_t
        gradient_t_hat = direct_t_hat + by_log_omega @ by_t_hat + by_log_omega_hat @ hat_by_t_hat
        # p_i raises t_i and all later t, hence the reversed cumulative sum.
        by_each_t = np.ravel(np.column_stack([gradient_t, gradient_t_hat]))
        by_gap = np.cumsum(by_each_t[::-1])[::-1]
        return value, by_gap * np.exp(p)


def _decays(p: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Returns (t, t_hat), each [buffers], with theta = exp(-t) and theta_hat = exp(-t_hat)."""
    t = np.cumsum(np.exp(p))
    return t[0::2], t[1::2]


def _powers(t: Float64Array, rounds: int) -> Float64Array:
    """Returns exp(-i t) for i < rounds, [buffers, rounds]."""
    # Products of exp(-256 j t) and exp(-i t), i < 256, need few exponentials. Factors stay above
    # exp(-300), which is negligible, because subnormal products are slow.
    blocks = -(-rounds // 256)
    coarse_exponents = t[:, None] * (256.0 * np.arange(blocks))
    fine_exponents = t[:, None] * np.arange(256.0)
    coarse = np.exp(-np.minimum(coarse_exponents, 300.0))
    fine = np.exp(-np.minimum(fine_exponents, 300.0))
    products = coarse[:, :, None] * fine[:, None, :]
    return products.reshape(len(t), -1)[:, :rounds]


def _log_weights(
    t: Float64Array, other: Float64Array
) -> tuple[Float64Array, Float64Array, Float64Array]:
    """Returns log |prod_i (theta_j - theta_hat_i) / prod_{i != j} (theta_j - theta_i)| and its
    derivatives by t and t_hat, [j, i].

    For interlaced decays, omega is positive and omega_hat negative (Dvijotham et al. 2024, Lemma
    5.2).
    """
    is_own = np.eye(len(t), dtype=bool)
    across = t[:, None] - other
    within = np.where(is_own, 1.0, t[:, None] - t)
    # theta_hat_i - theta_j = theta_j expm1(t_j - t_hat_i). One factor theta_j does not cancel and
    # gives -t; expm1 is accurate for nearly equal decays.
    log_across = np.log(np.abs(np.expm1(across)))
    log_within = np.where(is_own, 0.0, np.log(np.abs(np.expm1(within))))
    value = -t + log_across.sum(axis=1) - log_within.sum(axis=1)
    # Derivatives of log |expm1|.
    slope_across = -1.0 / np.expm1(-across)
    slope_within = np.where(is_own, 0.0, -1.0 / np.expm1(-within))
    by_own_t = -1.0 + slope_across.sum(axis=1) - slope_within.sum(axis=1)
    by_t = slope_within + np.diag(by_own_t)
    return value, by_t, -slope_across
