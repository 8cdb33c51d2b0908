"""The work of devices stays where the parameters are, shown on torch's device "meta", which has shapes and no numbers.

Meta does not suffice: products and look-ups accept CPU tensors beside meta tensors. A dispatch mode therefore refuses every
operation on a CPU tensor with one or more dimensions, except its creation from an array and a copy to the device.
"""

from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest
import torch
from small_tasks import CASES, EXAMPLES, VECTORS, RandomExamples, made
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedray.clients.data.language import WORDS
from fedray.clients.data.source import Field
from fedray.clients.tasks.layout import named, tensors
from fedray.clients.tasks.module import ModuleTask
from fedray.clients.tasks.task import Task
from fedray.clients.work.work import WorkOrder
from fedray.scenario.tasks import NextWordTask
from fedray.scenario.training import FedAvg, FedProx, FedSGD

META = torch.device("meta")
HELD = np.array([2, 6, 1, 5], np.int64)
DEVICES = np.arange(HELD.size, dtype=np.uint64)
ALL_CASES = {**CASES, "next_word": (NextWordTask(), {"tokens": Field((5,), "whole", WORDS + 1)})}
WORKS = {
    "sgd": FedAvg(batch_size=2, epochs=2),
    "momentum": FedAvg(batch_size=2, epochs=2, momentum=0.8),
    "adam": FedAvg(batch_size=2, epochs=2, optimizer="adam"),
    "fedprox": FedProx(batch_size=2, epochs=2),
    "fedsgd": FedSGD(),
}


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


def module_task(fields: Any) -> ModuleTask:
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6, 3))
    module.register_buffer("shift", torch.ones(3))
    return ModuleTask(module, RandomExamples(fields), torch.nn.functional.cross_entropy)


def work_on_meta(task: Task, fields: Any, table: Any, devices: int = HELD.size) -> None:
    start = torch.empty(task.initial_parameters().size, device=META)
    work = resolve_name(table.implementation)(table, task, RandomExamples(fields), 7)
    with OnDevice():
        result = work.compute(WorkOrder(3, DEVICES[:devices], HELD[:devices], start))
    assert (result.updates.device, result.losses.device) == (META, META)
    assert result.updates.shape == (devices, start.numel())
    assert result.losses.shape == (devices,)


@pytest.mark.slow
@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize("case", ALL_CASES)
def test_the_work_on_a_task_stays_on_the_device_of_the_parameters(case: str, work: str) -> None:
    table, fields = ALL_CASES[case]
    for devices in (1, HELD.size):
        work_on_meta(made(table, fields), fields, WORKS[work], devices)


@pytest.mark.parametrize("work", WORKS)
def test_the_work_on_a_module_stays_on_the_device_of_the_parameters(work: str) -> None:
    work_on_meta(module_task(VECTORS), VECTORS, WORKS[work])


@pytest.mark.parametrize("case", ALL_CASES)
def test_metrics_stay_on_the_device_of_the_parameters(case: str) -> None:
    table, fields = ALL_CASES[case]
    task = made(table, fields)
    start = torch.empty(1, task.initial_parameters().size, device=META)
    positions = np.arange(EXAMPLES)[None]
    examples = RandomExamples(fields).examples(DEVICES[:1], positions)
    with OnDevice():
        measures = task.measure(named(start, task.shapes), tensors(examples, META))
    for parts in measures.values():
        for part in parts:
            assert (part.device, part.shape) == (META, (1, EXAMPLES))


def planted_look_up(parameters: Any, batch: Any, given: torch.Tensor) -> torch.Tensor:
    """Picks classes by a CPU tensor, which meta accepts."""
    del parameters, batch
    return given[torch.zeros(len(given), dtype=torch.int64)]


def planted_product(parameters: Any, batch: Any, given: torch.Tensor) -> torch.Tensor:
    del parameters, batch
    ones = torch.ones(1, len(given), len(given))
    return torch.bmm(ones, given[None, :, None])[0, :, 0]


def planted_sum(parameters: Any, batch: Any, given: torch.Tensor) -> torch.Tensor:
    """Computes on the CPU only, and adds a number."""
    del parameters, batch
    return given + torch.ones(3).sum()


@pytest.mark.parametrize("planted", [planted_look_up, planted_product, planted_sum])
def test_a_planted_cpu_tensor_is_found(planted, monkeypatch) -> None:
    table, fields = CASES["mlp"]
    task = made(table, fields)
    losses = task.losses
    monkeypatch.setattr(
        task,
        "losses",
        lambda parameters, batch: planted(parameters, batch, losses(parameters, batch)),
    )
    with pytest.raises(AssertionError, match=r"on cpu, \["):
        work_on_meta(task, fields, WORKS["sgd"])
