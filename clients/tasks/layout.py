"""Layout of parameters as a flat vector [D] or named tensors; and examples as tensors."""

import math
from collections.abc import Mapping

import torch
from numpy.typing import NDArray
from torch import Tensor

Shapes = Mapping[str, tuple[int, ...]]
Named = dict[str, Tensor]
"""Tensors by name."""


def size_of(shapes: Shapes) -> int:
    """Returns D, the number of parameters of these shapes."""
    return sum(map(math.prod, shapes.values()))


def named(parameters_GD: Tensor, shapes: Shapes) -> Named:
    """Splits flat parameters [G, D] into views [G, *shape] by name, in order of the shapes.

    A change of a view changes the flat vector.
    """
    sizes = list(map(math.prod, shapes.values()))
    parts = parameters_GD.split(sizes, dim=1)
    # Splitting only the last axis of a part copies nothing, so each part stays a view.
    return {
        name: part.reshape(-1, *shape)
        for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


def repeated(parameters: Mapping[str, Tensor], devices: int, kept: Named | None = None) -> Named:
    """Copies the parameters [1, *shape] of one model for each device, to [devices, *shape].

    The copies share no memory, so each can be trained in place. `kept` is memory of earlier copies,
    which are overwritten, and gets that of the new ones.
    """
    kept = {} if kept is None else kept
    copies: Named = {}
    for name, part in parameters.items():
        if name not in kept or len(kept[name]) < devices or kept[name].device != part.device:
            kept[name] = part.new_empty(devices, *part.shape[1:])
        copies[name] = kept[name][:devices].copy_(part)
    return copies


def tensors(examples: Mapping[str, NDArray], device: torch.device | None = None) -> Named:
    """Returns the arrays as tensors on a device; on the CPU they share the arrays' memory."""
    return {name: torch.from_numpy(part).to(device) for name, part in examples.items()}
