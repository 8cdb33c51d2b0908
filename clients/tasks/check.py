"""A check of a user's own task and data against the rules on which training relies.

Shapes: G devices, B examples of each.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedray.base.errors import InputError
from fedray.wire.messages import Metric
from ..data.source import FIRST_HELD_OUT, Examples, ExampleSource, Ids
from .custom import seeded
from .gradients import gradients_of
from .layout import Named, named, repeated, size_of, tensors
from .module import ModuleTask
from .task import Batch, Parameters, Task

DEVICES = np.array([0, 1, 7, 65_536, 2**39], np.uint64)
SEED, BATCH = 3, 4
TOLERANCE = 1e-5
"""Relative error allowed in a loss: float32 sums of another group are rounded in another order."""
APART = 0.01
"""Standard deviation between the parameters of devices: far above TOLERANCE, and small enough to
keep a model within its range."""
_COMPARED = 200
_SEARCHED = 100
"""Examples of a device among which one with a weight is looked for."""


def check_task(
    make: Callable[[int], tuple[Any, Any]],
    devices: int | None = None,
    held_out_devices: int | None = None,
) -> None:
    """Checks a task and the data of its devices against the rules on which training relies.

    The data is read for devices together, and one by one backwards from a second source. Modules
    are in evaluation mode, without dropout.
    The task is called at and near its initial parameters, in groups and device by device, and its
    gradients are compared with the slopes of its loss. No check can tell whether the loss is the
    one that is wanted.

    Args:
        make: function from a seed to a new task (`fedray.clients.tasks.task.Task`) and its data
            (`fedray.clients.data.source.ExampleSource`); without a task, only the data is checked.
        devices: number of devices of the population, at least 2: only these are asked for. Default:
            any below 2^40.
        held_out_devices: the same of held-out devices, at least 1. Default: those of the data.

    Raises:
        AssertionError: broken rule, with the values that break it.
        InputError: a number of devices is too small.
    """
    for name, given, least in (("devices", devices, 2), ("held_out_devices", held_out_devices, 1)):
        if given is not None and given < least:
            raise InputError.of(
                name, given, f"must be at least {least}", "raise it, or leave it out"
            )
    device_ids = DEVICES
    if devices is not None:
        device_ids = np.unique(np.linspace(0, devices - 1, DEVICES.size).astype(np.uint64))
    population = np.arange(min(devices or _COMPARED, _COMPARED), dtype=np.uint64)
    task, source = seeded(make, SEED)
    other, other_source = seeded(make, SEED)
    no_data = "make() must return data too; a task of recorded data needs some for the check"
    _demand(source is not None, no_data, source)
    most = source.held_out_devices if held_out_devices is None else held_out_devices
    held_out = FIRST_HELD_OUT + np.arange(min(most, source.held_out_devices, 20), dtype=np.uint64)
    _check_data(source, other_source, device_ids)
    _check_held_out(source, held_out, population)
    if task is None:
        return
    flat = task.initial_parameters()
    size = size_of(task.shapes)
    is_flat = flat.dtype == np.float32 and flat.shape == (size,) and np.isfinite(flat).all()
    _demand(is_flat, "initial_parameters() must be as many finite float32 as `shapes` say", flat)
    case = _Case.of(task, source, device_ids)
    with _without_dropout(task), _without_dropout(other):
        _check_repeats(case, other)
        _check_losses(case)
        _check_slopes(case)
        _check_means(case)
        _check_measures(case, source, population)


@dataclass(frozen=True, slots=True)
class _Case:
    """A task, examples of devices [G], and parameters [G, *shape] in three variants."""

    task: Task
    batch: Named
    start: Named
    """Initial parameters."""
    own: Named
    """Different parameters for each device, near the initial ones."""
    same: Named
    """The same parameters for each device, away from the initial ones."""

    @classmethod
    def of(cls, task: Task, source: ExampleSource, device_ids: Ids) -> "_Case":
        counts = source.examples_on(device_ids)
        # A device with fewer examples repeats them.
        batch = tensors(source.examples(device_ids, np.arange(BATCH)[None, :] % counts[:, None]))
        one = named(torch.from_numpy(task.initial_parameters())[None, :].clone(), task.shapes)
        start = repeated(one, device_ids.size)
        same = repeated(_moved(one), device_ids.size)
        return cls(task, batch, start, _moved(start), same)

    @property
    def devices(self) -> int:
        """Number of devices, G."""
        return next(iter(self.batch.values())).shape[0]


def _without_dropout(task: Any) -> AbstractContextManager[None]:
    return task.evaluating() if isinstance(task, ModuleTask) else nullcontext()


def _check_data(source: ExampleSource, other: ExampleSource, device_ids: Ids) -> None:
    counts = source.examples_on(device_ids)
    is_counted = counts.dtype == np.int64 and counts.shape == device_ids.shape
    rule = f"examples_on() must be int64 above 0 for the devices {device_ids.tolist()}"
    _demand(is_counted and (counts > 0).all(), rule, counts)
    positions = np.append(3 * np.arange(5)[None, :] % counts[:, None], counts[:, None] - 1, axis=1)
    together = source.examples(device_ids, positions)
    _check_form(source, together)
    rule = "an example must be a function of only the scenario, the device id and the position"
    _same(source.examples(device_ids, positions), together, rule)
    # Each example by itself, the last first: neither the group nor the order may matter.
    for g, b in reversed(list(np.ndindex(positions.shape))):
        device = device_ids[g : g + 1]
        alone = other.examples(device, positions[g : g + 1, b : b + 1])
        _same(_at(_at(alone, 0), 0), _at(_at(together, g), b), rule)
        count = other.examples_on(device)
        _demand(count[0] == counts[g], "a count must depend on only the device id", count)


def _check_held_out(source: ExampleSource, held_out: Ids, population: Ids) -> None:
    held_out = held_out[source.examples_on(held_out) > 0]
    _demand(held_out.size, "`held_out_devices` must count devices with data", held_out)
    _check_form(source, source.examples(held_out, np.zeros((held_out.size, 1), np.int64)))
    trained = {_content(source, each) for each in population[source.examples_on(population) > 0]}
    shared = [each for each in held_out if _content(source, each) in trained]
    rule = "held-out devices must have data of their own (id % n gives them that of others)"
    _demand(2 * len(shared) <= held_out.size, rule, shared[:1])


def _check_form(source: ExampleSource, examples: Examples) -> None:
    for name, field in source.fields.items():
        values, what = examples[name], f"{name!r} of examples()"
        is_formed = values.shape[2:] == field.shape and values.dtype == np.dtype(field.dtype)
        _demand(is_formed, f"{what} must have shape {field.shape} and type {field.dtype}", values)
        if field.kind == "real":
            _demand(np.isfinite(values).all(), f"{what} must be finite", values)
        else:
            is_within = ((values >= 0) & (values < field.values)).all()
            _demand(is_within, f"{what} must be from 0 to {field.values - 1}", values)
        # Models assume that no word follows padding.
        if field.padding is not None and field.shape:
            is_padding = values == field.padding
            is_last = not (is_padding[..., :-1] & ~is_padding[..., 1:]).any()
            _demand(is_last, f"{what}: padding must follow the tokens of a text", values)


def _check_repeats(case: _Case, other: Task) -> None:
    rule = "a task must depend on only its seed, and remember nothing between calls: "
    given = {**case.own, **case.batch}
    before = {name: part.clone() for name, part in given.items()}
    with torch.no_grad():
        # A task that remembers earlier calls would differ from a new one.
        other.losses(_of(case.own, 1), _of(case.batch, 1))
        other.measure(_of(case.own, 1), _of(case.batch, 1))
        losses = [each.losses(case.own, case.batch) for each in (case.task, other)]
        measured = [each.measure(case.own, case.batch) for each in (case.task, other)]
    _same(given, before, "a task must not change the parameters and examples that it is given")
    _same({"": losses[0]}, {"": losses[1]}, rule + "losses()")
    for name, parts in measured[0].items():
        for part, again in zip(parts, measured[1][name], strict=True):
            _same({name: part}, {name: again}, rule + "measure()")
    initial = other.initial_parameters()
    # A caller may write into a result unless it is read-only.
    if initial.flags.writeable:
        initial += 1.0
    one, again = {"": case.task.initial_parameters()}, {"": other.initial_parameters()}
    _same(one, again, rule + "initial_parameters()")


def _check_losses(case: _Case) -> None:
    rule = "row g of every tensor must belong to device g (no sum or mean over the first axis): "
    for parameters in (case.start, case.own):
        losses, gradients = gradients_of(case.task, parameters, case.batch)
        is_finite = losses.shape == (case.devices,) and torch.isfinite(losses).all()
        _demand(is_finite, "losses() must be a finite loss for each device", losses)
        for name, part in gradients.items():
            _demand(torch.isfinite(part).all(), f"the gradient of {name!r} must be finite", part)
        for g in range(case.devices):
            loss, gradient = gradients_of(case.task, _of(parameters, g), _of(case.batch, g))
            _close(loss, losses[g : g + 1], rule + "losses()")
            for name, part in gradient.items():
                _close(part, gradients[name][g : g + 1], f"{rule}the gradient of {name!r}")
    losses, gradients = gradients_of(case.task, case.same, case.batch)
    has_slope = any(part.any() for part in gradients.values())
    _demand(has_slope, "the loss must depend on the parameters", losses)
    # Devices may well hold the same examples; then their losses are the same.
    is_same = all((part == part[:1]).all() for part in case.batch.values())
    _demand(is_same or (losses != losses[0]).any(), "the loss must depend on the examples", losses)


def _check_slopes(case: _Case) -> None:
    """Compares gradients with central differences in float64: in float32 the difference of two
    losses is mostly rounding."""
    batch, start = _first_two(case.batch), _first_two(case.start)
    _, gradients = gradients_of(case.task, start, batch)
    draws = torch.Generator().manual_seed(SEED)
    # Small relative to the curvature of a loss, and large relative to the rounding of float64.
    step = 1e-6
    for name, part in start.items():
        direction = torch.randn(part.shape, generator=draws, dtype=torch.float64)
        with torch.no_grad():
            above, below = (
                case.task.losses({**start, name: part + sign * step * direction}, batch).sum()
                for sign in (1, -1)
            )
        slope = (above - below) / (2 * step)
        rule = f"the gradient of {name!r} must be the slope of the loss (no `detach`, no numpy)"
        _close((gradients[name] * direction).sum(), slope, rule, rtol=1e-4, atol=1e-7)


def _check_means(case: _Case) -> None:
    """Learning rates mean the same for every size of a device's data if losses are means."""
    rule = "a loss must be a mean over the examples of a device, each with a loss of its own"
    losses, gradients = gradients_of(case.task, case.own, case.batch)
    for change in (lambda part: torch.cat([part, part], dim=1), lambda part: part.flip(1)):
        other = {name: change(part) for name, part in case.batch.items()}
        other_losses, other_gradients = gradients_of(case.task, case.own, other)
        _close(other_losses, losses, rule)
        for name, gradient in other_gradients.items():
            _close(gradient, gradients[name], rule)
    with torch.no_grad():
        single = [case.task.losses(case.own, _only(case.batch, j)) for j in range(BATCH)]
    of_one = torch.stack(single, dim=1)
    slack = TOLERANCE * (1.0 + of_one.abs().amax(dim=1))
    least, largest = of_one.amin(dim=1) - slack, of_one.amax(dim=1) + slack
    _demand(((losses >= least) & (losses <= largest)).all(), rule, losses)


