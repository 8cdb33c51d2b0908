"""Identity, C = I: independent noise in every round (DP-FedAvg, DP-SGD)."""

from typing import ClassVar, Literal

import numpy as np

from fedray.base.arrays import Float64Array
from .recurrence import Independent
from .toeplitz import ToeplitzStrategy


class Identity(ToeplitzStrategy):
    """Independent Gaussian noise in every round (McMahan et al. 2018).

    A prefix sum has the noise of all its rounds, so the error grows with their square root.
    """

    kind: Literal["identity"] = "identity"  # pyright: ignore[reportIncompatibleVariableOverride]  (frozen, so narrowing is safe)
    """Independent noise."""
    paper: ClassVar[str] = "McMahan, Ramage, Talwar, Zhang 2018"

    def first_column(self, rounds: int) -> Float64Array:
        return np.eye(1, rounds)[0]

    def defined_coefficients(self, rounds: int) -> list[float]:
        return [1.0] + [0.0] * (rounds - 1)

    def recurrence(self, rounds: int) -> Independent:
        del rounds
        return Independent()
