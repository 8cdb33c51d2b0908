"""Availability models whose intervals a compiled function lists."""

from abc import abstractmethod
from typing import Any, NamedTuple

import numpy as np

from fedray.base.arrays import Float64Array, UInt64Array
from fedray.base.errors import ScenarioError
from .intervals import DAY, Intervals
from .model import Listing, NothingKnown


class Request(NamedTuple):
    """Request for the intervals of devices [N] that touch [from_times, until_times).

    A device whose time is empty has no intervals.
    """

    device_ids: UInt64Array
    from_times: Float64Array
    until_times: Float64Array


class CompiledModel(NothingKnown):
    """Base of models that define `fill`; see fedray.clients.availability.model.Availability.

    intervals_per_device, intervals_per_day: generous estimate of the intervals in a listing, and
        the
        part that grows with its days. A listing with too little room runs a second time.
    """

    intervals_per_device = 2.0
    intervals_per_day = 0.0

    @abstractmethod
    def fill(self, request: Request, known: Any, room: Intervals) -> int:
        """Writes the intervals of a request, as far as there is room.

        Kernels write the columns themselves, since a shared function would cost a third of their
        time.

        Args:
            request: devices and times.
            known: see `Listing`.
            room: columns to write to.

        Returns:
            Number of intervals, also beyond the room.

        Raises:
            ValueError: a device has too many intervals, or one that is too long.
        """

    def list_intervals(self, listing: Listing) -> Intervals:
        device_ids, open_times, from_time, until_time, known = listing
        from_times = np.maximum(from_time, open_times)
        until_times = np.full(device_ids.size, until_time)
        days = (until_time - from_time) / DAY
        expected = self.intervals_per_device + self.intervals_per_day * days
        capacity = int(device_ids.size * expected) + 1024
        return self._filled(Request(device_ids, from_times, until_times), known, capacity)

    def interval_ends(self, device_ids: UInt64Array, times: Float64Array) -> Float64Array:
        # The shortest time that contains the moment: at most one interval touches it.
        until_times = np.nextafter(times, np.inf)
        request = Request(device_ids, times, until_times)
        found = self._filled(request, None, capacity=device_ids.size)
        ends = np.full(device_ids.size, -np.inf)
        ends[found.local] = found.end_times
        return ends

    def _filled(self, request: Request, known: Any, capacity: int) -> Intervals:
        while True:
            room = Intervals.room(capacity)
            try:
                total = self.fill(request, known, room)
            except ValueError as error:
                raise ScenarioError(str(error)) from None
            if total <= capacity:
                return room.take(slice(total))
            # The second pass finds the same intervals and has room for all of them.
            capacity = total
