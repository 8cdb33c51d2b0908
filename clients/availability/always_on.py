"""Every device is eligible at all times: its one interval has no end."""

import numpy as np

from fedray.base.arrays import Float64Array, UInt64Array
from fedray.scenario.availability import AlwaysOn
from fedray.wire.zones import Zones
from .intervals import Intervals
from .model import Listing, NothingKnown


class AlwaysOnModel(NothingKnown):
    """Availability with a single endless interval; see
    fedray.clients.availability.model.Availability."""

    def __init__(self, table: AlwaysOn, seed: int, zones: Zones) -> None:
        del table, seed, zones

    def list_intervals(self, listing: Listing) -> Intervals:
        local = np.flatnonzero(listing.open_times < listing.until_time).astype(np.uint32)
        start_times = np.maximum(listing.from_time, listing.open_times[local])
        return Intervals(local, start_times, np.full(local.size, np.inf))

    def interval_ends(self, device_ids: UInt64Array, times: Float64Array) -> Float64Array:
        return np.full(device_ids.size, np.inf)
