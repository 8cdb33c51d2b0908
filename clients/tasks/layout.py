"""The layout of parameters, a flat vector [D] or named tensors; and examples as tensors."""

import math
from collections.abc import Mapping

import torch
from numpy.typing import NDArray
from torch import Tensor

Shapes = Mapping[str, tuple[int, ...]]


def size_of(shapes: Shapes) -> int:
    """D: how many numbers there are in all."""
    return sum(math.prod(shape) for shape in shapes.values())


def named(parameters_GD: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """Flat parameters [G, D] as named tensors [G, *shape], which are views."""
    parts = parameters_GD.split([math.prod(shape) for shape in shapes.values()], dim=1)
    return {
        name: part.reshape(-1, *shape)
        for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


def repeated(parameters: Mapping[str, Tensor], devices: int) -> dict[str, Tensor]:
    """Copies of one model's parameters [1, *shape], one for each device: [devices, *shape]."""
    return {
        name: part.repeat(devices, *(1,) * (part.dim() - 1)) for name, part in parameters.items()
    }


def tensors(examples: Mapping[str, NDArray]) -> dict[str, Tensor]:
    """Arrays by name as tensors of the same memory."""
    return {name: torch.from_numpy(part) for name, part in examples.items()}