def _check_measures(case: _Case, source: ExampleSource, population: Ids) -> None:
    measured = _measured(case.task, case.own, case.batch)
    names = {metric.name for metric in case.task.metrics}
    _demand(set(measured) == names, "measure() must give what `metrics` names", sorted(measured))
    for metric in case.task.metrics:
        _check_values(metric, measured[metric.name], (case.devices, BATCH))
        if not measured[metric.name][1].any():
            _check_rare(case, source, population, metric)
    for g in range(case.devices):
        for j in range(BATCH):
            for name, parts in _measured(
                case.task, _of(case.own, g), _of(_only(case.batch, j), g)
            ).items():
                rule = f"{name!r} of an example must depend on only this example and its device"
                for part, together in zip(parts, measured[name], strict=True):
                    _close(part[0, 0], together[g, j], rule)
    for metric in case.task.metrics:
        is_accuracy = metric.name.endswith("accuracy")
        if metric.name == "loss" or metric.is_exponential or is_accuracy:
            better = "higher" if is_accuracy else "lower"
            rule = f"{metric.name!r} must have better={better!r}, or another name"
            _demand(metric.better == better, rule, metric)
    if "loss" in measured:
        _check_metric_loss(case)


def _check_values(metric: Metric, parts: tuple[Tensor, ...], shape: tuple[int, int]) -> None:
    """Checks numerators and weights of examples, each of that shape."""
    numerators, weights = parts
    is_sound = numerators.shape == weights.shape == shape
    is_sound = is_sound and torch.isfinite(numerators).all() and torch.isfinite(weights).all()
    is_sound = is_sound and (weights >= 0).all() and not numerators[weights == 0].any()
    name = repr(metric.name)
    rule = f"{name} must have a finite numerator and a weight of at least 0 for each example"
    _demand(is_sound, f"{rule}, and the numerator 0 where the weight is", [numerators, weights])
    if metric.name.endswith("accuracy") or metric.unit.startswith("share"):
        is_share = ((numerators >= 0) & (numerators <= weights)).all()
        _demand(is_share, f"{name} is a share and must be within 0 and 1", numerators)


