"""The habit model: a nightly session with its own propensity, middle and length, cut by
interruptions, and short sessions by day.

The kernels here take the steps of `habit_sessions.intervals_between` for many devices at once, so
that vector instructions make their draws: every result has the bits of that function.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedray.base.arrays import Float64Array, Int64Array, UInt32Array, UInt64Array
from fedray.base.compiled import njit
from fedray.base.rng import draw_many, share_at, uniform
from fedray.scenario.availability import HabitAvailability
from fedray.wire.zones import Zones
from .compiled import CompiledModel, Request
from .habit_sessions import (
    DAY_SESSION,
    INTERRUPTION,
    MAX_SESSIONS,
    append,
    append_night,
    check_count,
    count_by_day,
    days_between,
    hours_looked_at,
    intervals_between,
    joined_sessions,
    length_by_day,
    night,
    night_reach,
    start_by_day,
    weekend_factor,
    within_reach,
)
from .habit_tables import (
    STATIC,
    Habit,
    HabitModel,
    HabitTables,
    KnownHabits,
    habit_from,
    room_for_habits,
)
from .intervals import Intervals

CHUNK = 256
"""Devices whose draws are made together, so that they stay in the processor's cache."""
ROOM = 16 * CHUNK
"""Room for a chunk's draws of local days, of nights and of day sessions, each."""

# Compiled code takes values of one type, so empty arrays stand for None.
_UNKNOWN: KnownHabits = room_for_habits.py_func(0)


class HabitAvailabilityModel(CompiledModel):
    """Availability by habits; see fedray.clients.availability.model.Availability.

    Args:
        table: habits.
        seed: the scenario's seed.
        zones: time zones of the devices.
    """

    bytes_to_know = 36

    def __init__(self, table: HabitAvailability, seed: int, zones: Zones) -> None:
        self.model = HabitModel.of(table, seed)
        self.tables = HabitTables.of(table, zones)

    def known_of(self, device_ids: UInt64Array) -> KnownHabits:
        return _habits_of(self.model, self.tables, device_ids)

    def fill(self, request: Request, known: KnownHabits | None, room: Intervals) -> int:
        habits = known or _UNKNOWN
        return int(_list_intervals(self.model, self.tables, habits, *request, room))


def is_compiled() -> bool:
    """Whether these kernels were compiled before, in this process or in an earlier one."""
    # numba names the files of a kernel by the line at which it begins.
    line = _list_intervals.py_func.__code__.co_firstlineno
    folder = _list_intervals.stats.cache_path
    # numba has a folder for every kernel that it may keep.
    assert folder is not None
    return any(Path(folder).glob(f"habit._list_intervals-{line}.*.nbi"))


# The kernels take arrays out of their tuples once: compiled code counts references wherever it
# reaches into a tuple, which costs up to half of their time. Counts that are passed on begin as
# np.int64(0): numba compiles a callee for the literal 0, and then again for an integer.


class _Chunk(NamedTuple):
    """Devices looked at together: the first entries of arrays [CHUNK]."""

    local: Int64Array
    """Positions of the devices in the listing."""
    device_ids: UInt64Array
    """Their ids."""
    from_times: Float64Array
    """Start of the time that their intervals must touch, seconds since start."""
    until_times: Float64Array
    """End of the time that their intervals must touch, seconds since start."""
    habits: KnownHabits
    """Their habits."""


class _Draws(NamedTuple):
    """Draws made together: of local days, of nights, or of day sessions. Rows of a device lie
    together, in the order of the chunk."""

    slots: Int64Array
    """[R]; positions of the devices in the chunk."""
    device_ids: UInt64Array
    """[R]; first part of the addresses."""
    days: Int64Array
    """[R]; second part of the addresses."""
    numbers: Int64Array
    """[R]; third part of the addresses."""
    words: UInt32Array
    """[4, R]; words drawn."""
    starts: Float64Array
    """[R]; hour at which a night or session starts. Of a local day: 1 if a night may touch the
    time, otherwise 0."""
    ends: Float64Array
    """[R]; hour at which a night or session ends. Of a local day: 1 if day sessions may touch the
    time, otherwise 0."""


class _Room(NamedTuple):
    """Memory for the work on a chunk, which the next chunk overwrites."""

    chunk: _Chunk
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
    chunk = _Chunk(
        np.empty(CHUNK, np.int64),
        np.empty(CHUNK, np.uint64),
        np.empty(CHUNK),
        np.empty(CHUNK),
        room_for_habits(CHUNK),
    )
    return _Room(chunk, _room_for_draws(ROOM), _room_for_draws(ROOM), _room_for_draws(ROOM))


