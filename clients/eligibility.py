"""When the devices of a shard are eligible: the intervals of their availability model, within the
time that they are there."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedray.clients.availability.factory import availability_of
from fedray.clients.availability.intervals import Intervals
from fedray.clients.availability.model import Availability
from fedray.clients.population import Presence, present_between
from fedray.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Eligibility:
    """When devices are eligible. Times are seconds UTC since the start of the simulation.

    availability: whether a device charges, is idle and is on an unmetered network.
    presence: when devices join and leave.
    first_device: of the shard.
    """

    availability: Availability
    presence: Presence
    first_device: int

    @classmethod
    def of(cls, scenario: Scenario, first_device: int) -> "Eligibility":
        """That of the devices of a shard of a scenario."""
        return cls(availability_of(scenario), Presence.of(scenario), first_device)

    def list_intervals(
        self,
        local: NDArray[np.uint32],
        open_times: NDArray[np.float64],
        from_time: float,
        until_time: float,
        known: Any = None,
    ) -> Intervals:
        """Lists the intervals of devices that touch a time, while they are there.

        Args:
            local: the devices [N], by their positions in the shard.
            open_times: [N]; when each device's timer opens. No interval begins before.
            from_time: what ends by then is left out.
            until_time: what starts then or later is left out.
            known: what `Availability.known_of` gave for the devices.

        Returns:
            Intervals whose `local` are positions in the shard.
        """
        device_ids = local + np.uint64(self.first_device)
        has_changes = not self.presence.is_everybody_always
        leaves = np.empty(0)
        if has_changes:
            joins, leaves = present_between(self.presence, device_ids)
            # A device that has left by then never opens.
            open_times = np.where(leaves > from_time, np.maximum(open_times, joins), np.inf)
        found = self.availability.list_intervals(
            device_ids, open_times, from_time, until_time, known
        )
        # Models leave out what ends before the timer opens, and do not cut what begins before it.
        start_times = np.maximum(found.start_times, open_times[found.local])
        if not has_changes:
            return Intervals(local[found.local], start_times, found.end_times)
        end_times = np.minimum(found.end_times, leaves[found.local])
        # A device that joins or leaves within an interval may have nothing left of it.
        is_there = (start_times < end_times) & (end_times > from_time)
        return Intervals(local[found.local], start_times, end_times).take(is_there)
