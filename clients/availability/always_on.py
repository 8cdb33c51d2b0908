"""Every device is eligible at all times: its one run has no end."""

import numpy as np
from numpy.typing import NDArray

from clients.availability.model import NothingKnown
from clients.availability.runs import Runs


class AlwaysOnModel(NothingKnown):
    """See clients.availability.model.Availability."""

    def list_runs(
        self,
        device_ids: NDArray[np.uint64],
        opens: NDArray[np.float64],
        low: float,
        high: float,
        known: None = None,
    ) -> Runs:
        """See clients.availability.model.Availability."""
        index = np.flatnonzero(opens < high).astype(np.uint32)
        return Runs(index, np.maximum(low, opens[index]), np.full(index.size, np.inf))

    def run_ends(
        self, device_ids: NDArray[np.uint64], times: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """See clients.availability.model.Availability."""
        return np.full(device_ids.size, np.inf)
