"""When the devices of a population are eligible, block by block, for other programs to replay."""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedray.base.errors import InputError
from fedray.clients.availability.factory import availability_of
from fedray.clients.availability.intervals import DAY, Intervals, joined
from fedray.clients.availability.model import Availability
from fedray.clients.population import DeviceModel, Presence, are_usable, present_between
from fedray.imports.sessions import Sessions
from fedray.scenario import Scenario

BLOCK_DEVICE_DAYS = 1 << 18
"""Device-days that are in memory at once."""
_WINDOW_DAYS = 7
"""Days of one listing: models refuse more sessions of a device in one than a device has in days."""


def population_sessions(scenario: Scenario, devices: int, days: int) -> Iterator[Sessions]:
    """The sessions of the first devices of a population, while they are there.

    Devices that the task cannot use, and those that have not joined, have none. A session that goes
    on at the start is cut there; one that goes on at the end has its true end, so that a replay of
    the days is the same to the last moment. A device that is always eligible has one session, to
    the end of the days.

    Args:
        scenario: whose population it is.
        devices: how many, those with the ids 0, 1, 2, ...
        days: of the simulation, from its start on.

    Yields:
        Blocks of devices, in order of their ids; seconds UTC since the start.

    Raises:
        InputError: the population has not so many devices, or there is no day.
    """
    if not 1 <= devices <= scenario.device_ids:
        raise InputError.of(
            "devices", devices, f"must be from 1 to the {scenario.device_ids:,} of the population"
        )
    if days < 1:
        raise InputError.of("days", days, "must be at least 1")
    return _blocks(scenario, devices, days)


def long_intervals(
    availability: Availability,
    device_ids: NDArray[np.uint64],
    open_times: NDArray[np.float64],
    from_time: float,
    until_time: float,
) -> Intervals:
    """The intervals of devices over any number of days, listed window by window.

    Args:
        availability: of the scenario.
        device_ids: [N], sorted.
        open_times: [N]; intervals that end before are left out.
        from_time: seconds since the start.
        until_time: seconds since the start.

    Returns:
        What one listing of the whole time would give, sorted by device and start.
    """
    # It is asked for once, because every window would draw it anew.
    known = availability.known_of(device_ids)
    # True ends are told, so an interval that goes on into a window is known from the one before.
    last_ends = np.full(device_ids.size, -np.inf)
    parts: list[Intervals] = []
    low = from_time
    while low < until_time:
        high = min(low + _WINDOW_DAYS * DAY, until_time)
        found = availability.list_intervals(device_ids, open_times, low, high, known)
        found = found.take(found.start_times > last_ends[found.local])
        # `at` is needed because a device may have several intervals in one window.
        np.maximum.at(last_ends, found.local, found.end_times)
        parts.append(found)
        low = high
    together = joined(parts)
    # Windows follow one another, so a stable sort keeps each device's intervals in order of start.
    return together.take(np.argsort(together.local, kind="stable"))


def _blocks(scenario: Scenario, devices: int, days: int) -> Iterator[Sessions]:
    availability = availability_of(scenario)
    device_model = DeviceModel.of(scenario)
    presence = Presence.of(scenario)
    size = max(1, BLOCK_DEVICE_DAYS // days)
    until = days * DAY
    for first in range(0, devices, size):
        end_device = min(first + size, devices)
        ids = np.arange(first, end_device, dtype=np.uint64)
        ids = ids[are_usable(device_model, ids)]
        joins, leaves = present_between(presence, ids)
        intervals = long_intervals(availability, ids, joins, 0.0, until)
        start = np.maximum(intervals.start_times, joins[intervals.local])
        end = np.minimum(intervals.end_times, leaves[intervals.local])
        end = np.where(end == math.inf, until, end)
        # A device that joins or leaves within an interval may have nothing left of it.
        is_there = (end > start) & (start < until)
        chosen = ids[intervals.local[is_there]].astype(np.int64)
        yield Sessions(first, end_device, chosen, start[is_there], end[is_there])
