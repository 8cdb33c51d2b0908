"""The habit model: a nightly session with its own propensity, middle and length, cut by
interruptions, and short sessions by day.

Every draw is addressed by (device, local day), so the state of any device at any time is a pure
function and needs no storage.

Day d of a device is its local day, [24 d, 24 (d + 1)) hours after the local midnight that starts
day 0, a Monday. Sessions of day d lie within local hours 24 d + [first_hour, last_hour]: the night
of day d may start on the evening before.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy import special

from fedray.clients.availability.intervals import (
    DAY,
    HOUR,
    JOIN_SECONDS,
    Intervals,
    filled,
    keep_touching,
    merge,
)
from fedray.clients.population import Zones, zone_of
from fedray.errors import ScenarioError
from fedray.rng import (
    MAX_NORMAL,
    Key,
    Stream,
    draw,
    exponential,
    normal,
    poisson,
    stream_key,
    tabulated,
    tabulated_quantiles,
    uniform,
)
from fedray.scenario import Scenario
from fedray.scenario.availability import HabitAvailability

MAX_SESSIONS = 512
LONGEST_DAYS = 60
"""Habits that keep a device eligible for longer on end are refused, since an interval that has no
end would be followed for ever."""

# Address b within Stream.HABIT at (device, a = 0): static attributes.
_STATIC = 0
# Addresses b within Stream.SESSIONS at (device, a = day): the night and count, then day sessions,
# then interruptions.
_NIGHT, _DAY_SESSION, _INTERRUPTION = 0, 1, 1000
_MOST = 0.9
"""Share of the day sessions that are no longer than `most_lengths`: a test that spares their
lengths' computation."""


class HabitModel(NamedTuple):
    """What compiled code needs of a scenario's habit table, numbers only. Hours are local; their
    spreads and rates are those of `fedray.scenario.availability.HabitAvailability`.

    habit_key: of the draws of static habits.
    session_key: of the draws of sessions.
    mean_propensity: of all devices.
    center, center_between, center_within: middle of the night session, hours after midnight, and
        its standard deviations between devices and between nights.
    length, length_between, length_within: length of the night session, hours, and its
        log-standard deviations.
    session_max: longest session, hours.
    interruption_on, interruption_off: mean hours between interruptions, and of one.
    day_sessions: mean number of sessions by day.
    day_habit_weight: share of the day rate that follows the propensity.
    day_start, day_end: first and last hour at which a day session starts.
    day_length, day_length_sigma: median hours of a day session, and its log-standard deviation.
    most_lengths: hours that a share _MOST of the day sessions do not exceed.
    weekend_factor: on propensity and day rate.
    center_within_reach: hours by which no night's middle exceeds the device's own.
    length_within_reach: factor by which no night's length exceeds the device's own.
    first_hour, last_hour: hours that hold every session of a local day.
    """

    habit_key: Key
    session_key: Key
    mean_propensity: float
    center: float
    center_between: float
    center_within: float
    length: float
    length_between: float
    length_within: float
    session_max: float
    interruption_on: float
    interruption_off: float
    day_sessions: float
    day_habit_weight: float
    day_start: float
    day_end: float
    day_length: float
    day_length_sigma: float
    most_lengths: float
    weekend_factor: float
    center_within_reach: float
    length_within_reach: float
    first_hour: float
    last_hour: float

    @classmethod
    def of(cls, scenario: Scenario, table: HabitAvailability) -> "HabitModel":
        """The compiled form of a scenario's habit table.

        Args:
            scenario: says the seed.
            table: its availability.
        """
        # No normal draw exceeds MAX_NORMAL, so the sessions of a day have hard limits.
        center_deviations = table.night_center_between_hours + table.night_center_within_hours
        center_reach = MAX_NORMAL * center_deviations
        night_reach = center_reach + table.session_max_hours / 2
        day_start, day_end = table.day_start_hours
        first_night = table.night_center_hours - night_reach
        last_night = table.night_center_hours + night_reach
        alpha, beta = table.night_propensity
        # A little more than the quantile, so that no rounding makes a length exceed it.
        most_sigmas = table.day_length_sigma * float(special.ndtri(_MOST)) + 1e-6
        day_length = table.day_length_minutes / 60.0
        return cls(
            habit_key=stream_key(scenario.seed, Stream.HABIT),
            session_key=stream_key(scenario.seed, Stream.SESSIONS),
            mean_propensity=alpha / (alpha + beta),
            center=table.night_center_hours,
            center_between=table.night_center_between_hours,
            center_within=table.night_center_within_hours,
            length=table.night_length_hours,
            length_between=table.night_length_between,
            length_within=table.night_length_within,
            session_max=table.session_max_hours,
            interruption_on=table.interruption_on_hours,
            interruption_off=table.interruption_off_hours,
            day_sessions=table.day_sessions,
            day_habit_weight=table.day_habit_weight,
            day_start=day_start,
            day_end=day_end,
            day_length=day_length,
            day_length_sigma=table.day_length_sigma,
            most_lengths=day_length * math.exp(most_sigmas),
            weekend_factor=table.weekend_factor,
            center_within_reach=MAX_NORMAL * table.night_center_within_hours,
            length_within_reach=math.exp(MAX_NORMAL * table.night_length_within),
            first_hour=min(day_start, first_night),
            last_hour=max(day_end + table.session_max_hours, last_night),
        )


