"""Draws of a group of devices that are trained together: each device has generators of its own.

Torch draws once for a whole group (`vmap(randomness="different")`), so a device's numbers would
depend on the others. Below `vmap` such a draw is one operation, whose tensor has an axis of devices
in front. It is replaced by one operation for each device. A device draws the same numbers as if it
trained by itself, from torch's own generators with the same seed.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedray.runtime.devices import default_generator


class UnknownDraw(Exception):
    """An operation whose numbers cannot be drawn for each device of a group."""


class DeviceDraws(TorchDispatchMode):
    """Within: an operation that draws numbers draws each device's from generators of the device.

    Args:
        seeds: seed of each device's generators, [G].
        is_group: whether operations have an axis of devices in front; without it G is 1.

    Raises:
        UnknownDraw: within, an operation draws from another generator, or in another form.
    """

    def __init__(self, seeds: Sequence[int], is_group: bool) -> None:
        super().__init__()
        self._seeds = seeds
        self._is_group = is_group
        self._generators: dict[torch.device, list[torch.Generator]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        first = args[0] if args else None
        if any(isinstance(each, torch.Generator) for each in tree_leaves((args, kwargs))):
            raise UnknownDraw("it draws random numbers from a generator of its own")
        is_tensor = isinstance(first, Tensor)
        device = first.device if is_tensor else torch.device(kwargs.get("device") or "cpu")
        generators = self._of(device)
        if not self._is_group:
            return _drawn(func, generators[0], args, kwargs)
        parts = [
            _drawn(func, generator, (one, *args[1:]), kwargs)
            for one, generator in zip(self._rows(func, args, kwargs), generators, strict=True)
        ]
        # In place: the rows are views of the tensor.
        if func._schema.is_mutable:
            return first
        if isinstance(parts[0], tuple):
            return tuple(map(torch.stack, zip(*parts, strict=True)))
        return torch.stack(parts)

    def _rows(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
        """Returns the first argument of each device: a row of a tensor, or a shape."""
        first, *others = args or (None,)
        count = len(self._seeds)
        if not any(isinstance(each, Tensor) for each in tree_leaves((others, kwargs))):
            if isinstance(first, Tensor) and first.dim() and len(first) == count:
                return first.unbind()
            if isinstance(first, list | tuple) and first and first[0] == count:
                return [first[1:]] * count
        raise UnknownDraw(f"it draws random numbers by {func}, which has no part for each device")

    def _of(self, device: torch.device) -> list[torch.Generator]:
        if device not in self._generators:
            own = [torch.Generator(device) for _ in self._seeds]
            self._generators[device] = [
                each.manual_seed(seed) for each, seed in zip(own, self._seeds, strict=True)
            ]
        return self._generators[device]


def _drawn(
    func: Any, generator: torch.Generator, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Returns the result of an operation that draws from a generator."""
    first = args[0] if args else None
    # Numbers are drawn in the order of the memory, which `vmap` may turn round in a group.
    if isinstance(first, Tensor) and not first.is_contiguous():
        if not func._schema.is_mutable:
            return _drawn(func, generator, (first.contiguous(), *args[1:]), kwargs)
        filled = torch.empty_like(first, memory_format=torch.contiguous_format)
        return first.copy_(_drawn(func, generator, (filled, *args[1:]), kwargs))
    if any(each.name == "generator" for each in func._schema.arguments):
        return func(*args, **{**kwargs, "generator": generator})
    # Some operations know only torch's own generator.
    own = default_generator(generator.device)
    before = own.get_state()
    own.set_state(generator.get_state())
    try:
        return func(*args, **kwargs)
    finally:
        generator.set_state(own.get_state())
        own.set_state(before)