@njit(cache=True, nogil=True)
def _list_intervals(model, tables, known, device_ids, from_times, until_times, out):
    room = _room_for_chunk()
    local, ids, chunk_from, chunk_until, habits = room.chunk
    propensity, center, length, day_rate, zone = habits
    known_propensity, known_center, known_length, known_day_rate, known_zone = known
    offsets, words = tables.zones.offsets, room.days.words
    total, size = np.int64(0), 0
    for place in range(device_ids.size):
        # The row is written in any case, and overwritten if the timer does not open in time.
        local[size] = place
        ids[size] = device_ids[place]
        chunk_from[size] = from_times[place]
        chunk_until[size] = until_times[place]
        if known_zone.size:
            propensity[size] = known_propensity[place]
            center[size] = known_center[place]
            length[size] = known_length[place]
            day_rate[size] = known_day_rate[place]
            zone[size] = known_zone[place]
        size += from_times[place] < until_times[place]
        # A chunk is worked on when it is full, and at the end.
        if size == CHUNK or (size > 0 and place == device_ids.size - 1):
            if not known_zone.size:
                _draw_habits(model, tables, ids[:size], words, habits)
            total = _intervals_of_many(model, offsets, room, size, out, total)
            size = 0
    return total


@njit(cache=True, nogil=True)
def _habits_of(model, tables, device_ids):
    size = device_ids.size
    habits = room_for_habits(size)
    propensity, center, length, day_rate, zone = habits
    words = np.empty((4, CHUNK), np.uint32)
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
    return habits


@njit(cache=True, nogil=True)
def _draw_habits(model, tables, device_ids, words, out):
    """Fills the habits of at most CHUNK devices."""
    propensities, free_rates, zones = tables
    zone_key, edges, offsets = zones
    propensity, center, length, day_rate, zone = out
    size = device_ids.size
    static = np.full(size, STATIC)
    # A single zone needs no draw, as in `fedray.wire.zones.zone_of`.
    zone[:size] = 0
    if edges.size > 1:
        draw_many(zone_key, device_ids, static, static, size, words)
        for slot in range(size):
            zone[slot] = share_at(edges, words[1, slot])
    draw_many(model.habit_key, device_ids, static, static, size, words)
    for slot in range(size):
        offset = offsets[zone[slot]]
        drawn = words[0, slot], words[1, slot], words[2, slot], words[3, slot]
        habit = habit_from(model, propensities, free_rates, offset, drawn)
        propensity[slot] = habit.propensity
        center[slot] = habit.center
        length[slot] = habit.length
        day_rate[slot] = habit.day_rate


@njit(cache=True, nogil=True)
def _intervals_of_many(model, offsets, room, size, out, total):
    """Adds the intervals of a chunk to `total` others as far as `out` has room; returns their
    number, also beyond the room."""
    # Rare cases (a second session, an end beyond the time) come last, and rows are written before
    # it is known whether they count: a branch that cannot be predicted takes longer than a draw.
    chunk, days, nights, sessions = room
    count_of_days = _draw_days(model, offsets, chunk, size, days)
    count_of_nights, count_of_sessions = -1, -1
    # A count below 0 means too little room for the draws: then each device draws its own below.
    if count_of_days >= 0:
        count_of_nights = _draw_nights(model, offsets, chunk, days, count_of_days, nights)
        count_of_sessions = _draw_sessions(model, offsets, chunk, days, count_of_days, sessions)
    has_room = count_of_nights >= 0 and count_of_sessions >= 0
    local, ids, from_times, until_times, habits = chunk
    propensity, center, length, day_rate, zone = habits
    night_slots, _, night_days, _, night_words, night_starts, night_ends = nights
    session_slots, _, _, _, _, session_starts, session_ends = sessions
    starts, ends = np.empty(2 * MAX_SESSIONS), np.empty(2 * MAX_SESSIONS)
    out_local, out_starts, out_ends = out
    next_night, next_session = 0, 0
    for slot in range(size):
        count = np.int64(0)
        device = ids[slot]
        if has_room:
            # Rows are in order of the slots, so that one pass over them serves all devices.
            while next_night < count_of_nights and night_slots[next_night] == slot:
                v0 = night_words[0, next_night]
                v1 = night_words[1, next_night]
                day = night_days[next_night]
                start = night_starts[next_night]
                end = night_ends[next_night]
                count = append_night(model, device, day, start, end, starts, ends, count, v0, v1)
                next_night += 1
            while next_session < count_of_sessions and session_slots[next_session] == slot:
                start = session_starts[next_session]
                end = session_ends[next_session]
                count = append(starts, ends, count, start, end)
                next_session += 1
            if count == 0:
                continue
            check_count(count)
        offset = offsets[zone[slot]]
        habit = Habit(propensity[slot], center[slot], length[slot], day_rate[slot], offset)
        from_time = from_times[slot]
        until_time = until_times[slot]
        if has_room:
            count = joined_sessions(
                model, habit, device, from_time, until_time, starts, ends, count
            )
        else:
            count = intervals_between(model, habit, device, from_time, until_time, starts, ends)
        for interval in range(count):
            # Intervals beyond the room count too, so that the caller knows how much is needed.
            if total < out_local.size:
                out_local[total] = local[slot]
                out_starts[total] = starts[interval]
                out_ends[total] = ends[interval]
            total += 1
    return total


