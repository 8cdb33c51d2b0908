"""Slow days: on some days all devices of a population are eligible less often (holidays, outages of
networks, competing tasks), whatever their availability model.

A day is slow for all devices or for no device; on a slow day each interval is left out with the
same probability, independently of the others. Both are draws at addresses, so that availability
stays a pure function of device and time.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from fedray.base.arrays import Float64Array, UInt64Array
from fedray.base.compiled import njit
from fedray.base.rng import Key, Stream, draw, stream_key, uniform
from fedray.scenario.availability import SlowDays
from .intervals import DAY, Intervals
from .model import Availability, Listing

# Addresses b within Stream.SLOW_DAYS: spells at (spell, a = 0), intervals at (device, a = end in
# whole seconds). Intervals of a device are more than a second apart, so their addresses differ.
_SPELL, _INTERVAL = 0, 1


class _Calendar(NamedTuple):
    """Numbers of the table.

    key: key of the draws.
    share: share of the spells that are slow.
    factor: share of the intervals that is left on slow days.
    spell_seconds: length of a spell.
    """

    key: Key
    share: float
    factor: float
    spell_seconds: float


class SlowDaysModel:
    """Availability with slow days; see fedray.clients.availability.model.Availability.

    An interval belongs to the spell in which it ends. An interval without end stays.

    Args:
        table: slow days.
        seed: the scenario's seed.
        model: availability on other days.
    """

    def __init__(self, table: SlowDays, seed: int, model: Availability) -> None:
        self._model = model
        self._calendar = _Calendar(
            key=stream_key(seed, Stream.SLOW_DAYS),
            share=table.share,
            factor=table.factor,
            spell_seconds=DAY * table.days,
        )
        self.bytes_to_know = model.bytes_to_know

    def known_of(self, device_ids: UInt64Array) -> Any:
        return self._model.known_of(device_ids)

    def list_intervals(self, listing: Listing) -> Intervals:
        found = self._model.list_intervals(listing)
        own_ids = listing.device_ids[found.local]
        return found.take(_are_left(self._calendar, own_ids, found.end_times))

    def interval_ends(self, device_ids: UInt64Array, times: Float64Array) -> Float64Array:
        ends = self._model.interval_ends(device_ids, times)
        are_left = _are_left(self._calendar, device_ids, ends)
        return np.where(are_left, ends, -np.inf)


@njit(cache=True, nogil=True)
def _are_left(calendar, device_ids, end_times):
    """Returns which intervals are left, by their ends [I]; True for ends that are infinite."""
    are_left = np.ones(end_times.size, np.bool_)
    for interval in range(end_times.size):
        end_time = end_times[interval]
        if not math.isfinite(end_time):
            continue
        # The end decides, because every listing has it, whereas starts may be cut.
        spell = math.floor(end_time / calendar.spell_seconds)
        w0 = draw(calendar.key, spell, 0, _SPELL)[0]
        if uniform(w0) < calendar.share:
            second = math.floor(end_time)
            v0 = draw(calendar.key, device_ids[interval], second, _INTERVAL)[0]
            are_left[interval] = uniform(v0) < calendar.factor
    return are_left
