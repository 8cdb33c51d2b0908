"""Checks that every task of fedray must pass, each by itself; `fedray.check_task` has them for users.

    @pytest.mark.parametrize("check", CHECKS)
    def test_my_task_keeps_the_contract(check):
        check(lambda seed: (task(seed), source))

A check takes a function from a seed to a task and its examples. It raises AssertionError with the
result, the expected one, and a remedy. Omit `check_the_metric_loss_is_the_loss` if the metric
`loss` leaves out a part of the training loss on purpose.

Shapes: G devices, B examples of each.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.clients.data.source import ExampleSource
from fedray.clients.tasks.check import BATCH, SEED, _moved, _of, _only
from fedray.clients.tasks.custom import seeded
from fedray.clients.tasks.gradients import gradients_of
from fedray.clients.tasks.layout import Named, named, repeated, size_of, tensors
from fedray.clients.tasks.task import Batch, Measures, Parameters, Task

MakeTask = Callable[[int], tuple[Task, ExampleSource]]
DEVICES = np.array([0, 1, 7, 65_536, 2**40 - 1], np.uint64)
TOLERANCE = 1e-5
"""Relative error allowed in a loss computed in another group, where float32 sums may be rounded in
another order."""


class _Case(NamedTuple):
    """A task, examples of DEVICES, and parameters [G, *shape] in three variants."""

    task: Task
    batch: Named
    start: Named
    """Initial parameters."""
    own: Named
    """Different parameters for each device, near the initial ones."""
    same: Named
    """The same parameters for each device, away from the initial ones, which may all be equal to
    each other."""

    @classmethod
    def of(cls, make: MakeTask) -> "_Case":
        task, source = seeded(make, SEED)
        batch = _batch(source, DEVICES)
        same = repeated(_moved(_start(task, 1)), DEVICES.size)
        start = _start(task, DEVICES.size)
        return cls(task, batch, start, _moved(start), same)


def check_shapes_lay_out_the_parameters(make: MakeTask) -> None:
    """The flat vector has as many numbers as the shapes, all of them finite."""
    task, _ = seeded(make, SEED)
    parameters = task.initial_parameters()
    assert parameters.dtype == np.float32, (
        f"initial_parameters() gave {parameters.dtype}; it must be float32 (.astype(np.float32))"
    )
    size = size_of(task.shapes)
    assert parameters.shape == (size,), (
        f"initial_parameters() has shape {parameters.shape}; the shapes have {size} numbers in "
        f"total: give one flat vector of {size}, or correct `shapes`"
    )
    assert np.isfinite(parameters).all(), (
        f"initial_parameters() has {np.count_nonzero(~np.isfinite(parameters))} numbers that are "
        "not finite; training cannot start from them"
    )


def check_a_task_is_a_function_of_its_seed(make: MakeTask) -> None:
    """Two tasks with one seed have the same parameters and figures, bit for bit, whatever was
    called before."""
    rule = (
        "every trainer builds a task of its own, so draw from the seed only and remember nothing "
        "between calls"
    )
    one, batch, start, _, _ = _Case.of(make)
    other, source = seeded(make, SEED)
    # A task that remembers earlier calls would differ from a new one.
    one_device = _batch(source, DEVICES[:1])
    gradients_of(other, _start(other, 1), one_device)
    other.measure(_start(other, 1), one_device)
    given = other.initial_parameters()
    # A caller may write into a result unless it is read-only.
    if given.flags.writeable:
        given += 1.0
    assert np.array_equal(one.initial_parameters(), other.initial_parameters()), (
        f"initial_parameters() differ between two tasks of seed {SEED}, or change when a caller "
        f"writes into them; {rule}"
    )
    first, again = one.losses(start, batch), other.losses(start, batch)
    assert torch.equal(first, again), (
        f"losses() of two tasks of seed {SEED} are {_shown(first)} and {_shown(again)}; {rule}"
    )
    measured = one.measure(start, batch)
    measured_again = other.measure(start, batch)
    for name, parts in measured.items():
        is_equal = all(map(torch.equal, parts, measured_again[name]))
        assert is_equal, f"measure() of two tasks of seed {SEED} differ in {name!r}; {rule}"


def check_what_a_task_is_given_stays_as_it_is(make: MakeTask) -> None:
    """A task does not change the parameters and examples it is given."""
    task, batch, _, own, _ = _Case.of(make)
    given = {**own, **batch}
    before = {name: part.clone() for name, part in given.items()}
    with torch.no_grad():
        for method in (task.losses, task.measure):
            method(own, batch)
            for name, part in given.items():
                assert torch.equal(part, before[name]), (
                    f"{method.__name__}() has changed its argument {name!r}, which belongs to the "
                    "caller: replace operations in place (`add_`, `x[...] =`)"
                )


def check_losses_do_not_depend_on_the_group(make: MakeTask) -> None:
    """A device has the same finite loss and gradients in a group and by itself, up to rounding."""
    task, batch, start, own, _ = _Case.of(make)
    rule = "row g of every tensor belongs to device g: take no sum or mean over the first axis"
    for parameters in (start, own):
        losses, gradients = gradients_of(task, parameters, batch)
        assert losses.shape == (DEVICES.size,), (
            f"losses() of {DEVICES.size} devices have shape {list(losses.shape)}; give "
            f"[{DEVICES.size}], one loss per device"
        )
        _assert_finite(losses, "losses() at the initial parameters")
        for g in range(DEVICES.size):
            loss, gradient = gradients_of(task, _of(parameters, g), _of(batch, g))
            _assert_close(loss[0], losses[g], "the loss of a device by itself and in a group", rule)
            for name in task.shapes:
                what = f"the gradient of {name!r}"
                _assert_finite(gradients[name], f"{what} at the initial parameters")
                what += ", of a device by itself and in a group"
                _assert_close(gradient[name][0], gradients[name][g], what, rule)


def check_gradients_are_slopes(make: MakeTask) -> None:
    """The gradient times a direction is the slope of the loss in it (by central differences).

    The task is called in float64: in float32 the difference of two losses is mostly rounding.
    """
    case = _Case.of(make)
    task = case.task
    batch = {name: _first_two(part) for name, part in case.batch.items()}
    start = {name: _first_two(part) for name, part in case.start.items()}
    _, gradients = gradients_of(task, start, batch)
    draws = torch.Generator().manual_seed(SEED)
    # Small relative to the curvature of a loss, and large relative to the rounding of float64.
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
    """The loss of a batch is a weighted mean of the losses of its examples.

    It stays the same if the examples are repeated or reordered, and lies between the smallest and
    the largest loss of a single example. Learning rates and regularisers then mean the same for
    every size of a device's data.
    """
    task, batch, _, own, _ = _Case.of(make)
    losses, gradients = gradients_of(task, own, batch)
    twice = {name: torch.cat([part, part], dim=1) for name, part in batch.items()}
    backwards = {name: part.flip(1) for name, part in batch.items()}
    rule = "a loss is a mean over the examples of a device, each with a loss of its own: "
    for other, what, remedy in (
        (twice, "examples, and of the same ones twice", "divide a sum by their number (`mean`)"),
        (backwards, "examples, and of the same ones backwards", "let none depend on its place"),
    ):
        other_losses, other_gradients = gradients_of(task, own, other)
        _assert_close(other_losses, losses, f"the losses of {what}", rule + remedy)
        for name, gradient in other_gradients.items():
            both = f"the gradients of {name!r} of {what}"
            _assert_close(gradient, gradients[name], both, rule + remedy)
    with torch.no_grad():
        parts = [task.losses(own, _only(batch, j)) for j in range(BATCH)]
    of_one = torch.stack(parts, dim=1)
    _assert_finite(of_one, "the losses of single examples")
    least, largest = of_one.min(dim=1).values, of_one.max(dim=1).values
    slack = TOLERANCE * (1.0 + of_one.abs().amax(dim=1))
    is_between = (losses >= least - slack) & (losses <= largest + slack)
    assert is_between.all(), (
        f"the losses of batches are {_shown(losses)}, but losses of their single examples lie "
        f"between {_shown(least)} and {_shown(largest)}, outside of which no mean is; {rule}"
        "remove terms that compare the examples of a batch"
    )


def check_losses_depend_on_parameters_and_examples(make: MakeTask) -> None:
    """Gradients are not all zero, and devices with different examples have different losses."""
    task, batch, _, _, same = _Case.of(make)
    losses, gradients = gradients_of(task, same, batch)
    assert any(part.any() for part in gradients.values()), (
        "every gradient is zero; the loss must depend on the parameters that losses() is given"
    )
    # Devices may well hold the same examples; then their losses are the same.
    if any((part != part[:1]).any() for part in batch.values()):
        assert (losses != losses[0]).any(), (
            f"devices with different examples have the same loss, {_shown(losses[:1])}; the loss "
            "must depend on the examples that losses() is given"
        )


def check_measures_are_finite(make: MakeTask) -> None:
    """Every metric has a finite numerator and weight for each example; weight 0 has numerator 0."""
    task, batch, start, _, _ = _Case.of(make)
    measured = _measured(task, start, batch)
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
            f"{name!r} has weight {weights.min():g}; the weight of an example must be at least 0"
        )
        assert (weights > 0).any(), (
            f"{name!r} has weight 0 for all examples, so that it has no value; count some"
        )
        assert not numerators[weights == 0].any(), (
            f"{name!r} has examples of weight 0 with a numerator, which would still count; set it "
            "to 0 there"
        )


def check_measures_are_of_single_examples(make: MakeTask) -> None:
    """An example has the same numerators and weights alone as in a batch of several devices.

    Evaluation relies on this when it puts the examples of many devices into one batch.
    """
    task, batch, _, own, _ = _Case.of(make)
    measured = _measured(task, own, batch)
    rule = "entry [g, j] depends only on example j of device g: reduce over neither of the two axes"
    for g in range(DEVICES.size):
        for j in range(BATCH):
            single = _measured(task, _of(own, g), _of(_only(batch, j), g))
            for name, parts in single.items():
                what = f"of {name!r} of an example, by itself and in a batch of several devices"
                for part, role in enumerate(("numerator", "weight")):
                    together = measured[name][part][g, j]
                    _assert_close(parts[part][0, 0], together, f"the {role} {what}", rule)


def check_metrics_are_what_they_are_called(make: MakeTask) -> None:
    """Accuracies, and metrics whose unit is a share, lie between 0 and 1.

    Lower values are better for a loss or a perplexity, higher ones for an accuracy.
    """
    task, batch, _, own, _ = _Case.of(make)
    measured = _measured(task, own, batch)
    for metric in task.metrics:
        is_accuracy = metric.name.endswith("accuracy")
        if is_accuracy or metric.unit.startswith("share"):
            numerators, weights = measured[metric.name]
            assert ((numerators >= 0) & (numerators <= weights)).all(), (
                f"{metric.name!r} is a share, which lies within 0 and 1, and has an example with "
                f"numerators from {numerators.min():g} to {numerators.max():g} at weights from "
                f"{weights.min():g} to {weights.max():g}; count the same things in both, or give "
                "the metric another name and unit"
            )
        if metric.name == "loss" or metric.is_exponential or is_accuracy:
            expected = "higher" if is_accuracy else "lower"
            assert metric.better == expected, (
                f"{metric.name!r} says that {metric.better} values are better; set "
                f"better={expected!r}, or give it another name"
            )


def check_the_metric_loss_is_the_loss(make: MakeTask) -> None:
    """The metric `loss` equals the loss that `losses` trains, except for terms that depend only on
    the parameters, such as a regulariser."""
    # A regulariser is equal for devices that have the same parameters.
    task, batch, _, _, same = _Case.of(make)
    measured = _measured(task, same, batch)
    if "loss" not in measured:
        return
    numerators, weights = measured["loss"]
    counts = weights.sum(dim=1) > 0
    metric = (numerators.sum(dim=1) / weights.sum(dim=1))[counts]
    with torch.no_grad():
        losses = task.losses(same, batch)[counts].double()
    # With a single device, a regulariser could not be told from a wrong weight.
    regulariser = (losses - metric).median()
    _assert_close(
        metric + regulariser,
        losses,
        "the metric `loss` of devices (with terms of only the parameters) and their losses",
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


def _batch(source: ExampleSource, device_ids: np.ndarray) -> Named:
    counts = source.examples_on(device_ids)
    assert (counts > 0).all(), (
        f"devices {device_ids[counts <= 0].tolist()} have no examples; give the suite a source in "
        "which these ids have some"
    )
    # A device with fewer examples repeats them.
    positions = np.arange(BATCH)[None, :] % counts[:, None]
    return tensors(source.examples(device_ids, positions))


def _start(task: Task, devices: int) -> Named:
    flat = torch.from_numpy(task.initial_parameters())
    return repeated(named(flat[None, :], task.shapes), devices)


def _first_two(part: Tensor) -> Tensor:
    """Returns the part of two devices, reals in float64."""
    return part[:2].double() if part.is_floating_point() else part[:2]


def _measured(task: Task, parameters: Parameters, batch: Batch) -> Measures:
    """Measures in float64, since numerators and weights may be counts or booleans."""
    with torch.no_grad():
        found = task.measure(parameters, batch)
    return {
        name: (numerators.double(), weights.double())
        for name, (numerators, weights) in found.items()
    }


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
    def message(difference: str) -> str:
        return f"{what}, differ: {_shown(one)} and {_shown(other)}; {rule}\n{difference}"

    torch.testing.assert_close(one, other, rtol=rtol, atol=atol, msg=message)


def _shown(part: Tensor) -> str:
    numbers = ", ".join(f"{value:.6g}" for value in part.flatten()[:5].tolist())
    return f"{numbers}, ..." if part.numel() > 5 else numbers
