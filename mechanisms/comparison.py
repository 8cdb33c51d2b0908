"""Compares mechanisms: the error of each at equal privacy.

A noise multiplier z multiplies the noise on the rows of C, and kinds of mechanism scale C
differently: independent noise has columns of norm 1, a BLT has longer ones. So equal multipliers
give neither equal privacy nor equal error. What can be compared is the error of the prefix sums
when every mechanism has the noise multiplier that it needs for the same rho. Source: McMahan, Xu,
Zhang 2024, section 3 (MaxLoss, RmsLoss); Bun and Steinke 2016 (rho).
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from fedray.base.document import Document
from fedray.base.errors import InputError
from .loss import errors
from .participation import MinSep
from .registry import Identity, Tree
from .strategy import Strategy
from .workload import PREFIX, Workload, workload_of

NOT_COMPARABLE = (
    "Noise multipliers of different kinds of mechanism cannot be compared, because each multiplies "
    "the noise of another matrix: "
    "compare the errors of the prefix sums at the same rho."
)


@dataclass(frozen=True, slots=True)
class Utility(Document):
    """The noise and the error of one mechanism at a privacy (rho) common to all that are compared,
    at clip norm 1.

    Compare mechanisms by their errors; their noise multipliers are not comparable.
    """

    name: str
    """Kind of the mechanism."""
    sensitivity: float
    """The sensitivity used: of the trace, or under the participation."""
    rms_loss: float
    """RmsLoss at that sensitivity: root mean square over the rounds of the error at mu = 1."""
    max_loss: float
    """MaxLoss at that sensitivity: error of the worst round, at mu = 1."""
    rho: float
    """The common rho (zCDP)."""
    noise_multiplier: float
    """The noise multiplier that this mechanism needs for the common rho; not comparable between
    kinds."""
    rms_prefix_error: float
    """Standard deviation, at that noise multiplier, of the noise on a prefix sum: root mean square
    over the rounds. The figure by which to rank mechanisms."""
    max_prefix_error: float
    """Standard deviation of the noise on the prefix sum of the worst round, at that noise
    multiplier."""


def utility(
    strategy: Strategy,
    rounds: int,
    sensitivity: float,
    rho: float,
    workload: Workload | str = PREFIX,
) -> Utility:
    """Returns the utility of `strategy` over `rounds` rounds at `sensitivity` (clip norm 1) and
    `rho`.

    Args:
        strategy: the mechanism.
        rounds: number of released rounds n.
        sensitivity: sensitivity of this strategy, for the trace or under (b, k); positive.
        rho: common rho of the comparison; positive.
        workload: workload of the errors, or its text; prefix sums by default.

    Raises:
        InputError: sensitivity or rho is not positive and finite, the strategy has fewer rounds, or
            its matrix is nearly singular and so has no finite error.
    """
    for what, value in (("sensitivity", sensitivity), ("rho", rho)):
        if not 0 < value < math.inf:
            raise InputError.of(
                what,
                value,
                "must be positive and finite for mechanisms to be compared",
                "leave the comparison out",
            )
    max_error, rms_error = errors(strategy, rounds, workload_of(workload))
    # rho = mu^2 / 2, with mu = sensitivity / noise multiplier.
    noise_multiplier = sensitivity / math.sqrt(2.0 * rho)
    return Utility(
        name=strategy.kind,
        sensitivity=sensitivity,
        rms_loss=sensitivity * rms_error,
        max_loss=sensitivity * max_error,
        rho=rho,
        noise_multiplier=noise_multiplier,
        rms_prefix_error=noise_multiplier * rms_error,
        max_prefix_error=noise_multiplier * max_error,
    )


def compared(strategies: Sequence[Strategy], participation: MinSep, rho: float) -> list[Utility]:
    """Returns mechanisms, and independent noise and the tree, by their error at equal privacy;
    least error first. Mechanisms without a proven sensitivity are left out.

    Args:
        strategies: the mechanisms.
        participation: participation that all of them have.
        rho: rho that all of them have; positive.
    """
    kinds = {each.kind for each in strategies}
    # These two are widely known, so they are the yardstick of each comparison.
    yardsticks = (each for each in (Identity(), Tree()) if each.kind not in kinds)
    rows = []
    for strategy in (*strategies, *yardsticks):
        # An unproven case has no place in the comparison.
        with suppress(ValueError):
            sensitivity = strategy.participation_sensitivity(participation).value
            rows.append(utility(strategy, participation.rounds, sensitivity, rho))
    return sorted(rows, key=lambda each: each.rms_prefix_error)
