"""Evaluation: the metrics of a model on the data of held-out devices, with standard errors."""

import math

import numpy as np
import torch
from numpy.typing import NDArray

from clients.data.source import FIRST_HELD_OUT, ExampleSource
from clients.tasks.layout import named
from clients.tasks.task import Task
from fedray.messages import Evaluation, Measured
from fedray.scenario import Training

EXAMPLES_AT_ONCE = 2048


def evaluate(
    task: Task, source: ExampleSource, training: Training, parameters: NDArray[np.float32]
) -> Evaluation:
    """The task's metrics of parameters [D] on training.evaluation_devices held-out devices.

    A metric is a ratio of two sums over the devices. Its standard error is that of a ratio
    estimator whose sampling units are the devices (Cochran 1977, equation 6.13), because the
    examples of one device are alike.
    """
    wanted = min(training.evaluation_devices, source.held_out_devices)
    device_ids = FIRST_HELD_OUT + np.arange(wanted, dtype=np.uint64)
    held = np.minimum(source.examples_on(device_ids), training.evaluation_examples)
    start = named(torch.tensor(parameters)[None, :], task.shapes)
    sums: dict[str, list[tuple[float, float]]] = {metric.name: [] for metric in task.metrics}
    # Devices with equally many examples are one batch.
    for count in np.unique(held[held > 0]).tolist():
        alike = device_ids[held == count]
        at_once = max(1, EXAMPLES_AT_ONCE // count)
        for first in range(0, alike.size, at_once):
            some = alike[first : first + at_once]
            positions = np.tile(np.arange(count), (some.size, 1))
            examples = source.examples(some, positions)
            batch = {
                name: torch.from_numpy(part).flatten(0, 1)[None] for name, part in examples.items()
            }
            with torch.no_grad():
                measured = task.measure(start, batch)
            for name, parts in measured.items():
                numerators, weights = (
                    part.double().view(some.size, count).sum(dim=1).tolist() for part in parts
                )
                sums[name] += zip(numerators, weights, strict=True)
    return Evaluation(
        metrics={
            metric.name: _measured(np.array(sums[metric.name]), metric.is_exponential)
            for metric in task.metrics
        },
        devices=int((held > 0).sum()),
        examples=int(held.sum()),
    )


def _measured(sums: NDArray[np.float64], is_exponential: bool) -> Measured:
    """Value and standard error of a ratio from its sums [devices, 2]."""
    numerators, weights = sums.reshape(-1, 2).T
    devices, total = weights.size, weights.sum()
    if not total > 0:
        return Measured(math.nan, math.nan)
    ratio = float(numerators.sum() / total)
    if devices < 2:
        error = math.nan
    else:
        spread = float(((numerators - ratio * weights) ** 2).sum())
        error = math.sqrt(spread * devices / (devices - 1)) / float(total)
    if is_exponential:  # by the delta method
        with np.errstate(over="ignore"):
            value = float(np.exp(ratio))
        return Measured(value, value * error)
    return Measured(ratio, error)
