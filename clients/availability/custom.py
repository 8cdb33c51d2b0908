"""A user's own function; what it returns is checked on every call."""

import numpy as np
from numpy.typing import NDArray

from clients.availability.intervals import Intervals
from clients.availability.model import NothingKnown
from clients.python_file import function_in
from fedray.errors import ScenarioError
from fedray.scenario import Scenario
from fedray.scenario.availability import CustomAvailability


class CustomModel(NothingKnown):
    """See clients.availability.model.Availability; it lists intervals only, so that check-ins are
    drawn by enumeration."""

    def __init__(self, scenario: Scenario, table: CustomAvailability) -> None:
        self._seed, self._parameters = scenario.seed, table.parameters
        self._name = f"{table.file}:{table.function}"
        self._function = function_in(table, table.function)

    def list_intervals(
        self,
        device_ids: NDArray[np.uint64],
        open_times: NDArray[np.float64],
        from_time: float,
        until_time: float,
        known: None = None,
    ) -> Intervals:
        """See clients.availability.model.Availability.

        Raises:
            ScenarioError: the function fails, or breaks its contract.
        """
        try:
            given = self._function(
                device_ids, from_time, until_time, self._seed, **self._parameters
            )
            index, start, end = (np.asarray(column) for column in given)
        except Exception as error:  # whatever a user's code may raise
            raise ScenarioError(
                f"availability function {self._name} failed: {type(error).__name__}: {error}; "
                "correct it"
            ) from None
        local = index.astype(np.int64)
        start_times, end_times = start.astype(np.float64), end.astype(np.float64)
        self._check(local, start_times, end_times, device_ids.size)
        self._check_touches(start_times, end_times, from_time, until_time)
        keep = (end_times > open_times[local]) & (open_times[local] < until_time)
        return Intervals(local.astype(np.uint32), start_times, end_times).take(keep)

    def interval_ends(
        self, device_ids: NDArray[np.uint64], times: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Cannot be asked, as the table's `can_be_thinned` says: only enumeration is ordered."""
        raise AssertionError

    def _check(
        self,
        local: NDArray[np.int64],
        start_times: NDArray[np.float64],
        end_times: NDArray[np.float64],
        devices: int,
    ) -> None:
        if not (local.ndim == 1 and local.shape == start_times.shape == end_times.shape):
            self._refuse("it must return three arrays of one length: index, start, end")
        if not local.size:
            return
        if local.min() < 0 or local.max() >= devices:
            self._refuse(f"an index lies outside 0 to {devices - 1}, the positions in device_ids")
        if not (start_times < end_times).all():
            self._refuse("an interval ends before it starts, or has a time that is no number")
        same = local[1:] == local[:-1]
        if (np.diff(local) < 0).any() or (start_times[1:][same] <= end_times[:-1][same]).any():
            self._refuse("intervals must be sorted by (index, start), and those of a device apart")

    def _check_touches(
        self,
        start_times: NDArray[np.float64],
        end_times: NDArray[np.float64],
        from_time: float,
        until_time: float,
    ) -> None:
        if not ((end_times > from_time) & (start_times < until_time)).all():
            self._refuse(
                f"an interval does not touch the time asked for, {from_time:g} to {until_time:g}"
            )

    def _refuse(self, rule: str) -> None:
        raise ScenarioError(f"availability function {self._name}: {rule}; correct it")
