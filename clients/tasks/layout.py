"""The layout of parameters, a flat vector [D] or named tensors; and examples as tensors."""

import math
from collections.abc import Mapping

import torch
from numpy.typing import NDArray
from torch import Tensor

Shapes = Mapping[str, tuple[int, ...]]


def size_of(shapes: Shapes) -> int:
    """D: how many numbers the parameters of these `shapes` have in all."""
    return sum(math.prod(shape) for shape in shapes.values())


def named(parameters_GD: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """Flat parameters as named tensors.

    Args:
        parameters_GD: [G, D].
        shapes: of the parameters, in the order in which they lie in the flat vector.

    Returns:
        Tensors [G, *shape] by name, which are views: a change of one changes the flat vector.
    """
    sizes = [math.prod(shape) for shape in shapes.values()]
    parts = parameters_GD.split(sizes, dim=1)
    tensors_by_name: dict[str, Tensor] = {}
    for (name, shape), part in zip(shapes.items(), parts, strict=True):
        # To split only the last axis of a part copies nothing, so this is a view.
        tensors_by_name[name] = part.reshape(-1, *shape)
    return tensors_by_name


def repeated(parameters: Mapping[str, Tensor], devices: int) -> dict[str, Tensor]:
    """Copies of one model's parameters [1, *shape], one for each device: [devices, *shape].

    Args:
        parameters: of the one model, by name.
        devices: how many copies there are. They share no memory, so each can be trained in place.
    """
    copies: dict[str, Tensor] = {}
    for name, part in parameters.items():
        once = (1,) * (part.dim() - 1)
        copies[name] = part.repeat(devices, *once)
    return copies


def tensors(examples: Mapping[str, NDArray]) -> dict[str, Tensor]:
    """The arrays of `examples` by name as tensors of the same memory."""
    return {name: torch.from_numpy(part) for name, part in examples.items()}
