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

from fedray.base.errors import ScenarioError
from fedray.base.regular_file import check_regular_file
from fedray.base.rng import Stream, stream_generator

_MOST_HEADER_BYTES = 100 << 20
"""The limit of the format."""
Draw = Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.float64]]
"""Gives an array of a shape, drawn from a generator."""


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
    """Initial values of all parameters, in order, as one generator gives them.

    Args:
        parameters: of the model, by name. Their order is part of what is drawn.
        seed: of the training.

    Returns:
        The flat vector [D].
    """
    generator = stream_generator(seed, Stream.MODEL)
    parts = [each.draw(generator, each.shape).ravel() for each in parameters.values()]
    return np.concatenate(parts).astype(np.float32)


def constant(value: float) -> Draw:
    """A draw that gives `value` everywhere."""
    return lambda generator, shape: np.full(shape, value)


def uniform(bound: float) -> Draw:
    """A draw that is uniform within [-bound, bound)."""
    return lambda generator, shape: generator.uniform(-bound, bound, shape)


def glorot(fan_in: int, fan_out: int) -> Draw:
    """A draw that is uniform within sqrt(6 / (fan_in + fan_out)).

    It gives the activations and their gradients about the same variance in every layer (Glorot and
    Bengio 2010, equation 16).

    Args:
        fan_in: how many units the layer reads.
        fan_out: how many units it makes.
    """
    bound = math.sqrt(6.0 / (fan_in + fan_out))
    return uniform(bound)


def orthogonal(generator: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """A matrix whose rows or columns, whichever are fewer, are orthonormal (Saxe et al. 2014).

    Args:
        generator: gives the normals of which the matrix is made.
        shape: rows and columns.
    """
    rows, columns = shape
    drawn = generator.standard_normal((max(shape), min(shape)))
    matrix, triangle = np.linalg.qr(drawn)
    # Else the signs are those that QR happens to take, and the matrix is not uniform among the
    # orthogonal ones.
    matrix *= np.sign(np.diag(triangle))
    return matrix if rows >= columns else matrix.T


def parameters_in(file: Path, shapes: Mapping[str, tuple[int, ...]]) -> NDArray[np.float32]:
    """The parameters of a model in a safetensors file.

    Args:
        file: has a tensor of every name.
        shapes: of the task's parameters, by name.

    Returns:
        The flat vector [D], in the order of the shapes.

    Raises:
        ScenarioError: the file is none, or its tensors are not those of the task.
    """
    try:
        # A file of this task has eight bytes for a number at most, and a header.
        numbers = sum(map(math.prod, shapes.values()))
        check_regular_file(file, most_bytes=8 * numbers + _MOST_HEADER_BYTES)
        found = safetensors.numpy.load_file(file)
    except (OSError, SafetensorError) as error:
        raise ScenarioError.of(
            "training.initial.file",
            str(file),
            f"is no safetensors file ({error})",
            "give the model.safetensors of a trained run, or another that has the parameters "
            "by name",
        ) from None
    found_shapes = {name: part.shape for name, part in found.items()}
    wrong = [name for name, shape in shapes.items() if found_shapes.get(name) != shape]
    unknown = sorted(found.keys() - shapes.keys())
    if wrong or unknown:
        expected = {name: list(shapes[name]) for name in wrong}
        raise ScenarioError.of(
            "training.initial.file",
            str(file),
            f"is the model of another task: it lacks {expected} and has {unknown} instead",
            "give one of the same task and sizes",
        )
    # The order is that of the shapes, which the file need not share.
    parts = [found[name].ravel() for name in shapes]
    flat = np.concatenate(parts).astype(np.float32)
    if not np.isfinite(flat).all():
        raise ScenarioError.of(
            "training.initial.file", str(file), "has parameters that are not finite", "give another"
        )
    return flat