class HabitTables(NamedTuple):
    """The arrays of the model.

    propensities, free_rates: tables of quantiles, for `fedray.rng.tabulated`: of the propensity,
        and of the part of the day rate that does not follow it.
    zones: where devices live.
    """

    propensities: NDArray[np.float64]
    free_rates: NDArray[np.float64]
    zones: Zones

    @classmethod
    def of(cls, scenario: Scenario, table: HabitAvailability) -> "HabitTables":
        """The tables of a scenario's habit model.

        Propensities have a beta distribution. The part of the day rate that does not follow them
        has a gamma distribution of mean 1.

        Args:
            scenario: says where devices live.
            table: its availability.
        """
        alpha, beta = table.night_propensity
        shape = table.day_habit_shape
        return cls(
            propensities=_beta_quantiles(alpha, beta),
            free_rates=_gamma_quantiles(shape),
            zones=Zones.of(scenario),
        )


# Inverting the two distributions takes a third of a second, most of a small run; all shards and
# runs of a process have the same few. A table is a MB, and nothing writes to it.
@lru_cache(maxsize=16)
def _beta_quantiles(alpha: float, beta: float) -> NDArray[np.float64]:
    return tabulated_quantiles(lambda u: special.betaincinv(alpha, beta, u))


@lru_cache(maxsize=16)
def _gamma_quantiles(shape: float) -> NDArray[np.float64]:
    return tabulated_quantiles(lambda u: special.gammaincinv(shape, u) / shape)


class Habit(NamedTuple):
    """Static habits of one device.

    propensity: probability that a night has a session.
    center: middle of its nights, local hours.
    length: of its nights, hours.
    day_rate: mean number of sessions by day.
    offset: local time minus UTC, hours.
    """

    propensity: float
    center: float
    length: float
    day_rate: float
    offset: float


class Habits(NamedTuple):
    """Static habits of devices [N], in 36 bytes each; empty arrays where they are not known.

    propensity, center, length, day_rate: see `Habit`.
    zone: position of the device's zone among the model's, in place of its offset.
    """

    propensity: NDArray[np.float64]
    center: NDArray[np.float64]
    length: NDArray[np.float64]
    day_rate: NDArray[np.float64]
    zone: NDArray[np.int32]


_UNKNOWN = Habits(
    propensity=np.empty(0),
    center=np.empty(0),
    length=np.empty(0),
    day_rate=np.empty(0),
    zone=np.empty(0, np.int32),
)


class HabitAvailabilityModel:
    """Availability by habits; see fedray.clients.availability.model.Availability.

    Args:
        scenario: says seed and zones.
        table: its availability.
    """

    bytes_to_know = 36

    def __init__(self, scenario: Scenario, table: HabitAvailability) -> None:
        self.model = HabitModel.of(scenario, table)
        self.tables = HabitTables.of(scenario, table)

    def known_of(self, device_ids: NDArray[np.uint64]) -> Habits:
        """The habits of `device_ids`, which `list_intervals` would draw anew at every call."""
        return _habits_of(self.model, self.tables, device_ids)

    def list_intervals(
        self,
        device_ids: NDArray[np.uint64],
        open_times: NDArray[np.float64],
        from_time: float,
        until_time: float,
        known: Habits | None = None,
    ) -> Intervals:
        """The intervals of `device_ids` that touch a time, from each one's `open_times` on.

        Args:
            device_ids: [N].
            open_times: [N], seconds since start.
            from_time: seconds since start.
            until_time: seconds since start.
            known: the habits of these devices, and of more that come after them; None to draw them.

        Raises:
            ScenarioError: a device has too many sessions.
        """
        habits = known or _UNKNOWN

        def fill(room: Intervals) -> int:
            return _list_intervals(
                self.model, self.tables, habits, device_ids, open_times, from_time, until_time, room
            )

        capacity = 2 * device_ids.size + 1024
        try:
            return filled(fill, capacity)
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
        try:
            return _interval_ends(self.model, self.tables, device_ids, times)
        except ValueError as error:
            raise ScenarioError(str(error)) from None


