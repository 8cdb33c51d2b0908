"""The contract of an availability model. To add one: docs/extending.md."""

from typing import Any, NamedTuple, Protocol

from fedray.base.arrays import Float64Array, UInt64Array
from .intervals import Intervals


class Listing(NamedTuple):
    """A request for the intervals of devices that touch a time."""

    device_ids: UInt64Array
    """[N]."""
    open_times: Float64Array
    """[N]; time at which each device's timer opens."""
    from_time: float
    """Start; intervals that end by max(from_time, open time) are left out."""
    until_time: float
    """End; intervals that start at it or later are left out, and devices whose timers open at it or
    later."""
    known: Any = None
    """Result of `Availability.known_of` for the same devices, or for more of which these are the
    first; it changes no answer."""


class Availability(Protocol):
    """Decides when devices are eligible: a pure function of device and time, for any devices in any
    order. Times are seconds UTC since the start of the simulation."""

    bytes_to_know: int
    """Memory that `known_of` takes per device; 0 if nothing is worth keeping."""

    def known_of(self, device_ids: UInt64Array) -> Any:
        """Computes the constants of devices, for callers that list their intervals repeatedly.

        Args:
            device_ids: [N], sorted.

        Returns:
            Value of the model's own type, for `Listing.known`.
        """
        ...

    def list_intervals(self, listing: Listing) -> Intervals:
        """Lists intervals whose `local` are positions in the listing's devices.

        Raises:
            ScenarioError: a device has too many intervals, or one that is too long.
        """
        ...

    def interval_ends(self, device_ids: UInt64Array, times: Float64Array) -> Float64Array:
        """Returns the ends of the intervals that contain moments.

        Called only if the model's table says `can_be_thinned`.

        Args:
            device_ids: [C]; a device may occur several times.
            times: [C]; a moment for each.

        Returns:
            [C]; -infinity if no interval of the device contains the moment, infinity if the
            interval has no end.

        Raises:
            ScenarioError: a device has too many intervals, or one that is too long.
        """
        ...


class NothingKnown:
    """Mixin for models without constants of a device that are worth keeping."""

    bytes_to_know = 0

    def known_of(self, device_ids: UInt64Array) -> Any:
        return None
