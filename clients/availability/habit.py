"""The habit model: a nightly session with its own propensity, middle and length, cut by
interruptions, and short sessions by day.

Every draw is addressed by (device, local day), so the state of any device at any time is a pure
function and needs no storage.

Day d of a device is its local day, [24 d, 24 (d + 1)) hours after the local midnight that starts
day 0, a Monday. Sessions of day d lie within local hours 24 d + [first_hour, last_hour]: the night
of day d may start on the evening before.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy import special

from clients.availability.runs import DAY, HOUR, JOIN_SECONDS, Runs, keep_touching, merge
from clients.population import zone_index, zones_of
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
LONGEST_RUN_DAYS = 60
"""Habits that keep a device eligible for longer on end are refused, since a run that has no end
would be followed for ever."""

# Address b within Stream.HABIT at (device, a = 0): static attributes.
_STATIC = 0
# Addresses b within Stream.SESSIONS at (device, a = day): the night and count, then day sessions,
# then interruptions.
_NIGHT, _DAY_SESSION, _INTERRUPTION = 0, 1, 1000
_MOST = 0.9
"""Share of the day sessions that are no longer than `most_lengths`: a test that spares their
lengths' computation."""


class HabitModel(NamedTuple):
    """What compiled code needs of a scenario's habit table, numbers only. Hours are local, rates
    per day, see HabitAvailability."""

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


class HabitTables(NamedTuple):
    """The arrays of the model. Hot loops take them out of the tuple once: compiled code counts
    references anew at each access."""

    propensities: NDArray[np.float64]
    free_rates: NDArray[np.float64]
    zone_edges: NDArray[np.float64]
    zone_offsets: NDArray[np.float64]


class Habit(NamedTuple):
    """Static habits of one device: hours are local, the offset is local time minus UTC in hours."""

    propensity: float
    center: float
    length: float
    day_rate: float
    offset: float


class Habits(NamedTuple):
    """Static habits of devices [N], in 36 bytes each; the offset as a place among the model's
    zones."""

    propensity: NDArray[np.float64]
    center: NDArray[np.float64]
    length: NDArray[np.float64]
    day_rate: NDArray[np.float64]
    zone: NDArray[np.int32]


_UNKNOWN = Habits(np.empty(0), np.empty(0), np.empty(0), np.empty(0), np.empty(0, np.int32))


def habit_model(scenario: Scenario, table: HabitAvailability) -> HabitModel:
    """The compiled form of a scenario's habit table."""
    # No normal draw exceeds MAX_NORMAL, so the sessions of a day have hard limits.
    center_reach = MAX_NORMAL * (table.night_center_between_hours + table.night_center_within_hours)
    night_reach = center_reach + table.session_max_hours / 2
    alpha, beta = table.night_propensity
    return HabitModel(
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
        day_start=table.day_start_hours[0],
        day_end=table.day_start_hours[1],
        day_length=table.day_length_minutes / 60.0,
        day_length_sigma=table.day_length_sigma,
        most_lengths=table.day_length_minutes
        / 60.0
        * math.exp(table.day_length_sigma * float(special.ndtri(_MOST)) + 1e-6),
        weekend_factor=table.weekend_factor,
        center_within_reach=MAX_NORMAL * table.night_center_within_hours,
        length_within_reach=math.exp(MAX_NORMAL * table.night_length_within),
        first_hour=min(table.day_start_hours[0], table.night_center_hours - night_reach),
        last_hour=max(
            table.day_start_hours[1] + table.session_max_hours,
            table.night_center_hours + night_reach,
        ),
    )


def habit_tables(scenario: Scenario, table: HabitAvailability) -> HabitTables:
    """Quantiles of propensity and of the free part of the day rate, and the time zones."""
    alpha, beta = table.night_propensity
    shape = table.day_habit_shape
    zones = zones_of(scenario)
    return HabitTables(
        propensities=tabulated_quantiles(lambda u: special.betaincinv(alpha, beta, u)),
        free_rates=tabulated_quantiles(lambda u: special.gammaincinv(shape, u) / shape),
        zone_edges=zones.edges,
        zone_offsets=zones.offsets,
    )


