"""Steps of a module on its own parameters, for devices that train one at a time."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


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


@contextmanager
def filled(own: list[nn.Parameter], values: Iterable[Tensor]) -> Iterator[None]:
    """Within: the parameters of a module are these values, in their memory."""
    before = [part.data for part in own]
    _set(own, values)
    try:
        yield
    finally:
        _set(own, before)


def _set(own: list[nn.Parameter], values: Iterable[Tensor]) -> None:
    for part, value in zip(own, values, strict=True):
        part.data = value
