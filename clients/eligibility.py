"""Eligibility of a shard's devices: the intervals of their availability model, while they are
present."""

from dataclasses import dataclass

import numpy as np

from fedray.scenario import Scenario
from .availability.factory import availability_of
from .availability.intervals import Intervals
from .availability.model import Availability, Listing
from .population import Presence, present_between


@dataclass(frozen=True, slots=True)
class Eligibility:
    """Eligible intervals of devices. Times are seconds UTC since the start of the simulation."""

    availability: Availability
    """Intervals in which a device charges, is idle and is on an unmetered network."""
    presence: Presence
    """Joins and lifetimes of devices."""
    first_device: int
    """First device of the shard."""

    @classmethod
    def of(cls, scenario: Scenario, first_device: int) -> "Eligibility":
        """Makes the eligibility of a shard's devices."""
        return cls(availability_of(scenario), Presence.of(scenario), first_device)

    def list_intervals(self, listing: Listing) -> Intervals:
        """Lists the intervals of present devices; none begins before the device's timer opens.

        Returns:
            Intervals whose `local` are positions in the shard.
        """
        device_ids, open_times, from_time, _, _ = listing
        has_changes = not self.presence.is_everybody_always
        leaves = np.empty(0)
        if has_changes:
            joins, leaves = present_between(self.presence, device_ids)
            # The timer of a device that has left never opens.
            from_joins = np.maximum(open_times, joins)
            open_times = np.where(leaves > from_time, from_joins, np.inf)
            listing = listing._replace(open_times=open_times)
        found = self.availability.list_intervals(listing)
        # Models leave out intervals that end before the timer opens, and do not cut the others.
        start_times = np.maximum(found.start_times, open_times[found.local])
        local = (device_ids[found.local] - np.uint64(self.first_device)).astype(np.uint32)
        if not has_changes:
            return Intervals(local, start_times, found.end_times)
        end_times = np.minimum(found.end_times, leaves[found.local])
        # Nothing may be left of an interval in which the device joins or leaves.
        is_left = (start_times < end_times) & (end_times > from_time)
        return Intervals(local, start_times, end_times).take(is_left)
