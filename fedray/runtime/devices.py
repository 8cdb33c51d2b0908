"""Torch's devices: their kinds and memory, and numbers that are arrays on a CPU and tensors on a
GPU."""

import os
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedray.base.arrays import Numbers
from fedray.base.errors import InputError


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


def kind_of_device(device: torch.device) -> str:
    """Returns the kind of device, on which results depend: "cpu", or "cuda" and the GPU model."""
    if device.type != "cuda":
        return device.type
    return f"cuda {torch.cuda.get_device_name(device)}"


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
