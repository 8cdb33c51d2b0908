"""The habit model: a nightly session with its own propensity, middle and length, cut by
interruptions, and short sessions by day.

Every draw is addressed by (device, local day), so the state of any device at any time is a pure
function and needs no storage.

Day d of a device is its local day, [24 d, 24 (d + 1)) hours after the local midnight that starts
day 0, a Monday. Sessions of day d lie within local hours 24 d + [first_hour, last_hour]: the night
of day d may start on the evening before.

Two pieces of code find the intervals: `intervals_between`, device by device, which is short and
readable, and `_intervals_of_many`, which takes the same steps for many devices at once, so that
their draws are made by vector instructions. tests/clients/test_availability.py holds the second to
the first.
"""

import math
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy import special

from fedray.base.errors import ScenarioError
from fedray.base.rng import (
    MAX_NORMAL,
    Key,
    Stream,
    draw,
    draw_many,
    exponential,
    normal,
    poisson,
    share_at,
    stream_key,
    tabulated,
    tabulated_quantiles,
    uniform,
)
from fedray.clients.availability.intervals import (
    DAY,
    HOUR,
    JOIN_SECONDS,
    Intervals,
    filled,
    keep_touching,
    merge,
)
from fedray.clients.population import Zones
from fedray.scenario import Scenario
from fedray.scenario.availability import HabitAvailability, Habits

MAX_SESSIONS = 512
LONGEST_DAYS = 60
"""Habits that keep a device eligible for longer on end are refused, since an interval that has no
end would be followed for ever."""

# Address b within Stream.HABIT at (device, a = 0): static attributes.
_STATIC = 0
# Addresses b within Stream.SESSIONS at (device, a = day): the night and count, then day sessions,
# then interruptions.
_NIGHT, _DAY_SESSION, _INTERRUPTION = 0, 1, 1000
CHUNK = 256
"""Devices whose draws are made together: what they need then stays in the cache."""
ROOM = 16 * CHUNK
"""Room for their draws of local days, of nights and of sessions, each."""
_MOST = 0.9
"""Share of the day sessions that are no longer than `most_lengths`: a test that spares their
lengths' computation."""


