"""A user's own function; what it returns is checked on every call."""

import numpy as np
from numpy.typing import NDArray

from clients.availability.model import NothingKnown
from clients.availability.runs import Runs
from clients.python_file import function_in
from fedray.errors import ScenarioError
from fedray.scenario import Scenario
from fedray.scenario.availability import CustomAvailability


class CustomModel(NothingKnown):
    """See clients.availability.model.Availability; it lists runs only, so that check-ins are drawn
    by enumeration."""

    def __init__(self, scenario: Scenario, table: CustomAvailability) -> None:
        self._seed, self._parameters = scenario.seed, table.parameters
        self._name = f"{table.file}:{table.function}"
        self._function = function_in(table, table.function)

    def list_runs(
        self,
        device_ids: NDArray[np.uint64],
        opens: NDArray[np.float64],
        low: float,
        high: float,
        known: None = None,
    ) -> Runs:
        """See clients.availability.model.Availability. Raises ScenarioError when the function fails
        or breaks its contract."""
        try:
            given = self._function(device_ids, low, high, self._seed, **self._parameters)
            index, start, end = (np.asarray(column) for column in given)
        except Exception as error:  # whatever a user's code may raise
            raise ScenarioError(
                f"availability function {self._name} failed: {type(error).__name__}: {error}; "
                "correct it"
            ) from None
        index, start, end = index.astype(np.int64), start.astype(np.float64), end.astype(np.float64)
        self._check(index, start, end, device_ids.size, low, high)
        keep = (end > opens[index]) & (opens[index] < high)
        return Runs(index[keep].astype(np.uint32), start[keep], end[keep])

    def run_ends(
        self, device_ids: NDArray[np.uint64], times: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Not there, as the table's `can_be_thinned` says: only enumeration is ever ordered."""
        raise AssertionError

    def _check(
        self,
        index: NDArray[np.int64],
        start: NDArray[np.float64],
        end: NDArray[np.float64],
        devices: int,
        low: float,
        high: float,
    ) -> None:
        if not (index.ndim == 1 and index.shape == start.shape == end.shape):
            self._refuse("it must return three arrays of one length: index, start, end")
        if not index.size:
            return
        if index.min() < 0 or index.max() >= devices:
            self._refuse(f"an index lies outside 0 to {devices - 1}, the places in device_ids")
        if not (start < end).all():
            self._refuse("a run ends before it starts, or has a time that is no number")
        if not ((end > low) & (start < high)).all():
            self._refuse(f"a run does not touch the time asked for, {low:g} to {high:g}")
        same = index[1:] == index[:-1]
        if (np.diff(index) < 0).any() or (start[1:][same] <= end[:-1][same]).any():
            self._refuse("runs must be sorted by (index, start), and those of one device apart")

    def _refuse(self, rule: str) -> None:
        raise ScenarioError(f"availability function {self._name}: {rule}; correct it")
