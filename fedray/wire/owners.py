"""Owners of devices (`population.owners`): each person owns a few devices with consecutive ids.

Ids are divided into cells of L consecutive devices, where L is a common multiple of all numbers of
devices of a person. An addressed draw decides for each cell how many devices its persons have. So
the owner of a device follows from its id and the seed, whatever the shards.
"""

import math
from typing import NamedTuple

import numpy as np

from fedray.base.arrays import Float64Array, UInt64Array
from fedray.base.compiled import njit
from fedray.base.rng import Key, Stream, draw, share_at, stream_key
from fedray.scenario import Scenario


class OwnersOfDevices(NamedTuple):
    """Owners of a population."""

    key: Key
    """Key of the draws."""
    edges: Float64Array
    """[S]; upper edge of the share of cells whose persons have 1, 2, .., S devices, rising to 1."""
    cell: int
    """L, number of devices of a cell."""

    @classmethod
    def of(cls, scenario: Scenario) -> "OwnersOfDevices | None":
        """Compiles the owners of a scenario; None if it has none."""
        owners = scenario.population.owners
        if owners is None:
            return None
        sizes = np.arange(1, owners.most_devices + 1)
        # A cell of persons with c devices has L / c persons, so it is drawn in proportion to c.
        weights = sizes * np.array(owners.shares)
        key = stream_key(scenario.seed, Stream.OWNER)
        return cls(key, np.cumsum(weights / weights.sum()), math.lcm(*sizes.tolist()))


@njit(cache=True, nogil=True)
def owners_on(owners: OwnersOfDevices, device_ids: UInt64Array) -> UInt64Array:
    """Returns the owners [N] of devices [N], each named by the first id that the owner has."""
    found = np.empty(device_ids.size, np.uint64)
    for asked in range(device_ids.size):
        # Numba turns mixed signed and unsigned numbers into floats, so all are signed.
        place = np.int64(device_ids[asked])
        number = place // owners.cell
        size = share_at(owners.edges, draw(owners.key, number, 0, 0)[0]) + 1
        first = place - place % owners.cell % size
        found[asked] = np.uint64(first)
    return found
