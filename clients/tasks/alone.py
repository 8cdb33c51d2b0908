"""Steps of a module on its own parameters, for devices that train one at a time."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def seed_draws(device: torch.device, seed: int) -> None:
    """Seeds torch's generators of the CPU and of a device. On the CPU a seed counts modulo 2^32."""
    for each in _generators(device):
        each.manual_seed(seed)


@contextmanager
def own_draws(device: torch.device) -> Iterator[None]:
    """Within: draws of torch on the CPU and on a device change nothing outside."""
    states = [(each, each.get_state()) for each in _generators(device)]
    try:
        yield
    finally:
        for each, state in states:
            each.set_state(state)


def _generators(device: torch.device) -> list[torch.Generator]:
    # `torch.manual_seed` would collect a stack trace for GPUs at every call.
    if device.type != "cuda":
        return [torch.default_generator]
    index = torch.cuda.current_device() if device.index is None else device.index
    return [torch.default_generator, torch.cuda.default_generators[index]]


class LossInPlace(torch.autograd.Function):
    """The loss of a module on its own parameters, as a function of their values."""

    @staticmethod
    def forward(
        ctx: Any, loss_of: Callable[[], Tensor], own: list[nn.Parameter], *values: Tensor
    ) -> Tensor:
        before = [part.data for part in own]
        _set(own, values)
        needs_slopes = any(ctx.needs_input_grad)
        try:
            with torch.set_grad_enabled(needs_slopes):
                loss = loss_of()
            if needs_slopes:
                ctx.slopes = torch.autograd.grad(
                    loss, own, allow_unused=True, materialize_grads=True
                )
        finally:
            _set(own, before)
        return loss.detach()

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor | None, ...]:
        return None, None, *(slope.mul_(gradient) for slope in ctx.slopes)


def _set(own: list[nn.Parameter], values: Sequence[Tensor]) -> None:
    for part, value in zip(own, values, strict=True):
        part.data = value
