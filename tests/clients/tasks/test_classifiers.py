"""The classifiers: sizes that the literature states, twins in torch's own layers, and the quadratic."""

import numpy as np
import pytest
import torch
from small_tasks import CASES, IMAGES, POINTS, VECTORS, batch_of, made, parameters_of
from torch import nn

from fedray.clients.data.source import Field
from fedray.clients.tasks.layout import size_of
from fedray.scenario.tasks import ImageCnnTask, LogisticTask, MlpTask, QuadraticTask


@pytest.mark.parametrize(
    ("table", "shape", "classes", "parameters"),
    [
        (MlpTask(), (28, 28), 10, 199_210),  # McMahan et al. 2017, section 3
        (LogisticTask(), (784,), 10, 7_850),
        (ImageCnnTask(), (32, 32, 3), 10, 1_626_442),  # by the formula of pfl-research's test
        (ImageCnnTask(architecture="emnist"), (28, 28, 1), 10, 1_199_882),  # Keras's summary
        (ImageCnnTask(architecture="emnist"), (28, 28), 62, 1_206_590),
    ],
)
def test_sizes_are_those_of_the_literature(table, shape, classes: int, parameters: int) -> None:
    fields = {"inputs": Field(shape, "real"), "targets": Field((), "whole", classes)}
    assert size_of(made(table, fields).shapes) == parameters


def _assert_is_twin(task, layers: list[nn.Module], fields, arranged=lambda inputs: inputs) -> None:
    """Loss, gradients and accuracy of each of three devices are those of the layers."""
    batch, parameters = batch_of(fields), parameters_of(task)
    leaves = {name: part.requires_grad_() for name, part in parameters.items()}
    losses = task.losses(leaves, batch)
    gradients = torch.autograd.grad(losses.sum(), list(leaves.values()))
    measured = task.measure(leaves, batch)
    for device in range(3):
        own = iter(part[device] for part in leaves.values())
        slopes = iter(part[device] for part in gradients)
        twin = nn.Sequential(*layers)
        for part in twin.parameters():  # ours are [inputs, units] where torch has [units, inputs]
            mine = next(own).detach()
            part.data = mine.T if mine.dim() == 2 else mine
        scores = twin(arranged(batch["inputs"][device]))
        loss = nn.functional.cross_entropy(scores, batch["targets"][device])
        twin.zero_grad()
        loss.backward()
        torch.testing.assert_close(losses[device], loss, rtol=1e-5, atol=1e-6)
        for part in twin.parameters():
            slope = next(slopes)
            slope = slope.T if slope.dim() == 2 else slope
            torch.testing.assert_close(slope, part.grad, rtol=1e-5, atol=1e-5)
        found = scores.argmax(dim=1) == batch["targets"][device]
        assert measured["accuracy"][0][device].bool().tolist() == found.tolist()
        torch.testing.assert_close(measured["loss"][0][device].mean(), loss, rtol=1e-5, atol=1e-6)


def test_an_mlp_is_its_layers() -> None:
    layers = [nn.Flatten(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)]
    _assert_is_twin(made(MlpTask(hidden=(4, 5)), VECTORS), layers, VECTORS)


def test_a_logistic_regression_is_a_layer_and_begins_at_zero() -> None:
    task = made(LogisticTask(), VECTORS)
    _assert_is_twin(task, [nn.Flatten(), nn.Linear(6, 3)], VECTORS)
    assert not task.initial_parameters().any()


def test_the_cnn_is_that_of_pfl_without_dropout() -> None:
    layers = [nn.Conv2d(2, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)]
    dense = [nn.Flatten(), nn.Linear(2 * 64, 128), nn.ReLU(), nn.Linear(128, 3)]
    task = made(ImageCnnTask(), IMAGES)
    _assert_is_twin(task, [*layers, *dense], IMAGES, lambda inputs: inputs.movedim(-1, 1))


