"""Server optimisers: from the mean update of a round to the next parameters."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedray.scenario import FedAvgMomentum


class MomentumStep:
    """velocity = momentum * velocity + update; parameters += learning_rate * velocity (Hsu, Qi,
    Brown 2019, FedAvgM)."""

    def __init__(self, table: FedAvgMomentum, dimension: int, device: torch.device) -> None:
        self._table = table
        self._velocity_D = torch.zeros(dimension, device=device)

    def apply(self, parameters_D: Tensor, update_D: Tensor) -> None:
        """Takes the step in place."""
        self._velocity_D.mul_(self._table.momentum).add_(update_D)
        parameters_D.add_(self._velocity_D, alpha=self._table.learning_rate)

    def state(self) -> dict[str, NDArray]:
        """Named arrays from which `load` restores the optimiser."""
        return {"velocity": self._velocity_D.cpu().numpy().copy()}

    def load(self, state: dict[str, NDArray]) -> None:
        """Restores a state."""
        self._velocity_D.copy_(torch.from_numpy(np.array(state["velocity"])))
