"""Torch's devices: their kinds and memory, and numbers that are arrays on a CPU and tensors on a
GPU."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedray.base.arrays import Numbers
from fedray.base.errors import InputError, RunFailed

_NO_KERNEL = re.compile(r"(\S+) does not have a deterministic implementation")
"""Words of torch about an operation whose result on a GPU depends on the order of additions."""


def device_of(name: str, key: str) -> torch.device:
    """Returns the device of a name, such as "cuda:1". Makes a GPU's results reproducible.

    Raises InputError, which names a `key` of the placement, if torch sees no GPU.
    """
    device = torch.device(name)
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise InputError(
            f"{key} is not 0, but torch sees no GPU; install torch's CUDA build, or leave {key} "
            "out to use the CPU"
        )
    # cuBLAS reads this when it is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # It costs time, and all new memory is written before it is read.
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
    torch.backends.cudnn.benchmark = False
    # TF32 keeps ten bits of each factor of a product.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    return device


@contextmanager
def torch_restored() -> Iterator[None]:
    """Within: torch may be set up for a run. Afterwards threads, determinism and TF32 are those of
    the caller again."""
    threads, determinism = torch.get_num_threads(), _determinism()
    settings: Any = torch.utils.deterministic
    fills = settings.fill_uninitialized_memory
    backends: tuple[Any, ...] = torch.backends.cuda.matmul, torch.backends.cudnn
    tf32 = [each.allow_tf32 for each in backends]
    benchmark = torch.backends.cudnn.benchmark
    try:
        yield
    finally:
        # Setting it imports torch's compiler, which takes a second and a half.
        if _determinism() != determinism:
            is_on, is_lenient = determinism
            torch.use_deterministic_algorithms(is_on, warn_only=is_lenient)
        settings.fill_uninitialized_memory = fills
        torch.set_num_threads(threads)
        for each, allowed in zip(backends, tf32, strict=True):
            each.allow_tf32 = allowed
        torch.backends.cudnn.benchmark = benchmark


def _determinism() -> tuple[bool, bool]:
    is_on = torch.are_deterministic_algorithms_enabled()
    return is_on, torch.is_deterministic_algorithms_warn_only_enabled()


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
    own = default_generator(device)
    return [own] if own is torch.default_generator else [torch.default_generator, own]


def default_generator(device: torch.device) -> torch.Generator:
    """Returns torch's own generator of a device."""
    if device.type != "cuda":
        return torch.default_generator
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]


def is_about_the_device(error: Exception) -> bool:
    """Returns whether an error says that the device cannot do the work, not that the work is
    wrong: its memory is full, or it has no kernel that is deterministic."""
    return isinstance(error, torch.OutOfMemoryError) or bool(_NO_KERNEL.search(str(error)))


@contextmanager
def device_errors(full: str) -> Iterator[None]:
    """Within: an error of `is_about_the_device` becomes one of fedray.

    Args:
        full: message if the memory is full.

    Raises:
        RunFailed: the memory is full.
        InputError: an operation has no deterministic kernel.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise RunFailed(full) from None
    except RuntimeError as error:
        found = _NO_KERNEL.search(str(error))
        if found is None:
            raise
        raise InputError(
            f"training.task: its operation {found[1]} has no deterministic kernel on a GPU; use "
            "another layer (adaptive pooling, interpolation and reflection padding have none), or "
            "train on CPUs (trainer_gpus=0)"
        ) from None


def kind_of_device(device: torch.device) -> str:
    """Returns the kind of device, on which results depend: "cpu", or "cuda" and the GPU model."""
    if device.type != "cuda":
        return device.type
    return f"cuda {torch.cuda.get_device_name(device)}"


def placed(array: NDArray, device: torch.device) -> Tensor:
    """Returns a copy of a float32 array on a device. On its way to a GPU it is in pinned memory,
    from which the GPU reads without the CPU."""
    if device.type != "cuda":
        return torch.tensor(array, device=device)
    # Torch keeps pinned memory for the next array, and lends it again when the copy is done.
    host = torch.empty(array.shape, dtype=torch.float32, pin_memory=True)
    np.copyto(host.numpy(), array)
    return host.to(device, non_blocking=True)


def native(tensor: Tensor) -> Numbers:
    """Returns a tensor on the CPU as an array, which shares its memory, and another as it is."""
    return tensor.numpy() if tensor.device.type == "cpu" else tensor


def library_of(numbers: Numbers) -> Any:
    """Returns numpy or torch, for functions that have the same name in both."""
    return np if isinstance(numbers, np.ndarray) else torch


def like(array: NDArray, numbers: Numbers) -> Numbers:
    """Returns an array as it is, or as a tensor beside `numbers` if that is a tensor."""
    return array if library_of(numbers) is np else torch.from_numpy(array).to(numbers.device)


def on_host(numbers: Numbers) -> NDArray:
    """Returns numbers as an array. Numbers leave a GPU only here."""
    return numbers if library_of(numbers) is np else numbers.cpu().numpy()
