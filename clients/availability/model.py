"""What an availability model is. A new one: its table in fedray/availability.py, its file here, its
name in registry.py; the suite in tests/contracts then holds it to this."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from clients.availability.runs import Runs


class Availability(Protocol):
    """Says when devices are eligible: a pure function of device and time, for any devices, asked in
    any order."""

    bytes_to_know: int
    """Memory that `known_of` takes per device; 0 where there is nothing that is worth keeping."""

    def known_of(self, device_ids: NDArray[np.uint64]) -> Any:
        """What stays the same of devices [N], for callers that list their runs again and again."""
        ...

    def list_runs(
        self,
        device_ids: NDArray[np.uint64],
        opens: NDArray[np.float64],
        low: float,
        high: float,
        known: Any = None,
    ) -> Runs:
        """Runs of devices [N] that touch [max(low, opens), high); none of devices with opens >=
        high.

        known: what `known_of` gave for the same devices, or for these and more that come after
            them; it changes no answer.
        """
        ...

    def run_ends(
        self, device_ids: NDArray[np.uint64], times: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """For each pair of device and time [C]: the end of the run that holds the time, -infinity
        where there is none.

        Asked only of models whose table says `can_be_thinned`.
        """
        ...


class NothingKnown:
    """Of models without anything that is worth keeping."""

    bytes_to_know = 0

    def known_of(self, device_ids: NDArray[np.uint64]) -> None:
        """See `Availability`."""
        return
