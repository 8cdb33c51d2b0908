"""Caps on what a device trains on: its first examples, by their number and by their tokens."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from small_tasks import TEXT, RandomExamples, made

from fedray.base.errors import ScenarioError
from fedray.clients.data.source import DamagedExamples, Field
from fedray.clients.trainer import LocalTrainer
from fedray.clients.work import caps
from fedray.clients.work.caps import usable_examples
from fedray.clients.work.local import LocalTraining, OneGradient
from fedray.clients.work.work import WorkOrder, WorkResult
from fedray.scenario.tasks import KeyboardLstmTask
from fedray.scenario.training import FedAvg, FedProx, FedSGD

LENGTHS = {0: [3, 4, 2, 5], 1: [5, 5, 5], 2: [1] * 30}
"""Tokens that are learned of every text of a device."""


class Texts:
    """Texts of the lengths above: a start, ones, and padding."""

    fields: Mapping[str, Field] = {"tokens": Field((7,), "whole", 11, padding=0, unknown=1)}
    held_out_devices, optimum = 0, {}
    damaged = -1

    def examples_on(self, device_ids):
        return np.array([len(LENGTHS[int(each)]) for each in device_ids])

    def examples(self, device_ids, positions):
        if self.damaged in device_ids.tolist():
            raise DamagedExamples({self.damaged: "the record is cut"})
        own = [np.array(LENGTHS[device]) for device in device_ids.tolist()]
        lengths = np.stack([each[row] for each, row in zip(own, positions, strict=True)])
        return {"tokens": (np.arange(7) <= lengths[:, :, None]).astype(np.int64)}


DEVICES = np.arange(3, dtype=np.uint64)
HELD = Texts().examples_on(DEVICES)


@pytest.mark.parametrize("at_once", [1, 4, 1024])
@pytest.mark.parametrize(
    ("max_examples", "max_tokens", "usable"),
    [
        (None, None, [4, 3, 30]),
        (None, 7, [2, 1, 7]),
        (None, 8, [2, 1, 8]),
        (None, 9, [3, 1, 9]),
        (None, 1, [1, 1, 1]),  # the first in any case
        (None, 1000, [4, 3, 30]),
        (2, 12, [2, 2, 2]),
        (8, 7, [2, 1, 7]),
    ],
)
def test_a_cap_by_tokens_takes_the_first_texts_that_fit(
    max_examples, max_tokens, usable, at_once: int, monkeypatch
) -> None:
    monkeypatch.setattr(caps, "READ_AT_ONCE", at_once)
    table = FedAvg(max_examples=max_examples, max_tokens=max_tokens)
    assert usable_examples(table, Texts(), DEVICES, HELD).tolist() == usable


def _computed(table: FedAvg | FedSGD, source, device_ids, held) -> WorkResult:
    model = made(KeyboardLstmTask(hidden=6, embedding=4), source.fields)
    start = torch.from_numpy(model.initial_parameters())
    kind = OneGradient if isinstance(table, FedSGD) else LocalTraining
    return kind(table, model, source, seed=7).compute(WorkOrder(0, device_ids, held, start))


@pytest.mark.parametrize("kind", [FedAvg, FedProx, FedSGD])
def test_a_cap_trains_as_on_devices_that_hold_no_more(kind) -> None:
    """The update is that of devices which hold the first texts alone; steps of epochs are fewer."""
    source = RandomExamples(TEXT)
    devices = np.arange(4, dtype=np.uint64)
    held = source.examples_on(devices)
    own = {} if kind is FedSGD else {"epochs": 1.0, "batch_size": 2}
    usable = usable_examples(kind(max_tokens=9), source, devices, held)
    assert (usable < held).all()
    assert len(set(usable.tolist())) > 1
    capped = _computed(kind(max_tokens=9, **own), source, devices, held)
    fewer = _computed(kind(**own), source, devices, usable)
    assert capped.updates.equal(fewer.updates)
    assert capped.examples.tolist() == usable.tolist()


def test_a_damaged_device_is_named() -> None:
    source = Texts()
    source.damaged = 1
    with pytest.raises(DamagedExamples, match="device 1: the record is cut"):
        usable_examples(FedAvg(max_tokens=5), source, DEVICES, HELD)


@pytest.mark.parametrize("kind", ["fedavg", "fedprox", "fedsgd"])
def test_tasks_without_tokens_refuse_it(small, kind: str) -> None:
    on = ["training.enabled=true", "data.kind=classes", "training.task.kind=logistic"]
    scenario = small(*on, f"training.client={{kind='{kind}', max_tokens=100}}")
    with pytest.raises(
        ScenarioError, match="max_tokens=100 needs `tokens`: .* only `inputs`, `targ"
    ):
        LocalTrainer(scenario)
    with pytest.raises(ScenarioError, match="max_tokens = 0"):
        small(*on, "training.client.max_tokens=0")
