"""Torch's devices: their kinds, the share of a GPU, and the only way from them to the host."""

import os

import torch
from numpy.typing import NDArray
from torch import Tensor

from fedray.base.errors import InputError

MOST_OF_MEMORY = 0.8
"""Fraction of its share of a GPU's memory that a worker may use."""


def device_of(name: str, key: str) -> torch.device:
    """Returns the device of a name, such as "cpu" or "cuda:1", and makes GPUs deterministic.

    Args:
        name: name of the device.
        key: key of the placement that asks for a GPU.

    Raises:
        InputError: torch sees no GPU.
    """
    device = torch.device(name)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise InputError(
                f"{key} is not 0, but torch sees no GPU; install torch's CUDA build, or leave "
                f"{key} out to use the CPU"
            )
        _make_deterministic()
    return device


def kind_of_device(device: torch.device) -> str:
    """Returns the kind of device, on which results depend: "cpu", or "cuda" and the GPU model."""
    if device.type != "cuda":
        return device.type
    return f"cuda {torch.cuda.get_device_name(device)}"


def on_host(tensor: Tensor) -> NDArray:
    """Returns a tensor as an array, which shares its memory on the CPU."""
    return tensor.cpu().numpy()


def like(array: NDArray, tensor: Tensor) -> Tensor:
    """Returns an array as a tensor on the device of another."""
    return torch.from_numpy(array).to(tensor.device)


def _make_deterministic() -> None:
    # cuBLAS reads this when it is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # Every element of new memory is written before it is read.
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    # TF32 keeps ten bits of a product's factors.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
