"""What every task must do, as checks that a test runs: one of your own too.

    @pytest.mark.parametrize("check", CHECKS)
    def test_my_task_keeps_the_contract(check):
        check(lambda seed: (task(seed), source))

A check is given what makes a task for a seed, and examples for it. It raises AssertionError, which
says what came out, what was expected, and what to do. A task whose metric `loss` leaves out a part
of the training loss on purpose is not given to `check_the_metric_loss_is_the_loss`.

Shapes: G devices, B examples of each.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from fedray.clients.data.source import ExampleSource
from fedray.clients.tasks.layout import named, repeated, size_of, tensors
from fedray.clients.tasks.task import Task

MakeTask = Callable[[int], tuple[Task, ExampleSource]]
DEVICES = np.array([0, 1, 7, 65_536, 2**40 - 1], np.uint64)
SEED, BATCH = 3, 4
TOLERANCE = 1e-5
"""Relative, of a loss in another group: sums of float32 are rounded in another order."""
APART = 0.01
"""Standard deviation by which the parameters of devices differ: far beyond TOLERANCE, and too
little to take a model out of its range."""


def check_shapes_lay_out_the_parameters(make: MakeTask) -> None:
    """The flat vector has as many numbers as the shapes, all of them finite.

    Args:
        make: gives a task and its examples for a seed.
    """
    task, _ = _made(make)
    parameters = task.initial_parameters()
    assert parameters.dtype == np.float32, (
        f"initial_parameters() gave {parameters.dtype}; it must be float32 (.astype(np.float32))"
    )
    expected = (size_of(task.shapes),)
    assert parameters.shape == expected, (
        f"initial_parameters() has shape {parameters.shape}; the shapes have {expected[0]} numbers "
        "in all: give one flat vector of so many, or correct `shapes`"
    )
    assert np.isfinite(parameters).all(), (
        f"initial_parameters() has {np.count_nonzero(~np.isfinite(parameters))} numbers that are "
        "not finite; training cannot start from them"
    )


def check_a_task_is_a_function_of_its_seed(make: MakeTask) -> None:
    """Two tasks of one seed have the same parameters and figures, bit for bit, whatever was asked
    of them before.

    Args:
        make: gives a task and its examples for a seed.
    """
    rule = (
        "every trainer has a task of its own, so draw from the seed alone and remember nothing "
        "between calls"
    )
    one, source = _made(make)
    other, _ = _made(make)
    # A task that remembers something of an earlier call would differ from one that is new, and a
    # caller may write into what it was given.
    one_device = _batch(source, DEVICES[:1])
    _losses_and_gradients(other, _start(other), one_device)
    other.measure(_start(other), one_device)
    given = other.initial_parameters()
    # What is read-only, no caller can write into.
    if given.flags.writeable:
        given += 1.0
    assert np.array_equal(one.initial_parameters(), other.initial_parameters()), (
        f"initial_parameters() differ between two tasks of seed {SEED}, or change when a caller "
        f"writes into them; {rule}"
    )
    batch = _batch(source, DEVICES)
    start = _start(one, DEVICES.size)
    first, again = one.losses(start, batch), other.losses(start, batch)
    assert torch.equal(first, again), (
        f"losses() of two tasks of seed {SEED} are {_told(first)} and {_told(again)}; {rule}"
    )
    measured = one.measure(start, batch)
    measured_again = other.measure(start, batch)
    for name, parts in measured.items():
        is_equal = all(map(torch.equal, parts, measured_again[name]))
        assert is_equal, f"measure() of two tasks of seed {SEED} differ in {name!r}; {rule}"


def check_what_a_task_is_given_stays_as_it_is(make: MakeTask) -> None:
    """Neither parameters nor examples are written into.

    Args:
        make: gives a task and its examples for a seed.
    """
    task, source = _made(make)
    batch = _batch(source, DEVICES)
    own = _own(task, DEVICES.size)
    given = {**own, **batch}
    before = {name: part.clone() for name, part in given.items()}
    with torch.no_grad():
        for method in (task.losses, task.measure):
            method(own, batch)
            for name, part in given.items():
                assert torch.equal(part, before[name]), (
                    f"{method.__name__}() has changed {name!r} that it was given; they belong to "
                    "the caller: replace operations in place (`add_`, `x[...] =`)"
                )


def check_losses_do_not_depend_on_the_group(make: MakeTask) -> None:
    """A device has the loss and the gradients of its own parameters on its own examples, as it has
    alone, but for rounding; they are finite.

    Args:
        make: gives a task and its examples for a seed.
    """
    task, source = _made(make)
    batch = _batch(source, DEVICES)
    rule = "row g of every tensor belongs to device g: take no sum or mean over the first axis"
    for start in (_start(task, DEVICES.size), _own(task, DEVICES.size)):
        losses, gradients = _losses_and_gradients(task, start, batch)
        assert losses.shape == (DEVICES.size,), (
            f"losses() of {DEVICES.size} devices have shape {list(losses.shape)}; give "
            f"[{DEVICES.size}], one loss per device"
        )
        _assert_finite(losses, "losses() at the initial parameters")
        for g in range(DEVICES.size):
            loss, gradient = _losses_and_gradients(task, _of(start, g), _of(batch, g))
            _assert_close(loss[0], losses[g], "the loss of a device alone and in a group", rule)
            for name in task.shapes:
                what = f"the gradient of {name!r}"
                _assert_finite(gradients[name], f"{what} at the initial parameters")
                what += ", of a device alone and in a group"
                _assert_close(gradient[name][0], gradients[name][g], what, rule)


def check_gradients_are_slopes(make: MakeTask) -> None:
    """The gradient times a direction is the slope of the loss in it (by central differences).

    The task is called in float64, since in float32 the difference of two losses is mostly rounding.

    Args:
        make: gives a task and its examples for a seed.
    """
    task, source = _made(make)
    batch = {
        name: part.double() if part.is_floating_point() else part
        for name, part in _batch(source, DEVICES[:2]).items()
    }
    start = {name: part.double() for name, part in _start(task, 2).items()}
    _, gradients = _losses_and_gradients(task, start, batch)
    draws = torch.Generator().manual_seed(SEED)
    # It is small beside the curvature of a loss, and large beside the rounding of float64.
    step = 1e-6
    for name, part in start.items():
        direction = torch.randn(part.shape, generator=draws, dtype=torch.float64)
        ahead = {**start, name: part + step * direction}
        behind = {**start, name: part - step * direction}
        with torch.no_grad():
            above = task.losses(ahead, batch).sum()
            below = task.losses(behind, batch).sum()
        slope = (above - below) / (2 * step)
        along_gradient = (gradients[name] * direction).sum()
        _assert_close(
            along_gradient,
            slope,
            f"the gradient of {name!r} along a direction, and the slope of the loss there",
            "compute the loss by differentiable operations (no `detach`, no numpy), and check a "
            "backward pass of your own",
            rtol=1e-4,
            atol=1e-7,
        )


def check_losses_are_means_over_examples(make: MakeTask) -> None:
    """The loss of a batch is a weighted mean of those of its examples.

    So it is the same where every example comes twice, and in any order, and lies between the least
    and the largest loss of its examples. Rates and regularisers mean the same then whatever a
    device holds.

    Args:
        make: gives a task and its examples for a seed.
    """
    task, source = _made(make)
    batch = _batch(source, DEVICES)
    own = _own(task, DEVICES.size)
    losses, gradients = _losses_and_gradients(task, own, batch)
    twice = {name: torch.cat([part, part], dim=1) for name, part in batch.items()}
    backwards = {name: part.flip(1) for name, part in batch.items()}
    rule = "a loss is a mean over the examples of a device, each with a loss of its own: "
    for other, what, remedy in (
        (twice, "examples, and of the same ones twice", "divide a sum by their number (`mean`)"),
        (backwards, "examples, and of the same ones backwards", "let none depend on its place"),
    ):
        other_losses, other_gradients = _losses_and_gradients(task, own, other)
        _assert_close(other_losses, losses, f"the losses of {what}", rule + remedy)
        for name, gradient in other_gradients.items():
            told = f"the gradients of {name!r} of {what}"
            _assert_close(gradient, gradients[name], told, rule + remedy)
    with torch.no_grad():
        parts = [task.losses(own, _only(batch, j)) for j in range(BATCH)]
    of_one = torch.stack(parts, dim=1)
    _assert_finite(of_one, "the losses of single examples")
    least, largest = of_one.min(dim=1).values, of_one.max(dim=1).values
    slack = TOLERANCE * (1.0 + of_one.abs().amax(dim=1))
    is_between = (losses >= least - slack) & (losses <= largest + slack)
    assert is_between.all(), (
        f"the losses of batches are {_told(losses)}, and those of their single examples lie "
        f"between {_told(least)} and {_told(largest)}, outside of which no mean is; {rule}"
        "leave out terms that compare the examples of a batch"
    )


def check_losses_depend_on_parameters_and_examples(make: MakeTask) -> None:
    """Training moves the parameters, to where the examples of a device say.

    Args:
        make: gives a task and its examples for a seed.
    """
    task, source = _made(make)
    batch = _batch(source, DEVICES)
    same = _same(task, DEVICES.size)
    losses, gradients = _losses_and_gradients(task, same, batch)
    assert any(part.any() for part in gradients.values()), (
        "every gradient is zero; the loss must depend on the parameters that losses() is given"
    )
    # Devices may well hold the same examples; then their losses are the same.
    if any((part != part[:1]).any() for part in batch.values()):
        assert (losses != losses[0]).any(), (
            f"devices with different examples have the same loss, {_told(losses[:1])}; the loss "
            "must depend on the examples that losses() is given"
        )


def check_measures_are_finite(make: MakeTask) -> None:
    """Every metric has a finite numerator and a weight for each example of each device. An example
    without weight has no numerator.

    Args:
        make: gives a task and its examples for a seed.
    """
    task, source = _made(make)
    measured = _measured(task, _start(task, DEVICES.size), _batch(source, DEVICES))
    names = {metric.name for metric in task.metrics}
    assert set(measured) == names, (
        f"measure() gave {sorted(measured)}, and `metrics` names {sorted(names)}; give the same"
    )
    for name, (numerators, weights) in measured.items():
        shape = (DEVICES.size, BATCH)
        assert numerators.shape == weights.shape == shape, (
            f"measure() gave {name!r} as {list(numerators.shape)} and {list(weights.shape)}; give "
            f"numerators and weights {list(shape)}, one per example of each device"
        )
        _assert_finite(numerators, f"the numerators of {name!r}")
        _assert_finite(weights, f"the weights of {name!r}")
        assert (weights >= 0).all(), (
            f"{name!r} has weight {weights.min():g}; a weight is how much an example counts, 0 or "
            "more"
        )
        assert (weights > 0).any(), (
            f"{name!r} has weight 0 for all examples, so that it has no value; count some"
        )
        assert not numerators[weights == 0].any(), (
            f"{name!r} has examples of weight 0 with a numerator, which would count all the same; "
            "set it to 0 there"
        )


def check_measures_are_of_single_examples(make: MakeTask) -> None:
    """An example has the numerators and weights that it has alone, under its device's parameters.

    Evaluation puts the examples of many devices into one batch, and counts on it.

    Args:
        make: gives a task and its examples for a seed.
    """
    task, source = _made(make)
    batch = _batch(source, DEVICES)
    own = _own(task, DEVICES.size)
    measured = _measured(task, own, batch)
    rule = "entry [g, j] is of example j of device g alone: reduce over neither of the two axes"
    for g in range(DEVICES.size):
        alone = _of(own, g)
        for j in range(BATCH):
            for name, parts in _measured(task, alone, _of(_only(batch, j), g)).items():
                what = f"of {name!r} of an example, alone and in a batch of several devices"
                for part, role in enumerate(("numerator", "weight")):
                    together = measured[name][part][g, j]
                    _assert_close(parts[part][0, 0], together, f"the {role} {what}", rule)


def check_metrics_are_what_they_are_called(make: MakeTask) -> None:
    """A metric that is an accuracy, or whose unit is a share, lies within 0 and 1. Of a loss or a
    perplexity lower values are better, of an accuracy higher ones.

    Args:
        make: gives a task and its examples for a seed.
    """
    task, source = _made(make)
    measured = _measured(task, _own(task, DEVICES.size), _batch(source, DEVICES))
    for metric in task.metrics:
        is_accuracy = metric.name.endswith("accuracy")
        if is_accuracy or metric.unit.startswith("share"):
            numerators, weights = measured[metric.name]
            assert ((numerators >= 0) & (numerators <= weights)).all(), (
                f"{metric.name!r} is a share, which lies within 0 and 1, and has an example with "
                f"numerators from {numerators.min():g} to {numerators.max():g} at weights from "
                f"{weights.min():g} to {weights.max():g}; count in both over the same things, or "
                "give the metric another name and unit"
            )
        if metric.name == "loss" or metric.is_exponential or is_accuracy:
            expected = "higher" if is_accuracy else "lower"
            assert metric.better == expected, (
                f"of {metric.name!r} {metric.better} values are called better; set "
                f"better={expected!r}, or give it another name"
            )


def check_the_metric_loss_is_the_loss(make: MakeTask) -> None:
    """What `measure` calls `loss` is what `losses` trains, but for what depends on the parameters
    alone, such as a regulariser.

    Args:
        make: gives a task and its examples for a seed.
    """
    task, source = _made(make)
    batch = _batch(source, DEVICES)
    # A regulariser is the same for devices that have the same parameters.
    same = _same(task, DEVICES.size)
    measured = _measured(task, same, batch)
    if "loss" not in measured:
        return
    numerators, weights = measured["loss"]
    counts = weights.sum(dim=1) > 0
    metric = (numerators.sum(dim=1) / weights.sum(dim=1))[counts]
    with torch.no_grad():
        losses = task.losses(same, batch)[counts].double()
    # Of one device alone nothing would tell a regulariser from a wrong weight.
    regulariser = (losses - metric).median()
    _assert_close(
        metric + regulariser,
        losses,
        "the metric `loss` of devices (with what the parameters alone add) and their losses",
        "weigh examples in both alike (a mean over words needs numerators that are sums over the "
        "words of a text, and their number as weights), or give the metric another name",
    )


CHECKS = (
    check_shapes_lay_out_the_parameters,
    check_a_task_is_a_function_of_its_seed,
    check_what_a_task_is_given_stays_as_it_is,
    check_losses_do_not_depend_on_the_group,
    check_gradients_are_slopes,
    check_losses_are_means_over_examples,
    check_losses_depend_on_parameters_and_examples,
    check_measures_are_finite,
    check_measures_are_of_single_examples,
    check_metrics_are_what_they_are_called,
    check_the_metric_loss_is_the_loss,
)


def _made(make: MakeTask) -> tuple[Task, ExampleSource]:
    """A task, made as trainers make it: with torch's own generator seeded."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return make(SEED)


