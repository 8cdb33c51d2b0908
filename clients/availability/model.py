"""What an availability model is. To add one: ARCHITECTURE.md, "To add"."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedray.clients.availability.intervals import Intervals


class Availability(Protocol):
    """Says when devices are eligible: a pure function of device and time, for any devices, asked in
    any order. Times are seconds UTC since the start of the simulation.

    bytes_to_know: memory that `known_of` takes per device; 0 where nothing is worth keeping.
    """

    bytes_to_know: int

    def known_of(self, device_ids: NDArray[np.uint64]) -> Any:
        """What stays the same of devices, for callers that list their intervals again and again.

        Args:
            device_ids: [N], sorted.

        Returns:
            A value of the model's own, to be given back as `known`.
        """
        ...

    def list_intervals(
        self,
        device_ids: NDArray[np.uint64],
        open_times: NDArray[np.float64],
        from_time: float,
        until_time: float,
        known: Any = None,
    ) -> Intervals:
        """Lists the intervals of devices that touch a time.

        Args:
            device_ids: [N].
            open_times: [N]; when each device's timer opens.
            from_time: of each device, what ends at max(from_time, its open time) is left out.
            until_time: what starts then is left out, and every device whose timer opens then or
                later.
            known: what `known_of` gave for the same devices, or for these and more that come after
                them; it changes no answer.

        Returns:
            Intervals whose `local` are positions in device_ids.
        """
        ...

    def interval_ends(
        self,
        device_ids: NDArray[np.uint64],
        times: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """When the intervals end that hold moments. Asked only of models whose table says
        `can_be_thinned`.

        Args:
            device_ids: [C]; a device may occur several times.
            times: [C]; a moment for each.

        Returns:
            [C]; -infinity where no interval of the device holds the moment, infinity where the
            interval has no end.
        """
        ...


class NothingKnown:
    """Mixin for models that have nothing of a device that is worth keeping."""

    bytes_to_know = 0

    def known_of(self, device_ids: NDArray[np.uint64]) -> None:
        """Nothing of any device_ids; see `Availability`."""
        return