def _check_rare(case: _Case, source: ExampleSource, population: Ids, metric: Metric) -> None:
    """Checks a metric of rare examples on the first device that has one."""
    examples = 0
    for device, count in zip(population, source.examples_on(population).tolist(), strict=True):
        positions = np.arange(min(count, _SEARCHED))[None, :]
        if not positions.size:
            continue
        batch = tensors(source.examples(np.array([device]), positions))
        parts = _measured(case.task, _of(case.own, 0), batch)[metric.name]
        _check_values(metric, parts, positions.shape)
        if parts[1].any():
            return
        examples += positions.size
    raise AssertionError(
        f"{metric.name!r} must have a weight above 0 for some example, but no example of the "
        f"sample has a weight ({examples:,} of the first {population.size} devices, at most "
        f"{_SEARCHED} of each); correct the weights that measure() gives, or put an example that "
        "counts among these"
    )


def _check_metric_loss(case: _Case) -> None:
    """Compares at parameters that all devices share, for which a regulariser is one number."""
    numerators, weights = _measured(case.task, case.same, case.batch)["loss"]
    counts = weights.sum(dim=1) > 0
    metric = (numerators.sum(dim=1) / weights.sum(dim=1))[counts]
    with torch.no_grad():
        losses = case.task.losses(case.same, case.batch)[counts].double()
    rule = (
        "the metric `loss` must weigh examples as losses() does (a mean over all words weighs long "
        "texts more: take the mean of each text, and then over texts; or rename the metric)"
    )
    _close(metric + (losses - metric).median(), losses, rule)


