"""Sessions of one device by its habits: a night, cut by interruptions, and short sessions by day.

Every draw is addressed by (device, local day), so the state of any device at any time is a pure
function and needs no storage. Day d of a device is its local day, [24 d, 24 (d + 1)) hours after
the local midnight that starts day 0, a Monday. Sessions of day d lie within local hours
24 d + [first_hour, last_hour]: the night of day d may start on the evening before.

`intervals_between` is the readable twin of the kernels in clients/availability/habit.py.
"""

import math

import numpy as np

from fedray.base.compiled import njit
from fedray.base.rng import draw, exponential, normal, poisson, uniform
from .habit_tables import MOST
from .intervals import DAY, HOUR, JOIN_SECONDS, merge_touching, prolong

MAX_SESSIONS = 512
LONGEST_DAYS = 60
"""Habits that keep a device eligible for longer are refused: an interval without an end would be
followed for ever."""

# Addresses b within Stream.SESSIONS at (device, a = day): the night and the number of day sessions,
# then day sessions, then interruptions.
NIGHT, DAY_SESSION, INTERRUPTION = 0, 1, 1000


@njit(forceinline=True)
def intervals_within(model, habit, device, from_time, until_time, starts, ends):
    """Finds the intervals of a device that touch [from_time, until_time).

    Fills `starts` and `ends` (sorted, disjoint) and returns the number of intervals. The last one
    may really end later if its end is past until_time.
    """
    sessions = _gather(model, habit, device, from_time, until_time, starts, ends)
    return merge_touching(starts, ends, sessions, from_time, until_time)


@njit(forceinline=True)
def intervals_between(model, habit, device, from_time, until_time, starts, ends):
    """Finds the intervals of a device as `intervals_within` does, with their true ends."""
    sessions = _gather(model, habit, device, from_time, until_time, starts, ends)
    return joined_sessions(model, habit, device, from_time, until_time, starts, ends, sessions)


@njit(forceinline=True)
def joined_sessions(model, habit, device, from_time, until_time, starts, ends, sessions):
    """Joins gathered sessions to intervals in place, with true ends; returns their number."""
    kept = merge_touching(starts, ends, sessions, from_time, until_time)
    if kept == 0:
        return 0
    covered = until_time
    # The last one may continue: look further until nothing prolongs it.
    while ends[kept - 1] > covered:
        covered = ends[kept - 1]
        if covered > until_time + DAY * LONGEST_DAYS:
            raise ValueError(
                "a device is eligible for more than 60 days on end; lower "
                "availability.day_sessions, day_length_minutes or "
                "night_length_hours, raise day_habit_shape, or take model always_on"
            )
        # Further sessions are gathered behind the intervals that are kept.
        found = _gather(model, habit, device, covered, covered, starts[kept:], ends[kept:])
        prolong(starts, ends, kept, found)
    return kept


@njit(forceinline=True)
def _gather(model, habit, device, from_time, until_time, starts, ends):
    """Collects the sessions that may touch or join intervals of [from_time, until_time), in no
    order; returns their number."""
    from_hour, until_hour = hours_looked_at(from_time, until_time)
    first_day, last_day = days_between(model, habit.offset, from_hour, until_hour)
    reach = night_reach(model, habit.length)
    key = model.session_key
    count = np.int64(0)
    for day in range(first_day, last_day + 1):
        # Days are local; all hours here are UTC.
        midnight = 24.0 * day - habit.offset
        center = midnight + habit.center
        may_be_night, may_be_day = within_reach(
            model, midnight, center, reach, from_hour, until_hour
        )
        if not (may_be_night or may_be_day):
            continue
        weekend = weekend_factor(model, day)
        # The local day is the address, so that every window finds the same night.
        w0, w1, w2, w3 = draw(key, device, day, NIGHT)
        # With a weekend factor above 1 the product may exceed 1: then every such night has a
        # session.
        if may_be_night and uniform(w0) < habit.propensity * weekend:
            start, end = night(model, habit.length, center, w1, w2)
            if end >= from_hour and start <= until_hour:
                v0, v1, _, _ = draw(key, device, day, INTERRUPTION)
                count = append_night(model, device, day, start, end, starts, ends, count, v0, v1)
        if may_be_day:
            for session in range(count_by_day(habit.day_rate * weekend, w3)):
                v0, v1, _, _ = draw(key, device, day, DAY_SESSION + session)
                start, longest = start_by_day(model, midnight, v0, v1)
                # The bound on the length decides most cases without the length's exponential.
                if start > until_hour or start + longest < from_hour:
                    continue
                end = start + length_by_day(model, v1)
                if end >= from_hour:
                    count = append(starts, ends, count, start, end)
    check_count(count)
    return count


