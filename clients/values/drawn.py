"""Values that are drawn, with a stated dependence on a device's time zone and habit."""

import math

import numpy as np

from fedray.base.arrays import Float64Array, UInt64Array
from fedray.base.compiled import njit
from fedray.base.rng import Stream, draw, normal, poisson, stream_key, uniform
from fedray.mechanisms.questions.question import Items
from fedray.scenario import Scenario
from fedray.scenario.analytics import NumberValues, WordValues
from fedray.wire.zones import zone_offsets_on
from ..population import habits_on
from .values import occurrences


class Numbers:
    """A number per device; see `fedray.scenario.analytics.NumberValues`."""

    def __init__(self, scenario: Scenario, table: NumberValues) -> None:
        self._scenario, self._table = scenario, table
        self._key = stream_key(scenario.seed, Stream.VALUES)

    def on(self, device_ids: UInt64Array) -> Items:
        """See `Values`: one item of each device, at key 0."""
        table = self._table
        drawn = table.mean + table.deviation * _normals(self._key, device_ids)
        if table.per_zone_hour:
            drawn += table.per_zone_hour * zone_offsets_on(self._scenario, device_ids)
        if table.by_habit:
            drawn += table.by_habit * (habits_on(self._scenario, device_ids) - 0.5)
        size = device_ids.size
        return Items(np.arange(size + 1), np.zeros(size, np.int64), drawn)

    def label(self, key: int) -> str:
        return str(key)


class Words:
    """Words of each device; see `fedray.scenario.analytics.WordValues`."""

    def __init__(self, scenario: Scenario, table: WordValues) -> None:
        self._scenario, self._table = scenario, table
        self._key = stream_key(scenario.seed, Stream.VALUES)
        weights = np.arange(1.0, table.words + 1.0) ** -table.exponent
        self._edges = np.cumsum(weights / weights.sum())
        self._stride = _stride(table.words)

    def on(self, device_ids: UInt64Array) -> Items:
        offsets = zone_offsets_on(self._scenario, device_ids)
        firsts = np.rint(offsets * self._table.words / 24).astype(np.int64)
        table = self._table
        counts = _counts(self._key, device_ids, table.per_device)
        ranks = _ranks(self._key, device_ids, counts, self._edges, table.of_zone, firsts)
        return occurrences(counts, ranks * self._stride % table.words)

    def label(self, key: int) -> str:
        """See `Values`: a word is named by its rank."""
        return f"word{key * pow(self._stride, -1, self._table.words) % self._table.words}"


def _stride(words: int) -> int:
    """Returns the number next to the golden section of `words` that has no divisor in common with
    it, so that its multiples are all numbers below `words`, far from the one before."""
    stride = max(1, round(0.618 * words))
    while math.gcd(stride, words) > 1:
        stride += 1
    return stride


@njit(cache=True, nogil=True)
def _normals(key, device_ids: UInt64Array) -> Float64Array:
    """Addresses: (device, 0, 0)."""
    found = np.empty(device_ids.size)
    for row in range(device_ids.size):
        found[row] = normal(draw(key, device_ids[row], 0, 0)[0])
    return found


@njit(cache=True, nogil=True)
def _counts(key, device_ids, mean):
    """Addresses: (device, 1, 0)."""
    counts = np.empty(device_ids.size, np.int64)
    none = math.exp(-mean)
    for row in range(device_ids.size):
        counts[row] = poisson(mean, none, draw(key, device_ids[row], 1, 0)[0])
    return counts


@njit(cache=True, nogil=True)
def _ranks(key, device_ids, counts, edges, of_zone, firsts):
    """Addresses: (device, 2, from 0 on): the first word is the draw, the second the ranking."""
    ranks = np.empty(counts.sum(), np.int64)
    place = 0
    for row in range(device_ids.size):
        for number in range(counts[row]):
            w0, w1, _, _ = draw(key, device_ids[row], 2, number)
            # The last edge may be rounded to less than 1.
            rank = min(edges.size - 1, np.searchsorted(edges, uniform(w0)))
            first = firsts[row] if uniform(w1) < of_zone else 0
            ranks[place] = (rank + first) % edges.size
            place += 1
    return ranks
