"""A user's own task; what it returns is checked on every call."""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedray.base.errors import ScenarioError
from fedray.clients.data.source import ExampleSource, Field
from fedray.clients.python_file import called, function_in
from fedray.clients.tasks.layout import size_of
from fedray.clients.tasks.task import Batch, Parameters, Task
from fedray.scenario.tasks import CustomTask as CustomTable
from fedray.wire.messages import Metric

T = TypeVar("T")
METHODS = ("initial_parameters", "losses", "measure")
"""What a task must have of `fedray.clients.tasks.task.Task`, beside `shapes` and `metrics`."""


class CustomTask:
    """A user's own task; see fedray.clients.tasks.task.Task.

    Whatever the user's code raises, or returns against the rules, is a ScenarioError.

    Args:
        table: says the file, which defines `task(seed)`.
        seed: of the training.
        fields: of the scenario's data, which the user's task is not told.

    source: the data that the task brings; None if it is trained on the data of the scenario.
    """

    def __init__(self, table: CustomTable, seed: int, fields: Mapping[str, Field]) -> None:
        self._file = table.file
        make = function_in(table, "task")
        # Modules draw their parameters from torch's own generator, which must be a function of the
        # seed here as in every other trainer.
        self._task: Task = self._called("task", lambda: _seeded(make, seed))
        missing = [name for name in METHODS if not callable(getattr(self._task, name, None))]
        if missing:
            self._refuse(f"what task(seed) returned lacks {', '.join(missing)}")
        shapes = getattr(self._task, "shapes", None)
        if not isinstance(shapes, dict) or not shapes or not all(map(_is_shape, shapes.values())):
            self._refuse("`shapes` must have the shape of every parameter by its name")
        self.metrics: tuple[Metric, ...] = tuple(getattr(self._task, "metrics", ()))
        names = {metric.name for metric in self.metrics if isinstance(metric, Metric)}
        # There are fewer names than metrics where two share a name, or one is no Metric.
        if not names or len(names) < len(self.metrics):
            self._refuse("`metrics` must be fedray.wire.messages.Metric objects of different names")
        self.shapes: dict[str, tuple[int, ...]] = {
            name: tuple(int(edge) for edge in shape) for name, shape in shapes.items()
        }
        self.source: ExampleSource | None = getattr(self._task, "source", None)

    def initial_parameters(self) -> NDArray[np.float32]:
        """The user's initial parameters [D].

        Raises:
            ScenarioError: the user's code fails, or they are not D finite numbers.
        """

        def call() -> NDArray[np.float32]:
            return np.asarray(self._task.initial_parameters(), dtype=np.float32)

        given = self._called("initial_parameters", call)
        expected = size_of(self.shapes)
        if given.shape != (expected,) or not np.isfinite(given).all():
            self._refuse(
                f"initial_parameters() has shape {given.shape}; it must be [{expected}], as the "
                "shapes say, and finite"
            )
        return given

    def losses(self, parameters: Parameters, batch: Batch) -> Tensor:
        """The user's mean losses [G] of a `batch` under each device's own `parameters`.

        Raises:
            ScenarioError: the user's code fails, or gives something else.
        """
        given = self._called("losses", lambda: self._task.losses(parameters, batch))
        # Every field has the devices on its first axis, so any of them tells how many there are.
        any_field = next(iter(batch.values()))
        devices = len(any_field)
        if not isinstance(given, Tensor) or given.shape != (devices,):
            self._refuse(
                f"losses() gave {_described(given)}; it must be a tensor [{devices}], a loss per "
                "device"
            )
        return given

    def measure(self, parameters: Parameters, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """The user's metrics of a `batch` under each device's own `parameters`.

        Returns:
            (numerators, weights), [G, B] both, by the name of the metric.

        Raises:
            ScenarioError: the user's code fails, or gives something else.
        """
        given = self._called("measure", lambda: self._task.measure(parameters, batch))
        any_field = next(iter(batch.values()))
        shape = any_field.shape[:2]
        for metric in self.metrics:
            parts = given.get(metric.name, ()) if isinstance(given, dict) else ()
            shapes = [getattr(part, "shape", None) for part in parts]
            if shapes != [shape, shape]:
                self._refuse(
                    f"measure() gave {_described(given)}; it must have a numerator and a weight "
                    f"{list(shape)} of every metric, and those of {metric.name!r} are wrong"
                )
        return given

    def _called(self, name: str, call: Callable[[], T]) -> T:
        return called(f"training.task.file={self._file!r}: {name}()", call)

    def _refuse(self, rule: str) -> NoReturn:
        raise ScenarioError.of(
            "training.task.file", self._file, f"is not a task: {rule}", "correct it"
        ) from None


def _seeded(make: Callable[[int], Task], seed: int) -> Task:
    """The task, made with torch's own generator seeded, which is put back afterwards."""
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