# The steps below are shared with the kernels for many devices.


@njit(inline="always")
def hours_looked_at(from_time, until_time):
    """Returns hours [from, until] that contain every session that matters: a session within
    JOIN_SECONDS of an interval belongs to it."""
    return from_time / HOUR - JOIN_SECONDS / HOUR, (until_time + 2.0 * JOIN_SECONDS) / HOUR


@njit(forceinline=True)
def days_between(model, offset, from_hour, until_hour):
    """Returns the first and last local day whose sessions may touch [from_hour, until_hour]."""
    local_from = from_hour + offset
    local_until = until_hour + offset
    first_day = math.floor((local_from - model.last_hour) / 24.0) + 1
    last_day = math.ceil((local_until - model.first_hour) / 24.0) - 1
    return first_day, last_day


@njit(forceinline=True)
def night_reach(model, habit_length):
    """Returns the hours around its usual middle that contain every night of a device."""
    longest_night = min(model.session_max, habit_length * model.length_within_reach)
    return model.center_within_reach + 0.5 * longest_night


@njit(forceinline=True)
def within_reach(model, midnight, center, reach, from_hour, until_hour):
    """Decides by hard limits, without a draw, whether the night and whether a day session may touch
    [from_hour, until_hour]."""
    may_be_night = center + reach >= from_hour and center - reach <= until_hour
    last_end_by_day = midnight + model.day_end + model.session_max
    first_start_by_day = midnight + model.day_start
    may_be_day = last_end_by_day >= from_hour and first_start_by_day <= until_hour
    return may_be_night, may_be_day


@njit(inline="always")
def weekend_factor(model, day):
    """Returns the factor on the rates of a local day."""
    # Day 0 is a Monday.
    return model.weekend_factor if day % 7 >= 5 else 1.0


@njit(forceinline=True)
def night(model, habit_length, center, w1, w2):
    """Returns start and end of a night before interruptions, hours."""
    drawn_length = habit_length * math.exp(model.length_within * normal(w2))
    length = min(model.session_max, drawn_length)
    start = center + model.center_within * normal(w1) - 0.5 * length
    return start, start + length


@njit(forceinline=True)
def count_by_day(rate, w3):
    """Returns the number of day sessions."""
    # Otherwise the count is 0, since exp(-rate) > 1 - rate: this saves most exponentials.
    if uniform(w3) > 1.0 - rate:
        return poisson(rate, math.exp(-rate), w3)
    return 0


@njit(forceinline=True)
def start_by_day(model, midnight, v0, v1):
    """Returns the start of a day session and a bound on its length, hours."""
    within = (model.day_end - model.day_start) * uniform(v0)
    # The length grows with v1, so a test of v1 bounds it without its exponential.
    longest = model.most_lengths if uniform(v1) < MOST else model.session_max
    return midnight + model.day_start + within, longest


@njit(forceinline=True)
def length_by_day(model, v1):
    """Returns the length of a day session, hours."""
    drawn_length = model.day_length * math.exp(model.day_length_sigma * normal(v1))
    return min(model.session_max, drawn_length)


@njit(inline="always")
def append(starts, ends, count, start_hour, end_hour):
    """Adds a session and returns the number of sessions, at most MAX_SESSIONS; `check_count`
    refuses a device that reaches that number."""
    if count < MAX_SESSIONS and end_hour > start_hour:
        starts[count] = HOUR * start_hour
        ends[count] = HOUR * end_hour
        return count + 1
    return count


@njit(inline="always")
def check_count(count):
    """Refuses a device with more sessions than `append` has room for."""
    if count == MAX_SESSIONS:
        raise ValueError(
            "a device has too many sessions in a day; lower availability.day_sessions, raise "
            "day_habit_shape"
        )


@njit(forceinline=True)
def append_night(model, device, day, start, end, starts, ends, count, v0, v1):
    """Adds the pieces of a night (hours UTC): eligible for Exp(on) hours, away for Exp(off), and
    again; v0 and v1 are the first two words at INTERRUPTION."""
    # Interruptions of length 0 cut nothing and need no draws.
    if model.interruption_off == 0.0:
        return append(starts, ends, count, start, end)
    # An alternating renewal process that starts on. That gaps are exponential is for convenience:
    # few logs resolve interruptions of minutes.
    interruption = 0
    while start < end:
        interruption += 1
        until = min(end, start + model.interruption_on * exponential(v0))
        count = append(starts, ends, count, start, until)
        if until >= end:
            break
        start = until + model.interruption_off * exponential(v1)
        v0, v1, _, _ = draw(model.session_key, device, day, INTERRUPTION + interruption)
    return count
