"""Availability models whose intervals a compiled function lists."""

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedray.base.errors import ScenarioError
from fedray.clients.availability.intervals import DAY, Intervals
from fedray.clients.availability.model import NothingKnown


class CompiledModel(NothingKnown):
    """Base of models that give `fill`; see fedray.clients.availability.model.Availability.

    A listing with too little room runs a second time, so subclasses guess high:

    intervals_per_device, intervals_per_day: expected number of a listing, at most, and the part
        that grows with its days.
    """

    intervals_per_device = 2.0
    intervals_per_day = 0.0

    @abstractmethod
    def fill(
        self,
        device_ids: NDArray[np.uint64],
        from_times: NDArray[np.float64],
        until_times: NDArray[np.float64],
        known: Any,
        room: Intervals,
    ) -> int:
        """Writes the intervals that touch [from, until) of each device, as far as there is room.

        Kernels write the columns themselves: a function for it would cost a third of their time.

        Args:
            device_ids: [N].
            from_times: [N].
            until_times: [N]; a device with a time that is not later than its from_time has none.
            known: see `Availability.list_intervals`.
            room: columns to write to.

        Returns:
            Number of intervals, also beyond the room.

        Raises:
            ValueError: a device has too many intervals, or one that is too long.
        """

    def list_intervals(
        self,
        device_ids: NDArray[np.uint64],
        open_times: NDArray[np.float64],
        from_time: float,
        until_time: float,
        known: Any = None,
    ) -> Intervals:
        from_times = np.maximum(from_time, open_times)
        until_times = np.full(device_ids.size, until_time)
        days = (until_time - from_time) / DAY
        expected = self.intervals_per_device + self.intervals_per_day * days
        capacity = int(device_ids.size * expected) + 1024
        return self._filled(device_ids, from_times, until_times, known, capacity)

    def interval_ends(
        self, device_ids: NDArray[np.uint64], times: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        # The shortest time that contains the moment: at most one interval touches it.
        until_times = np.nextafter(times, np.inf)
        found = self._filled(device_ids, times, until_times, None, device_ids.size)
        ends = np.full(device_ids.size, -np.inf)
        ends[found.local] = found.end_times
        return ends

    def _filled(
        self,
        device_ids: NDArray[np.uint64],
        from_times: NDArray[np.float64],
        until_times: NDArray[np.float64],
        known: Any,
        capacity: int,
    ) -> Intervals:
        while True:
            room = Intervals(np.empty(capacity, np.uint32), np.empty(capacity), np.empty(capacity))
            try:
                total = self.fill(device_ids, from_times, until_times, known, room)
            except ValueError as error:
                raise ScenarioError(str(error)) from None
            if total <= capacity:
                return room.take(slice(total))
            # The next turn finds the same intervals and has room for all of them.
            capacity = total
