"""Charging, unmetered wifi and idle as three processes: a device is eligible while all hold that
are needed.

Charging and wifi are sessions by night and by day with habits of their own, as in the habit model
(clients/availability/habit.py). Uses of a device, in which it is not idle, are a Poisson process
that is drawn by (device, local day). The state of a device at any time is a pure function.

What is left out of an interval, be it a gap of a condition or a use, lasts more than JOIN_SECONDS.
So intervals are apart without being joined.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedray.base.errors import ScenarioError
from fedray.base.rng import Key, Stream, draw, exponential, poisson, stream_key, uniform
from fedray.clients.availability.habit import (
    LONGEST_DAYS,
    MAX_SESSIONS,
    HabitModel,
    HabitTables,
    habit_of,
    intervals_between,
    intervals_within,
)
from fedray.clients.availability.intervals import (
    DAY,
    HOUR,
    JOIN_SECONDS,
    Intervals,
    filled,
    merge,
)
from fedray.clients.availability.model import NothingKnown
from fedray.clients.population import zone_of
from fedray.scenario import Scenario
from fedray.scenario.availability import ConditionsAvailability, Uses

SHORTEST_USE_SECONDS = 2.0
_MOST_MEANS = 22.9
"""No draw of `fedray.base.rng.exponential` is larger."""
# Addresses b within Stream.USES at (device, a = day).
_COUNT, _USE = 0, 1


class _UseModel(NamedTuple):
    """What compiled code needs of the table `uses`; hours are local.

    key: of the draws.
    day_rate, night_rate: uses that begin in an hour.
    day_start, day_end: hours of the day.
    day_uses, uses: mean number by day, and in a whole day.
    none_probability: that there is none in a whole day.
    mean_seconds, longest_seconds: of a use.
    """

    key: Key
    day_rate: float
    night_rate: float
    day_start: float
    day_end: float
    day_uses: float
    uses: float
    none_probability: float
    mean_seconds: float
    longest_seconds: float

    @classmethod
    def of(cls, scenario: Scenario, table: Uses) -> "_UseModel":
        """The compiled form of a scenario's table.

        Args:
            scenario: says the seed.
            table: its uses.
        """
        day_start, day_end = table.day_hours
        day_hours = day_end - day_start
        day_uses = table.per_hour_by_day * day_hours
        uses = day_uses + table.per_hour_by_night * (24.0 - day_hours)
        mean_seconds = 60.0 * table.minutes
        return cls(
            key=stream_key(scenario.seed, Stream.USES),
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
    """What compiled code needs of the model, numbers only.

    needs_charging, needs_wifi, needs_idle: what a device needs to be eligible.
    charging, wifi: habits.
    uses: of a device.
    """

    needs_charging: bool
    needs_wifi: bool
    needs_idle: bool
    charging: HabitModel
    wifi: HabitModel
    uses: _UseModel


class ConditionsModel(NothingKnown):
    """Availability by conditions; see fedray.clients.availability.model.Availability.

    Args:
        scenario: says seed and zones.
        table: its availability.
    """

    def __init__(self, scenario: Scenario, table: ConditionsAvailability) -> None:
        self._model = _Conditions(
            needs_charging=table.needs_charging,
            needs_wifi=table.needs_wifi,
            needs_idle=table.needs_idle,
            charging=HabitModel.of(scenario, table.charging),
            # Wifi has streams of its own: by those of charging, both would come and go together.
            wifi=HabitModel.of(scenario, table.wifi, Stream.WIFI_HABIT, Stream.WIFI_SESSIONS),
            uses=_UseModel.of(scenario, table.uses),
        )
        self._charging = HabitTables.of(scenario, table.charging)
        self._wifi = HabitTables.of(scenario, table.wifi)

    def list_intervals(
        self,
        device_ids: NDArray[np.uint64],
        open_times: NDArray[np.float64],
        from_time: float,
        until_time: float,
        known: None = None,
    ) -> Intervals:
        """The intervals of `device_ids` that touch a time, from each one's `open_times` on.

        Args:
            device_ids: [N].
            open_times: [N], seconds since start.
            from_time: seconds since start.
            until_time: seconds since start.
            known: nothing.

        Raises:
            ScenarioError: a device has too many sessions.
        """
        begin_times = np.maximum(from_time, open_times)

        def fill(room: Intervals) -> int:
            return _list_intervals(
                self._model,
                self._charging,
                self._wifi,
                device_ids,
                begin_times,
                np.full(device_ids.size, until_time),
                room,
            )

        try:
            return filled(fill, 3 * device_ids.size + 1024)
        except ValueError as error:
            raise ScenarioError(str(error)) from None

    def interval_ends(
        self,
        device_ids: NDArray[np.uint64],
        times: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """When the intervals of `device_ids` end that hold the `times`, one for each, [C].

        Raises:
            ScenarioError: a device has too many sessions.
        """

        def fill(room: Intervals) -> int:
            # The shortest time that holds the moment: at most one interval touches it.
            after = np.nextafter(times, np.inf)
            return _list_intervals(
                self._model, self._charging, self._wifi, device_ids, times, after, room
            )

        try:
            found = filled(fill, device_ids.size)
        except ValueError as error:
            raise ScenarioError(str(error)) from None
        ends = np.full(device_ids.size, -np.inf)
        ends[found.local] = found.end_times
        return ends


@njit
def _of_habits(is_needed, follows, model, tables, device, from_time, until_time, starts, ends):
    """Intervals of a condition of a device that touch a time: fills the arrays; how many. One
    without end where it is not needed. The last one is followed to its true end if asked for."""
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
    """What two conditions have in common, in order; how many intervals."""
    first, second, common = 0, 0, 0
    while first < count and second < other_count and common < both_starts.size:
        start = max(starts[first], other_starts[second])
        end = min(ends[first], other_ends[second])
        if start < end:
            both_starts[common], both_ends[common] = start, end
            common += 1
        # The interval that ends first has nothing in common with what follows in the other list.
        if ends[first] < other_ends[second]:
            first += 1
        else:
            second += 1
    return common


@njit(forceinline=True)
def _gather_uses(uses, offset, device, from_time, until_time, starts, ends):
    """Uses that touch a time, in no order; how many."""
    local_from = (from_time - uses.longest_seconds) / HOUR + offset
    first_day = math.floor(local_from / 24.0)
    last_day = math.floor((until_time / HOUR + offset) / 24.0)
    count = 0
    for day in range(first_day, last_day + 1):
        word, _, _, _ = draw(uses.key, device, day, _COUNT)
        for use in range(poisson(uses.uses, uses.none_probability, word)):
            w0, w1, _, _ = draw(uses.key, device, day, _USE + use)
            # The hour at which so many uses of the day are over, on average: first those of the
            # day, then those of the night, which wraps.
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
                starts[count], ends[count] = start, end
                count += 1
    return count


@njit(forceinline=True)
def _next_use(uses, offset, device, after, until, starts, ends):
    """When a device that is idle up to a time is used next, at the latest at another time."""
    covered = after
    while covered < until:
        if covered > after + DAY * LONGEST_DAYS:
            raise ValueError(
                "a device is eligible for more than 60 days on end; raise "
                "availability.uses.per_hour_by_day or per_hour_by_night"
            )
        # It looks day by day, because the next use is seldom far, and nobody knows how far.
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
def _list_intervals(model, charging, wifi, device_ids, begin_times, until_times, room):
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
        device, from_time, until_time = device_ids[local], begin_times[local], until_times[local]
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
        # A device may be on wifi for months. What matters is whether it is until it is no longer
        # charged, or is used next.
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
            used = _gather_uses(
                uses, offset, device, from_time - JOIN_SECONDS, covered, use_starts, use_ends
            )
            # Uses that overlap become one, so that an interval is cut by each but once.
            used = merge(use_starts, use_ends, used)
        # Both lists are in order, so a use that is over is never looked at again.
        use = 0
        for interval in range(common):
            start, end = max(both_starts[interval], from_time), both_ends[interval]
            while start < min(end, until_time):
                while use < used and use_ends[use] <= start:
                    use += 1
                until = end
                if use < used and use_starts[use] < end:
                    until = use_starts[use]
                elif model.needs_idle and end > covered:
                    # Uses are known up to there.
                    until = _next_use(
                        uses,
                        offset,
                        device,
                        covered,
                        end,
                        use_starts[used:],
                        use_ends[used:],
                    )
                if until > start:
                    if total < out_local.size:
                        out_local[total] = local
                        out_starts[total] = start
                        out_ends[total] = until
                    total += 1
                # Nothing after the last known use begins within the time that was asked for.
                if until == end or use >= used:
                    break
                start = use_ends[use]
    return total
