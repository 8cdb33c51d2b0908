"""Time zones of simulated devices, drawn again from the definition in `fedray/base/rng.py`: the
audit shares no code with the simulator (`fedray/wire/zones.py`)."""

import numpy as np

from fedray.audit.members import first_words
from fedray.base.arrays import Float64Array, Int64Array, UInt64Array
from fedray.scenario import Scenario

_DEVICE, _DEVICE_CLASS = 1, 80
"""Numbers of the streams of these draws. Streams are part of every trace, so they never change."""


def zone_hours_of(scenario: Scenario) -> list[float]:
    """Returns the time zones of a scenario's devices, hours from UTC, in order."""
    populations = [each.population for each in scenario.of_classes]
    return sorted({zone.utc_offset_hours for each in populations for zone in each.time_zones})


def zone_hours_on(scenario: Scenario, device_ids: UInt64Array) -> Float64Array:
    """Returns the time zone of each device [N], hours from UTC, [N]."""
    if len(zones := zone_hours_of(scenario)) == 1:
        return np.full(device_ids.size, zones[0])
    shares = [each.share for each in scenario.population.classes or ()] or [1.0]
    classes = _drawn(first_words(scenario.seed, _DEVICE_CLASS, device_ids) >> np.uint64(32), shares)
    found = np.empty(device_ids.size)
    # The second word is that of the zone.
    words = first_words(scenario.seed, _DEVICE, device_ids) & np.uint64(2**32 - 1)
    for place, each in enumerate(scenario.of_classes):
        zones = each.population.time_zones
        hours = np.array([zone.utc_offset_hours for zone in zones])
        chosen = classes == place
        found[chosen] = hours[_drawn(words[chosen], [zone.share for zone in zones])]
    return found


def _drawn(words: UInt64Array, shares: list[float]) -> Int64Array:
    """Returns the positions [N] of the shares that words of 32 bits [N] draw."""
    edges = np.cumsum(shares)[:-1]
    return np.searchsorted(edges, (words.astype(np.float64) + 0.5) * 2.0**-32, side="left")
