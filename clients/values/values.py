"""The protocol of the values that devices hold. To add a kind: docs/extending.md."""

from pkgutil import resolve_name
from typing import Protocol

import numpy as np

from fedray.base.arrays import Int64Array, UInt64Array
from fedray.base.blocks import BLOCK_DEVICES
from fedray.mechanisms.questions.question import Items
from fedray.scenario import Scenario


class Values(Protocol):
    """Values of devices: a pure function of the scenario, for any devices in any order."""

    def on(self, device_ids: UInt64Array) -> Items:
        """Returns what devices [G] hold, at most BLOCK_DEVICES of them."""
        ...

    def label(self, key: int) -> str:
        """Returns a key in words."""
        ...


def values_of(scenario: Scenario) -> Values:
    """Returns the values of a scenario's table `analytics.values`."""
    assert scenario.analytics is not None
    table = scenario.analytics.values
    return resolve_name(table.implementation)(scenario, table)


def held_by(values: Values, device_ids: UInt64Array) -> Items:
    """Returns what any number of devices [N] hold, in their order."""
    starts = range(0, device_ids.size, BLOCK_DEVICES)
    parts = [values.on(device_ids[start : start + BLOCK_DEVICES]) for start in starts]
    counts = np.concatenate([np.zeros(1, np.int64), *(np.diff(each.starts) for each in parts)])
    keys = np.concatenate([each.keys for each in parts])
    return Items(np.cumsum(counts), keys, np.concatenate([each.values for each in parts]))


def of_rows(items: Items, rows: Int64Array) -> Items:
    """Returns the items of some devices, by their rows [G] in `items`, sorted."""
    counts = np.diff(items.starts)
    chosen = np.zeros(counts.size, np.bool_)
    chosen[rows] = True
    taken = np.repeat(chosen, counts)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts[rows])])
    return Items(starts, items.keys[taken], items.values[taken])


def occurrences(counts: Int64Array, keys: Int64Array) -> Items:
    """Returns each different key of a device once, with its number of occurrences as value.

    Args:
        counts: [G]; number of keys of each device, at most BLOCK_DEVICES devices.
        keys: [I]; keys of the devices, one device after the other; from 0 to 2^46.
    """
    size = int(keys.max(initial=0)) + 1
    owners = np.repeat(np.arange(counts.size), counts)
    pairs, times = np.unique(owners * size + keys, return_counts=True)
    devices, kept = np.divmod(pairs, size)
    starts = np.searchsorted(devices, np.arange(counts.size + 1))
    return Items(starts.astype(np.int64), kept, times.astype(np.float64))