class HabitAvailabilityModel:
    """See clients.availability.model.Availability."""

    bytes_to_know = 36

    def __init__(self, scenario: Scenario, table: HabitAvailability) -> None:
        self.model = habit_model(scenario, table)
        self.tables = habit_tables(scenario, table)
        self._zone_key = zones_of(scenario).key

    def known_of(self, device_ids: NDArray[np.uint64]) -> Habits:
        """See clients.availability.model.Availability."""
        return _habits_of(self.model, self.tables, self._zone_key, device_ids)

    def list_runs(
        self,
        device_ids: NDArray[np.uint64],
        opens: NDArray[np.float64],
        low: float,
        high: float,
        known: Habits | None = None,
    ) -> Runs:
        """See clients.availability.model.Availability. Raises ScenarioError when a device has too
        many sessions."""
        capacity = 2 * device_ids.size + 1024
        habits = known or _UNKNOWN
        while True:
            index, start, end = (
                np.empty(capacity, np.uint32),
                np.empty(capacity),
                np.empty(capacity),
            )
            try:
                total = _list_runs(
                    self.model,
                    self.tables,
                    self._zone_key,
                    habits,
                    device_ids,
                    opens,
                    low,
                    high,
                    index,
                    start,
                    end,
                )
            except ValueError as error:
                raise ScenarioError(str(error)) from None
            if total <= capacity:
                return Runs(index[:total], start[:total], end[:total])
            capacity = total

    def run_ends(
        self, device_ids: NDArray[np.uint64], times: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """See clients.availability.model.Availability."""
        try:
            return _run_ends(self.model, self.tables, self._zone_key, device_ids, times)
        except ValueError as error:
            raise ScenarioError(str(error)) from None


@njit(forceinline=True)
def habit_of(model, propensities, free_rates, zone_key, zone_edges, zone_offsets, device):
    """Static habits of a device; propensity and day rate by tabulated inversion (fedray/rng.py)."""
    return _habit_in_zone(
        model,
        propensities,
        free_rates,
        device,
        zone_offsets[zone_index(zone_key, zone_edges, device)],
    )


@njit(forceinline=True)
def _habit_in_zone(model, propensities, free_rates, device, offset):
    w0, w1, w2, w3 = draw(model.habit_key, device, 0, _STATIC)
    propensity = tabulated(propensities, w2)
    weight = model.day_habit_weight
    free_rate = tabulated(free_rates, w3)
    return Habit(
        propensity,
        model.center + model.center_between * normal(w0),
        model.length * math.exp(model.length_between * normal(w1)),
        model.day_sessions
        * ((1.0 - weight) * free_rate + weight * propensity / model.mean_propensity),
        offset,
    )


@njit(inline="always")
def _append(starts, ends, count, start_hour, end_hour):
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
def _gather(model, habit, device, low, high, starts, ends):
    """Sessions that touch [low - JOIN_SECONDS, high] (seconds UTC), in no order; how many.

    One draw per local day says whether it has a night, when, and how many sessions by day.
    """
    low_hour, high_hour = low / HOUR - JOIN_SECONDS / HOUR, high / HOUR
    first_day = math.floor((low_hour + habit.offset - model.last_hour) / 24.0) + 1
    last_day = math.ceil((high_hour + habit.offset - model.first_hour) / 24.0) - 1
    night_reach = model.center_within_reach + 0.5 * min(
        model.session_max, habit.length * model.length_within_reach
    )
    count = 0
    for day in range(first_day, last_day + 1):
        midnight = 24.0 * day - habit.offset
        center = midnight + habit.center
        may_be_night = center + night_reach >= low_hour and center - night_reach <= high_hour
        may_be_day = (
            midnight + model.day_end + model.session_max >= low_hour
            and midnight + model.day_start <= high_hour
        )
        if not (may_be_night or may_be_day):
            continue
        weekend = model.weekend_factor if day % 7 >= 5 else 1.0
        w0, w1, w2, w3 = draw(model.session_key, device, day, _NIGHT)
        if may_be_night and uniform(w0) < habit.propensity * weekend:
            length = min(
                model.session_max, habit.length * math.exp(model.length_within * normal(w2))
            )
            start = center + model.center_within * normal(w1) - 0.5 * length
            if start + length >= low_hour and start <= high_hour:
                count = _append_night(
                    model, device, day, start, start + length, starts, ends, count
                )
        rate = habit.day_rate * weekend
        if (
            may_be_day and uniform(w3) > 1.0 - rate
        ):  # below, the count is 0, since exp(-rate) > 1 - rate
            for session in range(poisson(rate, math.exp(-rate), w3)):
                v0, v1, _, _ = draw(model.session_key, device, day, _DAY_SESSION + session)
                start = midnight + model.day_start + (model.day_end - model.day_start) * uniform(v0)
                longest = model.most_lengths if uniform(v1) < _MOST else model.session_max
                if start > high_hour or start + longest < low_hour:
                    continue
                length = min(
                    model.session_max,
                    model.day_length * math.exp(model.day_length_sigma * normal(v1)),
                )
                if start + length >= low_hour:
                    count = _append(starts, ends, count, start, start + length)
    if count == MAX_SESSIONS:
        raise ValueError(
            "a device has too many sessions in a day; lower availability.day_sessions, raise "
            "day_habit_shape"
        )
    return count


@njit(forceinline=True)
def runs_between(model, habit, device, low, high, starts, ends):
    """Eligible runs of a device that touch [low, high): fills starts/ends (seconds, sorted,
    disjoint); how many."""
    count = _gather(model, habit, device, low, high + 2.0 * JOIN_SECONDS, starts, ends)
    kept = keep_touching(starts, ends, merge(starts, ends, count), low, high)
    if kept == 0:
        return 0
    covered = high
    while ends[kept - 1] > covered:  # the last run goes on: look at what it touches further on
        covered = ends[kept - 1]
        if covered > high + DAY * LONGEST_RUN_DAYS:
            raise ValueError(
                "a device is eligible for more than 60 days on end; lower "
                "availability.day_sessions, day_length_minutes or "
                "night_length_hours, raise day_habit_shape, or take model always_on"
            )
        count = kept + _gather(
            model, habit, device, covered, covered + 2.0 * JOIN_SECONDS, starts[kept:], ends[kept:]
        )
        for session in range(kept, count):
            if starts[session] <= covered + JOIN_SECONDS:
                ends[kept - 1] = max(ends[kept - 1], ends[session])
    return kept


@njit(cache=True, nogil=True)
def _habits_of(model, tables, zone_key, device_ids):
    size = device_ids.size
    propensity, center, length, day_rate = (
        np.empty(size),
        np.empty(size),
        np.empty(size),
        np.empty(size),
    )
    zone = np.empty(size, np.int32)
    propensities, free_rates, zone_edges, zone_offsets = tables
    for index in range(size):
        zone[index] = zone_index(zone_key, zone_edges, device_ids[index])
        habit = _habit_in_zone(
            model, propensities, free_rates, device_ids[index], zone_offsets[zone[index]]
        )
        propensity[index], center[index] = habit.propensity, habit.center
        length[index], day_rate[index] = habit.length, habit.day_rate
    return Habits(propensity, center, length, day_rate, zone)


@njit(cache=True, nogil=True)
def _list_runs(
    model, tables, zone_key, habits, device_ids, opens, low, high, out_index, out_start, out_end
):
    """Fills out_* ([capacity] each) and returns how many runs there are; nothing past the capacity
    is written."""
    starts = np.empty(2 * MAX_SESSIONS, np.float64)
    ends = np.empty(2 * MAX_SESSIONS, np.float64)
    propensities, free_rates, zone_edges, zone_offsets = tables
    propensity, center, length, day_rate, zone = habits
    total = 0
    for index in range(device_ids.size):
        if opens[index] >= high:
            continue
        device = device_ids[index]
        if propensity.size:
            habit = Habit(
                propensity[index],
                center[index],
                length[index],
                day_rate[index],
                zone_offsets[zone[index]],
            )
        else:
            habit = habit_of(
                model, propensities, free_rates, zone_key, zone_edges, zone_offsets, device
            )
        for run in range(
            runs_between(model, habit, device, max(low, opens[index]), high, starts, ends)
        ):
            if total < out_index.size:
                out_index[total] = index
                out_start[total] = starts[run]
                out_end[total] = ends[run]
            total += 1
    return total


@njit(cache=True, nogil=True)
def _run_ends(model, tables, zone_key, device_ids, times):
    starts = np.empty(2 * MAX_SESSIONS, np.float64)
    ends = np.empty(2 * MAX_SESSIONS, np.float64)
    propensities, free_rates, zone_edges, zone_offsets = tables
    out = np.full(device_ids.size, -np.inf)
    for index in range(device_ids.size):
        device, time = device_ids[index], times[index]
        habit = habit_of(
            model, propensities, free_rates, zone_key, zone_edges, zone_offsets, device
        )
        if runs_between(model, habit, device, time, np.nextafter(time, np.inf), starts, ends) > 0:
            out[index] = ends[0]
    return out
