"""Initial parameters: how each one is drawn, addressed by the training's seed."""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
