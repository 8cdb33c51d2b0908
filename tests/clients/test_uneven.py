"""Devices with different numbers of steps: a device trained in a group against the device by itself."""

from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest
import torch
from small_tasks import CASES, DECAYS, EXAMPLES, OWN, VECTORS, RandomExamples, made

from fedray.clients.trainer import LocalTrainer
from fedray.clients.work.work import WorkOrder, WorkResult
from fedray.scenario.tasks import MlpTask
from fedray.scenario.training import FedAvg, FedProx, FedSGD
from fedray.wire.messages import TrainOrder

HELD = np.array([2, 6, 1, 6, 3, 5, 2], np.int64)
"""Examples of the devices, in no order, at most EXAMPLES."""
DEVICES = np.arange(HELD.size, dtype=np.uint64) + 40
WORKS = {
    "sgd": FedAvg(learning_rate=0.3, batch_size=2, epochs=2),
    "momentum": FedAvg(learning_rate=0.1, batch_size=2, epochs=2, momentum=0.8),
    "adam": FedAvg(learning_rate=0.01, batch_size=2, epochs=2, optimizer="adam"),
    "fedprox": FedProx(learning_rate=0.3, batch_size=2, epochs=2, proximal=0.7),
    "fedprox with momentum": FedProx(learning_rate=0.1, batch_size=2, epochs=2, momentum=0.5),
    "capped": FedAvg(learning_rate=0.3, batch_size=2, epochs=1.5, max_examples=4),
    "steps by number": FedAvg(learning_rate=0.3, batch_size=2, local_steps=3),
    "nesterov, decays and a norm": FedAvg(learning_rate=0.1, batch_size=2, epochs=2, **DECAYS),
    "file": FedAvg(learning_rate=0.1, batch_size=2, epochs=2, optimizer=OWN),
    "one gradient": FedSGD(learning_rate=0.5),
}


def computed(table: Any, task: Any, fields: Any, places: list[int]) -> WorkResult:
    """The results of the devices at these places, as one group."""
    work = resolve_name(table.implementation)(table, task, RandomExamples(fields), 7)
    start = torch.from_numpy(task.initial_parameters())
    return work.compute(WorkOrder(3, DEVICES[places], HELD[places], start))


@pytest.mark.slow
@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize("case", CASES)
def test_a_device_of_an_uneven_group_learns_what_it_learns_by_itself(case: str, work: str) -> None:
    task_table, fields = CASES[case]
    task, table = made(task_table, fields), WORKS[work]
    group = list(range(HELD.size))
    together = computed(table, task, fields, group)
    backwards = computed(table, task, fields, group[::-1])
    for place in group:
        single = computed(table, task, fields, [place])
        for found, row in ((together, place), (backwards, HELD.size - 1 - place)):
            torch.testing.assert_close(found.updates[row], single.updates[0], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(found.losses[row], single.losses[0], rtol=1e-5, atol=1e-6)
            assert found.examples[row] == single.examples[0]
        assert single.updates.any()


@pytest.mark.parametrize("work", ["sgd", "momentum", "adam", "fedprox", "file"])
def test_no_step_is_computed_that_a_device_does_not_take(work: str, monkeypatch) -> None:
    """Counts the devices of every step, and the examples that are read."""
    task, table = made(MlpTask(hidden=(4,)), VECTORS), WORKS[work]
    rows: list[int] = []
    read: list[int] = []
    losses, examples = task.losses, RandomExamples.examples

    def counted_losses(parameters, batch):
        rows.append(len(batch["inputs"]))
        assert {len(part) for part in parameters.values()} == {rows[-1]}
        return losses(parameters, batch)

    def counted_examples(self, device_ids, positions):
        read.append(positions.size)
        return examples(self, device_ids, positions)

    monkeypatch.setattr(task, "losses", counted_losses)
    monkeypatch.setattr(RandomExamples, "examples", counted_examples)
    computed(table, task, VECTORS, list(range(HELD.size)))
    steps = np.ceil(2 * HELD / 2).astype(int)
    assert rows == [int((steps > step).sum()) for step in range(2 * EXAMPLES // 2)]
    assert sum(rows) == steps.sum()
    assert sum(read) == 2 * steps.sum()


SETTINGS = {
    "layers": ("privacy.clipping={kind='per_layer'}",),
    "long updates are zero": (
        "privacy.clip_norm=0.05",
        "privacy.clipping={kind='fixed', zero_above=3.0}",
    ),
    "secagg": ("privacy.encoding={kind='secagg', scale=1000}",),
    "noise of devices": (
        "privacy.trust={kind='devices', parameters=30320}",
        "privacy.mechanism={kind='identity'}",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("weight", [1.0, 0.5])
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_sum_of_uneven_devices_is_the_sum_of_the_devices_one_by_one(
    setting: str, weight: float, small
) -> None:
    """A weight below 1 is that of a stale report in buffered rounds."""
    client = "training.client={epochs=1.0, batch_size=8, learning_rate=0.5}"
    trainer = LocalTrainer(small("training.enabled=true", client, *SETTINGS[setting]))
    device_ids = np.arange(12, dtype=np.uint64)
    assert np.unique(trainer._examples.examples_on(device_ids)).size > 6
    start = trainer.initial_parameters()
    group = TrainOrder(2, [device_ids], weight=weight)
    report, total = trainer.train(group, start)
    singles = TrainOrder(2, np.split(device_ids, 12), weight=weight)
    expected_report, expected = trainer.train(singles, start)
    assert (report.trained, report.examples) == (expected_report.trained, expected_report.examples)
    assert (report.clipped, report.zeroed) == (expected_report.clipped, expected_report.zeroed)
    assert report.loss_sum == pytest.approx(expected_report.loss_sum, rel=1e-5)
    # Rounding to integers may turn a last bit into one more or less of a device's integers.
    assert np.abs(total - expected).max() <= max(12, 1e-4 * np.abs(expected).max())
    backwards = TrainOrder(2, [device_ids[::-1].copy()], weight=weight)
    assert np.abs(trainer.train(backwards, start)[1] - expected).max() <= max(
        12, 1e-4 * np.abs(expected).max()
    )
