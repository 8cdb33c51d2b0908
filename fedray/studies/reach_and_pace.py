"""Reach and pace that explain observed min-seps: surfaces through small simulated runs, likelihoods
on them, and profiles.

A population of `share` times the given devices stands for a reach up to 1, and for growth above.
The pace is the smallest number of minutes between rounds (`rounds.min_minutes_between`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Literal

import numpy as np
from scipy import ndimage, special

from fedray.base.arrays import Float64Array
from fedray.base.document import Document, InJson
from fedray.base.errors import InputError
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.studies.simulated import StudyCache, Truth, simulate_runs, simulated_limits

SIMULATED_SHARES = (0.2, 0.5, 1.25)
"""Shares of the population that are simulated."""
SIMULATED_LOADS = (0.2, 1.3)
"""Simulated paces, as the most rounds that the population can fill once over the most that the
pace lets into a timer's length. Far below 1 the pace hardly matters, far above only the pace."""
TASK_SD, REPEAT_SD = 0.10, 0.015
"""Standard deviations of log min-sep between tasks of one population and between repeats of one
configuration: published ones differ by up to 10 per cent and by 1 to 2 per cent."""
LEVEL = 0.9
"""Confidence level of the intervals."""
DROP = float(special.chdtri(1, 1.0 - LEVEL)) / 2.0
"""Fall of the log-likelihood at the ends of a profile's interval (Wilks)."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Values that fits choose from."""

    shares: Float64Array
    """[S] shares of the population."""
    paces: Float64Array
    """[P] paces, in minutes."""
    timers: Float64Array = field(default_factory=lambda: np.ones(1))
    """[T] factors on the timer."""
    simulated_timers: Sequence[float] = (1.0,)
    """Factors on the timer that are simulated."""


@dataclass(frozen=True, slots=True)
class Surface:
    """Logs of min-sep and days of a run, on a grid of timers x shares x paces."""

    log_min_seps: Float64Array
    """[T, S, P] logs of the min-seps."""
    log_days: Float64Array
    """[T, S, P] logs of the days."""

    def log_likelihood(
        self,
        log_min_sep: float,
        is_censored: bool,
        sd: float,
        log_days: tuple[float | Float64Array, float | Float64Array] | None,
    ) -> Float64Array:
        """Returns the log-likelihoods [T, S, P] of a run, without constants.

        Args:
            log_min_sep: observed log min-sep: normal, or at least this if censored.
            is_censored: whether no device took part twice.
            sd: scatter of log min-sep and log days.
            log_days: ends of the range of log days, equal if they were observed; None if nothing is
                known of the days.
        """
        off = (self.log_min_seps - log_min_sep) / sd
        found = special.log_ndtr(off) if is_censored else -0.5 * off**2
        if log_days is None:
            return found
        below, above = ((end - self.log_days) / sd for end in log_days)
        if np.array_equal(below, above):
            return found - 0.5 * below**2
        return found + log_probability(below, above)


def simulated_surfaces(
    wanted: Sequence[tuple[Scenario, Grid]],
    scale: float,
    placement: Placement,
    cache: StudyCache,
    on_progress: Callable[[str], None],
) -> list[Surface]:
    """Simulates scenarios at a few places of their grids, and returns the surface of each.

    Args:
        wanted: scenarios, whose reach and pace are replaced, with the grid of each.
        scale: share of population and report goal that is simulated.
        placement: place of the simulations, a task each.
        cache: cache of the simulations.
        on_progress: listener.

    Raises:
        InputError: if a run starves or ends early.
    """
    cases = [cases_of(*each) for each in wanted]
    truths = iter(
        simulate_runs(
            [case.scaled(scale) for of_one in cases for case in of_one],
            simulated_limits,
            placement,
            cache,
            lambda counts: on_progress(counts.line("runs simulated")),
        )
    )
    # The truths are in the order of the cases, so that each surface takes its own from the front.
    return [
        surface_through(*each, [next(truths) for _ in of_one])
        for each, of_one in zip(wanted, cases, strict=True)
    ]


def cases_of(scenario: Scenario, grid: Grid) -> list[Scenario]:
    """Returns the scenario at the simulated timers x `SIMULATED_SHARES` x `SIMULATED_LOADS`."""
    found = []
    for timer, share, load in product(grid.simulated_timers, SIMULATED_SHARES, SIMULATED_LOADS):
        devices = round(share * scenario.population.devices)
        timer_hours = timer * scenario.participation.timer_hours
        minutes = load * 60.0 * timer_hours * scenario.rounds.report_goal / devices
        own = (
            f"population.devices={devices}",
            "population.reach=1.0",
            f"participation.timer_hours={timer_hours}",
            f"rounds.min_minutes_between={minutes}",
        )
        found.append(scenario.with_overrides(*own))
    return found


