"""Identity: independent noise in every round (DP-FedAvg, DP-SGD). C = I."""

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from mechanisms.participation import MinSep
from mechanisms.strategy import Sensitivity, Strategy


class Identity(Strategy):
    """Independent Gaussian noise in every round (McMahan et al. 2018)."""

    kind: Literal["identity"] = "identity"  # pyright: ignore[reportIncompatibleVariableOverride]  (frozen, so narrowing is safe)
    """Independent noise."""
    paper: ClassVar[str] = "McMahan, Ramage, Talwar, Zhang 2018"

    def gram_entries(self, first: NDArray[np.int64], second: NDArray[np.int64], rounds: int) -> NDArray[np.float64]:
        del rounds
        return (first == second).astype(np.float64)

    def schema_sensitivity(self, schema: MinSep) -> Sensitivity:
        return Sensitivity(schema.effective_participations**0.5, True, "orthonormal columns: sqrt(min(k, ceil(n/b)))")