class HabitModel(NamedTuple):
    """What compiled code needs of a scenario's habit table, numbers only. Hours are local; their
    spreads and rates are those of `fedray.scenario.availability.Habits`.

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
    def of(
        cls,
        scenario: Scenario,
        table: Habits,
        habit_stream: Stream = Stream.HABIT,
        session_stream: Stream = Stream.SESSIONS,
    ) -> "HabitModel":
        """The compiled form of a scenario's habit table.

        Args:
            scenario: says the seed.
            table: its availability, or the habits of one condition.
            habit_stream: of the draws of static habits.
            session_stream: of the draws of sessions.
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
            habit_key=stream_key(scenario.seed, habit_stream),
            session_key=stream_key(scenario.seed, session_stream),
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

    propensities, free_rates: tables of quantiles, for `fedray.base.rng.tabulated`: of the
        propensity, and of the part of the day rate that does not follow it.
    zones: where devices live.
    """

    propensities: NDArray[np.float64]
    free_rates: NDArray[np.float64]
    zones: Zones

    @classmethod
    def of(cls, scenario: Scenario, table: Habits) -> "HabitTables":
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


class KnownHabits(NamedTuple):
    """Static habits of devices [N], in 36 bytes each; empty arrays where they are not known.

    propensity, center, length, day_rate: see `Habit`.
    zone: position of the device's zone among the model's, in place of its offset.
    """

    propensity: NDArray[np.float64]
    center: NDArray[np.float64]
    length: NDArray[np.float64]
    day_rate: NDArray[np.float64]
    zone: NDArray[np.int32]


_UNKNOWN = KnownHabits(
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
        tables: the arrays of the model, for callers that have them; those of the table otherwise.
    """

    bytes_to_know = 36

    def __init__(
        self, scenario: Scenario, table: HabitAvailability, tables: HabitTables | None = None
    ) -> None:
        self.model = HabitModel.of(scenario, table)
        self.tables = tables or HabitTables.of(scenario, table)

    def known_of(self, device_ids: NDArray[np.uint64]) -> KnownHabits:
        """The habits of `device_ids`, which `list_intervals` would draw anew at every call."""
        return _habits_of(self.model, self.tables, device_ids)

    def list_intervals(
        self,
        device_ids: NDArray[np.uint64],
        open_times: NDArray[np.float64],
        from_time: float,
        until_time: float,
        known: KnownHabits | None = None,
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
        # Compiled code takes values of one type, so empty arrays stand for None.
        habits = known or _UNKNOWN

        def fill(room: Intervals) -> int:
            times = open_times, from_time, until_time
            listed = _list_intervals(self.model, self.tables, habits, device_ids, *times, room)
            return int(listed)

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

    Propensity and day rate are drawn by tabulated inversion (fedray/base/rng.py) from the tables
    propensities and free_rates.
    """
    words = draw(model.habit_key, device, 0, _STATIC)
    return habit_from(model, propensities, free_rates, offset, words)


@njit(forceinline=True)
def habit_from(model, propensities, free_rates, offset, words):
    """The habits that follow from what is drawn for a device; see `habit_of`."""
    w0, w1, w2, w3 = words
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
def _append_night(model, device, day, start, end, starts, ends, count, v0, v1):
    """A night from start to end (hours UTC), cut by interruptions: eligible for Exp(on) hours, away
    for Exp(off), and so on; v0 and v1 are the first two words at _INTERRUPTION."""
    # Interruptions without a length cut nothing, and need no draws.
    if model.interruption_off == 0.0:
        return _append(starts, ends, count, start, end)
    interruption = 0
    while start < end:
        interruption += 1
        until = min(end, start + model.interruption_on * exponential(v0))
        count = _append(starts, ends, count, start, until)
        if until >= end:
            break
        start = until + model.interruption_off * exponential(v1)
        v0, v1, _, _ = draw(model.session_key, device, day, _INTERRUPTION + interruption)
    return count


@njit(forceinline=True)
def _days_between(model, offset, from_hour, until_hour):
    """The first and the last local day whose sessions may touch [from_hour, until_hour] (UTC)."""
    # Day d has all of its sessions within local hours 24 d + [first_hour, last_hour].
    local_from = from_hour + offset
    local_until = until_hour + offset
    first_day = math.floor((local_from - model.last_hour) / 24.0) + 1
    last_day = math.ceil((local_until - model.first_hour) / 24.0) - 1
    return first_day, last_day


@njit(forceinline=True)
def _night_reach(model, habit_length):
    """Hours by which no night of a device begins before, or ends after, its usual middle."""
    longest_night = min(model.session_max, habit_length * model.length_within_reach)
    return model.center_within_reach + 0.5 * longest_night


@njit(forceinline=True)
def _what_may_be(model, midnight, center, night_reach, from_hour, until_hour):
    """Whether a night, and whether a session by day, may touch [from_hour, until_hour], by hard
    limits: what is out of reach is passed over without a draw."""
    may_be_night = center + night_reach >= from_hour and center - night_reach <= until_hour
    last_end_by_day = midnight + model.day_end + model.session_max
    first_start_by_day = midnight + model.day_start
    may_be_day = last_end_by_day >= from_hour and first_start_by_day <= until_hour
    return may_be_night, may_be_day


@njit(inline="always")
def _weekend(model, day):
    # Day 0 is a Monday.
    return model.weekend_factor if day % 7 >= 5 else 1.0


@njit(forceinline=True)
def _night(model, habit_length, center, w1, w2):
    """Start and end of a night, before it is cut by interruptions; hours."""
    drawn_length = habit_length * math.exp(model.length_within * normal(w2))
    length = min(model.session_max, drawn_length)
    start = center + model.center_within * normal(w1) - 0.5 * length
    return start, start + length


@njit(forceinline=True)
def _count_by_day(rate, w3):
    """How many sessions a day has."""
    # Else the count is 0, since exp(-rate) > 1 - rate: most exponentials are spared.
    if uniform(w3) > 1.0 - rate:
        return poisson(rate, math.exp(-rate), w3)
    return 0


@njit(forceinline=True)
def _start_by_day(model, midnight, v0, v1):
    """Start of a session by day, and a length that it does not exceed; hours."""
    within = (model.day_end - model.day_start) * uniform(v0)
    # The length grows with v1, so that a test of v1 bounds it without its exponential.
    longest = model.most_lengths if uniform(v1) < _MOST else model.session_max
    return midnight + model.day_start + within, longest


@njit(forceinline=True)
def _length_by_day(model, v1):
    """Hours of a session by day."""
    drawn_length = model.day_length * math.exp(model.day_length_sigma * normal(v1))
    return min(model.session_max, drawn_length)


@njit(forceinline=True)
def _gather(model, habit, device, from_time, until_time, starts, ends):
    """Sessions that touch [from_time - JOIN_SECONDS, until_time], in no order; how many.

    One draw per local day says whether it has a night, when, and how many sessions by day.
    """
    from_hour = from_time / HOUR - JOIN_SECONDS / HOUR
    until_hour = until_time / HOUR
    first_day, last_day = _days_between(model, habit.offset, from_hour, until_hour)
    night_reach = _night_reach(model, habit.length)
    key = model.session_key
    count = np.int64(0)
    for day in range(first_day, last_day + 1):
        # Days are local, and all hours here are UTC.
        midnight = 24.0 * day - habit.offset
        center = midnight + habit.center
        may_be_night, may_be_day = _what_may_be(
            model, midnight, center, night_reach, from_hour, until_hour
        )
        if not (may_be_night or may_be_day):
            continue
        weekend = _weekend(model, day)
        # The local day is the address, so that every window finds the same night.
        w0, w1, w2, w3 = draw(key, device, day, _NIGHT)
        if may_be_night and uniform(w0) < habit.propensity * weekend:
            start, end = _night(model, habit.length, center, w1, w2)
            if end >= from_hour and start <= until_hour:
                v0, v1, _, _ = draw(key, device, day, _INTERRUPTION)
                count = _append_night(model, device, day, start, end, starts, ends, count, v0, v1)
        if may_be_day:
            for session in range(_count_by_day(habit.day_rate * weekend, w3)):
                v0, v1, _, _ = draw(key, device, day, _DAY_SESSION + session)
                start, longest = _start_by_day(model, midnight, v0, v1)
                # A bound on the length decides most cases, and spares the exponential of the length
                # itself.
                if start > until_hour or start + longest < from_hour:
                    continue
                end = start + _length_by_day(model, v1)
                if end >= from_hour:
                    count = _append(starts, ends, count, start, end)
    _check_count(count)
    return count


@njit(inline="always")
def _check_count(count):
    if count == MAX_SESSIONS:
        raise ValueError(
            "a device has too many sessions in a day; lower availability.day_sessions, raise "
            "day_habit_shape"
        )


@njit(forceinline=True)
def intervals_within(model, habit, device, from_time, until_time, starts, ends):
    """Intervals of a device with a habit that touch [from_time, until_time): fills the arrays
    starts and ends (sorted, disjoint); how many. The last one may really end later, if its end is
    past until_time."""
    # What starts within JOIN_SECONDS after an end belongs to the same interval, so a little more
    # than the time asked for is looked at.
    until = until_time + 2.0 * JOIN_SECONDS
    sessions = _gather(model, habit, device, from_time, until, starts, ends)
    intervals = merge(starts, ends, sessions)
    return keep_touching(starts, ends, intervals, from_time, until_time)


@njit(forceinline=True)
def intervals_between(model, habit, device, from_time, until_time, starts, ends):
    """Intervals of a device with a habit that touch [from_time, until_time): fills the arrays
    starts and ends (sorted, disjoint), with true ends; how many."""
    until = until_time + 2.0 * JOIN_SECONDS
    sessions = _gather(model, habit, device, from_time, until, starts, ends)
    return _joined_sessions(model, habit, device, from_time, until_time, starts, ends, sessions)


@njit(forceinline=True)
def _joined_sessions(model, habit, device, from_time, until_time, starts, ends, sessions):
    """Makes intervals of the gathered sessions, in place, with true ends; how many touch the
    time."""
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
# wherever it reaches into a tuple, which costs up to half of their time. Counts that are passed on
# begin as np.int64(0): numba compiles a callee for the literal 0, and then again for an integer.


class _Asked(NamedTuple):
    """Devices that are looked at together, [CHUNK], of which the first few are there.

    local: their positions among those that were asked for.
    device_ids: who they are.
    from_times, until_times: the time that their intervals are to touch, seconds since start.
    habits: theirs.
    """

    local: NDArray[np.int64]
    device_ids: NDArray[np.uint64]
    from_times: NDArray[np.float64]
    until_times: NDArray[np.float64]
    habits: KnownHabits


class _Draws(NamedTuple):
    """Draws that are made together: of local days, of nights, or of sessions by day. Rows of a
    device lie together, in the order of `_Asked`.

    slots: [R]; of the devices in `_Asked`.
    device_ids, days, numbers: [R]; addresses.
    words: [4, R]; what was drawn.
    starts, ends: [R]; hours of a session or night. Of a local day: 1 where a night, and where
        sessions by day, may touch the time, else 0.
    """

    slots: NDArray[np.int64]
    device_ids: NDArray[np.uint64]
    days: NDArray[np.int64]
    numbers: NDArray[np.int64]
    words: NDArray[np.uint32]
    starts: NDArray[np.float64]
    ends: NDArray[np.float64]


class _Room(NamedTuple):
    """Where a chunk is worked on; everything is overwritten by the next one.

    asked: the devices.
    days, nights, sessions: draws.
    """

    asked: _Asked
    days: _Draws
    nights: _Draws
    sessions: _Draws


@njit(cache=True, nogil=True)
def _room_for_draws(size):
    return _Draws(
        np.empty(size, np.int64),
        np.empty(size, np.uint64),
        np.empty(size, np.int64),
        np.zeros(size, np.int64),
        np.empty((4, size), np.uint32),
        np.empty(size),
        np.empty(size),
    )


@njit(cache=True, nogil=True)
def _room_for_chunk():
    habits = KnownHabits(
        np.empty(CHUNK),
        np.empty(CHUNK),
        np.empty(CHUNK),
        np.empty(CHUNK),
        np.empty(CHUNK, np.int32),
    )
    asked = _Asked(
        np.empty(CHUNK, np.int64),
        np.empty(CHUNK, np.uint64),
        np.empty(CHUNK),
        np.empty(CHUNK),
        habits,
    )
    return _Room(asked, _room_for_draws(ROOM), _room_for_draws(ROOM), _room_for_draws(ROOM))


@njit(cache=True, nogil=True)
def _draw_habits(model, tables, device_ids, words, out):
    """Fills the habits of at most CHUNK devices."""
    propensities, free_rates, zones = tables
    zone_key, edges, offsets = zones
    propensity, center, length, day_rate, zone = out
    size = device_ids.size
    static = np.full(size, _STATIC)
    # A single zone needs no draw, as in `clients.population.zone_of`.
    zone[:size] = 0
    if edges.size > 1:
        draw_many(zone_key, device_ids, static, static, size, words)
        for asked in range(size):
            # As in `clients.population.zone_of`.
            zone[asked] = share_at(edges, words[1, asked])
    draw_many(model.habit_key, device_ids, static, static, size, words)
    for asked in range(size):
        habit = habit_from(
            model,
            propensities,
            free_rates,
            offsets[zone[asked]],
            (words[0, asked], words[1, asked], words[2, asked], words[3, asked]),
        )
        propensity[asked], center[asked] = habit.propensity, habit.center
        length[asked], day_rate[asked] = habit.length, habit.day_rate


@njit(cache=True, nogil=True)
def _habits_of(model, tables, device_ids):
    size = device_ids.size
    propensity, center, length = np.empty(size), np.empty(size), np.empty(size)
    day_rate, zone = np.empty(size), np.empty(size, np.int32)
    words = np.empty((4, CHUNK), np.uint32)
    # Devices are taken in chunks, whose draws stay in the cache.
    for begin in range(0, size, CHUNK):
        end = min(begin + CHUNK, size)
        out = KnownHabits(
            propensity[begin:end],
            center[begin:end],
            length[begin:end],
            day_rate[begin:end],
            zone[begin:end],
        )
        _draw_habits(model, tables, device_ids[begin:end], words, out)
    return KnownHabits(propensity, center, length, day_rate, zone)


@njit(cache=True, nogil=True)
def _list_intervals(model, tables, known, device_ids, open_times, from_time, until_time, out):
    room = _room_for_chunk()
    local, ids, from_times, until_times, habits = room.asked
    propensity, center, length, day_rate, zone = habits
    known_propensity, known_center, known_length, known_day_rate, known_zone = known
    offsets, words = tables.zones.offsets, room.days.words
    total, size = np.int64(0), 0
    for place in range(device_ids.size):
        # It is written in any case, and overwritten by the next one whose timer opens in time.
        local[size], ids[size] = place, device_ids[place]
        from_times[size], until_times[size] = max(from_time, open_times[place]), until_time
        if known_zone.size:
            propensity[size], center[size] = known_propensity[place], known_center[place]
            length[size], day_rate[size] = known_length[place], known_day_rate[place]
            zone[size] = known_zone[place]
        size += open_times[place] < until_time
        # A chunk is worked on when it is full, and at the end however full it is.
        if size == CHUNK or (size > 0 and place == device_ids.size - 1):
            if not known_zone.size:
                _draw_habits(model, tables, ids[:size], words, habits)
            total = _intervals_of_many(model, offsets, room, size, out, total)
            size = 0
    return total


def is_compiled() -> bool:
    """Whether these kernels were compiled before, in this process or in an earlier one."""
    # numba names the files of a kernel by the line at which it begins.
    line = _list_intervals.py_func.__code__.co_firstlineno
    folder = _list_intervals.stats.cache_path
    # numba has a folder for every kernel that it may keep.
    assert folder is not None
    return any(Path(folder).glob(f"habit._list_intervals-{line}.*.nbi"))


@njit(cache=True, nogil=True)
def _interval_ends(model, tables, device_ids, times):
    room = _room_for_chunk()
    local, ids, from_times, until_times, habits = room.asked
    offsets, words = tables.zones.offsets, room.days.words
    wanted = device_ids.size
    found = Intervals(np.empty(wanted, np.uint32), np.empty(wanted), np.empty(wanted))
    total = np.int64(0)
    for begin in range(0, wanted, CHUNK):
        size = min(CHUNK, wanted - begin)
        for slot in range(size):
            local[slot], ids[slot] = begin + slot, device_ids[begin + slot]
            from_times[slot] = times[begin + slot]
            # The shortest time that holds the moment: at most one interval touches it.
            until_times[slot] = np.nextafter(from_times[slot], np.inf)
        _draw_habits(model, tables, ids[:size], words, habits)
        total = _intervals_of_many(model, offsets, room, size, found, total)
    out = np.full(wanted, -np.inf)
    for interval in range(total):
        out[found.local[interval]] = found.end_times[interval]
    return out


@njit(cache=True, nogil=True)
def _intervals_of_many(model, offsets, room, size, out, total):
    """Adds the intervals of the devices in a room, as `intervals_between` gives them, to `total`
    others as far as `out` has room; how many there are.

    What most devices do not have (a second session, an end beyond the time) is looked at last, and
    rows are written before it is known whether they count: a branch that cannot be foretold takes
    longer than a draw.
    """
    asked, days, nights, sessions = room
    count_of_days = _draw_days(model, offsets, asked, size, days)
    count_of_nights, count_of_sessions = -1, -1
    # Below 0 the draws of this chunk find no room: then each device draws its own, in the loop.
    if count_of_days >= 0:
        count_of_nights = _draw_nights(model, offsets, asked, days, count_of_days, nights)
        count_of_sessions = _draw_sessions(model, offsets, asked, days, count_of_days, sessions)
    has_room = count_of_nights >= 0 and count_of_sessions >= 0
    local, ids, from_times, until_times, habits = asked
    propensity, center, length, day_rate, zone = habits
    night_slots, _, night_days, _, night_words, night_starts, night_ends = nights
    session_slots, _, _, _, _, session_starts, session_ends = sessions
    starts, ends = np.empty(2 * MAX_SESSIONS), np.empty(2 * MAX_SESSIONS)
    out_local, out_starts, out_ends = out
    night, session = 0, 0
    for slot in range(size):
        count = np.int64(0)
        if has_room:
            # Rows are in order of the slots, so that one pass over them serves all devices.
            while night < count_of_nights and night_slots[night] == slot:
                v0, v1 = night_words[0, night], night_words[1, night]
                start, end, day = night_starts[night], night_ends[night], night_days[night]
                count = _append_night(
                    model, ids[slot], day, start, end, starts, ends, count, v0, v1
                )
                night += 1
            while session < count_of_sessions and session_slots[session] == slot:
                start, end = session_starts[session], session_ends[session]
                count = _append(starts, ends, count, start, end)
                session += 1
            if count == 0:
                continue
            _check_count(count)
        habit = Habit(
            propensity[slot], center[slot], length[slot], day_rate[slot], offsets[zone[slot]]
        )
        device, from_time, until_time = ids[slot], from_times[slot], until_times[slot]
        if has_room:
            count = _joined_sessions(
                model, habit, device, from_time, until_time, starts, ends, count
            )
        else:
            count = intervals_between(model, habit, device, from_time, until_time, starts, ends)
        for interval in range(count):
            # What finds no room is counted too, so that `filled` knows how much is needed.
            if total < out_local.size:
                out_local[total] = local[slot]
                out_starts[total] = starts[interval]
                out_ends[total] = ends[interval]
            total += 1
    return total


@njit(inline="always")
def _hours_looked_at(from_time, until_time):
    return from_time / HOUR - JOIN_SECONDS / HOUR, (until_time + 2.0 * JOIN_SECONDS) / HOUR


@njit(cache=True, nogil=True)
def _draw_days(model, offsets, asked, size, drawn):
    """Draws of the local days of devices that may touch the time; how many, -1 for too many."""
    _, ids, from_times, until_times, habits = asked
    _, center, length, _, zone = habits
    slots, device_ids, days, numbers, words, may_have_night, may_have_sessions = drawn
    total = np.int64(0)
    for slot in range(size):
        from_hour, until_hour = _hours_looked_at(from_times[slot], until_times[slot])
        offset = offsets[zone[slot]]
        first_day, last_day = _days_between(model, offset, from_hour, until_hour)
        night_reach = _night_reach(model, length[slot])
        # One row is kept free, because rows are written before it is known whether they count.
        if total + last_day - first_day >= ROOM - 1:
            return -1
        for day in range(first_day, last_day + 1):
            midnight = 24.0 * day - offset
            may_be_night, may_be_day = _what_may_be(
                model, midnight, midnight + center[slot], night_reach, from_hour, until_hour
            )
            slots[total], device_ids[total], days[total] = slot, ids[slot], day
            may_have_night[total], may_have_sessions[total] = may_be_night, may_be_day
            total += may_be_night | may_be_day
    draw_many(model.session_key, device_ids, days, numbers, total, words)
    return total


@njit(cache=True, nogil=True)
def _draw_nights(model, offsets, asked, days, count_of_days, nights):
    """The nights of days that touch the time, and their first interruptions; how many."""
    _, ids, from_times, until_times, habits = asked
    propensity, center, length, _, zone = habits
    day_slots, _, day_numbers, _, words, may_have_night, _ = days
    slots, device_ids, night_days, numbers, night_words, starts, ends = nights
    candidates = 0
    for place in range(count_of_days):
        # Whether there is a night is decided first, because its times cost far more.
        probability = propensity[day_slots[place]] * _weekend(model, day_numbers[place])
        # The column is free until interruptions are drawn; candidates lie in it until then.
        numbers[candidates] = place
        candidates += (may_have_night[place] > 0.0) & (uniform(words[0, place]) < probability)
    total = np.int64(0)
    for candidate in range(candidates):
        place = numbers[candidate]
        slot, day = day_slots[place], day_numbers[place]
        from_hour, until_hour = _hours_looked_at(from_times[slot], until_times[slot])
        midnight = 24.0 * day - offsets[zone[slot]]
        start, end = _night(
            model, length[slot], midnight + center[slot], words[1, place], words[2, place]
        )
        slots[total], device_ids[total], night_days[total] = slot, ids[slot], day
        starts[total], ends[total] = start, end
        total += (end >= from_hour) & (start <= until_hour)
    numbers[:total] = _INTERRUPTION
    draw_many(model.session_key, device_ids, night_days, numbers, total, night_words)
    return total


@njit(cache=True, nogil=True)
def _draw_sessions(model, offsets, asked, days, count_of_days, sessions):
    """The sessions by day that touch the time; how many, -1 for too many."""
    _, ids, from_times, until_times, habits = asked
    _, _, _, day_rate, zone = habits
    day_slots, _, day_numbers, _, day_words, _, may_have_sessions = days
    slots, device_ids, session_days, numbers, words, starts, ends = sessions
    drawn = np.int64(0)
    for place in range(count_of_days):
        if may_have_sessions[place] == 0.0:
            continue
        slot, day = day_slots[place], day_numbers[place]
        count = _count_by_day(day_rate[slot] * _weekend(model, day), day_words[3, place])
        if drawn + count >= ROOM - 1:
            return -1
        # The first one is written in any case.
        slots[drawn], device_ids[drawn] = slot, ids[slot]
        session_days[drawn], numbers[drawn] = day, _DAY_SESSION
        for session in range(1, count):
            slots[drawn + session], device_ids[drawn + session] = slot, ids[slot]
            session_days[drawn + session] = day
            numbers[drawn + session] = _DAY_SESSION + session
        drawn += count
    draw_many(model.session_key, device_ids, session_days, numbers, drawn, words)
    total = 0
    for place in range(drawn):
        slot = slots[place]
        from_hour, until_hour = _hours_looked_at(from_times[slot], until_times[slot])
        midnight = 24.0 * session_days[place] - offsets[zone[slot]]
        v1 = words[1, place]
        start, longest = _start_by_day(model, midnight, words[0, place], v1)
        # Rows move up: `total` is never beyond `place`.
        slots[total], starts[total], words[1, total] = slot, start, v1
        total += (start <= until_hour) & (start + longest >= from_hour)
    # Lengths come last, because few sessions are left that need the exponential of one.
    reached = total
    total = 0
    for place in range(reached):
        slot, start = slots[place], starts[place]
        from_hour, _ = _hours_looked_at(from_times[slot], until_times[slot])
        end = start + _length_by_day(model, words[1, place])
        slots[total], starts[total], ends[total] = slot, start, end
        total += end >= from_hour
    return total
