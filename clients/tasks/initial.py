"""Initial parameters: how each one is drawn, addressed by the training's seed; or those of a
file."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from fedray.errors import ScenarioError
from fedray.rng import Stream, stream_generator

Draw = Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.float64]]
"""Gives an array of a shape."""


class Parameter(NamedTuple):
    """One tensor of a model.

    shape: of one device's.
    draw: gives its initial values.
    """

    shape: tuple[int, ...]
    draw: Draw


def shapes_of(parameters: Mapping[str, Parameter]) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter by its name."""
    return {name: parameter.shape for name, parameter in parameters.items()}


def drawn(parameters: Mapping[str, Parameter], seed: int) -> NDArray[np.float32]:
    """Initial values of all parameters [D], in order, as one generator gives them."""
    generator = stream_generator(seed, Stream.MODEL)
    parts = [each.draw(generator, each.shape).ravel() for each in parameters.values()]
    return np.concatenate(parts).astype(np.float32)


def constant(value: float) -> Draw:
    """All of them `value`."""
    return lambda generator, shape: np.full(shape, value)


def uniform(bound: float) -> Draw:
    """Uniform within [-bound, bound)."""
    return lambda generator, shape: generator.uniform(-bound, bound, shape)


def glorot(fan_in: int, fan_out: int) -> Draw:
    """Uniform within sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010, equation 16)."""
    return uniform(math.sqrt(6.0 / (fan_in + fan_out)))


def orthogonal(generator: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """A matrix whose rows or columns, whichever are fewer, are orthonormal (Saxe et al. 2014)."""
    rows, columns = shape
    drawn = generator.standard_normal((max(shape), min(shape)))
    matrix, triangle = np.linalg.qr(drawn)
    matrix *= np.sign(np.diag(triangle))  # else the signs are those that QR happens to take
    return matrix if rows >= columns else matrix.T


def parameters_in(file: Path, shapes: Mapping[str, tuple[int, ...]]) -> NDArray[np.float32]:
    """The parameters [D] of a model in a safetensors file, in the order of the shapes.

    Raises:
        ScenarioError: the file is none, or its tensors are not those of the task.
    """
    try:
        found = safetensors.numpy.load_file(file)
    except (OSError, SafetensorError) as error:
        raise ScenarioError(
            f"training.initial.file={str(file)!r} is no safetensors file ({error}); give the "
            "model.safetensors of a trained run, or another that has the parameters by name"
        ) from None
    own = {name: part.shape for name, part in found.items()}
    wrong = [name for name, shape in shapes.items() if own.get(name) != shape]
    unknown = sorted(found.keys() - shapes.keys())
    if wrong or unknown:
        expected = {name: list(shapes[name]) for name in wrong}
        raise ScenarioError(
            f"training.initial.file={str(file)!r} is the model of another task: it lacks "
            f"{expected} and has {unknown} instead; give one of the same task and sizes"
        )
    flat = np.concatenate([found[name].ravel() for name in shapes]).astype(np.float32)
    if not np.isfinite(flat).all():
        raise ScenarioError(
            f"training.initial.file={str(file)!r} has parameters that are not finite; give another"
        )
    return flat