@njit(cache=True, nogil=True)
def _draw_days(model, offsets, chunk, size, drawn):
    """Draws the local days of devices that may touch the time; returns their number, -1 if there
    is too little room."""
    _, ids, from_times, until_times, habits = chunk
    _, center, length, _, zone = habits
    slots, device_ids, days, numbers, words, may_have_night, may_have_sessions = drawn
    total = np.int64(0)
    for slot in range(size):
        from_hour, until_hour = hours_looked_at(from_times[slot], until_times[slot])
        offset = offsets[zone[slot]]
        first_day, last_day = days_between(model, offset, from_hour, until_hour)
        reach = night_reach(model, length[slot])
        # One row is kept free, because rows are written before it is known whether they count.
        if total + last_day - first_day >= ROOM - 1:
            return -1
        for day in range(first_day, last_day + 1):
            midnight = 24.0 * day - offset
            own_center = midnight + center[slot]
            may_be_night, may_be_day = within_reach(
                model, midnight, own_center, reach, from_hour, until_hour
            )
            slots[total] = slot
            device_ids[total] = ids[slot]
            days[total] = day
            may_have_night[total] = may_be_night
            may_have_sessions[total] = may_be_day
            total += may_be_night | may_be_day
    draw_many(model.session_key, device_ids, days, numbers, total, words)
    return total


@njit(cache=True, nogil=True)
def _draw_nights(model, offsets, chunk, days, count_of_days, nights):
    """Lists the nights that touch the time and draws their first interruptions; returns the number
    of nights."""
    _, ids, from_times, until_times, habits = chunk
    propensity, center, length, _, zone = habits
    day_slots, _, day_numbers, _, words, may_have_night, _ = days
    slots, device_ids, night_days, numbers, night_words, starts, ends = nights
    candidates = 0
    for place in range(count_of_days):
        # Whether there is a night is decided first, because its times cost far more.
        weekend = weekend_factor(model, day_numbers[place])
        probability = propensity[day_slots[place]] * weekend
        # The column is free until interruptions are drawn; candidates lie in it until then.
        numbers[candidates] = place
        is_drawn = uniform(words[0, place]) < probability
        candidates += (may_have_night[place] > 0.0) & is_drawn
    total = np.int64(0)
    for candidate in range(candidates):
        place = numbers[candidate]
        slot = day_slots[place]
        day = day_numbers[place]
        from_hour, until_hour = hours_looked_at(from_times[slot], until_times[slot])
        midnight = 24.0 * day - offsets[zone[slot]]
        w1, w2 = words[1, place], words[2, place]
        start, end = night(model, length[slot], midnight + center[slot], w1, w2)
        slots[total] = slot
        device_ids[total] = ids[slot]
        night_days[total] = day
        starts[total] = start
        ends[total] = end
        total += (end >= from_hour) & (start <= until_hour)
    numbers[:total] = INTERRUPTION
    draw_many(model.session_key, device_ids, night_days, numbers, total, night_words)
    return total


@njit(cache=True, nogil=True)
def _draw_sessions(model, offsets, chunk, days, count_of_days, sessions):
    """Draws the day sessions that touch the time; returns their number, -1 if there is too little
    room."""
    _, ids, from_times, until_times, habits = chunk
    _, _, _, day_rate, zone = habits
    day_slots, _, day_numbers, _, day_words, _, may_have_sessions = days
    slots, device_ids, session_days, numbers, words, starts, ends = sessions
    drawn = np.int64(0)
    for place in range(count_of_days):
        if may_have_sessions[place] == 0.0:
            continue
        slot = day_slots[place]
        day = day_numbers[place]
        rate = day_rate[slot] * weekend_factor(model, day)
        count = count_by_day(rate, day_words[3, place])
        if drawn + count >= ROOM - 1:
            return -1
        # The first row is written even if the count is 0: this is faster than a branch.
        for session in range(max(1, count)):
            slots[drawn + session] = slot
            device_ids[drawn + session] = ids[slot]
            session_days[drawn + session] = day
            numbers[drawn + session] = DAY_SESSION + session
        drawn += count
    draw_many(model.session_key, device_ids, session_days, numbers, drawn, words)
    total = 0
    for place in range(drawn):
        slot = slots[place]
        from_hour, until_hour = hours_looked_at(from_times[slot], until_times[slot])
        midnight = 24.0 * session_days[place] - offsets[zone[slot]]
        v1 = words[1, place]
        start, longest = start_by_day(model, midnight, words[0, place], v1)
        # Rows move up: `total` is never beyond `place`.
        slots[total] = slot
        starts[total] = start
        words[1, total] = v1
        total += (start <= until_hour) & (start + longest >= from_hour)
    # Lengths come last, because few sessions are left that need their exponential.
    reached = total
    total = 0
    for place in range(reached):
        slot = slots[place]
        start = starts[place]
        from_hour, _ = hours_looked_at(from_times[slot], until_times[slot])
        end = start + length_by_day(model, words[1, place])
        slots[total] = slot
        starts[total] = start
        ends[total] = end
        total += end >= from_hour
    return total
