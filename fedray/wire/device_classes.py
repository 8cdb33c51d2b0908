"""Which class of `population.classes` a device is of: an addressed draw, the same for whoever asks.

A population without classes has one, which all devices are of.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedray.base.rng import Key, Stream, draw, share_at, stream_key
from fedray.scenario import Scenario
from fedray.scenario.population import DeviceClass
from fedray.wire.messages import ClassCounts, Outcome


class DeviceClasses(NamedTuple):
    """The classes of a population.

    key: of the draws.
    edges: [K]; upper edge of each class's share, rising to 1.
    """

    key: Key
    edges: NDArray[np.float64]

    @classmethod
    def of(cls, scenario: Scenario) -> "DeviceClasses":
        """The classes of a scenario."""
        shares = [each.share for each in classes_of(scenario)]
        return cls(stream_key(scenario.seed, Stream.DEVICE_CLASS), np.cumsum(shares))


def classes_of(scenario: Scenario) -> tuple[DeviceClass, ...]:
    """The classes of a scenario [K]; one that changes nothing where it has none."""
    return scenario.population.classes or (DeviceClass(name="all", share=1.0),)


@njit(forceinline=True)
def class_of(key, edges, device):
    """The class of a device.

    Args:
        key: of `DeviceClasses`.
        edges: of `DeviceClasses`.
        device: its id.

    Returns:
        The class's position.
    """
    # Where there is one class only, nothing need be drawn.
    if edges.size == 1:
        return 0
    word, _, _, _ = draw(key, device, 0, 0)
    return share_at(edges, word)


@njit(cache=True, nogil=True)
def classes_on(classes: DeviceClasses, device_ids: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """The classes of devices.

    Args:
        classes: of the scenario.
        device_ids: [N].

    Returns:
        Positions [N] among the classes.
    """
    found = np.empty(device_ids.size, np.uint8)
    for asked in range(device_ids.size):
        found[asked] = class_of(classes.key, classes.edges, device_ids[asked])
    return found


def counts_by_class(
    classes: DeviceClasses,
    device_ids: NDArray[np.uint64],
    rounds: NDArray[np.uint32],
    outcomes: NDArray[np.uint8],
) -> ClassCounts:
    """Participations by class, of rows [S] of a trace in order of device and time.

    Args:
        classes: of the scenario.
        device_ids, rounds, outcomes: [S]; the columns.
    """
    size = classes.edges.size
    selected = np.bincount(classes_on(classes, device_ids), minlength=size)
    is_accepted = outcomes == Outcome.ACCEPTED
    device_ids, numbers = device_ids[is_accepted], rounds[is_accepted].astype(np.int64)
    # Rows are in order of device, so `first` is where those of each begin.
    devices, first, counts = np.unique(device_ids, return_index=True, return_counts=True)
    own_class = classes_on(classes, devices)
    gaps = np.diff(numbers)
    is_gap = np.ones(gaps.size, np.bool_)
    is_gap[first[1:] - 1] = False  # between two devices
    # A gap lies between two rows of a device, and belongs to the class of that device.
    gap_class = np.repeat(own_class, counts)[1:][is_gap]
    # The largest number stands for no gap, until the end.
    least, most = np.full(size, np.iinfo(np.int64).max), np.zeros(size, np.int64)
    # Several devices are of one class, for which plain assignment would keep one of them.
    np.minimum.at(least, gap_class, gaps[is_gap])
    np.maximum.at(most, own_class, counts)
    return ClassCounts(
        selected=selected,
        participations=np.bincount(own_class, counts, minlength=size).astype(np.int64),
        devices=np.bincount(own_class, minlength=size),
        least_gap=np.where(least < np.iinfo(np.int64).max, least, 0),
        most=most,
    )
