"""Availability by a user's own function; its answers are checked at every call."""

import numpy as np
from numpy.typing import NDArray

from fedray.base.arrays import Float64Array, Int64Array, UInt64Array
from fedray.base.errors import ScenarioError
from fedray.scenario.availability import CustomAvailability
from fedray.scenario.python_file import called, function_in
from fedray.wire.zones import Zones
from .intervals import Intervals
from .model import Listing, NothingKnown


class CustomModel(NothingKnown):
    """Availability by a user's function; see fedray.clients.availability.model.Availability.

    The function only lists intervals, so check-ins are drawn by enumeration.

    Args:
        table: file, function and parameters.
        seed: the scenario's seed, an argument of the function.
        zones: time zones of the devices, which the function does not get.
    """

    def __init__(self, table: CustomAvailability, seed: int, zones: Zones) -> None:
        del zones
        self._seed = seed
        self._parameters = table.parameters
        self._name = f"{table.file}:{table.function}"
        self._function = function_in(table, table.function)

    def list_intervals(self, listing: Listing) -> Intervals:
        device_ids, open_times, from_time, until_time, _ = listing

        def call() -> list[NDArray]:
            given = self._function(
                device_ids, from_time, until_time, self._seed, **self._parameters
            )
            return [np.asarray(column) for column in given]

        index, start, end = called(f"availability function {self._name}", call)
        local = index.astype(np.int64)
        start_times = start.astype(np.float64)
        end_times = end.astype(np.float64)
        self._check(local, start_times, end_times, device_ids.size)
        touches = (end_times > from_time) & (start_times < until_time)
        if not touches.all():
            self._refuse(f"an interval does not touch the times {from_time:g} to {until_time:g}")
        # The function ignores timers, so intervals before a device's timer opens are dropped here.
        opens = open_times[local]
        keep = (end_times > opens) & (opens < until_time)
        intervals = Intervals(local.astype(np.uint32), start_times, end_times)
        return intervals.take(keep)

    def interval_ends(self, device_ids: UInt64Array, times: Float64Array) -> Float64Array:
        # The table's `can_be_thinned` is false, so only enumeration is ordered.
        raise AssertionError

    def _check(
        self,
        local: Int64Array,
        start_times: Float64Array,
        end_times: Float64Array,
        devices: int,
    ) -> None:
        if not (local.ndim == 1 and local.shape == start_times.shape == end_times.shape):
            self._refuse("it must return three arrays of one length: index, start, end")
        if not local.size:
            return
        if local.min() < 0 or local.max() >= devices:
            self._refuse(f"an index lies outside 0 to {devices - 1}, the positions in device_ids")
        # NaN compares false with everything, so this finds NaN too.
        if not (start_times < end_times).all():
            self._refuse("an interval ends before it starts, or has a time that is NaN")
        is_sorted = (np.diff(local) >= 0).all()
        is_of_same = local[1:] == local[:-1]
        gaps_start = end_times[:-1][is_of_same]
        gaps_end = start_times[1:][is_of_same]
        if not is_sorted or (gaps_end <= gaps_start).any():
            self._refuse("intervals must be sorted by (index, start), and those of a device apart")

    def _refuse(self, rule: str) -> None:
        raise ScenarioError(f"availability function {self._name}: {rule}; correct it")
