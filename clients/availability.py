"""When devices are eligible: the habit model.

A device has a nightly session with its own propensity, middle and length, cut by interruptions, and short sessions by day.
Every draw is addressed by (device, local day), so the state of any device at any time is a pure function and needs no storage.
A device's eligible time is the union of its sessions; stretches less than a second apart count as one *run*.

Day d of a device is its local day, [24 d, 24 (d + 1)) hours after the local midnight that starts day 0, a Monday.
Sessions of day d lie within local hours 24 d + [first_hour, last_hour]: the night of day d may start on the evening before.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from clients.population import DeviceModel, is_reachable, zone_uniform
from fedray.rng import MAX_NORMAL, Key, Stream, draw, exponential, gamma, normal, poisson, stream_key, uniform
from fedray.scenario import HabitAvailability, Scenario

HOUR = 3600.0
DAY = 86_400.0
JOIN_SECONDS = 1.0
MAX_SESSIONS = 512

# Addresses b within Stream.HABIT at (device, a = 0): static attributes.
_CENTER, _NIGHT_A, _NIGHT_B, _DAY_RATE = 0, 1000, 2000, 3000
# Addresses b within Stream.SESSIONS at (device, a = day): the night and count, then day sessions, then interruptions.
_NIGHT, _DAY_SESSION, _INTERRUPTION = 0, 1, 1000


class HabitModel(NamedTuple):
    """What compiled code needs of a scenario's habit table. Hours are local, rates per day, see HabitAvailability."""

    devices: DeviceModel
    habit_key: Key
    session_key: Key
    propensity_a: float
    propensity_b: float
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
    day_habit_shape: float
    day_start: float
    day_end: float
    day_length: float
    day_length_sigma: float
    weekend_factor: float
    center_within_reach: float
    length_within_reach: float
    first_hour: float
    last_hour: float


class Habit(NamedTuple):
    """Static habits of one device: hours are local, the offset is local time minus UTC in hours."""

    propensity: float
    center: float
    length: float
    day_rate: float
    no_session: float
    offset: float


class Habits(NamedTuple):
    """Static habits of a run of devices; [N] each, float32, exactly as the model derives them. See Habit."""

    propensity: NDArray[np.float32]
    center: NDArray[np.float32]
    length: NDArray[np.float32]
    day_rate: NDArray[np.float32]
    no_session: NDArray[np.float32]
    offset: NDArray[np.float32]


class Zones(NamedTuple):
    """Time zones: upper edges of their shares [Z], and local time minus UTC, hours [Z]."""

    edges: NDArray[np.float64]
    offsets: NDArray[np.float64]


def zones_of(scenario: Scenario) -> Zones:
    """The time zones of a scenario."""
    zones = scenario.population.time_zones
    return Zones(np.cumsum([zone.share for zone in zones]), np.array([zone.utc_offset_hours for zone in zones]))


def habit_model(scenario: Scenario, devices: DeviceModel) -> HabitModel:
    """The compiled form of a scenario's availability table."""
    table: HabitAvailability = scenario.availability
    # No normal draw exceeds MAX_NORMAL, so the sessions of a day have hard limits.
    center_reach = MAX_NORMAL * (table.night_center_between_hours + table.night_center_within_hours)
    night_reach = center_reach + table.session_max_hours / 2
    return HabitModel(
        devices=devices,
        habit_key=stream_key(scenario.seed, Stream.HABIT),
        session_key=stream_key(scenario.seed, Stream.SESSIONS),
        propensity_a=table.night_propensity[0],
        propensity_b=table.night_propensity[1],
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
        day_habit_shape=table.day_habit_shape,
        day_start=table.day_start_hours[0],
        day_end=table.day_start_hours[1],
        day_length=table.day_length_minutes / 60.0,
        day_length_sigma=table.day_length_sigma,
        weekend_factor=table.weekend_factor,
        center_within_reach=MAX_NORMAL * table.night_center_within_hours,
        length_within_reach=math.exp(MAX_NORMAL * table.night_length_within),
        first_hour=min(table.day_start_hours[0], table.night_center_hours - night_reach),
        last_hour=max(table.day_start_hours[1] + table.session_max_hours, table.night_center_hours + night_reach),
    )


