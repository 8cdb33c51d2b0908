"""Groups of examples in an evaluation: by the class of an example, by the time zone of a device, or
by a user's function."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedray.base.arrays import Float64Array
from fedray.base.errors import FedrayError, InputError, one_line, shown
from fedray.scenario import Scenario
from fedray.trace.groups import By, GroupFunction, Label
from fedray.wire.messages import Evaluated, GroupSums
from fedray.wire.zones import zone_offsets_on
from .data.source import Examples, ExampleSource, Fields, Ids
from .evaluation import damage_refused, held_out, pieces_of, used_of
from .tasks.task import Task, Vector

MOST_GROUPS = 1000
"""Largest number of groups; a function with more probably does not return labels."""


def check_by(by: By | GroupFunction, fields: Fields, argument: str = "by") -> None:
    """Raises InputError if data with these fields has no such groups; `argument` names the kind in
    the message."""
    if callable(by) or by == "zone":
        return
    if by != "class":
        raise InputError.of(argument, by, "is no kind of groups", "use class, zone or a function")
    targets = fields.get("targets")
    if targets is None or targets.kind != "whole" or targets.shape:
        found = ", ".join(f"{each.kind} {name} {list(each.shape)}" for name, each in fields.items())
        rule = f"needs data with one class number in each example, and this has {found}"
        raise InputError.of(argument, by, rule, "use a function of the device and the example")


def group_sums(
    task: Task,
    source: ExampleSource,
    scenario: Scenario,
    parameters: Vector | torch.Tensor,
    by: By | GroupFunction,
) -> GroupSums:
    """Returns sums of the metrics of a model by group and device.

    Classes and functions group the held-out examples of `evaluate`. Zones group examples of the
    first devices of the population, because devices that are held out have no zone.

    Args:
        task: task with the metrics.
        source: source of the examples.
        scenario: scenario with the numbers of devices and examples.
        parameters: parameters of the model, [D].
        by: kind of the groups, or a function.

    Raises:
        InputError: the data has no such groups or cannot be read, or the function fails.
    """
    check_by(by, source.fields)
    training = scenario.training
    if by == "zone":
        of = scenario.device_ids
        first = np.arange(min(training.evaluation_devices, of), dtype=np.uint64)
        device_ids, counts, data = used_of(source, training, first, of)
    else:
        device_ids, counts, data = held_out(source, training)
    names = [metric.name for metric in task.metrics]
    known: dict[str, tuple[int, Label]] = {}
    """Number and label of each group by its name."""
    totals: dict[int, Float64Array] = {}
    """Examples, numerators and weights by number of the group and place of the device."""
    with damage_refused("evaluated"):
        for piece in pieces_of(task, source, device_ids, counts, parameters):
            owners = np.repeat(piece.owners, piece.lengths)
            labels = _labels(by, scenario, device_ids[owners], piece.examples)
            numbers = np.array([_number(known, each) for each in labels], np.int64)
            rows = np.column_stack([np.ones(owners.size), *(piece.measures[e] for e in names)])
            is_kept = numbers >= 0
            keys = (numbers * device_ids.size + owners)[is_kept]
            found, places = np.unique(keys, return_inverse=True)
            sums = np.zeros((found.size, rows.shape[1]))
            np.add.at(sums, places, rows[is_kept])
            for key, row in zip(found.tolist(), sums, strict=True):
                totals[key] = totals.get(key, 0.0) + row
    if not known:
        rule = "returned None for every example, so no group is left"
        raise InputError.of("by", by, rule, "return the name of the example's group")
    return _joined(known, totals, names, data, device_ids.size)


def _joined(
    known: dict[str, tuple[int, Label]],
    totals: dict[int, Float64Array],
    names: list[str],
    data: Evaluated,
    devices: int,
) -> GroupSums:
    """Returns the sums with groups in order of their labels: numbers, then texts."""
    ordered = sorted(known.items(), key=lambda each: _order(each[1][1]))
    place_of = {number: place for place, (_, (number, _)) in enumerate(ordered)}
    keys = np.array(list(totals), np.int64)
    groups = np.array([place_of[number] for number in (keys // max(1, devices)).tolist()], np.int64)
    rows = np.array(list(totals.values())).reshape(keys.size, 1 + 2 * len(names))
    return GroupSums(
        data=data,
        labels=tuple(name for name, _ in ordered),
        groups=groups,
        devices=keys % max(1, devices),
        examples=rows[:, 0].astype(np.int64),
        sums={name: rows[:, 1 + 2 * i : 3 + 2 * i] for i, name in enumerate(names)},
    )


def _order(label: Label) -> tuple[bool, Label]:
    return isinstance(label, str), label


def _labels(
    by: By | GroupFunction, scenario: Scenario, device_ids: Ids, examples: Examples
) -> Iterator[tuple[str, Label] | None]:
    """Yields the name and the label of the group of each example of devices [B]; None for one that
    is left out."""
    if by == "class":
        yield from ((str(each), each) for each in examples["targets"].tolist())
    elif by == "zone":
        for each in zone_offsets_on(scenario, device_ids).tolist():
            yield f"UTC{each:+g} h", each
    else:
        assert callable(by)
        for place, device in enumerate(device_ids.tolist()):
            example = {name: part[place] for name, part in examples.items()}
            yield _given(by, device, example)


def _given(by: GroupFunction, device: int, example: dict[str, NDArray]) -> tuple[str, Label] | None:
    """Returns the name and the label that a user's function gives an example. Raises InputError."""
    try:
        found: Any = by(device, example)
    except FedrayError:
        raise
    except Exception as error:
        said = one_line(f"{type(error).__name__}: {error}")
        raise InputError(f"by: the function failed at device {device} ({said})") from error
    if found is None:
        return None
    # Numbers of numpy are what an example has.
    label = found.item() if isinstance(found, np.generic) else found
    if not isinstance(label, str | int | float) or label != label:
        rule = f"must return a text, a number or None, and returned {shown(found)}"
        raise InputError.of("by", by, rule, "return the name of the example's group")
    return str(label), label


def _number(known: dict[str, tuple[int, Label]], named: tuple[str, Label] | None) -> int:
    """Returns the number of a group, which is a new one if it is not known; -1 for None."""
    if named is None:
        return -1
    name, label = named
    if name not in known and len(known) == MOST_GROUPS:
        rule = f"gives more than {MOST_GROUPS:,} groups"
        raise InputError.of("by", label, rule, "return the name of the example's group")
    return known.setdefault(name, (len(known), label))[0]