def _moved(parameters: Parameters) -> Named:
    draws = torch.Generator().manual_seed(SEED)
    return {
        name: part + APART * torch.randn(part.shape, generator=draws)
        for name, part in parameters.items()
    }


def _only(batch: Batch, j: int) -> Named:
    """Returns example j of each device, as batches of one."""
    return {name: part[:, j : j + 1] for name, part in batch.items()}


def _of(parts: Mapping[str, Tensor], g: int) -> Named:
    """Returns the parts of device g, as a group of one."""
    return {name: part[g : g + 1] for name, part in parts.items()}


def _first_two(parts: Mapping[str, Tensor]) -> Named:
    """Returns the parts of two devices, reals in float64."""
    return {
        name: part[:2].double() if part.is_floating_point() else part[:2]
        for name, part in parts.items()
    }


def _measured(task: Task, parameters: Parameters, batch: Batch) -> dict[str, tuple[Tensor, ...]]:
    """Measures in float64, since numerators and weights may be counts or booleans."""
    with torch.no_grad():
        found = task.measure(parameters, batch)
    return {name: tuple(part.double() for part in parts) for name, parts in found.items()}


def _at(examples: Examples, place: int) -> dict[str, np.ndarray]:
    return {name: part[place] for name, part in examples.items()}


def _content(source: ExampleSource, device: np.uint64) -> tuple[int | bytes, ...]:
    """Returns count and first examples of a device in a form that can be compared."""
    ids: Ids = np.array([device])
    count = int(source.examples_on(ids)[0])
    examples = source.examples(ids, np.arange(min(count, 20))[None, :])
    return count, *(examples[name].tobytes() for name in sorted(examples))


def _demand(holds: object, rule: str, found: object) -> None:
    if not holds:
        raise AssertionError(f"{rule}; it is {found}")


def _same(one: Mapping[str, object], other: Mapping[str, object], rule: str) -> None:
    for name, part in other.items():
        is_equal = np.array_equal(np.asarray(one[name]), np.asarray(part))
        _demand(is_equal, f"{rule} {name!r}", [one[name], part])


def _close(
    one: Tensor, other: Tensor, rule: str, rtol: float = TOLERANCE, atol: float = TOLERANCE
) -> None:
    is_close = one.shape == other.shape and torch.allclose(one, other, rtol=rtol, atol=atol)
    _demand(is_close, rule, [one, other])