def _batch(source: ExampleSource, device_ids: np.ndarray) -> dict[str, Tensor]:
    """BATCH examples of each device."""
    counts = source.examples_on(device_ids)
    assert (counts > 0).all(), (
        f"devices {device_ids[counts <= 0].tolist()} have no examples; give the suite a source in "
        "which these ids have some"
    )
    # A device with fewer examples repeats them.
    positions = np.arange(BATCH)[None, :] % counts[:, None]
    return tensors(source.examples(device_ids, positions))


def _only(batch: Mapping[str, Tensor], j: int) -> dict[str, Tensor]:
    """Example j of each device, as batches of one."""
    return {name: part[:, j : j + 1] for name, part in batch.items()}


def _of(parts: Mapping[str, Tensor], g: int) -> dict[str, Tensor]:
    """What device g has of some parts, as a group of one."""
    return {name: part[g : g + 1] for name, part in parts.items()}


def _start(task: Task, devices: int = 1) -> dict[str, Tensor]:
    """The initial parameters by name, [G, *shape], once for each device."""
    flat = torch.from_numpy(task.initial_parameters())
    of_one = named(flat[None, :], task.shapes)
    return repeated(of_one, devices)


def _own(task: Task, devices: int) -> dict[str, Tensor]:
    """Parameters of each device's own, near the initial ones, [G, *shape] by name."""
    draws = torch.Generator().manual_seed(SEED)
    return {
        name: part + APART * torch.randn(part.shape, generator=draws)
        for name, part in _start(task, devices).items()
    }


