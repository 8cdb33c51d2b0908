"""Starts of the last participations of devices, for policies that count participations within a
period."""

import numpy as np
from numpy.typing import NDArray

from fedray.base.arrays import Float64Array, UInt64Array
from fedray.wire.history import HistoryLosses, last_loss_before
from .policy import Attempt


class RecentStarts:
    """The starts that devices remember, of the last participations of each.

    Args:
        back: number of participations that are kept of each device, at least 1.
        seconds: time after which a start is forgotten.
        losses: losses of the devices' histories.
    """

    def __init__(self, back: int, seconds: float, losses: HistoryLosses) -> None:
        self._back, self._seconds, self._losses = back, seconds, losses
        # Rows in order of (device, start).
        self._device_ids = np.empty(0, np.uint64)
        self._starts = np.empty(0)
        self._stored = np.empty(0)
        """Time at which the device stored the start, from which on a loss erases it."""

    def before(self, device_ids: UInt64Array, time: float) -> Float64Array:
        """Returns the start of the `back`-th last participation of devices [S] that they remember
        at a time, or -infinity."""
        ends = np.searchsorted(self._device_ids, device_ids, side="right")
        rows = ends - self._back
        found = np.full(device_ids.size, -np.inf)
        known = rows >= 0
        known[known] = self._device_ids[rows[known]] == device_ids[known]
        if self._losses.happen and known.any():
            # Later participations were stored later, so all are remembered if this one is.
            lost = last_loss_before(self._losses, device_ids[known], np.full(known.sum(), time))
            known[known] = self._stored[rows[known]] > lost
        found[known] = self._starts[rows[known]]
        return found

    def add(self, attempt: Attempt) -> None:
        """Keeps the start of an attempt for the devices whose reports arrived; in order of time."""
        arrived = attempt.has_arrived
        added = attempt.device_ids[arrived]
        places = np.searchsorted(self._device_ids, added, side="right")
        device_ids = np.insert(self._device_ids, places, added)
        starts = np.insert(self._starts, places, attempt.started)
        stored = np.insert(self._stored, places, attempt.report_times[arrived])
        # A row is kept if fewer than `back` rows of its device follow.
        stays = np.ones(device_ids.size, np.bool_)
        stays[: -self._back] = device_ids[: -self._back] != device_ids[self._back :]
        stays &= starts > attempt.started - self._seconds
        self._device_ids, self._starts = device_ids[stays], starts[stays]
        self._stored = stored[stays]

    def state(self) -> dict[str, NDArray]:
        """Returns the rows as named arrays."""
        return {"devices": self._device_ids, "starts": self._starts, "stored": self._stored}

    def load(self, state: dict[str, NDArray]) -> None:
        """Restores the result of `state`."""
        self._device_ids, self._starts = state["devices"], state["starts"]
        self._stored = state["stored"]
