"""A table of habits in the form that compiled code reads, and the static habits that a
device draws from it."""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import special

from fedray.base.arrays import Float64Array, Int32Array
from fedray.base.compiled import njit
from fedray.base.rng import (
    MAX_NORMAL,
    Key,
    Stream,
    draw,
    normal,
    stream_key,
    tabulated,
    tabulated_quantiles,
)
from fedray.scenario.availability import Habits
from fedray.wire.zones import Zones

# Address b within Stream.HABIT at (device, a = 0).
STATIC = 0
MOST = 0.9
"""Share of the day sessions that do not exceed `most_lengths`."""


class HabitModel(NamedTuple):
    """Numbers of the habit table. Hours are local; see `fedray.scenario.availability.Habits` for
    the meaning of spreads and rates."""

    habit_key: Key
    """Key of the draws of static habits."""
    session_key: Key
    """Key of the draws of sessions."""
    mean_propensity: float
    """Mean over all devices."""
    center: float
    """Middle of the night session, hours after midnight."""
    center_between: float
    """Standard deviation of the middle between devices, hours."""
    center_within: float
    """Standard deviation of the middle between nights, hours."""
    length: float
    """Length of the night session, hours."""
    length_between: float
    """Log-standard deviation of the length between devices."""
    length_within: float
    """Log-standard deviation of the length between nights."""
    session_max: float
    """Longest session, hours."""
    interruption_on: float
    """Mean hours between interruptions."""
    interruption_off: float
    """Mean hours of an interruption."""
    day_sessions: float
    """Mean number of day sessions."""
    day_habit_weight: float
    """Share of the day rate that follows the propensity."""
    day_start: float
    """First hour at which a day session starts."""
    day_end: float
    """Last hour at which a day session starts."""
    day_length: float
    """Median hours of a day session."""
    day_length_sigma: float
    """Log-standard deviation of the length of a day session."""
    most_lengths: float
    """Hours that a share MOST of the day sessions do not exceed."""
    weekend_factor: float
    """Factor on propensity and day rate."""
    center_within_reach: float
    """Largest distance of a night's middle from the device's own, hours."""
    length_within_reach: float
    """Largest ratio of a night's length to the device's own."""
    first_hour: float
    """First of the hours that contain every session of a local day."""
    last_hour: float
    """Last of the hours that contain every session of a local day."""

    @classmethod
    def of(
        cls,
        table: Habits,
        seed: int,
        habit_stream: Stream = Stream.HABIT,
        session_stream: Stream = Stream.SESSIONS,
    ) -> "HabitModel":
        """Compiles a table of habits, drawn from the given streams."""
        # No normal draw exceeds MAX_NORMAL, so the sessions of a day have hard limits.
        center_deviations = table.night_center_between_hours + table.night_center_within_hours
        center_reach = MAX_NORMAL * center_deviations
        night_reach = center_reach + table.session_max_hours / 2
        day_start, day_end = table.day_start_hours
        first_night = table.night_center_hours - night_reach
        last_night = table.night_center_hours + night_reach
        alpha, beta = table.night_propensity
        # Slightly more than the quantile, so that rounding makes no length exceed it.
        most_sigmas = table.day_length_sigma * float(special.ndtri(MOST)) + 1e-6
        day_length = table.day_length_minutes / 60.0
        return cls(
            habit_key=stream_key(seed, habit_stream),
            session_key=stream_key(seed, session_stream),
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
    """Arrays of the habit model."""

    propensities: Float64Array
    """Quantiles of the propensity (a beta distribution); see `fedray.base.rng.tabulated`."""
    free_rates: Float64Array
    """Quantiles of the part of the day rate that does not follow the propensity (a gamma
    distribution of mean 1)."""
    zones: Zones
    """Time zones of the devices."""

    @classmethod
    def of(cls, table: Habits, zones: Zones) -> "HabitTables":
        """Tabulates the distributions of a table of habits."""
        alpha, beta = table.night_propensity
        return cls(
            propensities=_beta_quantiles(alpha, beta),
            free_rates=_gamma_quantiles(table.day_habit_shape),
            zones=zones,
        )


# Inverting the two distributions takes a third of a second, most of a small run; all shards and
# runs of a process share a few tables of one MB, which are never written to.
@lru_cache(maxsize=16)
def _beta_quantiles(alpha: float, beta: float) -> Float64Array:
    return tabulated_quantiles(lambda u: special.betaincinv(alpha, beta, u))


@lru_cache(maxsize=16)
def _gamma_quantiles(shape: float) -> Float64Array:
    return tabulated_quantiles(lambda u: special.gammaincinv(shape, u) / shape)


class Habit(NamedTuple):
    """Static habits of one device."""

    propensity: float
    """Probability that a night has a session."""
    center: float
    """Middle of the device's nights, local hours."""
    length: float
    """Length of the device's nights, hours."""
    day_rate: float
    """Mean number of day sessions."""
    offset: float
    """Local time minus UTC, hours."""


class KnownHabits(NamedTuple):
    """Static habits of devices [N], 36 bytes each; empty arrays if they are not known."""

    propensity: Float64Array
    """See `Habit`."""
    center: Float64Array
    """See `Habit`."""
    length: Float64Array
    """See `Habit`."""
    day_rate: Float64Array
    """See `Habit`."""
    zone: Int32Array
    """Position of the device's zone in the model, which gives its offset."""


@njit(cache=True, nogil=True)
def room_for_habits(size):
    """Returns `KnownHabits` of `size` devices, without values."""
    return KnownHabits(
        np.empty(size),
        np.empty(size),
        np.empty(size),
        np.empty(size),
        np.empty(size, np.int32),
    )


@njit(forceinline=True)
def habit_of(model, propensities, free_rates, offset, device):
    """Draws the static habits of a device in a zone with an offset.

    Propensity and day rate are drawn by tabulated inversion (fedray/base/rng.py).
    """
    words = draw(model.habit_key, device, 0, STATIC)
    return habit_from(model, propensities, free_rates, offset, words)


@njit(forceinline=True)
def habit_from(model, propensities, free_rates, offset, words):
    """Computes the habits that follow from the four words drawn for a device."""
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
