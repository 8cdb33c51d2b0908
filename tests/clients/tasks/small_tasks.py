"""The tasks of the literature with small tables, and random data for them."""

from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedray.clients.data.source import Field
from fedray.clients.tasks.layout import named
from fedray.clients.tasks.task import Task
from fedray.scenario.tasks import (
    ImageCnnTask,
    KeyboardLstmTask,
    LogisticTask,
    MlpTask,
    QuadraticTask,
)
from fedray.scenario.training import CustomOptimizer

OWN = CustomOptimizer(kind="custom", file=str(Path(__file__).parent / "device_optimizer.py"))
"""An optimizer of devices as a file."""
DECAYS: dict[str, Any] = {
    "momentum": 0.8,
    "nesterov": True,
    "weight_decay": 0.1,
    "gradient_norm": 0.5,
    "step_decay": 0.9,
}
"""All keys of local steps by SGD."""
EXAMPLES = 6
VECTORS = {"inputs": Field((2, 3), "real"), "targets": Field((), "whole", 3)}
IMAGES = {"inputs": Field((8, 7, 2), "real"), "targets": Field((), "whole", 3)}
GRAY = {"inputs": Field((6, 6), "real"), "targets": Field((), "whole", 2)}
POINTS = {"inputs": Field((4,), "real")}
TEXT = {"tokens": Field((7,), "whole", 11, padding=0, unknown=1)}
WHOLE_TEXT = {"tokens": Field((5,), "whole", 9)}
SMALL = {"hidden": 6, "embedding": 4}
CASES = {
    "mlp": (MlpTask(hidden=(4, 5)), VECTORS),
    "logistic": (LogisticTask(l2=0.1), VECTORS),
    "quadratic without curvatures": (QuadraticTask(), POINTS),
    "quadratic": (QuadraticTask(curvatures=(1.0, 3.0)), POINTS),
    "image_cnn": (ImageCnnTask(), IMAGES),
    "image_cnn of grey images": (ImageCnnTask(architecture="emnist"), GRAY),
    "keyboard_lstm": (KeyboardLstmTask(**SMALL), TEXT),
    "keyboard_lstm tied": (KeyboardLstmTask(**SMALL, tied=True), WHOLE_TEXT),
    "keyboard_lstm with four gates": (KeyboardLstmTask(**SMALL, cell="lstm"), TEXT),
    "keyboard_lstm tied with four gates": (
        KeyboardLstmTask(**SMALL, cell="lstm", tied=True),
        WHOLE_TEXT,
    ),
    "keyboard_lstm with unit embeddings": (
        KeyboardLstmTask(**SMALL, cell="lstm", tied=True, unit_embeddings=True, top=(3,), head=5),
        TEXT,
    ),
    "keyboard_lstm of two layers": (KeyboardLstmTask(**SMALL, layers=2), TEXT),
    "keyboard_lstm without projection": (
        KeyboardLstmTask(**SMALL, cell="lstm", layers=2, projected=False),
        TEXT,
    ),
}


def made(table, fields: Mapping[str, Field], seed: int = 3) -> Task:
    """The task of a table, for data of these fields."""
    return resolve_name(table.implementation)(table, seed, fields)


class RandomExamples:
    """See fedray.clients.data.source.ExampleSource. A device has EXAMPLES examples of its own."""

    held_out_devices = 2**40
    optimum: Mapping[str, float] = {}

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self.fields = fields

    def examples_on(self, device_ids: NDArray[np.uint64]) -> NDArray[np.int64]:
        return np.full(device_ids.size, EXAMPLES, np.int64)

    def examples(
        self, device_ids: NDArray[np.uint64], positions: NDArray[np.int64]
    ) -> dict[str, NDArray]:
        own = [self._of(device) for device in device_ids.tolist()]
        return {
            name: np.stack([each[name][row] for each, row in zip(own, positions, strict=True)])
            for name in self.fields
        }

    def _of(self, device: int) -> dict[str, NDArray]:
        draws = np.random.default_rng(device)
        return {name: _drawn(draws, field) for name, field in self.fields.items()}


def _drawn(draws: np.random.Generator, field: Field) -> NDArray:
    shape = (EXAMPLES, *field.shape)
    if field.kind == "real":
        return draws.standard_normal(shape).astype(np.float32)
    whole = draws.integers(0, field.values, shape)
    if field.padding is not None:  # at the end, and never all of a text
        lengths = draws.integers(2, field.shape[0] + 1, EXAMPLES)
        whole[whole == field.padding] = field.values - 1
        whole[np.arange(field.shape[0]) >= lengths[:, None]] = field.padding
    return whole


def batch_of(fields: Mapping[str, Field], devices: int = 3) -> dict[str, torch.Tensor]:
    """All examples [G, EXAMPLES, *shape] of some devices."""
    positions = np.tile(np.arange(EXAMPLES), (devices, 1))
    found = RandomExamples(fields).examples(np.arange(devices, dtype=np.uint64), positions)
    return {name: torch.from_numpy(part) for name, part in found.items()}


def parameters_of(task: Task, devices: int = 3) -> dict[str, torch.Tensor]:
    """Initial parameters, moved by small normals of each device's own, [G, *shape]."""
    draws, flat = torch.Generator().manual_seed(1), torch.from_numpy(task.initial_parameters())
    moved = flat + 0.1 * torch.randn(devices, flat.numel(), generator=draws)
    return {name: part.contiguous() for name, part in named(moved, task.shapes).items()}
