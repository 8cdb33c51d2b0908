"""Torch's device "meta", which has shapes and no numbers, and a mode that shows that nothing is computed elsewhere.

Meta does not suffice: products and look-ups accept CPU tensors beside meta tensors. A dispatch mode therefore refuses every
operation on a CPU tensor with one or more dimensions, except its creation from an array and a copy to the device.
"""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

META = torch.device("meta")


class OnDevice(TorchDispatchMode):
    """Refuses operations on CPU tensors with dimensions, other than copies to the device."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        # Arrays become CPU tensors first.
        if func is torch.ops.aten.lift_fresh.default:
            return result
        is_copy = func is torch.ops.aten._to_copy.default and result.device == META
        parts = tree_leaves(result if is_copy else (args, kwargs, result))
        for part in parts:
            if isinstance(part, torch.Tensor) and part.dim() and part.device != META:
                raise AssertionError(f"{func} on {part.device}, {list(part.shape)}")
        return result
