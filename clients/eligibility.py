"""Eligibility of a shard's devices: the intervals of their availability model, while they are
present."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedray.base.arrays import Float64Array, UInt32Array
from fedray.scenario import Scenario
from .availability.factory import availability_of
from .availability.intervals import Intervals
from .availability.model import Availability
from .population import Presence, present_between


@dataclass(frozen=True, slots=True)
class Eligibility:
    """Eligible intervals of devices. Times are seconds UTC since the start of the simulation.

    availability: intervals in which a device charges, is idle and is on an unmetered network.
    presence: joins and lifetimes of devices.
    first_device: first device of the shard.
    """

    availability: Availability
    presence: Presence
    first_device: int

    @classmethod
    def of(cls, scenario: Scenario, first_device: int) -> "Eligibility":
        """Makes the eligibility of a shard's devices."""
        return cls(availability_of(scenario), Presence.of(scenario), first_device)

    def list_intervals(
        self,
        local: UInt32Array,
        open_times: Float64Array,
        from_time: float,
        until_time: float,
        known: Any = None,
    ) -> Intervals:
        """Lists the intervals of present devices that touch [from_time, until_time).

        Args:
            local: [N]; positions of the devices in the shard.
            open_times: [N]; time at which each device's timer opens. No interval begins before.
            from_time: start of the time listed.
            until_time: end of the time listed.
            known: result of `Availability.known_of` for the devices.

        Returns:
            Intervals whose `local` are positions in the shard.
        """
        device_ids = local + np.uint64(self.first_device)
        has_changes = not self.presence.is_everybody_always
        leaves = np.empty(0)
        if has_changes:
            joins, leaves = present_between(self.presence, device_ids)
            # The timer of a device that has left never opens.
            from_joins = np.maximum(open_times, joins)
            open_times = np.where(leaves > from_time, from_joins, np.inf)
        found = self.availability.list_intervals(
            device_ids, open_times, from_time, until_time, known
        )
        # Models leave out intervals that end before the timer opens, and do not cut the others.
        start_times = np.maximum(found.start_times, open_times[found.local])
        if not has_changes:
            return Intervals(local[found.local], start_times, found.end_times)
        end_times = np.minimum(found.end_times, leaves[found.local])
        # Nothing may be left of an interval in which the device joins or leaves.
        is_left = (start_times < end_times) & (end_times > from_time)
        return Intervals(local[found.local], start_times, end_times).take(is_left)