@njit(cache=True, nogil=True)
def habits_of(model: HabitModel, zones: Zones, first_device: int, count: int) -> Habits:
    """Habits of devices first_device .. first_device + count - 1. Unreachable devices have no sessions at all."""
    habits = Habits(
        np.zeros(count, np.float32),
        np.zeros(count, np.float32),
        np.zeros(count, np.float32),
        np.zeros(count, np.float32),
        np.ones(count, np.float32),
        np.zeros(count, np.float32),
    )
    mean_propensity = model.propensity_a / (model.propensity_a + model.propensity_b)
    weight = model.day_habit_weight
    for index in range(count):
        device = first_device + index
        if not is_reachable(model.devices, device):
            continue
        gamma_a = gamma(model.propensity_a, model.habit_key, device, 0, _NIGHT_A)
        gamma_b = gamma(model.propensity_b, model.habit_key, device, 0, _NIGHT_B)
        total = gamma_a + gamma_b
        propensity = gamma_a / total if total > 0.0 else 0.0
        w0, w1, _, _ = draw(model.habit_key, device, 0, _CENTER)
        free_rate = gamma(model.day_habit_shape, model.habit_key, device, 0, _DAY_RATE) / model.day_habit_shape
        habits.propensity[index] = propensity
        habits.center[index] = model.center + model.center_between * normal(w0)
        habits.length[index] = model.length * math.exp(model.length_between * normal(w1))
        habits.day_rate[index] = model.day_sessions * ((1.0 - weight) * free_rate + weight * propensity / mean_propensity)
        habits.no_session[index] = math.exp(-np.float64(habits.day_rate[index]))
        zone = np.searchsorted(zones.edges, zone_uniform(model.devices, device))
        habits.offset[index] = zones.offsets[min(zone, zones.offsets.size - 1)]
    return habits


@njit(inline="always")
def _append(starts, ends, count, start_hour, end_hour):
    if count < MAX_SESSIONS and end_hour > start_hour:
        starts[count] = HOUR * start_hour
        ends[count] = HOUR * end_hour
        return count + 1
    return count


@njit(forceinline=True)
def _append_night(model, habit, device, day, weekend, low, high, starts, ends, count):
    """The night of a local day, if there is one and it may touch [low, high] (hours UTC).

    Interruptions cut it: eligible for Exp(on) hours, away for Exp(off), and so on.
    """
    midnight = 24.0 * day - habit.offset
    half = 0.5 * min(model.session_max, habit.length * model.length_within_reach)
    center = midnight + habit.center
    if center + model.center_within_reach + half < low or center - model.center_within_reach - half > high:
        return count
    w0, w1, w2, _ = draw(model.session_key, device, day, _NIGHT)
    if uniform(w0) >= habit.propensity * weekend:
        return count
    length = min(model.session_max, habit.length * math.exp(model.length_within * normal(w2)))
    start = center + model.center_within * normal(w1) - 0.5 * length
    end = start + length
    if end < low or start > high:
        return count
    if model.interruption_off == 0.0:
        return _append(starts, ends, count, start, end)
    stretch = 0
    while start < end:
        v0, v1, _, _ = draw(model.session_key, device, day, _INTERRUPTION + stretch)
        stretch += 1
        until = min(end, start + model.interruption_on * exponential(v0))
        count = _append(starts, ends, count, start, until)
        if until >= end:
            break
        start = until + model.interruption_off * exponential(v1)
    return count


@njit(forceinline=True)
def _append_day_sessions(model, habit, device, day, weekend, low, high, starts, ends, count):
    """The sessions by day of a local day that may touch [low, high] (hours UTC)."""
    midnight = 24.0 * day - habit.offset
    if midnight + model.day_end + model.session_max < low or midnight + model.day_start > high:
        return count
    none_probability = habit.no_session if weekend == 1.0 else math.exp(-habit.day_rate * weekend)
    _, _, _, w3 = draw(model.session_key, device, day, _NIGHT)
    for session in range(poisson(habit.day_rate * weekend, none_probability, w3)):
        v0, v1, _, _ = draw(model.session_key, device, day, _DAY_SESSION + session)
        start = midnight + model.day_start + (model.day_end - model.day_start) * uniform(v0)
        if start > high or start + model.session_max < low:
            continue
        length = min(model.session_max, model.day_length * math.exp(model.day_length_sigma * normal(v1)))
        if start + length >= low:
            count = _append(starts, ends, count, start, start + length)
    return count