@pytest.mark.compiles
@pytest.mark.parametrize("name", CASES)
def test_a_group_agrees_with_each_device_alone(name: str) -> None:
    """To 1e-5: losses, gradients and metrics at parameters that differ from device to device."""
    table, fields = CASES[name]
    task = made(table, fields)
    batch, parameters = batch_of(fields), parameters_of(task)

    def of(part: slice):
        leaves = {name: each[part].clone().requires_grad_() for name, each in parameters.items()}
        own = {name: each[part] for name, each in batch.items()}
        losses = task.losses(leaves, own)
        with torch.no_grad():
            measured = task.measure(leaves, own)
        return losses, torch.autograd.grad(losses.sum(), list(leaves.values())), measured

    losses, gradients, measured = of(slice(None))
    for device in range(3):
        loss, own, figures = of(slice(device, device + 1))
        torch.testing.assert_close(losses[device], loss[0], rtol=1e-5, atol=1e-6)
        for together, alone in zip(gradients, own, strict=True):
            torch.testing.assert_close(together[device], alone[0], rtol=1e-5, atol=1e-5)
        for metric, parts in figures.items():
            for together, alone in zip(measured[metric], parts, strict=True):
                torch.testing.assert_close(together[device], alone[0], rtol=1e-5, atol=1e-5)


def test_l2_is_in_the_loss_of_the_weights_and_in_no_metric() -> None:
    plain, penalised = (made(LogisticTask(l2=l2), VECTORS) for l2 in (0.0, 0.5))
    batch, parameters = batch_of(VECTORS), parameters_of(plain)
    difference = penalised.losses(parameters, batch) - plain.losses(parameters, batch)
    expected = 0.25 * parameters["weight"].square().sum(dim=(1, 2))
    torch.testing.assert_close(difference, expected, rtol=1e-4, atol=1e-6)
    one, other = (task.measure(parameters, batch)["loss"][0] for task in (plain, penalised))
    assert torch.equal(one, other)


def test_the_first_biases_tell_the_architectures_apart() -> None:
    pfl, tff = (
        parameters_by_name(ImageCnnTask(architecture=name)) for name in ("cifar10", "emnist")
    )
    for name, part in pfl.items():
        if not name.endswith("bias"):
            fans = part.shape[0] + part.shape[1]
            bound = np.sqrt(6.0 / fans) if part.ndim == 2 else np.sqrt(6.0 / (9 * fans))
            assert 0.9 * bound < np.abs(part).max() <= bound
        assert part.any()
    assert not any(part.any() for name, part in tff.items() if name.endswith("bias"))
    assert np.abs(pfl["dense_bias"]).max() <= 1 / np.sqrt(128)


def parameters_by_name(table) -> dict[str, np.ndarray]:
    task = made(table, IMAGES)
    flat, found, first = task.initial_parameters(), {}, 0
    for name, shape in task.shapes.items():
        size = int(np.prod(shape))
        found[name] = flat[first : first + size].reshape(shape)
        first += size
    return found


def test_the_quadratic_goes_to_the_mean_at_the_rate_of_each_curvature() -> None:
    task = made(QuadraticTask(curvatures=(1.0, 3.0)), POINTS)
    batch = batch_of(POINTS)
    w = torch.zeros(3, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(task.losses({"w": w}, batch).sum(), [w])
    mean, curvatures = batch["inputs"].mean(dim=1), torch.tensor([1.0, 3.0, 1.0, 3.0])
    torch.testing.assert_close(w - 0.1 * gradient - mean, (1 - 0.1 * curvatures) * (w - mean))
    (at_mean,) = torch.autograd.grad(task.losses({"w": mean.requires_grad_()}, batch).sum(), [mean])
    torch.testing.assert_close(at_mean, torch.zeros(3, 4), rtol=0, atol=1e-6)
    losses, weights = task.measure({"w": w}, batch)["loss"]
    torch.testing.assert_close(losses, 0.5 * batch["inputs"].square().sum(dim=2))
    assert weights.eq(1).all()
