"""Charging, unmetered wifi and idle as three processes: a device is eligible while all conditions
that it needs hold.

Charging and wifi are sessions by night and by day with habits of their own, as in the habit model
(clients/availability/habit_sessions.py). Uses of a device, during which it is not idle, are a
Poisson process drawn by (device, local day). The state of a device at any time is a pure function.

A gap between intervals, whether a gap of a condition or a use, lasts more than JOIN_SECONDS, so
intervals need not be joined.
"""

import math
from typing import NamedTuple

import numpy as np

from fedray.base.compiled import njit
from fedray.base.rng import Key, Stream, draw, exponential, poisson, stream_key, uniform
from fedray.scenario.availability import ConditionsAvailability, Uses
from fedray.wire.zones import Zones, zone_of
from .compiled import CompiledModel, Request
from .habit_sessions import (
    LONGEST_DAYS,
    MAX_SESSIONS,
    intervals_between,
    intervals_within,
)
from .habit_tables import HabitModel, HabitTables, habit_of
from .intervals import DAY, HOUR, JOIN_SECONDS, Intervals, merge

SHORTEST_USE_SECONDS = 2.0
_MOST_MEANS = 22.9
"""Upper bound on the draws of `fedray.base.rng.exponential`."""
# Addresses b within Stream.USES at (device, a = day).
_COUNT, _USE = 0, 1


class _UseModel(NamedTuple):
    """Numbers of the table `uses`; hours are local."""

    key: Key
    """Key of the draws."""
    day_rate: float
    """Mean number of uses that begin in an hour of the day."""
    night_rate: float
    """Mean number of uses that begin in an hour of the night."""
    day_start: float
    """Hour at which the day starts."""
    day_end: float
    """Hour at which the day ends."""
    day_uses: float
    """Mean number of uses by day."""
    uses: float
    """Mean number of uses in a whole day."""
    none_probability: float
    """Probability of a whole day without a use."""
    mean_seconds: float
    """Mean length of a use."""
    longest_seconds: float
    """Longest length of a use."""

    @classmethod
    def of(cls, table: Uses, seed: int) -> "_UseModel":
        day_start, day_end = table.day_hours
        day_hours = day_end - day_start
        day_uses = table.per_hour_by_day * day_hours
        uses = day_uses + table.per_hour_by_night * (24.0 - day_hours)
        mean_seconds = 60.0 * table.minutes
        return cls(
            key=stream_key(seed, Stream.USES),
            day_rate=table.per_hour_by_day,
            night_rate=table.per_hour_by_night,
            day_start=day_start,
            day_end=day_end,
            day_uses=day_uses,
            uses=uses,
            none_probability=math.exp(-uses),
            mean_seconds=mean_seconds,
            longest_seconds=SHORTEST_USE_SECONDS + _MOST_MEANS * mean_seconds,
        )


class _Conditions(NamedTuple):
    """Numbers of the model."""

    needs_charging: bool
    """Whether an eligible device charges."""
    needs_wifi: bool
    """Whether an eligible device is on wifi."""
    needs_idle: bool
    """Whether an eligible device is idle."""
    charging: HabitModel
    """Habit of charging."""
    wifi: HabitModel
    """Habit of being on wifi."""
    uses: _UseModel
    """Uses of a device."""


class ConditionsModel(CompiledModel):
    """Availability by conditions; see fedray.clients.availability.model.Availability.

    Args:
        table: conditions.
        seed: the scenario's seed.
        zones: time zones of the devices.
    """

    intervals_per_device = 3.0

    def __init__(self, table: ConditionsAvailability, seed: int, zones: Zones) -> None:
        self._model = _Conditions(
            needs_charging=table.needs_charging,
            needs_wifi=table.needs_wifi,
            needs_idle=table.needs_idle,
            charging=HabitModel.of(table.charging, seed),
            # Wifi has its own streams; with charging's streams it would come and go with charging.
            wifi=HabitModel.of(table.wifi, seed, Stream.WIFI_HABIT, Stream.WIFI_SESSIONS),
            uses=_UseModel.of(table.uses, seed),
        )
        self._charging = HabitTables.of(table.charging, zones)
        self._wifi = HabitTables.of(table.wifi, zones)

    def fill(self, request: Request, known: None, room: Intervals) -> int:
        return _list_intervals(self._model, self._charging, self._wifi, *request, room)


@njit
def _of_habits(is_needed, follows, model, tables, device, from_time, until_time, starts, ends):
    """Finds the intervals of a condition that touch a time; returns their number. A condition that
    is not needed has one without end. If `follows`, the last interval gets its true end."""
    if not is_needed:
        starts[0], ends[0] = -np.inf, np.inf
        return 1
    propensities, free_rates, zones = tables
    zone_key, edges, offsets = zones
    offset = offsets[zone_of(zone_key, edges, device)]
    habit = habit_of(model, propensities, free_rates, offset, device)
    if follows:
        return intervals_between(model, habit, device, from_time, until_time, starts, ends)
    return intervals_within(model, habit, device, from_time, until_time, starts, ends)


@njit(forceinline=True)
def _common(starts, ends, count, other_starts, other_ends, other_count, both_starts, both_ends):
    """Intersects two sorted lists of intervals; returns the number of intervals."""
    first, second, common = 0, 0, 0
    while first < count and second < other_count and common < both_starts.size:
        start = max(starts[first], other_starts[second])
        end = min(ends[first], other_ends[second])
        if start < end:
            both_starts[common] = start
            both_ends[common] = end
            common += 1
        # The interval that ends first has nothing in common with what follows in the other list.
        if ends[first] < other_ends[second]:
            first += 1
        else:
            second += 1
    return common


