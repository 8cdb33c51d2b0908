"""The census of a shard: how many of its devices are eligible, estimated from a fixed sample."""

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedray.clients.availability.intervals import DAY, Intervals, joined
from fedray.clients.device_map import DeviceMap, value_of
from fedray.clients.eligibility import Eligibility
from fedray.clients.population import (
    DeviceModel,
    are_usable,
    devices_of_ranks,
    present_between,
)
from fedray.scenario import Scenario
from fedray.wire.messages import NEVER, Census, CheckInOrder

CENSUS_DEVICES = 65_536
"""Devices whose intervals are always listed, timer or not, to estimate how many are eligible: every
s-th to join."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """What devices remember that decides who may take part; see clients/shard.py.

    open_times: when each device's timer opens, whole seconds since start.
    last_rounds: last round + 1 of each device.
    forget_times: when each device loses its history, whole seconds; 0 for never.
    """

    open_times: DeviceMap
    last_rounds: DeviceMap
    forget_times: DeviceMap


class CensusSample:
    """The devices of a shard that are counted, and when they are eligible. It knows nothing of
    rules, so that several tasks may share one.

    Args:
        device_ids: [C], sorted.
        stride: how many ids of the population each of them stands for.
        eligibility: of the shard's devices.

    device_ids: the same.
    """

    def __init__(
        self, device_ids: NDArray[np.uint64], stride: int, eligibility: Eligibility
    ) -> None:
        self.device_ids = device_ids
        self._stride = stride
        self._eligibility = eligibility
        self._local = (device_ids - np.uint64(eligibility.first_device)).astype(np.uint32)
        # Joins never change, so they are computed once.
        self._joins = present_between(eligibility.presence, device_ids)[0]
        self._day, self._intervals = -1, joined([])

    @classmethod
    def of(cls, scenario: Scenario, eligibility: Eligibility, end_device: int) -> "CensusSample":
        """Of every s-th device to join, those of a shard that may ever take part.

        Args:
            scenario: whose population it is.
            eligibility: of the shard's devices.
            end_device: the end of the shard's devices.
        """
        stride = max(1, scenario.device_ids // CENSUS_DEVICES)
        ranks = np.arange(0, scenario.device_ids, stride)
        # In sorted ids those of this shard lie together.
        ids = np.sort(devices_of_ranks(eligibility.presence.order, ranks)).astype(np.uint64)
        bounds = np.array([eligibility.first_device, end_device], np.uint64)
        here = ids[slice(*np.searchsorted(ids, bounds))]
        return cls(here[are_usable(DeviceModel.of(scenario), here)], stride, eligibility)

    def among(self, chosen: NDArray[np.bool_]) -> "CensusSample":
        """A sample of some of the devices, by a mask [C]."""
        return CensusSample(self.device_ids[chosen], self._stride, self._eligibility)

    def count(self, order: CheckInOrder, remembered: Remembered, held_back: int) -> Census:
        """Counts the devices at the start of an order's window.

        Args:
            order: for the window.
            remembered: by the devices of the shard.
            held_back: devices with larger last rounds are held back.
        """
        time, stride = order.window.start_time, self._stride
        eligible, is_open, is_free, is_spent = _count_at(
            self._intervals_on(int(time // DAY)),
            remembered.open_times.table,
            remembered.last_rounds.table,
            remembered.forget_times.table,
            time,
            held_back,
        )
        open_times = remembered.open_times.get(self._local.astype(np.int64))
        listed = int((np.maximum(open_times, self._joins) < order.list_until_time).sum())
        return Census(
            eligible=eligible * stride,
            open_eligible=is_open * stride,
            free_eligible=is_free * stride,
            listed=listed * stride,
            spent_eligible=is_spent * stride,
        )

    def _intervals_on(self, day: int) -> Intervals:
        """Those that touch a day, which are listed once."""
        # Timers are left out, because the census must not depend on which sampler draws.
        if day != self._day:
            always_open = np.zeros(self._local.size)
            self._day = day
            self._intervals = self._eligibility.list_intervals(
                self._local, always_open, day * DAY, (day + 1) * DAY
            )
        return self._intervals


@njit(cache=True, nogil=True)
def _count_at(intervals: Intervals, timers, last_rounds, forget_times, time: float, held_back: int):
    """Counts the devices that are eligible at a moment, by what keeps them from taking part.

    Args:
        intervals: of the devices.
        timers: table of a DeviceMap: when each device's timer opens.
        last_rounds: table of a DeviceMap: each device's last round + 1.
        forget_times: table of a DeviceMap: when each device loses that; 0 for never.
        time: the moment, seconds since start.
        held_back: devices with larger last_rounds are held back.

    Returns:
        How many are eligible; of them, those whose timer is open; of these, those that are not held
        back; and, of the first, those that may not take part again.
    """
    local, start_times, end_times = intervals
    dense, keys, values = timers
    last_dense, last_keys, last_values = last_rounds
    forget_dense, forget_keys, forget_values = forget_times
    eligible, is_open, is_free, is_spent = 0, 0, 0, 0
    for entry in range(local.size):
        if start_times[entry] <= time < end_times[entry]:
            eligible += 1
            opens = value_of(dense, keys, values, local[entry])
            is_spent += opens == NEVER
            if opens <= time:
                is_open += 1
                last = value_of(last_dense, last_keys, last_values, local[entry])
                forgets = value_of(forget_dense, forget_keys, forget_values, local[entry])
                # A device that has lost its history remembers no round that could hold it back.
                is_free += last <= held_back or 0 < forgets <= time
    return eligible, is_open, is_free, is_spent
