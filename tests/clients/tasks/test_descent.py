"""Compiled steps of SGD against the gradients of their slow twin, `losses`."""

from typing import Any

import numpy as np
import pytest
import torch
from small_tasks import TEXT, batch_of, made, parameters_of

from fedray.clients.data.source import Field
from fedray.clients.tasks import text
from fedray.clients.tasks.gradients import gradients_of
from fedray.clients.trainer import LocalTrainer
from fedray.encoding.tables import FIXED_POINT_BITS
from fedray.scenario.tasks import ImageCnnTask, KeyboardLstmTask, NextWordTask
from fedray.wire.messages import TrainOrder

pytestmark = pytest.mark.compiles

RATE = 0.3
SMALL = KeyboardLstmTask(hidden=6, embedding=4)
LANGUAGE = {"tokens": Field((9,), "whole", 401)}
MODELS = {
    "cifg": (SMALL, TEXT),
    "cifg, tied": (SMALL.model_copy(update={"tied": True}), TEXT),
    "lstm": (SMALL.model_copy(update={"cell": "lstm"}), TEXT),
    "lstm, tied": (SMALL.model_copy(update={"cell": "lstm", "tied": True}), TEXT),
    "next word": (NextWordTask(), LANGUAGE),
    "a single word": (SMALL, {"tokens": Field((2,), "whole", 90)}),
}
EACH = pytest.mark.parametrize(("table", "fields"), MODELS.values(), ids=MODELS)


def _parameters(task, devices: int) -> dict[str, torch.Tensor]:
    """Parameters far enough from zero for every gradient to matter."""
    draws = torch.Generator().manual_seed(5)
    own = parameters_of(task, devices)
    return {
        name: part.detach() + 0.5 * torch.randn(part.shape, generator=draws)
        for name, part in own.items()
    }


IMAGES = {
    "inputs": Field((8, 9, 3), "real"),
    "targets": Field((), "whole", 5),
}


def test_a_step_of_the_cnn_is_that_of_the_gradients() -> None:
    task: Any = made(ImageCnnTask(), IMAGES)
    batch = batch_of(IMAGES, devices=3)
    parameters = _parameters(task, 3)
    losses, gradients = gradients_of(task, parameters, batch)
    expected = {name: part - RATE * gradients[name] for name, part in parameters.items()}
    assert all(part.any() for part in gradients.values())
    torch.testing.assert_close(task.descend(parameters, batch, RATE), losses)
    torch.testing.assert_close(parameters, expected, rtol=1e-4, atol=1e-5)


@EACH
def test_a_step_is_that_of_the_gradients(table, fields) -> None:
    task: Any = made(table, fields)
    assert task.descends
    batch = batch_of(fields, devices=3)
    parameters = _parameters(task, 3)
    losses, gradients = gradients_of(task, parameters, batch)
    expected = {name: part - RATE * gradients[name] for name, part in parameters.items()}
    assert all(part.any() for name, part in gradients.items() if fields["tokens"].shape != (2,))
    found = task.descend(parameters, batch, RATE)
    torch.testing.assert_close(found, losses)
    torch.testing.assert_close(parameters, expected, rtol=1e-5, atol=2e-6)


@EACH
def test_the_bits_of_a_device_do_not_depend_on_its_group(table, fields) -> None:
    task: Any = made(table, fields)
    batch = batch_of(fields, devices=3)
    together, alone = _parameters(task, 3), _parameters(task, 3)
    losses = task.descend(together, batch, RATE)
    for device in range(3):
        own = {name: part[device : device + 1].clone() for name, part in alone.items()}
        of_device = {name: part[device : device + 1] for name, part in batch.items()}
        assert torch.equal(task.descend(own, of_device, RATE), losses[device : device + 1])
        for name, part in own.items():
            assert torch.equal(part[0], together[name][device]), name


def test_a_batch_without_a_word_changes_nothing() -> None:
    task: Any = made(SMALL, TEXT)
    parameters, before = _parameters(task, 2), _parameters(task, 2)
    losses = task.descend(parameters, {"tokens": torch.zeros(2, 4, 7, dtype=torch.int64)}, RATE)
    assert losses.tolist() == [0.0, 0.0]
    assert all(torch.equal(part, before[name]) for name, part in parameters.items())


def test_large_logits_neither_overflow_nor_lose_a_rare_word() -> None:
    task: Any = made(SMALL.model_copy(update={"cell": "lstm"}), TEXT)
    parameters = _parameters(task, 1)
    parameters["output_bias"][0, 3:] = torch.linspace(-400.0, 400.0, 8)
    batch = batch_of(TEXT, devices=1)
    losses, _ = gradients_of(task, parameters, batch)
    found = task.descend(parameters, batch, RATE)
    assert losses.item() > 100.0
    torch.testing.assert_close(found, losses)


@pytest.mark.parametrize(
    "client",
    [
        "{kind='fedavg',epochs=2,batch_size=3}",
        "{kind='fedavg',epochs=2,batch_size=3,step_decay=0.5}",
        "{kind='fedprox',epochs=2,batch_size=3,proximal=0.1}",
        "{kind='fedavg',epochs=2,batch_size=3,weight_decay=0.1}",
        "{kind='fedavg',epochs=2,batch_size=3,gradient_norm=0.5}",
    ],
)
def test_updates_are_those_without_compiled_steps(small, monkeypatch, client: str) -> None:
    """Devices with different numbers of steps; some optimizers need gradients, and do not descend."""
    scenario = small("data.kind='language'", f"training.client={client}")
    order = TrainOrder(0, [np.arange(7, dtype=np.uint64)])

    def sums() -> np.ndarray:
        trainer = LocalTrainer(scenario)
        return trainer.train(order, trainer.initial_parameters())[1] / 2.0**FIXED_POINT_BITS

    found = sums()
    monkeypatch.setattr(text.TextModel, "descends", False)
    for kind in text.TextModel.__subclasses__():
        monkeypatch.setattr(kind, "descends", False)
    assert np.abs(found).max() > 0.01
    np.testing.assert_allclose(found, sums(), rtol=1e-4, atol=1e-6)