@njit(forceinline=True)
def habit_of(model, propensities, free_rates, offset, device):
    """Static habits of a device by a model, in the zone with an offset.

    Propensity and day rate are drawn by tabulated inversion (fedray/rng.py) from the tables
    propensities and free_rates.
    """
    w0, w1, w2, w3 = draw(model.habit_key, device, 0, _STATIC)
    center = model.center + model.center_between * normal(w0)
    length = model.length * math.exp(model.length_between * normal(w1))
    propensity = tabulated(propensities, w2)
    # Both parts have mean 1 over all devices, so that the mean rate does not depend on the weight.
    free_rate = tabulated(free_rates, w3)
    weight = model.day_habit_weight
    relative_rate = (1.0 - weight) * free_rate + weight * propensity / model.mean_propensity
    day_rate = model.day_sessions * relative_rate
    return Habit(propensity, center, length, day_rate, offset)


@njit(inline="always")
def _append(starts, ends, count, start_hour, end_hour):
    """Adds a session; the number of sessions then. What is beyond MAX_SESSIONS is left out: whoever
    reaches that number is refused."""
    if count < MAX_SESSIONS and end_hour > start_hour:
        starts[count] = HOUR * start_hour
        ends[count] = HOUR * end_hour
        return count + 1
    return count


@njit(forceinline=True)
def _append_night(model, device, day, start, end, starts, ends, count):
    """A night from start to end (hours UTC), cut by interruptions: eligible for Exp(on) hours, away
    for Exp(off), and so on."""
    if model.interruption_off == 0.0:
        return _append(starts, ends, count, start, end)
    interruption = 0
    while start < end:
        v0, v1, _, _ = draw(model.session_key, device, day, _INTERRUPTION + interruption)
        interruption += 1
        until = min(end, start + model.interruption_on * exponential(v0))
        count = _append(starts, ends, count, start, until)
        if until >= end:
            break
        start = until + model.interruption_off * exponential(v1)
    return count


@njit(forceinline=True)
def _gather(model, habit, device, from_time, until_time, starts, ends):
    """Sessions that touch [from_time - JOIN_SECONDS, until_time], in no order; how many.

    One draw per local day says whether it has a night, when, and how many sessions by day.
    """
    from_hour = from_time / HOUR - JOIN_SECONDS / HOUR
    until_hour = until_time / HOUR
    # Day d has all of its sessions within local hours 24 d + [first_hour, last_hour].
    local_from = from_hour + habit.offset
    local_until = until_hour + habit.offset
    first_day = math.floor((local_from - model.last_hour) / 24.0) + 1
    last_day = math.ceil((local_until - model.first_hour) / 24.0) - 1
    # What is out of reach by hard limits is passed over without a draw.
    longest_night = min(model.session_max, habit.length * model.length_within_reach)
    night_reach = model.center_within_reach + 0.5 * longest_night
    count = 0
    for day in range(first_day, last_day + 1):
        midnight = 24.0 * day - habit.offset
        center = midnight + habit.center
        may_be_night = center + night_reach >= from_hour and center - night_reach <= until_hour
        last_end_by_day = midnight + model.day_end + model.session_max
        first_start_by_day = midnight + model.day_start
        may_be_day = last_end_by_day >= from_hour and first_start_by_day <= until_hour
        if not (may_be_night or may_be_day):
            continue
        # Day 0 is a Monday.
        weekend = model.weekend_factor if day % 7 >= 5 else 1.0
        w0, w1, w2, w3 = draw(model.session_key, device, day, _NIGHT)
        if may_be_night and uniform(w0) < habit.propensity * weekend:
            drawn_length = habit.length * math.exp(model.length_within * normal(w2))
            length = min(model.session_max, drawn_length)
            start = center + model.center_within * normal(w1) - 0.5 * length
            end = start + length
            if end >= from_hour and start <= until_hour:
                count = _append_night(model, device, day, start, end, starts, ends, count)
        rate = habit.day_rate * weekend
        # Else the count is 0, since exp(-rate) > 1 - rate: most exponentials are spared.
        if may_be_day and uniform(w3) > 1.0 - rate:
            sessions = poisson(rate, math.exp(-rate), w3)
            for session in range(sessions):
                v0, v1, _, _ = draw(model.session_key, device, day, _DAY_SESSION + session)
                within = (model.day_end - model.day_start) * uniform(v0)
                start = midnight + model.day_start + within
                # The length grows with v1, so that a test of v1 bounds it without its exponential.
                longest = model.most_lengths if uniform(v1) < _MOST else model.session_max
                if start > until_hour or start + longest < from_hour:
                    continue
                drawn_length = model.day_length * math.exp(model.day_length_sigma * normal(v1))
                length = min(model.session_max, drawn_length)
                if start + length >= from_hour:
                    count = _append(starts, ends, count, start, start + length)
    if count == MAX_SESSIONS:
        raise ValueError(
            "a device has too many sessions in a day; lower availability.day_sessions, raise "
            "day_habit_shape"
        )
    return count