@njit(forceinline=True)
def _gather(model, habit, device, low, high, starts, ends):
    """Sessions that touch [low, high] (seconds UTC), in no order; how many."""
    offset = habit.offset * HOUR
    first_day = math.floor((low + offset - model.last_hour * HOUR) / DAY) + 1
    last_day = math.ceil((high + offset - model.first_hour * HOUR) / DAY) - 1
    count = 0
    for day in range(first_day, last_day + 1):
        weekend = model.weekend_factor if day % 7 >= 5 else 1.0
        count = _append_night(model, habit, device, day, weekend, low / HOUR, high / HOUR, starts, ends, count)
        count = _append_day_sessions(model, habit, device, day, weekend, low / HOUR, high / HOUR, starts, ends, count)
    return count


@njit(forceinline=True)
def runs_between(model, habit, device, low, high, starts, ends):
    """Eligible runs of a device that touch [low, high): fills starts/ends (seconds, sorted, disjoint); how many.

    Ends are true ends, however far past `high`. A run that began before `low` may be given a later start than its true one.
    """
    count = _gather(model, habit, device, low, high + 2.0 * JOIN_SECONDS, starts, ends)
    if count == MAX_SESSIONS:
        raise ValueError("a device has too many sessions in a day; lower availability.day_sessions, raise day_habit_shape")
    count = _merge(starts, ends, count)
    kept = 0
    for run in range(count):
        if ends[run] > low and starts[run] < high:
            starts[kept] = starts[run]
            ends[kept] = ends[run]
            kept += 1
    if kept == 0:
        return 0
    covered = high
    while ends[kept - 1] > covered:  # the last run goes on: look at what it touches further on
        covered = ends[kept - 1]
        count = kept + _gather(model, habit, device, covered, covered + 2.0 * JOIN_SECONDS, starts[kept:], ends[kept:])
        for session in range(kept, count):
            if starts[session] <= covered + JOIN_SECONDS:
                ends[kept - 1] = max(ends[kept - 1], ends[session])
    return kept


@njit(forceinline=True)
def _merge(starts, ends, count):
    """Sorts sessions by start and joins those less than JOIN_SECONDS apart, in place; how many remain."""
    if count == 0:
        return 0
    for position in range(1, count):
        start, end = starts[position], ends[position]
        slot = position - 1
        while slot >= 0 and starts[slot] > start:
            starts[slot + 1], ends[slot + 1] = starts[slot], ends[slot]
            slot -= 1
        starts[slot + 1], ends[slot + 1] = start, end
    kept = 0
    for position in range(1, count):
        if starts[position] <= ends[kept] + JOIN_SECONDS:
            ends[kept] = max(ends[kept], ends[position])
        else:
            kept += 1
            starts[kept], ends[kept] = starts[position], ends[position]
    return kept + 1


@njit(cache=True, nogil=True)
def list_runs(model, habits, first_device, low, high, reopen, census_stride, out_index, out_start, out_end):
    """Runs touching [low, high) of every device whose timer opens before `high`, and of every census device.

    Runs that end before a device's timer opens may be left out, but for census devices. Fills out_* ([capacity] each: index
    within the range, start, end) and returns how many there are; when that exceeds the capacity nothing past it was
    written, and the caller tries again with more room.
    """
    starts = np.empty(MAX_SESSIONS, np.float64)
    ends = np.empty(MAX_SESSIONS, np.float64)
    # Arrays taken out of their tuple once: compiled code counts references anew wherever it reaches into a tuple.
    propensity, center, length, day_rate, no_session, offset = habits
    total = 0
    for index in range(reopen.size):
        device = first_device + index
        habit = Habit(
            np.float64(propensity[index]),
            np.float64(center[index]),
            np.float64(length[index]),
            np.float64(day_rate[index]),
            np.float64(no_session[index]),
            np.float64(offset[index]),
        )
        if habit.propensity == 0.0 and habit.day_rate == 0.0:
            continue
        start = low if device % census_stride == 0 else max(low, np.float64(reopen[index]))
        if start >= high:
            continue
        for run in range(runs_between(model, habit, device, start, high, starts, ends)):
            if total < out_index.size:
                out_index[total] = index
                out_start[total] = starts[run]
                out_end[total] = ends[run]
            total += 1
    return total
