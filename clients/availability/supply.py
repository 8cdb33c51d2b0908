"""How many devices are eligible at once, said before a run: whether the population suffices is then
known at once."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.clients.availability.factory import availability_of
from fedray.clients.availability.intervals import DAY, HOUR, Intervals
from fedray.clients.population import DeviceModel, Presence, are_usable, devices_of_ranks
from fedray.scenario import Scenario
from fedray.wire.device_classes import DeviceClasses, classes_on

SAMPLE_DEVICES = 10_000
"""At least so many devices are looked at, where there are so many."""


class Supply(NamedTuple):
    """Devices that are eligible at once at the full hours of the first week; estimates from a fixed
    sample.

    least: at the hour with the fewest.
    mean: over all hours.
    most: at the hour with the most.
    """

    least: int
    mean: int
    most: int


def eligible_at_once(scenario: Scenario) -> Supply:
    """The supply of the devices that are there at the start, whatever their timers say.

    Args:
        scenario: whose population it is.

    Raises:
        ScenarioError: as the scenario's availability model does.
    """
    sample, stride = _sample(scenario)
    counts = stride * _at_full_hours(_first_week(scenario, sample))
    return Supply(
        least=int(counts.min()),
        mean=round(float(counts.mean())),
        most=int(counts.max()),
    )


def eligible_share_by_class(scenario: Scenario) -> list[float]:
    """Mean share of the devices of each class that are eligible at once, as `eligible_at_once`
    samples them; 0 of a class that the sample does not have.

    Args:
        scenario: whose population it is.
    """
    sample, _ = _sample(scenario)
    own_class = classes_on(DeviceClasses.of(scenario), sample)
    shares: list[float] = []
    for place, of_class in enumerate(scenario.of_classes):
        own = sample[own_class == place]
        counts = _at_full_hours(_first_week(of_class, own))
        shares.append(float(counts.mean()) / max(1, own.size))
    return shares


def _sample(scenario: Scenario) -> tuple[NDArray[np.uint64], int]:
    """Devices of the start that are looked at, and for how many each of them stands."""
    devices = scenario.population.devices
    stride = max(1, devices // SAMPLE_DEVICES)
    # By ranks, which are those of joining: the first ids of a block are there first.
    ranks = np.arange(0, devices, stride)
    join_order = Presence.of(scenario).order
    return devices_of_ranks(join_order, ranks).astype(np.uint64), stride


def _first_week(scenario: Scenario, sample: NDArray[np.uint64]) -> Intervals:
    """When the usable ones of a sample of devices are eligible, whatever their timers say."""
    usable = sample[are_usable(DeviceModel.of(scenario), sample)]
    timers_open = np.zeros(usable.size)
    return availability_of(scenario).list_intervals(usable, timers_open, 0.0, 7.0 * DAY)


def _at_full_hours(intervals: Intervals) -> NDArray[np.int64]:
    """How many of the first week's intervals go on at each full hour."""
    hours = HOUR * np.arange(7 * 24)
    # Those that have begun less those that have ended go on, as a device's intervals are apart.
    begun = np.searchsorted(np.sort(intervals.start_times), hours, side="right")
    return begun - np.searchsorted(np.sort(intervals.end_times), hours, side="right")
