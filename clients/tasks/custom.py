"""A user's own task; what it returns is checked on every call."""

import math
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clients.python_file import function_in
from clients.tasks.task import Task
from fedray.errors import ScenarioError
from fedray.messages import Evaluation
from fedray.scenario import CustomTraining

T = TypeVar("T")
METHODS = ("initial_parameters", "device_examples", "losses", "evaluate")
"""Of `clients.tasks.task.Task`, beside `shapes`."""


class CustomTask:
    """See clients.tasks.task.Task. Whatever a user's code raises, or returns against the rules, is
    a ScenarioError."""

    def __init__(self, training: CustomTraining, seed: int) -> None:
        self._file = training.file
        make = function_in(training, "task")
        self._task: Task = self._called("task", lambda: _seeded(make, seed))
        shapes = getattr(self._task, "shapes", None)
        missing = [name for name in METHODS if not callable(getattr(self._task, name, None))]
        if missing:
            self._refuse(f"what task(seed) returned lacks {', '.join(missing)}")
        if not (isinstance(shapes, dict) and shapes and all(map(_is_shape, shapes.values()))):
            self._refuse("`shapes` must have the shape of every parameter by its name")
        self.shapes: dict[str, tuple[int, ...]] = {
            name: tuple(int(edge) for edge in shape) for name, shape in shapes.items()
        }

    def initial_parameters(self) -> NDArray[np.float32]:
        """See clients.tasks.task.Task."""
        given = self._called(
            "initial_parameters",
            lambda: np.asarray(self._task.initial_parameters(), dtype=np.float32),
        )
        expected = sum(math.prod(shape) for shape in self.shapes.values())
        if given.shape != (expected,) or not np.isfinite(given).all():
            self._refuse(
                f"initial_parameters() has shape {given.shape}; it must be [{expected}], as the "
                "shapes say, and finite"
            )
        return given

    def device_examples(self, device_ids: NDArray[np.uint64], count: int) -> Tensor:
        """See clients.tasks.task.Task."""
        given = self._called(
            "device_examples", lambda: self._task.device_examples(device_ids, count)
        )
        if not isinstance(given, Tensor) or given.shape[:2] != (device_ids.size, count):
            self._refuse(
                f"device_examples() gave {_described(given)}; it must be a tensor "
                f"[{device_ids.size}, {count}, ...]: devices, examples"
            )
        return given

    def losses(self, parameters: dict[str, Tensor], batch: Tensor) -> Tensor:
        """See clients.tasks.task.Task."""
        given = self._called("losses", lambda: self._task.losses(parameters, batch))
        if not isinstance(given, Tensor) or given.shape != batch.shape[:1]:
            self._refuse(
                f"losses() gave {_described(given)}; it must be a tensor [{batch.shape[0]}], a "
                "loss per device"
            )
        return given

    def evaluate(self, parameters: dict[str, Tensor]) -> Evaluation:
        """See clients.tasks.task.Task."""
        given = self._called("evaluate", lambda: self._task.evaluate(parameters))
        if not isinstance(given, Evaluation):
            self._refuse(
                f"evaluate() gave {_described(given)}; it must be a fedray.messages.Evaluation"
            )
        return given

    def _called(self, name: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except (Exception, SystemExit) as error:  # whatever a user's code may raise
            self._refuse(f"{name}() failed: {type(error).__name__}: {error}")

    def _refuse(self, rule: str) -> NoReturn:
        raise ScenarioError(f"training.file={self._file!r}: {rule}; correct it") from None


def _seeded(make: Callable[[int], Task], seed: int) -> Task:
    """The task, made with torch's own generator seeded: modules draw their parameters from it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(seed)


def _is_shape(shape: Any) -> bool:
    is_sequence = isinstance(shape, tuple | list)
    return is_sequence and all(isinstance(edge, int) and edge > 0 for edge in shape)


def _described(given: Any) -> str:
    if isinstance(given, Tensor):
        return f"a tensor {list(given.shape)}"
    return f"a {type(given).__name__}"