def surface_through(scenario: Scenario, grid: Grid, truths: Sequence[Truth]) -> Surface:
    """Returns the surface through the simulated runs of `cases_of`.

    Min-seps are interpolated relative to the most rounds that the population can fill once, and
    days relative to a run with this many rounds per timer: both ratios change slowly. Two laws then
    bound them: no two rounds are closer than the pace, and each round needs its devices.
    """
    rounds, timer_hours = scenario.rounds.count, scenario.participation.timer_hours
    turns = scenario.population.devices / scenario.rounds.report_goal
    for each in truths:
        # A run that ended early cannot be compared with an observed one of all rounds.
        if each.note or each.participation is None or each.days is None:
            raise InputError(f"{scenario.name}: a run of a part of the devices failed: {each.note}")
    shape = (len(grid.simulated_timers), len(SIMULATED_SHARES), len(SIMULATED_LOADS))
    simulated_turns = turns * np.array(SIMULATED_SHARES)[:, None]
    hours = timer_hours * np.array(grid.simulated_timers)[:, None, None]
    gaps = np.reshape([each.min_sep or 2 * rounds for each in truths], shape)
    used = np.log(gaps / simulated_turns)
    # A run in which no device came twice says only that the min-sep is at least its rounds: the
    # ratio is then that of fewer devices.
    is_censored = np.reshape([each.min_sep is None for each in truths], shape)
    for place in range(1, len(SIMULATED_SHARES)):
        likely = np.maximum(used[:, place - 1], np.log(rounds / simulated_turns[place]))
        used[:, place] = np.where(is_censored[:, place], likely, used[:, place])
    lengths = np.reshape([24.0 * (each.days or 0.0) for each in truths], shape)
    lasted = np.log(lengths * simulated_turns / hours)

    timers_T11 = grid.timers[:, None, None]
    turns_S1 = turns * grid.shares[:, None]
    hours_T11 = timer_hours * timers_T11
    loads_TSP = grid.paces * turns_S1 / (60.0 * hours_T11)
    places = (
        _places(timers_T11, grid.simulated_timers),
        _places(grid.shares[:, None], SIMULATED_SHARES),
        # Linear, since a pace acts only near a load of 1.
        np.interp(loads_TSP, SIMULATED_LOADS, range(len(SIMULATED_LOADS))),
    )
    at = np.stack(np.broadcast_arrays(*places))
    gap = ndimage.map_coordinates(used, at, order=1, mode="nearest") + np.log(turns_S1)
    most = np.minimum(60.0 * hours_T11 / grid.paces, turns_S1) + 1.0
    length = ndimage.map_coordinates(lasted, at, order=1, mode="nearest")
    length += np.log(hours_T11 / 24.0 / turns_S1)
    least = np.log(rounds * grid.paces / 1440.0)
    return Surface(np.minimum(gap, np.log(most)), np.maximum(length, least))


def _places(values: Float64Array, simulated_values: Sequence[float]) -> Float64Array:
    """Returns places between simulated values, in logarithms."""
    return np.interp(np.log(values), np.log(simulated_values), range(len(simulated_values)))


def log_probability(low: Float64Array, high: Float64Array) -> Float64Array:
    """Returns the log probability that a standard normal variable is between two bounds."""
    # In the upper tail both probabilities round to 1, so it is mirrored.
    low, high = np.where(low > 0, -high, low), np.where(low > 0, -low, high)
    top = special.log_ndtr(high)
    return top + np.log1p(-np.exp(np.minimum(special.log_ndtr(low) - top, -1e-12)))


@dataclass(frozen=True, slots=True)
class Interval(Document):
    """Profile-likelihood interval of a parameter, with the others free: an estimate."""

    parameter: str
    """reach, pace (minutes) or timer (a factor)."""
    best: float
    """Value of the largest likelihood."""
    low: float | None
    """Lower end; None if the smallest value of the grid is inside."""
    high: float | None
    """Upper end; None if the largest value of the grid is inside."""

    @property
    def identified(self) -> InJson[Literal["both ends", "one end", "no"]]:
        """Ends of the interval that the runs identify."""
        return ("no", "one end", "both ends")[(self.low is not None) + (self.high is not None)]

    @property
    def text(self) -> str:
        """The interval as text, or that the parameter is not identified."""
        ends = [f"at least {self.low:.3g}"] if self.low is not None else []
        ends += [f"at most {self.high:.3g}"] if self.high is not None else []
        return ", ".join(ends) or "not identified"


def interval_of(parameter: str, values: Float64Array, profile: Float64Array) -> Interval:
    """Returns the interval of a parameter from its profile: the largest log-likelihood at each of
    its values, which grow."""
    least = profile.max() - DROP
    first, last = np.flatnonzero(profile >= least)[[0, -1]]

    def end(outer: int, inner: int) -> float:
        places = [outer, inner]
        return float(np.exp(np.interp(least, profile[places], np.log(values[places]))))

    low = None if first == 0 else end(first - 1, first)
    high = None if last == len(values) - 1 else end(last + 1, last)
    return Interval(parameter, float(values[int(np.argmax(profile))]), low, high)
