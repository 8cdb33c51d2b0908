"""Evaluation: the metrics of a model on the data of held-out devices, batch by batch."""

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch

from fedray.base.arrays import Float64Array
from fedray.base.errors import InputError
from fedray.base.rounding import counted
from fedray.runtime import devices
from fedray.scenario.training import Training
from fedray.wire.messages import Evaluated, EvaluationPart
from .data.source import (
    FIRST_HELD_OUT,
    DamagedExamples,
    Examples,
    ExampleSource,
    Ids,
    Integers,
)
from .tasks.layout import named, tensors
from .tasks.task import Batch, Parameters, Task, Vector

EXAMPLES_AT_ONCE = 2048
MOST_EXAMPLES = 10_000
"""Examples of all devices together on which a model is evaluated by default."""


def evaluate(
    task: Task,
    source: ExampleSource,
    training: Training,
    parameters: Vector | torch.Tensor,
    share: tuple[int, int] = (0, 1),
) -> EvaluationPart:
    """Returns a part of an evaluation on held-out devices; those without examples do not count.

    Args:
        task: task with the metrics.
        source: source of the held-out examples.
        training: table with `evaluation_devices`, and `evaluation_examples` of each.
        parameters: parameters of the model, [D]; a tensor is evaluated on its own device.
        share: (i, n) for part i of n, counted from 0.

    Raises:
        InputError: the data of some of these devices cannot be read.
    """
    order, counts, data = held_out(source, training)
    with damage_refused("held-out"):
        pieces = pieces_of(task, source, order, counts, parameters, share)
        batches = [(piece.owners, piece.row_sums()) for piece in pieces]
    return EvaluationPart(tuple(task.metrics), data, batches)


def held_out(source: ExampleSource, training: Training) -> tuple[Ids, Integers, Evaluated]:
    """Returns the held-out devices that have examples, [G], in ascending order of the numbers of
    examples that are used, [G], and what data that is."""
    wanted = min(training.evaluation_devices, source.held_out_devices)
    device_ids = FIRST_HELD_OUT + np.arange(wanted, dtype=np.uint64)
    return used_of(source, training, device_ids, int(source.held_out_devices))


def used_of(
    source: ExampleSource, training: Training, device_ids: Ids, of: int
) -> tuple[Ids, Integers, Evaluated]:
    """Returns the same of any devices, which are some `of` so many."""
    held = source.examples_on(device_ids)
    used = examples_used(held, training.evaluation_examples)
    # Sums of floats depend on the order, which is fixed to ascending numbers of examples.
    by_examples = np.argsort(used, kind="stable")
    # Devices without examples come first in it, and are left out.
    order = by_examples[np.count_nonzero(used == 0) :]
    data = Evaluated(int(used.sum()), int(held.sum()), order.size, of)
    return device_ids[order], used[order], data


def repeated_examples(source: ExampleSource, training: Training) -> str:
    """Returns a sentence if half of the evaluated devices or more repeat the examples of others,
    which standard errors between devices take for independent; else empty."""
    device_ids, counts, _ = held_out(source, training)
    if device_ids.size < 2:
        return ""
    try:
        first = source.examples(device_ids, np.zeros((device_ids.size, 1), np.int64))
        # Nearly all data differ here already, so that hardly any is read twice.
        begins = [
            (count, *(part[place].tobytes() for part in first.values()))
            for place, count in enumerate(counts.tolist())
        ]
        often = Counter(begins)
        contents = {
            _digest(source, device_ids[place : place + 1], each[0]) if often[each] > 1 else each
            for place, each in enumerate(begins)
        }
    except DamagedExamples:
        # The evaluation says so.
        return ""
    count = device_ids.size
    if 2 * len(contents) > count:
        return ""
    return (
        f"the {counted(count, 'held-out device')} have only {counted(len(contents), 'set')} of "
        "examples, so standard errors are too small; give each id from 2^40 on its own share, or "
        f"set training.evaluation_devices={len(contents)}"
    )


def _digest(source: ExampleSource, device_id: Ids, count: int) -> bytes:
    """Returns a digest of the first examples of a device [1]."""
    found = hashlib.sha256()
    for begin in range(0, count, EXAMPLES_AT_ONCE):
        positions = np.arange(begin, min(begin + EXAMPLES_AT_ONCE, count))[None, :]
        for part in source.examples(device_id, positions).values():
            found.update(part.tobytes())
    return found.digest()


def examples_used(held: Integers, most: int | None) -> Integers:
    """Returns the number of examples [G] on which a model is evaluated.

    Without a limit they are all, or the same share of each device's (rounded down, but at least
    one) if all are more than MOST_EXAMPLES. An equal share leaves the weights of the devices as
    they are in all examples.

    Args:
        held: number of examples of each device, [G].
        most: limit of a device, or None.
    """
    if most is not None:
        return np.minimum(held, most)
    # At least 1, because no device may hold any.
    share = held * MOST_EXAMPLES // max(MOST_EXAMPLES, int(held.sum()))
    return np.maximum(share, np.minimum(held, 1))


