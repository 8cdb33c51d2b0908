"""Census of a shard: number of its eligible devices, estimated from a fixed sample."""

import numpy as np

from fedray.base.arrays import BoolArray, UInt32Array, UInt64Array
from fedray.base.compiled import njit
from fedray.scenario import Scenario
from fedray.wire.messages import NEVER, Census, CheckInOrder
from .availability.intervals import DAY, Intervals, joined
from .availability.model import Listing
from .device_map import value_of
from .eligibility import Eligibility
from .memory import DeviceMemory
from .population import (
    DeviceModel,
    are_usable,
    devices_of_ranks,
    present_between,
)

CENSUS_DEVICES = 65_536
"""Size of the sample of a population: every s-th device to join."""


class CensusSample:
    """Sampled devices of a shard, with their intervals. Independent of rules, so that several tasks
    can share it.

    Args:
        device_ids: [C], sorted; also an attribute.
        stride: number of ids of the population that each of them stands for.
        eligibility: eligibility of the shard's devices.
    """

    def __init__(self, device_ids: UInt64Array, stride: int, eligibility: Eligibility) -> None:
        self.device_ids = device_ids
        self._stride = stride
        self._eligibility = eligibility
        first_device = np.uint64(eligibility.first_device)
        self._local = (device_ids - first_device).astype(np.uint32)
        self._joins, _ = present_between(eligibility.presence, device_ids)
        self._day = -1
        self._intervals = joined([])

    @classmethod
    def of(cls, scenario: Scenario, eligibility: Eligibility, end_device: int) -> "CensusSample":
        """Samples the usable devices of a shard that ends before `end_device`."""
        stride = max(1, scenario.device_ids // CENSUS_DEVICES)
        ranks = np.arange(0, scenario.device_ids, stride)
        # In sorted ids, the ids of this shard lie together.
        devices = devices_of_ranks(eligibility.presence.order, ranks)
        ids = np.sort(devices).astype(np.uint64)
        bounds = np.array([eligibility.first_device, end_device], np.uint64)
        begin, end = np.searchsorted(ids, bounds)
        here = ids[begin:end]
        usable = are_usable(DeviceModel.of(scenario), here)
        return cls(here[usable], stride, eligibility)

    def among(self, chosen: BoolArray) -> "CensusSample":
        """Returns a sample of the devices under a mask [C]."""
        return CensusSample(self.device_ids[chosen], self._stride, self._eligibility)

    def count(
        self, order: CheckInOrder, memory: DeviceMemory, held_back: int, held: UInt32Array
    ) -> Census:
        """Counts the devices at the start of an order's window.

        Args:
            order: order for the window.
            memory: memory of the shard's devices.
            held_back: largest last round that does not hold a device back.
            held: positions of the devices that must wait in any case, sorted.
        """
        time = order.window.start_time
        # Habits do not depend on ids, so the sample errs about as a random one does: by sqrt(stride
        # * count) devices.
        stride = self._stride
        eligible, is_open, is_free, is_spent = _count_at(
            self._intervals_on(int(time // DAY)),
            memory.open_times.table,
            memory.last_rounds.table,
            memory.forget_times.table,
            time,
            held_back,
            held,
        )
        timers = memory.open_times.get(self._local.astype(np.int64))
        open_times = np.maximum(timers, self._joins)
        listed = int((open_times < order.list_until_time).sum())
        return Census(
            eligible=eligible * stride,
            open_eligible=is_open * stride,
            free_eligible=is_free * stride,
            listed=listed * stride,
            spent_eligible=is_spent * stride,
        )

    def _intervals_on(self, day: int) -> Intervals:
        # Timers do not matter here, because the census must not depend on the sampler.
        if day != self._day:
            always_open = np.zeros(self._local.size)
            of_day = Listing(self.device_ids, always_open, day * DAY, (day + 1) * DAY)
            self._day, self._intervals = day, self._eligibility.list_intervals(of_day)
        return self._intervals


@njit(cache=True, nogil=True)
def _count_at(intervals, timers, last_rounds, forget_times, time, held_back, held):
    """Counts the devices eligible at a time, with tables of `DeviceMemory`.

    Returns:
        Number of eligible devices, of eligible devices with an open timer, of these without those
        held back by a round or a list, and of eligible devices that may not take part again.
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
                # A device without its history remembers no round that could hold it back.
                if last <= held_back or 0 < forgets <= time:
                    place = np.searchsorted(held, local[entry])
                    is_free += place == held.size or held[place] != local[entry]
    return eligible, is_open, is_free, is_spent
