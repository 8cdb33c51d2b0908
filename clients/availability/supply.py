"""How many devices are eligible at once, said before a run: whether the population suffices is then
known at once."""

from typing import NamedTuple

import numpy as np

from fedray.clients.availability.intervals import DAY, HOUR
from fedray.clients.availability.registry import availability_of
from fedray.clients.population import DeviceModel, Presence, are_usable, devices_of_ranks
from fedray.scenario import Scenario

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
    devices = scenario.population.devices
    stride = max(1, devices // SAMPLE_DEVICES)
    # By ranks, which are those of joining: the first ids of a block are there first.
    ranks = np.arange(0, devices, stride)
    join_order = Presence.of(scenario).order
    sample = devices_of_ranks(join_order, ranks).astype(np.uint64)
    is_usable = are_usable(DeviceModel.of(scenario), sample)
    usable = sample[is_usable]
    timers_open = np.zeros(usable.size)
    availability = availability_of(scenario)
    intervals = availability.list_intervals(usable, timers_open, 0.0, 7.0 * DAY)
    hours = HOUR * np.arange(7 * 24)
    begun = np.searchsorted(np.sort(intervals.start_times), hours, side="right")
    over = np.searchsorted(np.sort(intervals.end_times), hours, side="right")
    counts = stride * (begun - over)
    return Supply(
        least=int(counts.min()),
        mean=round(float(counts.mean())),
        most=int(counts.max()),
    )
