"""Time zones of devices (`population.time_zones`): each device's zone is an addressed draw, so
clients and server agree on it."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedray.base.arrays import Float64Array, Int64Array, UInt64Array
from fedray.base.compiled import njit
from fedray.base.rng import Key, Stream, draw, share_at, stream_key
from fedray.scenario import Scenario
from fedray.scenario.population import TimeZone
from fedray.wire.device_classes import DeviceClasses, classes_on

REACH = 0
"""Part b of the address (0, b) in Stream.DEVICE whose words decide whether a task can use a device,
its zone, and its number of examples; see also `fedray.clients.population`."""


class Zones(NamedTuple):
    """Time zones of a population."""

    key: Key
    """Key of the draws."""
    edges: Float64Array
    """Upper edge of each zone's share, rising to 1; [Z]."""
    offsets: Float64Array
    """Local time minus UTC, hours; [Z]."""

    @classmethod
    def of(cls, zones: Sequence[TimeZone], seed: int) -> "Zones":
        """Compiles the time zones of a population, from the tables and a scenario's seed."""
        shares = [zone.share for zone in zones]
        offsets = [zone.utc_offset_hours for zone in zones]
        return cls(
            key=stream_key(seed, Stream.DEVICE),
            edges=np.cumsum(shares),
            offsets=np.array(offsets, np.float64),
        )


@njit(forceinline=True)
def zone_of(key, edges, device):
    """Returns the position of a device's zone; see `Zones` for key and edges."""
    if edges.size == 1:
        return 0
    # The second word of the address whose first decides whether the task can use the device.
    w1 = draw(key, device, 0, REACH)[1]
    return share_at(edges, w1)


@njit(cache=True, nogil=True)
def zones_on(zones: Zones, device_ids: UInt64Array) -> Int64Array:
    """Returns the positions [G] of the zones of devices [G]."""
    found = np.empty(device_ids.size, np.int64)
    for asked in range(device_ids.size):
        found[asked] = zone_of(zones.key, zones.edges, device_ids[asked])
    return found


def zone_offsets_on(scenario: Scenario, device_ids: UInt64Array) -> Float64Array:
    """Returns local time minus UTC of devices [G], hours, by the zones of their classes."""
    own_class = classes_on(DeviceClasses.of(scenario), device_ids)
    offsets = np.empty(device_ids.size)
    for place, of_class in enumerate(scenario.of_classes):
        zones = Zones.of(of_class.population.time_zones, of_class.seed)
        chosen = own_class == place
        positions = zones_on(zones, device_ids[chosen])
        offsets[chosen] = zones.offsets[positions]
    return offsets
