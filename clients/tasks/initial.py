"""Initial parameters: drawn from the seed of the training, or read from a file."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from fedray.base.errors import ScenarioError
from fedray.base.regular_file import check_regular_file
from fedray.base.rng import Stream, stream_generator
from fedray.scenario import Scenario
from .task import Task, Vector

# Limit of the safetensors format.
_MOST_HEADER_BYTES = 100 << 20
Draw = Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.float64]]
"""Draws an array of a shape from a generator."""


class Parameter(NamedTuple):
    """The shape of one tensor of a model, and how its initial values are drawn."""

    shape: tuple[int, ...]
    draw: Draw


class DrawnModel:
    """Base of tasks whose initial values are drawn, by one generator in order of the parameters.

    Args:
        parameters: parameters of the model by name. Their order determines the draws.
        seed: seed of the training.
    """

    def __init__(self, parameters: Mapping[str, Parameter], seed: int) -> None:
        self._parameters = parameters
        self._seed = seed
        self.shapes = {name: each.shape for name, each in parameters.items()}

    def initial_parameters(self) -> Vector:
        generator = stream_generator(self._seed, Stream.MODEL)
        parts = [each.draw(generator, each.shape) for each in self._parameters.values()]
        return _flat(parts)


def dense_parameters(
    name: str, rows: int, columns: int, weight: Draw, bias: Draw
) -> dict[str, Parameter]:
    """Returns the weights and biases of a dense layer, called `name` and `name_bias`."""
    return {
        name: Parameter((rows, columns), weight),
        f"{name}_bias": Parameter((columns,), bias),
    }


def zeros(generator: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Draws nothing: the values are 0. A `Draw` itself."""
    return np.zeros(shape)


def uniform(bound: float) -> Draw:
    """Returns a draw that is uniform within [-bound, bound)."""
    return lambda generator, shape: generator.uniform(-bound, bound, shape)


def by_fan_in(fan_in: int) -> Draw:
    """Returns a draw that is uniform within 1 / sqrt(fan_in)."""
    return uniform(1.0 / math.sqrt(fan_in))


def glorot(fan_in: int, fan_out: int) -> Draw:
    """Returns a draw that is uniform within sqrt(6 / (fan_in + fan_out)).

    Activations and their gradients then have about the same variance in every layer (Glorot and
    Bengio 2010, equation 16).

    Args:
        fan_in: number of units that the layer reads.
        fan_out: number of units that it computes.
    """
    return uniform(math.sqrt(6.0 / (fan_in + fan_out)))


def orthogonal(generator: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Draws a matrix whose rows or columns, whichever are fewer, are orthonormal.

    It is uniform among these (Saxe et al. 2014).
    """
    rows, columns = shape
    normals = generator.standard_normal((max(shape), min(shape)))
    matrix, triangle = np.linalg.qr(normals)
    # QR chooses the signs arbitrarily; without this the matrix would not be uniform.
    matrix *= np.sign(np.diag(triangle))
    return matrix if rows >= columns else matrix.T


def start_of(scenario: Scenario, task: Task) -> Vector:
    """Returns the parameters [D] at which a training starts.

    Raises:
        ScenarioError: `training.initial.file` is not a model of this task.
    """
    initial = scenario.training.initial
    if initial is None:
        return task.initial_parameters()
    return _parameters_in(initial.checked_path("file"), task.shapes)


def _parameters_in(file: Path, shapes: Mapping[str, tuple[int, ...]]) -> Vector:
    try:
        # A file of this task takes at most eight bytes per number, and a header.
        numbers = sum(map(math.prod, shapes.values()))
        check_regular_file(file, most_bytes=8 * numbers + _MOST_HEADER_BYTES)
        found = safetensors.numpy.load_file(file)
    except (OSError, SafetensorError) as error:
        rule = f"is not a safetensors file ({error})"
        raise _refused(file, rule, "give the model.safetensors of a trained run") from None
    found_shapes = {name: part.shape for name, part in found.items()}
    wrong = [name for name, shape in shapes.items() if found_shapes.get(name) != shape]
    unknown = sorted(found.keys() - shapes.keys())
    if wrong or unknown:
        expected = {name: list(shapes[name]) for name in wrong}
        rule = f"is the model of another task: it lacks {expected} and has {unknown} instead"
        raise _refused(file, rule, "give one of the same task and sizes")
    # Tensors in the file may have another order than the shapes.
    flat = _flat([found[name] for name in shapes])
    if not np.isfinite(flat).all():
        raise _refused(file, "has parameters that are not finite", "give another file")
    return flat


def _refused(file: Path, rule: str, remedy: str) -> ScenarioError:
    return ScenarioError.of("training.initial.file", str(file), rule, remedy)


def _flat(parts: list[NDArray]) -> Vector:
    return np.concatenate([part.ravel() for part in parts]).astype(np.float32)
