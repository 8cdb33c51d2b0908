"""Targets of an optimisation: one participation, or weighted outcomes; and the loss of Toeplitz
strategies, with its derivatives."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedray.base.arrays import Float64Array
from fedray.base.errors import InputError
from ..loss import Objective
from ..participation import MinSep
from ..strategy import MOST_MATRIX_ROUNDS
from ..workload import PREFIX, Workload

Progress = Callable[[str], None]
"""Receiver of progress lines."""


@dataclass(frozen=True, slots=True)
class Target:
    """One outcome of a weighted optimisation, which minimises the mean of the log losses."""

    participation: MinSep
    """(n, b, k) of the outcome."""
    weight: float = 1.0
    """Positive weight, relative to the other outcomes."""

    def __post_init__(self) -> None:
        if not 0 < self.weight < math.inf:
            rule = "of a target must be positive and finite"
            raise InputError.of("weight", self.weight, rule, "leave such targets out")


def error_weights(objective: Objective, rounds: int) -> Float64Array:
    """Returns the weight of each beta_i^2 in the squared error, [rounds], if both matrices are
    Toeplitz and beta are the coefficients of A C^-1.

    beta_i is part of the error of every round from i on. In the last round, which is the worst, its
    weight is 1; in the mean, it is the share of rounds from i on (McMahan, Xu, Zhang 2024,
    Proposition 3.3).
    """
    # beta_i^2 only adds to the error of later rounds, so the last round is the worst.
    if objective == "max":
        return np.ones(rounds)
    return (rounds - np.arange(rounds, dtype=np.float64)) / rounds


def error_form(objective: Objective, workload: Workload, rounds: int) -> Float64Array:
    """Returns Q, [rounds, rounds], such that d'Q d is the mean squared error, for any workload, of
    a Toeplitz C whose inverse has the coefficients d.

    Column s of C^-1 is d shifted down by s, so Q[i, j] is the sum over s of K[i + s, j + s], with K
    = A'A / rounds.

    Raises:
        InputError: the objective is "max", for which the worst round would depend on d, because
            errors need not grow with the rounds.
    """
    if objective == "max":
        rule = f"is not available for a Toeplitz strategy with workload {workload}"
        raise InputError.of("loss", objective, rule, "use rms")
    if rounds > MOST_MATRIX_ROUNDS:
        rule = f"is more than {MOST_MATRIX_ROUNDS:,}, the most for workload {workload}"
        raise InputError.of("rounds", rounds, rule, "use fewer rounds, or workload prefix")
    A = workload.matrix(rounds)
    # One pass over the diagonals costs n^2; the sum over s by definition would cost n^3.
    K = A.T @ A / rounds
    Q = np.zeros((rounds, rounds))
    for lag in range(rounds):
        sums = np.cumsum(np.diagonal(K, lag)[::-1])[::-1]
        # A stride of rounds + 1 walks along a diagonal: first the upper one, then the lower.
        Q.ravel()[lag : (rounds - lag) * rounds : rounds + 1] = sums
        Q.ravel()[lag * rounds :: rounds + 1] = sums
    return Q


class LossOfCoefficients:
    """Weighted mean over targets of log(sensitivity x error), and its derivatives, as functions of
    the coefficients c of a Toeplitz C and d of C^-1."""

    def __init__(
        self, targets: Sequence[Target], objective: Objective, workload: Workload = PREFIX
    ) -> None:
        self._targets = targets
        self._workload = workload
        lengths = {target.participation.rounds for target in targets}
        self.rounds = max(lengths)
        """Length of c and of d: the rounds of the longest target."""
        workload.check_rounds(self.rounds)
        self._error_weights: dict[int, Float64Array] = {}
        self._error_forms: dict[int, Float64Array] = {}
        for n in lengths:
            if workload.is_toeplitz:
                self._error_weights[n] = error_weights(objective, n)
            else:
                self._error_forms[n] = error_form(objective, workload, n)
        self._weight = sum(target.weight for target in targets)

    def __call__(
        self, c: Float64Array, d: Float64Array
    ) -> tuple[float, Float64Array, Float64Array]:
        """Returns the loss and its derivatives by c and by d, as if d did not depend on c."""
        value = 0.0
        by_c = np.zeros_like(c)
        by_d = np.zeros_like(d)
        by_beta = np.zeros_like(d)
        # beta are the coefficients of B = A C^-1; their squares add up to the error.
        beta = self._workload.applied(d.copy()) if self._error_weights else d
        for target in self._targets:
            n = target.participation.rounds
            b = target.participation.min_sep
            k = target.participation.max_participations
            share = target.weight / self._weight
            # Rounds 0, b, 2 b, ...: the worst pattern of Theorem 3.1 (and with at most b bands of
            # any C). A search may leave the condition of the theorem; so results are checked by the
            # strategy's own code.
            column = _shifted_sum(c[:n], b, k)
            squared_sensitivity = float(np.sum(column * column))
            if n in self._error_weights:
                times = self._error_weights[n]
                squared_error = float(np.sum(times * beta[:n] ** 2))
                by_beta[:n] += (share / squared_error) * times * beta[:n]
            else:
                by_error = self._error_forms[n] @ d[:n]
                squared_error = float(d[:n] @ by_error)
                by_d[:n] += (share / squared_error) * by_error
            value += 0.5 * share * math.log(squared_sensitivity * squared_error)
            # The transpose of a shift down is a shift up, so reverse, sum, reverse.
            transposed = _shifted_sum(column[::-1], b, k)[::-1]
            by_c[:n] += (share / squared_sensitivity) * transposed
        if self._error_weights:
            # A' is A with rows and columns reversed, since A is Toeplitz.
            by_d = self._workload.applied(by_beta[::-1].copy())[::-1]
        return value, by_c, by_d


def _shifted_sum(x: Float64Array, b: int, k: int) -> Float64Array:
    """Returns sum_{j < k} of x shifted down by j b, [n]. For the first column of C its norm is the
    sensitivity (Theorem 3.1)."""
    n = x.size
    # In rows of length b a shift by b is one row, so this is a windowed sum over k rows.
    rows = np.zeros((-(-n // b), b))
    rows.ravel()[:n] = x
    total = np.cumsum(rows, axis=0)
    total[k:] -= total[:-k].copy()
    return total.ravel()[:n]