def device_sums(
    task: Task,
    source: ExampleSource,
    device_ids: Ids,
    counts: Integers,
    parameters: Vector | torch.Tensor,
) -> dict[str, Float64Array]:
    """Returns sums of numerators and weights of each device, [G, 2], by the name of the metric.

    Args:
        task: task with the metrics.
        source: source of the devices' examples.
        device_ids: devices [G].
        counts: number of first examples to use, [G], at least 1 and at most what each device has.
        parameters: parameters of the model, [D], as for `evaluate`.

    Raises:
        DamagedExamples: the data of some of these devices cannot be read.
    """
    sums = {metric.name: np.zeros((device_ids.size, 2)) for metric in task.metrics}
    for piece in pieces_of(task, source, device_ids, counts, parameters):
        for name, rows in piece.row_sums().items():
            np.add.at(sums[name], piece.owners, rows)
    return sums


class Piece(NamedTuple):
    """B examples that were measured together, in R rows of consecutive examples of a device."""

    owners: Integers
    """Place of the device of each row, [R]."""
    lengths: Integers
    """Number of examples of each row, [R]."""
    examples: Examples
    """The examples in order of the rows, [B, *shape] by field."""
    measures: Mapping[str, Float64Array]
    """Numerator and weight of each example, [B, 2], by the name of the metric."""

    def row_sums(self) -> dict[str, Float64Array]:
        """Returns the sums of each row, [R, 2], by the name of the metric."""
        begins = self.lengths.cumsum() - self.lengths
        return {
            name: np.add.reduceat(single, begins, axis=0) for name, single in self.measures.items()
        }


def pieces_of(
    task: Task,
    source: ExampleSource,
    device_ids: Ids,
    counts: Integers,
    parameters: Vector | torch.Tensor,
    share: tuple[int, int] = (0, 1),
) -> Iterator[Piece]:
    """Yields the measured examples of devices, piece by piece; see `device_sums`. For a share
    (i, n) they are part i of n of the pieces, so that all parts in order are all pieces."""
    flat = parameters if isinstance(parameters, torch.Tensor) else torch.tensor(parameters)
    start = named(flat[None, :], task.shapes)
    # Memory stays bounded for any number of examples, so a device may be in several pieces.
    pieces = -(-counts // EXAMPLES_AT_ONCE)
    owners = np.repeat(np.arange(counts.size), pieces)
    firsts = EXAMPLES_AT_ONCE * np.concatenate([np.arange(each) for each in (0, *pieces)])
    lengths = np.minimum(counts[owners] - firsts, EXAMPLES_AT_ONCE)
    at_once = EXAMPLES_AT_ONCE
    batches, (part, of) = list(_batches(lengths)), share
    # Batches have about the same size; the later parts have one more.
    for some in batches[len(batches) * part // of : len(batches) * (part + 1) // of]:
        columns = np.arange(lengths[some].max())
        # Rows that are shorter repeat their last example, which is then left out.
        is_own = columns < lengths[some, None]
        positions = firsts[some, None] + np.minimum(columns, lengths[some, None] - 1)
        found = source.examples(device_ids[owners[some]], positions)
        examples = {name: part[is_own] for name, part in found.items()}
        # The model is the same for all, so they may count as a single device.
        batch = {name: part[None] for name, part in tensors(examples, flat.device).items()}
        measures, at_once = _measure(task, start, batch, at_once)
        yield Piece(owners[some], lengths[some], examples, measures)


def _measure(
    task: Task, start: Parameters, batch: Batch, at_once: int
) -> tuple[dict[str, Float64Array], int]:
    """Returns numerators and weights of each example, [B, 2], by the name of the metric, and the
    number of examples that the memory of the device has room for.

    If it has not, the examples are measured in halves, again and again. Examples are added up
    elsewhere, so only the figures of a module that draws in evaluation depend on it.
    """
    count = next(iter(batch.values())).shape[1]
    while True:
        try:
            with torch.no_grad():
                pieces = zip(*(part.split(at_once, dim=1) for part in batch.values()), strict=True)
                parts = [
                    task.measure(start, dict(zip(batch, each, strict=True))) for each in pieces
                ]
            break
        except torch.OutOfMemoryError:
            if min(at_once, count) == 1:
                raise
            at_once = (min(at_once, count) + 1) // 2
    # In float64, so that the rounding of many examples does not add up.
    return {
        name: np.concatenate(
            [
                devices.on_host(torch.stack([each[0].double() for each in part[name]], dim=1))
                for part in parts
            ]
        )
        for name in parts[0]
    }, at_once


def _batches(lengths: Integers) -> Iterator[Integers]:
    """Yields places of rows of similar lengths, which have at most EXAMPLES_AT_ONCE examples
    together when all are as long as the longest, or are a single row."""
    order = np.argsort(lengths, kind="stable")
    while order.size:
        padded = lengths[order] * np.arange(1, order.size + 1)
        count = max(1, int(np.searchsorted(padded, EXAMPLES_AT_ONCE, side="right")))
        yield order[:count]
        order = order[count:]


@contextlib.contextmanager
def damage_refused(data: str) -> Iterator[None]:
    """Raises InputError for damaged data, which is `data` in the message."""
    try:
        yield
    except DamagedExamples as error:
        raise InputError(
            f"data: the {data} data cannot be read ({error}); repair it, or use other data"
        ) from None
