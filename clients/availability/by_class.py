"""Availability of a population whose classes have their own habits or time zones: a model per
class."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedray.base.arrays import Float64Array, UInt64Array
from fedray.wire.device_classes import DeviceClasses, classes_on
from .intervals import Intervals, joined
from .model import Availability, Listing


class AvailabilityByClass:
    """Asks the model of each device's class; see fedray.clients.availability.model.Availability.

    Args:
        classes: classes of the devices.
        models: [K]; model of each class.
    """

    def __init__(self, classes: DeviceClasses, models: Sequence[Availability]) -> None:
        self._classes = classes
        self._models = tuple(models)
        # One byte suffices for the class.
        self.bytes_to_know = 1 + max(model.bytes_to_know for model in models)

    def known_of(self, device_ids: UInt64Array) -> Any:
        own_class = classes_on(self._classes, device_ids)
        return own_class, [
            model.known_of(device_ids[own_class == place])
            for place, model in enumerate(self._models)
        ]

    def list_intervals(self, listing: Listing) -> Intervals:
        device_ids, known = listing.device_ids, listing.known
        if known is None:
            own_class = classes_on(self._classes, device_ids)
            known_by_class = [None] * len(self._models)
        else:
            own_class = known[0][: device_ids.size]
            known_by_class = known[1]
        parts: list[Intervals] = []
        for place, model in enumerate(self._models):
            # The first devices of all are the first ones of their classes, so `known` fits.
            chosen = np.flatnonzero(own_class == place)
            of_class = listing._replace(
                device_ids=device_ids[chosen],
                open_times=listing.open_times[chosen],
                known=known_by_class[place],
            )
            found = model.list_intervals(of_class)
            local = chosen[found.local].astype(np.uint32)
            parts.append(found._replace(local=local))
        return joined(parts).sorted_by_device()

    def interval_ends(self, device_ids: UInt64Array, times: Float64Array) -> Float64Array:
        own_class = classes_on(self._classes, device_ids)
        ends = np.empty(device_ids.size)
        for place, model in enumerate(self._models):
            chosen = own_class == place
            ends[chosen] = model.interval_ends(device_ids[chosen], times[chosen])
        return ends
