"""Server optimizers: from the mean update of a round to the next parameters. To add one:
docs/extending.md.

Shape suffix: D parameters. Every step treats each coordinate separately.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedray.runtime import devices
from fedray.scenario import Scenario
from fedray.scenario.training import ServerAdagrad, ServerAdam, ServerSGD, ServerYogi


class ServerOptimizer(ABC):
    """Takes one step a round. Its state is named vectors [D], all zero at the start.

    Args:
        scenario: scenario with the table `training.server`.
        dimension: D.
        device: device of the vectors.
        vectors: names of the state's vectors.
    """

    def __init__(
        self, scenario: Scenario, dimension: int, device: torch.device, vectors: tuple[str, ...]
    ) -> None:
        self._schedule = scenario.training.server.schedule
        self._learning_rate = scenario.training.server.learning_rate
        self._rounds = scenario.rounds.count
        self._vectors = {name: torch.zeros(dimension, device=device) for name in vectors}

    def apply(self, parameters_D: Tensor, mean_D: Tensor, round_index: int) -> None:
        """Takes the step of a round in place; may overwrite the mean of its updates."""
        factor = self._schedule.factor(round_index, self._rounds)
        self._step(parameters_D, mean_D, self._learning_rate * factor)

    @abstractmethod
    def _step(self, parameters_D: Tensor, mean_D: Tensor, learning_rate: float) -> None: ...

    def state(self) -> dict[str, NDArray]:
        """Returns named arrays from which `load` restores the optimiser."""
        return {name: devices.on_host(vector).copy() for name, vector in self._vectors.items()}

    def load(self, state: dict[str, NDArray]) -> None:
        """Restores a state."""
        for name, vector in self._vectors.items():
            # A copy, because arrays of a checkpoint may be read-only, about which torch warns.
            vector.copy_(torch.from_numpy(np.array(state[name])))


class SGDStep(ServerOptimizer):
    """See `fedray.scenario.training.ServerSGD`."""

    def __init__(
        self, table: ServerSGD, scenario: Scenario, dimension: int, device: torch.device
    ) -> None:
        super().__init__(scenario, dimension, device, ("velocity",))
        self._table = table

    def _step(self, parameters_D: Tensor, mean_D: Tensor, learning_rate: float) -> None:
        velocity_D, momentum = self._vectors["velocity"], self._table.momentum
        # No factor 1 - momentum: the learning rate applies to one update, as in torch.
        velocity_D.mul_(momentum).add_(mean_D)
        step_D = mean_D.add_(velocity_D, alpha=momentum) if self._table.nesterov else velocity_D
        parameters_D.add_(step_D, alpha=learning_rate)


class AdaptiveStep(ServerOptimizer):
    """FedAdagrad, FedAdam and FedYogi (Reddi et al. 2021, Algorithm 2), chosen by the table.

    v starts at 0, while in the paper it starts at tau^2 or above; epsilon (tau) bounds the first
    steps.
    """

    def __init__(
        self,
        table: ServerAdagrad | ServerAdam | ServerYogi,
        scenario: Scenario,
        dimension: int,
        device: torch.device,
    ) -> None:
        super().__init__(scenario, dimension, device, ("m", "v"))
        self._table = table

    def _step(self, parameters_D: Tensor, mean_D: Tensor, learning_rate: float) -> None:
        table, m_D, v_D = self._table, self._vectors["m"], self._vectors["v"]
        m_D.mul_(table.beta1).add_(mean_D, alpha=1.0 - table.beta1)
        # In place: the mean is no longer needed, and this saves a vector of D numbers.
        # v also sums the variance of the noise, which a correction would subtract (Tang et al.
        # 2024, DP-AdamBC). We do not: with much noise, the step comes close to momentum SGD at a
        # lower rate.
        square_D = mean_D.square_()
        if isinstance(table, ServerAdagrad):
            v_D.add_(square_D)
        elif isinstance(table, ServerAdam):
            v_D.mul_(table.beta2).add_(square_D, alpha=1.0 - table.beta2)
        else:
            # Yogi's v moves towards the square by a step proportional to the square.
            sign_D = torch.sign(v_D - square_D)
            v_D.sub_(square_D.mul_(sign_D), alpha=1.0 - table.beta2)
        parameters_D.addcdiv_(m_D, v_D.sqrt().add_(table.epsilon), value=learning_rate)


OPTIMIZERS: dict[str, Callable[..., ServerOptimizer]] = {
    "adagrad": AdaptiveStep,
    "adam": AdaptiveStep,
    "sgd": SGDStep,
    "yogi": AdaptiveStep,
}
"""Optimisers by `training.server.kind`; they take their table, the scenario, D and a device."""


def optimizer_of(scenario: Scenario, dimension: int, device: torch.device) -> ServerOptimizer:
    """Returns the optimiser for a scenario's table `training.server` and D = `dimension`."""
    table = scenario.training.server
    return OPTIMIZERS[table.kind](table, scenario, dimension, device)