@njit(forceinline=True)
def intervals_between(model, habit, device, from_time, until_time, starts, ends):
    """Intervals of a device with a habit that touch [from_time, until_time): fills the arrays
    starts and ends (sorted, disjoint); how many."""
    # What starts within JOIN_SECONDS after an end belongs to the same interval, so a little more
    # than the time asked for is looked at.
    until = until_time + 2.0 * JOIN_SECONDS
    sessions = _gather(model, habit, device, from_time, until, starts, ends)
    intervals = merge(starts, ends, sessions)
    kept = keep_touching(starts, ends, intervals, from_time, until_time)
    if kept == 0:
        return 0
    covered = until_time
    # The last one may go on: look at what it touches further on, until nothing prolongs it.
    while ends[kept - 1] > covered:
        covered = ends[kept - 1]
        if covered > until_time + DAY * LONGEST_DAYS:
            raise ValueError(
                "a device is eligible for more than 60 days on end; lower "
                "availability.day_sessions, day_length_minutes or "
                "night_length_hours, raise day_habit_shape, or take model always_on"
            )
        # What is gathered goes behind the intervals that are kept.
        until = covered + 2.0 * JOIN_SECONDS
        found = _gather(model, habit, device, covered, until, starts[kept:], ends[kept:])
        for session in range(kept, kept + found):
            if starts[session] <= covered + JOIN_SECONDS:
                ends[kept - 1] = max(ends[kept - 1], ends[session])
    return kept


# The kernels below take arrays out of their tuples once: compiled code counts references anew
# wherever it reaches into a tuple, which costs up to half of their time.


@njit(cache=True, nogil=True)
def _habits_of(model, tables, device_ids):
    size = device_ids.size
    propensity, center, length = np.empty(size), np.empty(size), np.empty(size)
    day_rate, zone = np.empty(size), np.empty(size, np.int32)
    propensities, free_rates, zones = tables
    zone_key, edges, offsets = zones
    for asked in range(size):
        device = device_ids[asked]
        zone[asked] = zone_of(zone_key, edges, device)
        habit = habit_of(model, propensities, free_rates, offsets[zone[asked]], device)
        propensity[asked], center[asked] = habit.propensity, habit.center
        length[asked], day_rate[asked] = habit.length, habit.day_rate
    return Habits(propensity, center, length, day_rate, zone)


@njit(cache=True, nogil=True)
def _list_intervals(model, tables, habits, device_ids, open_times, from_time, until_time, room):
    starts, ends = np.empty(2 * MAX_SESSIONS), np.empty(2 * MAX_SESSIONS)
    propensities, free_rates, zones = tables
    zone_key, edges, offsets = zones
    out_local, out_starts, out_ends = room
    propensity, center, length, day_rate, zone = habits
    total = 0
    for local in range(device_ids.size):
        if open_times[local] >= until_time:
            continue
        device = device_ids[local]
        if zone.size:
            habit = Habit(
                propensity[local],
                center[local],
                length[local],
                day_rate[local],
                offsets[zone[local]],
            )
        else:
            offset = offsets[zone_of(zone_key, edges, device)]
            habit = habit_of(model, propensities, free_rates, offset, device)
        begin = max(from_time, open_times[local])
        count = intervals_between(model, habit, device, begin, until_time, starts, ends)
        for interval in range(count):
            if total < out_local.size:
                out_local[total] = local
                out_starts[total] = starts[interval]
                out_ends[total] = ends[interval]
            total += 1
    return total


@njit(cache=True, nogil=True)
def _interval_ends(model, tables, device_ids, times):
    starts, ends = np.empty(2 * MAX_SESSIONS), np.empty(2 * MAX_SESSIONS)
    propensities, free_rates, zones = tables
    zone_key, edges, offsets = zones
    out = np.full(device_ids.size, -np.inf)
    for asked in range(device_ids.size):
        device, time = device_ids[asked], times[asked]
        offset = offsets[zone_of(zone_key, edges, device)]
        habit = habit_of(model, propensities, free_rates, offset, device)
        # The shortest time that holds the moment: at most one interval touches it.
        after = np.nextafter(time, np.inf)
        if intervals_between(model, habit, device, time, after, starts, ends) > 0:
            out[asked] = ends[0]
    return out