@njit(forceinline=True)
def _gather_uses(uses, offset, device, from_time, until_time, starts, ends):
    """Collects the uses that touch a time, in no order; returns their number."""
    local_from = (from_time - uses.longest_seconds) / HOUR + offset
    first_day = math.floor(local_from / 24.0)
    last_day = math.floor((until_time / HOUR + offset) / 24.0)
    count = 0
    for day in range(first_day, last_day + 1):
        word = draw(uses.key, device, day, _COUNT)[0]
        for use in range(poisson(uses.uses, uses.none_probability, word)):
            w0, w1, _, _ = draw(uses.key, device, day, _USE + use)
            # The hour by which this number of the day's uses is over, on average: first the uses by
            # day, then those by night, which wraps.
            over = uses.uses * uniform(w0)
            if over < uses.day_uses:
                hour = uses.day_start + over / uses.day_rate
            else:
                hour = uses.day_end + (over - uses.day_uses) / uses.night_rate
                hour = hour - 24.0 if hour >= 24.0 else hour
            start = HOUR * (24.0 * day + hour - offset)
            end = start + SHORTEST_USE_SECONDS + uses.mean_seconds * exponential(w1)
            if end >= from_time and start <= until_time:
                if count == starts.size:
                    raise ValueError(
                        "a device is used too often within one interval; lower "
                        "availability.uses.per_hour_by_day or per_hour_by_night"
                    )
                starts[count] = start
                ends[count] = end
                count += 1
    return count


@njit(forceinline=True)
def _next_use(uses, offset, device, after, until, starts, ends):
    """Returns the start of the next use of a device that is idle until `after`, `until` at the
    latest."""
    covered = after
    while covered < until:
        if covered > after + DAY * LONGEST_DAYS:
            raise ValueError(
                "a device is eligible for more than 60 days on end; raise "
                "availability.uses.per_hour_by_day or per_hour_by_night"
            )
        # The search goes day by day, because the next use is seldom far.
        upto = min(until, covered + DAY)
        count = _gather_uses(uses, offset, device, covered, upto, starts, ends)
        earliest = until
        for use in range(count):
            earliest = min(earliest, starts[use])
        if earliest < until:
            return earliest
        covered = upto
    return until


@njit(cache=True, nogil=True)
def _list_intervals(model, charging, wifi, device_ids, from_times, until_times, room):
    charge_starts, charge_ends = np.empty(2 * MAX_SESSIONS), np.empty(2 * MAX_SESSIONS)
    wifi_starts, wifi_ends = np.empty(2 * MAX_SESSIONS), np.empty(2 * MAX_SESSIONS)
    both_starts, both_ends = np.empty(2 * MAX_SESSIONS), np.empty(2 * MAX_SESSIONS)
    use_starts, use_ends = np.empty(8 * MAX_SESSIONS), np.empty(8 * MAX_SESSIONS)
    _, _, zones = charging
    zone_key, edges, offsets = zones
    out_local, out_starts, out_ends = room
    uses = model.uses
    total = 0
    for local in range(device_ids.size):
        device = device_ids[local]
        from_time = from_times[local]
        until_time = until_times[local]
        if from_time >= until_time:
            continue
        # Charging comes first, with true ends, because they bound how far wifi is followed.
        charges = _of_habits(
            model.needs_charging,
            True,
            model.charging,
            charging,
            device,
            from_time,
            until_time,
            charge_starts,
            charge_ends,
        )
        if charges == 0:
            continue
        covered = until_time + 2.0 * JOIN_SECONDS
        offset = offsets[zone_of(zone_key, edges, device)]
        # A device may be on wifi for months. It matters only until the device is taken off the
        # charger, or is used next.
        horizon = until_time
        if model.needs_charging:
            horizon = max(horizon, charge_ends[charges - 1])
        elif model.needs_idle and model.needs_wifi:
            horizon = _next_use(uses, offset, device, covered, np.inf, use_starts, use_ends)
        connected = _of_habits(
            model.needs_wifi,
            not (model.needs_charging or model.needs_idle),
            model.wifi,
            wifi,
            device,
            from_time,
            horizon,
            wifi_starts,
            wifi_ends,
        )
        common = _common(
            charge_starts,
            charge_ends,
            charges,
            wifi_starts,
            wifi_ends,
            connected,
            both_starts,
            both_ends,
        )
        if common == 0:
            continue
        used = 0
        if model.needs_idle:
            low = from_time - JOIN_SECONDS
            used = _gather_uses(uses, offset, device, low, covered, use_starts, use_ends)
            # Uses that overlap become one, so that each cuts an interval only once.
            used = merge(use_starts, use_ends, used)
        # Both lists are in order, so a use that is over is never looked at again.
        use = 0
        for interval in range(common):
            start = max(both_starts[interval], from_time)
            end = both_ends[interval]
            while start < min(end, until_time):
                while use < used and use_ends[use] <= start:
                    use += 1
                until = end
                if use < used and use_starts[use] < end:
                    until = use_starts[use]
                elif model.needs_idle and end > covered:
                    # Uses are known up to `covered`.
                    until = _next_use(
                        uses, offset, device, covered, end, use_starts[used:], use_ends[used:]
                    )
                if until > start:
                    if total < out_local.size:
                        out_local[total] = local
                        out_starts[total] = start
                        out_ends[total] = until
                    total += 1
                # Nothing after the last known use begins within the time listed.
                if until == end or use >= used:
                    break
                start = use_ends[use]
    return total
