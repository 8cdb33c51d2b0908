"""Every device is eligible at all times: its one interval has no end."""

import numpy as np
from numpy.typing import NDArray

from fedray.clients.availability.intervals import Intervals
from fedray.clients.availability.model import NothingKnown
from fedray.scenario import Scenario
from fedray.scenario.availability import AlwaysOn


class AlwaysOnModel(NothingKnown):
    """Availability without an end; see fedray.clients.availability.model.Availability.

    Args:
        scenario, table: say nothing that matters here.
    """

    def __init__(self, scenario: Scenario, table: AlwaysOn) -> None:
        del scenario, table

    def list_intervals(
        self,
        device_ids: NDArray[np.uint64],
        open_times: NDArray[np.float64],
        from_time: float,
        until_time: float,
        known: None = None,
    ) -> Intervals:
        """One interval without an end for each of `device_ids` whose timer opens in time.

        It begins at `from_time`, or at the device's own of `open_times` where that is later. A
        device whose timer opens at `until_time` or later has none. Nothing is `known`.
        """
        local = np.flatnonzero(open_times < until_time).astype(np.uint32)
        start_times = np.maximum(from_time, open_times[local])
        return Intervals(local, start_times, np.full(local.size, np.inf))

    def interval_ends(
        self,
        device_ids: NDArray[np.uint64],
        times: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Infinity for each of `device_ids`, whatever the `times`."""
        return np.full(device_ids.size, np.inf)
