"""Comparison of mechanisms by their errors at equal privacy.

A noise multiplier z multiplies the noise on the rows of C, and kinds of mechanism scale C
differently: the columns of the identity have norm 1, those of a BLT are longer. So equal
multipliers mean neither equal privacy nor equal error. Comparable are the errors of the prefix sums
if every mechanism has the noise multiplier that gives the same rho. Source: McMahan, Xu, Zhang
2024, section 3 (MaxLoss, RmsLoss); Bun and Steinke 2016 (rho).
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

from fedray.base.errors import InputError
from fedray.base.rounding import up
from fedray.mechanisms.loss import prefix_errors
from fedray.mechanisms.strategy import Strategy

NOT_COMPARABLE = (
    "Noise multipliers of different kinds of mechanism cannot be compared, because each multiplies "
    "the noise of another matrix: "
    "compare the errors of the prefix sums at the same rho."
)


@dataclass(frozen=True, slots=True)
class Utility:
    """Errors of one mechanism at the rho that all compared mechanisms have, at clip norm 1."""

    name: str
    """Name of the mechanism; its kind by default."""
    sensitivity: float
    """Sensitivity of a trace or under a participation."""
    rms_loss: float
    """RmsLoss at that sensitivity: root mean square error over the rounds, at mu = 1."""
    max_loss: float
    """MaxLoss at that sensitivity: error of the worst round, at mu = 1."""
    rho: float
    """The common rho (zCDP)."""
    noise_multiplier: float
    """Noise multiplier of this mechanism at the common rho; not comparable between kinds."""
    rms_prefix_error: float
    """Standard deviation of the noise on a prefix sum at that multiplier, root mean square over
    rounds: the figure to sort by."""
    max_prefix_error: float
    """The same for the worst round."""

    def __repr__(self) -> str:
        return (
            f"<Utility of {self.name} at rho {up(self.rho, 6)}: error of prefix sums, rms "
            f"{self.rms_prefix_error:.6g}, max {self.max_prefix_error:.6g}>"
        )

    def to_json(self) -> dict[str, Any]:
        """Returns one JSON object with a key per field."""
        return asdict(self)


def utility(
    strategy: Strategy, rounds: int, sensitivity: float, rho: float, name: str | None = None
) -> Utility:
    """Computes the errors of a strategy at a sensitivity and a rho.

    Args:
        strategy: the mechanism.
        rounds: n, number of rounds released.
        sensitivity: sensitivity of this strategy, of a trace or under (b, k), at clip norm 1.
        rho: common rho of all compared mechanisms.
        name: name of the mechanism; default: its kind.

    Raises:
        InputError: the sensitivity or rho is not positive and finite, the strategy has fewer
            rounds, or its matrix is nearly singular and has no finite error.
    """
    for argument, value in (("sensitivity", sensitivity), ("rho", rho)):
        if not 0 < value < math.inf:
            rule = "must be positive and finite for a comparison"
            raise InputError.of(argument, value, rule, "leave the comparison out")
    max_error, rms_error = prefix_errors(strategy, rounds)
    noise_multiplier = sensitivity / math.sqrt(2.0 * rho)
    return Utility(
        name=strategy.kind if name is None else name,
        sensitivity=sensitivity,
        rms_loss=sensitivity * rms_error,
        max_loss=sensitivity * max_error,
        rho=rho,
        noise_multiplier=noise_multiplier,
        rms_prefix_error=noise_multiplier * rms_error,
        max_prefix_error=noise_multiplier * max_error,
    )
