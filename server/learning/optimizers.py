"""Server optimizers: from the mean update of a round to the next parameters. To add one:
docs/extending.md.

Shape suffix: D parameters. Built-in steps treat each coordinate separately.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fedray.base.rng import Stream, stream_seed
from fedray.runtime import devices
from fedray.runtime.devices import own_draws, seed_draws
from fedray.scenario import Scenario
from fedray.scenario.python_file import OptimizerFile
from fedray.scenario.training import (
    CustomServer,
    Schedule,
    ServerAdagrad,
    ServerAdam,
    ServerSGD,
    ServerYogi,
)

_NUMBERS = (bool, int, float)
_FIXED = (bool, int, float, str, type(None), torch.dtype, FunctionType, type)
"""Types of values that do not change."""
_TYPES = {torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.bool}
_OF_TORCH = vars(torch.optim.SGD([torch.zeros(1)], lr=0.1)).keys()
"""Attributes that every optimizer has."""


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
        self._weight_decay = scenario.training.server.weight_decay
        self._rounds = scenario.rounds.count
        self._vectors = {name: torch.zeros(dimension, device=device) for name in vectors}

    def apply(self, parameters_D: Tensor, mean_D: Tensor, round_index: int) -> None:
        """Takes the step of a round in place; may overwrite the mean of its updates."""
        learning_rate = self._learning_rate * self._schedule.factor(round_index, self._rounds)
        if self._weight_decay:
            parameters_D.mul_(1.0 - learning_rate * self._weight_decay)
        self._step(parameters_D, mean_D, learning_rate)

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


class CustomStep(ServerOptimizer):
    """A user's optimizer of the whole model; see `fedray.scenario.training.CustomServer`.

    A checkpoint has the optimizer's `state`, tensors and numbers, and the numbers among its
    options. Whatever else changes in a step would be lost, so it is refused after that step.

    file: the user's file.
    """

    def __init__(
        self, table: CustomServer, scenario: Scenario, dimension: int, device: torch.device
    ) -> None:
        super().__init__(scenario, dimension, device, ())
        self.file = OptimizerFile(table)
        self._seed = scenario.training_seed
        self._is_scheduled = table.schedule != Schedule()
        self._round_index = 0
        # The optimizer knows the parameters by this tensor, which has their memory in a step.
        self._vector = torch.zeros(dimension, device=device)
        self._optimizer: Any = None
        self._constant: dict[str, list[Any]] = {}
        """The values that no checkpoint has, when the optimizer was made."""

    def apply(self, parameters_D: Tensor, mean_D: Tensor, round_index: int) -> None:
        self._round_index = round_index
        device = parameters_D.device
        with own_draws(device):
            # Draws of a round do not depend on earlier rounds, which a resumed run has not drawn.
            seed_draws(device, stream_seed(self._seed, Stream.OPTIMIZER_STEP, round_index))
            super().apply(parameters_D, mean_D, round_index)

    def _step(self, parameters_D: Tensor, mean_D: Tensor, learning_rate: float) -> None:
        self._vector.data = parameters_D
        if self._optimizer is None:
            self._begin()
        assert self._optimizer is not None
        if self._is_scheduled:
            for group in self._optimizer.param_groups:
                if "lr" not in group:
                    raise self.file.refused(
                        "its param_groups have no 'lr', which training.server.schedule sets",
                        "leave the schedule out, or name the learning rate 'lr'",
                    )
                group["lr"] = learning_rate
        # Optimizers descend, and an update is added.
        self._vector.grad = mean_D.neg_()
        self.file.step(self._optimizer)
        if self._vector.data_ptr() != parameters_D.data_ptr():
            parameters_D.copy_(self._vector)
        self._check()

    def _begin(self) -> None:
        self._optimizer = self.file.made([self._vector], self._learning_rate)
        self._constant = self._unsaved()

    def _saved(self) -> Iterator[tuple[str, Any]]:
        """Yields everything that a checkpoint has, by name."""
        for key, value in self._optimizer.state.items():
            if key is self._vector:
                yield from ((f"own.{name}", each) for name, each in value.items())
            else:
                yield f"shared.{key}", value
        for key, value in self._optimizer.param_groups[0].items():
            if type(value) in _NUMBERS:
                yield f"option.{key}", value

    def _unsaved(self) -> dict[str, list[Any]]:
        """Returns the values that no checkpoint has: of attributes that the user's class adds, and
        of options that are not numbers."""
        group = self._optimizer.param_groups[0].items()
        values = {
            **vars(self._optimizer),
            **{key: each for key, each in group if key != "params" and type(each) not in _NUMBERS},
        }
        return {name: tree_leaves(each) for name, each in values.items() if name not in _OF_TORCH}

    def _check(self) -> None:
        """Refuses an optimizer that a checkpoint cannot restore. Raises ScenarioError."""
        remedy = "keep what changes in `state`, as tensors or numbers"
        for name, value in self._saved():
            if not _can_be_saved(value):
                raise self.file.refused(
                    f"{name.partition('.')[2]!r} in its state is a {type(value).__name__}, which "
                    "no checkpoint can have",
                    remedy,
                )
        for name, values in self._unsaved().items():
            # Other objects may change and stay equal.
            if odd := [each for each in values if not isinstance(each, _FIXED)]:
                raise self.file.refused(
                    f"its {name!r} holds a {type(odd[0]).__name__}, which no checkpoint has", remedy
                )
            if values != self._constant.get(name):
                raise self.file.refused(
                    f"its {name!r} changes in a step, and no checkpoint has it", remedy
                )

    def state(self) -> dict[str, NDArray]:
        found = {}
        for name, value in self._saved() if self._optimizer is not None else ():
            if not isinstance(value, Tensor):
                found[f"number.{name}"] = np.array(value)
                continue
            # Torch keeps numbers of steps on the CPU, whatever the device.
            place = "beside" if value.device == self._vector.device else "host"
            found[f"{place}.{name}"] = devices.on_host(value.detach()).copy()
        return found

    def load(self, state: dict[str, NDArray]) -> None:
        if not state:
            return
        self._begin()
        self._optimizer.state.clear()
        for name, array in state.items():
            kind, place, key = name.split(".", 2)
            value = array.item() if kind == "number" else torch.from_numpy(np.array(array))
            if kind == "beside":
                value = value.to(self._vector.device)
            if place == "option":
                self._optimizer.param_groups[0][key] = value
            elif place == "own":
                self._optimizer.state[self._vector][key] = value
            else:
                self._optimizer.state[key] = value


def _can_be_saved(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.layout is torch.strided and value.dtype in _TYPES
    return type(value) in _NUMBERS and (type(value) is not int or -(2**63) <= value < 2**63)


OPTIMIZERS: dict[str, Callable[..., ServerOptimizer]] = {
    "adagrad": AdaptiveStep,
    "adam": AdaptiveStep,
    "custom": CustomStep,
    "sgd": SGDStep,
    "yogi": AdaptiveStep,
}
"""Optimisers by `training.server.kind`; they take their table, the scenario, D and a device."""


def optimizer_of(scenario: Scenario, dimension: int, device: torch.device) -> ServerOptimizer:
    """Returns the optimiser for a scenario's table `training.server` and D = `dimension`."""
    table = scenario.training.server
    return OPTIMIZERS[table.kind](table, scenario, dimension, device)
