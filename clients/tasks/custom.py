"""A user's own task; its results are checked on every call."""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedray.base.errors import ScenarioError
from fedray.scenario.python_file import CodeFailed, called, function_in
from fedray.scenario.tasks import CustomTask as CustomTable
from fedray.wire.messages import Metric
from ..data.source import ExampleSource, Fields
from .layout import Named, size_of
from .module import ModuleTask
from .task import Batch, Measures, Parameters, Task, Vector

T = TypeVar("T")
METHODS = ("initial_parameters", "losses", "measure")
"""Methods that a task must have, in addition to `shapes` and `metrics`."""


class CustomTask:
    """A user's own task; see fedray.clients.tasks.task.Task.

    Every method raises ScenarioError if the user's code fails or returns something else.

    Args:
        table: names the file, which defines `task(seed)`.
        seed: seed of the training.
        fields: fields of the scenario's data, which the user's task does not get.

    source: data that the task brings; None if it trains on the data of the scenario.
    alone, uneven, draws, frozen: see fedray.clients.tasks.module.ModuleTask; empty for other tasks.
    """

    alone = uneven = ""
    draws = False

    def __init__(self, table: CustomTable, seed: int, fields: Fields) -> None:
        self._file = table.file
        make = function_in(table, "task")
        self._task: Task = self._called("task", lambda: seeded(make, seed))
        missing = [name for name in METHODS if not callable(getattr(self._task, name, None))]
        if missing:
            self._refuse(f"the result of task(seed) lacks {', '.join(missing)}")
        shapes = getattr(self._task, "shapes", None)
        if isinstance(self._task, ModuleTask) and not shapes:
            self._refuse(
                "no parameter of its module can be trained, because "
                f"{'all are frozen' if self._task.frozen else 'it has none'}"
            )
        if not isinstance(shapes, dict) or not shapes or not all(map(_is_shape, shapes.values())):
            self._refuse("`shapes` must have the shape of every parameter by its name")
        self.metrics: tuple[Metric, ...] = tuple(getattr(self._task, "metrics", ()))
        names = {metric.name for metric in self.metrics if isinstance(metric, Metric)}
        # There are fewer names than metrics if two share a name, or one is not a Metric.
        if not names or len(names) < len(self.metrics):
            self._refuse("`metrics` must be fedray.wire.messages.Metric objects of different names")
        self.shapes = {name: tuple(map(int, shape)) for name, shape in shapes.items()}
        self.source: ExampleSource | None = getattr(self._task, "source", None)
        self.frozen = self._task.frozen if isinstance(self._task, ModuleTask) else 0

    def initial_parameters(self) -> Vector:
        def call() -> Vector:
            return np.asarray(self._task.initial_parameters(), dtype=np.float32)

        given = self._called("initial_parameters", call)
        expected = size_of(self.shapes)
        if given.shape != (expected,) or not np.isfinite(given).all():
            self._refuse(
                f"initial_parameters() has shape {given.shape}; it must be [{expected}], as the "
                "shapes say, and finite"
            )
        return given

    def choose(self, batch: Batch) -> None:
        """See fedray.clients.tasks.module.ModuleTask.choose; other tasks train together."""
        if isinstance(task := self._task, ModuleTask):
            self._called("losses", lambda: task.choose(batch))
            self.alone, self.uneven, self.draws = task.alone, task.uneven, task.draws

    def seed_devices(self, seeds: Sequence[int]) -> None:
        """See fedray.clients.tasks.module.ModuleTask.seed_devices."""
        if isinstance(self._task, ModuleTask):
            self._task.seed_devices(seeds)

    def gradients(self, parameters: Parameters, batch: Batch) -> tuple[Tensor, Named] | None:
        """See fedray.clients.tasks.module.ModuleTask.gradients; other tasks train together."""
        if not isinstance(task := self._task, ModuleTask):
            return None
        given = self._called("losses", lambda: task.gradients(parameters, batch))
        return None if given is None else (self._checked(given[0], batch), given[1])

    def losses(self, parameters: Parameters, batch: Batch) -> Tensor:
        given = self._called("losses", lambda: self._task.losses(parameters, batch))
        return self._checked(given, batch)

    def _checked(self, given: Any, batch: Batch) -> Tensor:
        devices, _ = _sizes(batch)
        if not isinstance(given, Tensor) or given.shape != (devices,):
            self._refuse(
                f"losses() gave {_described(given)}; it must be a tensor [{devices}], a loss "
                "per device"
            )
        return given

    def measure(self, parameters: Parameters, batch: Batch) -> Measures:
        given = self._called("measure", lambda: self._task.measure(parameters, batch))
        shape = _sizes(batch)
        for metric in self.metrics:
            parts = given.get(metric.name, ()) if isinstance(given, dict) else ()
            shapes = [getattr(part, "shape", None) for part in parts]
            if shapes != [shape, shape]:
                self._refuse(
                    f"measure() gave {_described(given)}; {metric.name!r} must have a "
                    f"numerator and a weight {list(shape)}"
                )
        return given

    def _called(self, name: str, call: Callable[[], T]) -> T:
        file = f"training.task.file={self._file!r}: "
        try:
            return called(f"{file}{name}()", call, (CodeFailed,))
        except CodeFailed as error:
            # A function that the task calls has failed, whose name the message has.
            said = str(error)
            raise ScenarioError(said if said.startswith(file) else f"{file}{said}") from None

    def _refuse(self, rule: str) -> NoReturn:
        raise ScenarioError.of(
            "training.task.file", self._file, f"is not a task: {rule}", "correct it"
        ) from None


def seeded(make: Callable[[int], T], seed: int) -> T:
    """Returns make(seed), called while torch's own generator has that seed.

    Modules draw their parameters from that generator, and every trainer must draw the same.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(seed)


def _sizes(batch: Batch) -> tuple[int, ...]:
    """Returns (G, B), with which every field of a batch starts."""
    any_field = next(iter(batch.values()))
    return tuple(any_field.shape[:2])


def _is_shape(shape: Any) -> bool:
    is_sequence = isinstance(shape, tuple | list)
    return is_sequence and all(isinstance(edge, int) and edge > 0 for edge in shape)


def _described(given: Any) -> str:
    if isinstance(given, Tensor):
        return f"a tensor {list(given.shape)}"
    return f"a {type(given).__name__}"