def _same(task: Task, devices: int) -> dict[str, Tensor]:
    """The same parameters for every device, away from the initial ones, which may be all alike."""
    return repeated(_own(task, 1), devices)


def _measured(
    task: Task, parameters: dict[str, Tensor], batch: dict[str, Tensor]
) -> dict[str, tuple[Tensor, Tensor]]:
    """Numerators and weights by metric, in float64: they may be counts, or booleans."""
    with torch.no_grad():
        found = task.measure(parameters, batch)
    return {name: (above.double(), below.double()) for name, (above, below) in found.items()}


def _assert_finite(part: Tensor, what: str) -> None:
    missing = int((~torch.isfinite(part)).sum())
    assert not missing, (
        f"{what}: {missing} of {part.numel()} are not finite; look for 0 / 0, log(0) or an "
        "overflow, or scale the data"
    )


def _assert_close(
    one: Tensor,
    other: Tensor,
    what: str,
    rule: str,
    rtol: float = TOLERANCE,
    atol: float = TOLERANCE,
) -> None:
    def told(difference: str) -> str:
        return f"{what}, differ: {_told(one)} and {_told(other)}; {rule}\n{difference}"

    torch.testing.assert_close(one, other, rtol=rtol, atol=atol, msg=told)


def _told(part: Tensor) -> str:
    """The first numbers of a tensor."""
    numbers = ", ".join(f"{value:.6g}" for value in part.flatten()[:5].tolist())
    return f"{numbers}, ..." if part.numel() > 5 else numbers


def _losses_and_gradients(
    task: Task,
    parameters: dict[str, Tensor],
    batch: dict[str, Tensor],
) -> tuple[Tensor, dict[str, Tensor]]:
    """Losses [G] of a batch, and gradients by name."""
    leaves = {name: part.clone().requires_grad_() for name, part in parameters.items()}
    losses = task.losses(leaves, batch)
    gradients = torch.autograd.grad(
        losses.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True
    )
    return losses.detach(), dict(zip(leaves, gradients, strict=True))
