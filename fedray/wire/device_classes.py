"""Classes of devices (`population.classes`): each device's class is an addressed draw, so clients
and server agree on it.

A population without classes has one class with all devices.
"""

from typing import NamedTuple

import numpy as np

from fedray.base.arrays import Float64Array, UInt8Array, UInt32Array, UInt64Array
from fedray.base.compiled import njit
from fedray.base.rng import Key, Stream, draw, share_at, stream_key
from fedray.scenario import Scenario
from fedray.scenario.population import DeviceClass
from fedray.wire.messages import ClassCounts, Outcome


class DeviceClasses(NamedTuple):
    """Classes of a population."""

    key: Key
    """Key of the draws."""
    edges: Float64Array
    """[K]; upper edge of each class's share, rising to 1."""

    @classmethod
    def of(cls, scenario: Scenario) -> "DeviceClasses":
        """Compiles the classes of a scenario."""
        shares = [each.share for each in classes_of(scenario)]
        return cls(stream_key(scenario.seed, Stream.DEVICE_CLASS), np.cumsum(shares))


def classes_of(scenario: Scenario) -> tuple[DeviceClass, ...]:
    """Returns the classes of a scenario [K], by default one that changes nothing."""
    everything = DeviceClass(name="all", share=1.0)
    return scenario.population.classes or (everything,)


@njit(forceinline=True)
def class_of(key, edges, device):
    """Returns the position of a device's class; see `DeviceClasses` for key and edges."""
    # A single class needs no draw.
    if edges.size == 1:
        return 0
    word = draw(key, device, 0, 0)[0]
    return share_at(edges, word)


@njit(cache=True, nogil=True)
def classes_on(classes: DeviceClasses, device_ids: UInt64Array) -> UInt8Array:
    """Returns the positions [N] of the classes of devices [N]."""
    # A population has at most 100 classes, so a byte is enough.
    found = np.empty(device_ids.size, np.uint8)
    for asked in range(device_ids.size):
        found[asked] = class_of(classes.key, classes.edges, device_ids[asked])
    return found


def counts_by_class(
    classes: DeviceClasses,
    device_ids: UInt64Array,
    rounds: UInt32Array,
    outcomes: UInt8Array,
) -> ClassCounts:
    """Counts participations by class, from columns [S] of a trace in order of device and time."""
    size = classes.edges.size
    selected_class = classes_on(classes, device_ids)
    is_accepted = outcomes == Outcome.ACCEPTED
    device_ids = device_ids[is_accepted]
    numbers = rounds[is_accepted].astype(np.int64)
    # `first` has the first row of each device, because rows are in order of device.
    devices, first, counts = np.unique(device_ids, return_index=True, return_counts=True)
    own_class = classes_on(classes, devices)
    participations = np.bincount(own_class, counts, minlength=size)
    gaps = np.diff(numbers)
    # Only differences between two rows of one device are gaps.
    is_gap = np.ones(gaps.size, np.bool_)
    is_gap[first[1:] - 1] = False
    gap_class = np.repeat(own_class, counts)[1:][is_gap]
    # The largest integer never wins a minimum, so it marks classes without a gap.
    no_gap = np.iinfo(np.int64).max
    least = np.full(size, no_gap)
    most = np.zeros(size, np.int64)
    # Several devices have the same class, and plain assignment would keep only one of them.
    np.minimum.at(least, gap_class, gaps[is_gap])
    np.maximum.at(most, own_class, counts)
    return ClassCounts(
        selected=np.bincount(selected_class, minlength=size),
        participations=participations.astype(np.int64),
        devices=np.bincount(own_class, minlength=size),
        least_gap=np.where(least < no_gap, least, 0),
        most=most,
    )
