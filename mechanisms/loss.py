"""The error and the loss of a strategy for a workload (McMahan, Xu, Zhang 2024, section 3)."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedray.base.errors import InputError
from .participation import MinSep
from .strategy import Sensitivity, Strategy
from .workload import PREFIX, Workload

Objective = Literal["max", "rms"]
"""A loss: that of the worst round, or the root mean square over rounds."""
LOSS_NAMES: dict[Objective, str] = {"max": "MaxLoss", "rms": "RmsLoss"}


def check_objective(given: str) -> None:
    """Raises InputError unless a loss is "max" or "rms"."""
    if given not in LOSS_NAMES:
        raise InputError.of("loss", given, "must be max or rms")


@dataclass(frozen=True, slots=True)
class Purpose:
    """Loss and workload that a mechanism was made for."""

    objective: Objective | None = None
    """Minimised loss; None if it is unknown, as in a file without a record of it."""
    workload: str | None = None
    """Workload as text, such as "prefix"; None if it is unknown."""

    def __str__(self) -> str:
        """The known parts, such as "MaxLoss", or "RmsLoss of momentum=0.9"."""
        name = LOSS_NAMES[self.objective] if self.objective else ""
        rows = self.workload or ""
        if name and rows in ("", str(PREFIX)):
            return name
        return " of ".join(filter(None, (name, rows)))

    def differs_from(self, other: "Purpose") -> bool:
        """Returns whether a part that both know differs."""
        pairs = ((self.objective, other.objective), (self.workload, other.workload))
        return any(own != its for own, its in pairs if own is not None and its is not None)


@dataclass(frozen=True, slots=True)
class Loss:
    """Standard deviation of the noise on the rows of a workload, at clip norm 1.

    Errors assume noise of unit scale. Losses assume noise scaled by the sensitivity, that is, equal
    privacy (mu = 1); they are comparable between mechanisms.
    """

    sensitivity: Sensitivity
    """L2 sensitivity under the participation."""
    max_error: float
    """Standard deviation of the noise in the worst round (for prefix sums: of the worst sum)."""
    rms_error: float
    """Root mean square of the standard deviation over rounds."""

    @property
    def max_loss(self) -> float:
        """MaxLoss = sensitivity x max_error, the error of the worst round at mu = 1."""
        return self.sensitivity.value * self.max_error

    @property
    def rms_loss(self) -> float:
        """RmsLoss = sensitivity x rms_error, the root mean square error over rounds at mu = 1."""
        return self.sensitivity.value * self.rms_error

    def of(self, objective: Objective) -> float:
        """Returns MaxLoss or RmsLoss."""
        return self.max_loss if objective == "max" else self.rms_loss


def loss(strategy: Strategy, participation: MinSep, workload: Workload = PREFIX) -> Loss:
    """Computes the loss of a strategy under a participation, for a workload.

    Raises:
        InputError: the strategy or the workload has fewer rounds than the participation.
    """
    max_error, rms_error = errors(strategy, participation.rounds, workload)
    sensitivity = strategy.participation_sensitivity(participation)
    return Loss(sensitivity, max_error, rms_error)


def errors(strategy: Strategy, rounds: int, workload: Workload = PREFIX) -> tuple[float, float]:
    """Returns (max_error, rms_error) of a workload, at noise of unit scale.

    Raises InputError if the strategy has fewer rounds or its C is nearly singular.
    """
    strategy.check_rounds(rounds)
    workload.check_rounds(rounds)
    # No warning on overflow: values that are not finite are refused below.
    with np.errstate(all="ignore"):
        variances = strategy.error_variances(rounds, workload)
    if not np.isfinite(variances).all():
        raise InputError(
            f"strategy {strategy!r} has no finite error over {rounds} rounds; its C is nearly "
            "singular"
        )
    return float(variances.max()) ** 0.5, float(variances.mean()) ** 0.5
