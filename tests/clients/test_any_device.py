"""The work of devices stays where the parameters are, shown on torch's device "meta" (tests/clients/tasks/on_device.py)."""

from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from on_device import META, OnDevice
from small_tasks import CASES, DECAYS, EXAMPLES, OWN, VECTORS, RandomExamples, made

from fedray.clients.clipping import Clipper
from fedray.clients.data.language import WORDS
from fedray.clients.data.source import Field
from fedray.clients.tasks.layout import named, tensors
from fedray.clients.tasks.module import ModuleTask
from fedray.clients.tasks.task import Task
from fedray.clients.trainer import GroupTrainer
from fedray.clients.work.work import DeviceWork, WorkOrder, WorkResult
from fedray.encoding.norms import padded
from fedray.encoding.secagg import SecAggEncoding
from fedray.runtime import devices
from fedray.scenario import Scenario
from fedray.scenario.tasks import NextWordTask
from fedray.scenario.training import FedAvg, FedProx, FedSGD
from fedray.wire.messages import TrainOrder

HELD = np.array([2, 6, 1, 5], np.int64)
DEVICES = np.arange(HELD.size, dtype=np.uint64)
ALL_CASES = {**CASES, "next_word": (NextWordTask(), {"tokens": Field((5,), "whole", WORDS + 1)})}
WORKS = {
    "sgd": FedAvg(batch_size=2, epochs=2),
    "momentum": FedAvg(batch_size=2, epochs=2, momentum=0.8),
    "adam": FedAvg(batch_size=2, epochs=2, optimizer="adam"),
    "nesterov, decays and a norm": FedAvg(batch_size=2, epochs=2, **DECAYS),
    "file": FedAvg(batch_size=2, epochs=2, optimizer=OWN),
    "fedprox": FedProx(batch_size=2, epochs=2),
    "fedsgd": FedSGD(),
}


SCENARIOS = {
    f"{clipping}, {encoding}": (clipping, encoding)
    for clipping in ("fixed", "none", "per_layer", "adaptive", "schedule")
    for encoding in ("fixed_point", "secagg", "devices")
    # Sums modulo a number have room for clipped updates only, and counts need noise of the server.
    if encoding == "fixed_point"
    or clipping in ("fixed", "per_layer", "schedule")
    or (clipping, encoding) == ("adaptive", "secagg")
}


def scenario_of(small: Any, clipping: str, encoding: str, dimension: int) -> Scenario:
    mechanism = "none" if clipping == "none" else "identity"
    sent = f"privacy.encoding.kind='{encoding}'"
    if encoding == "devices":
        sent = f"privacy.trust={{kind='devices', parameters={dimension}, scale={1 << 20}}}"
    steps = ", steps=[{from_round=1, norm=0.5}]" * (clipping == "schedule")
    # Only Poisson samples, and trainings without noise, may weigh devices by their examples.
    weighting = ["training.weighting={kind='fixed', example_cap=4}"] * (mechanism == "none")
    return small(
        "training.enabled=true",
        f"privacy.mechanism='{mechanism}'",
        f"privacy.clipping={{kind='{clipping}', zero_above=3.0{steps}}}",
        sent,
        *weighting,
    )


class Recorded:
    """The work of a task, computed once: what follows sees only the shapes of its result."""

    def __init__(self, work: DeviceWork) -> None:
        self._work, self._result = work, None

    def compute(self, order: WorkOrder) -> WorkResult:
        if self._result is None:
            self._result = self._work.compute(order)
        updates = order.room().copy_(self._result.updates)
        return WorkResult(updates, self._result.losses, self._result.examples)


class Holders:
    """One device without examples."""

    def examples_on(self, device_ids: NDArray[np.uint64]) -> NDArray[np.int64]:
        return np.array([*HELD, 0])[device_ids.astype(np.int64)]


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
def test_the_work_of_a_single_device_stays_on_the_device_of_the_parameters(
    case: str, work: str
) -> None:
    table, fields = ALL_CASES[case]
    work_on_meta(made(table, fields), fields, WORKS[work], 1)


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


@pytest.mark.slow
@pytest.mark.parametrize("case", ALL_CASES)
def test_only_one_sum_of_integers_and_figures_of_devices_leave_a_trainers_device(
    case: str, small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every clipping rule and encoding, to the sum of two groups. What follows work sees only its shapes, so one kind suffices."""
    table, fields = ALL_CASES[case]
    task = made(table, fields)
    dimension = task.initial_parameters().size
    table = WORKS["sgd"]
    recorded = Recorded(resolve_name(table.implementation)(table, task, RandomExamples(fields), 7))
    for clipping, encoding in SCENARIOS.values():
        left = train_on_meta(
            scenario_of(small, clipping, encoding, dimension), task, recorded, monkeypatch
        )
        *figures, total = left
        size = dimension if encoding == "fixed_point" else padded(dimension)
        assert total == ((size,), np.int64)
        # Rounding asks whether every device of both groups fits its bound, and counts clipped coordinates.
        assert {shape for shape, _ in figures} <= {(HELD.size,), (2 * HELD.size,), ()}
        assert {dtype for _, dtype in figures} <= {np.int64, np.float64, np.bool_}


def train_on_meta(
    scenario: Scenario, task: Task, work: DeviceWork, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[tuple[int, ...], Any]]:
    """Trains two equal groups, and returns shape and type of everything that leaves the device."""
    left: list[tuple[tuple[int, ...], Any]] = []

    def on_host(tensor: torch.Tensor) -> NDArray:
        assert tensor.device == META
        array = np.zeros(tensor.shape, str(tensor.dtype).removeprefix("torch."))
        left.append((array.shape, array.dtype.type))
        return array

    monkeypatch.setattr(devices, "on_host", on_host)
    trainer = GroupTrainer(scenario, task.shapes, Holders(), work, "meta")
    group = np.arange(HELD.size + 1, dtype=np.uint64)
    with OnDevice():
        trainer.train(TrainOrder(3, [group, group]), task.initial_parameters())
    return left


def test_a_planted_cpu_tensor_behind_the_work_is_found(
    small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In clipping and in an encoding."""
    table, fields = CASES["mlp"]
    task = made(table, fields)
    work = resolve_name(FedSGD.implementation)(FedSGD(), task, RandomExamples(fields), 7)
    scenario = scenario_of(small, "fixed", "secagg", task.initial_parameters().size)
    for owner, name in ((Clipper, "clip"), (SecAggEncoding, "encode_into")):
        inner = getattr(owner, name)

        def planted(self: Any, first: Any, *others: Any, inner: Any = inner) -> Any:
            first *= torch.ones(3).sum()
            return inner(self, first, *others)

        with monkeypatch.context() as patch, pytest.raises(AssertionError, match=r"on cpu, \["):
            patch.setattr(owner, name, planted)
            train_on_meta(scenario, task, work, patch)
    train_on_meta(scenario, task, work, monkeypatch)


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
