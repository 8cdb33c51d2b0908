"""Min-sep and days of Gboard's published runs as functions of population, pace and timer,
interpolated between small simulated runs.

A population of `share` times the printed devices stands for a reach up to 1, and for growth above.
The pace is the smallest number of minutes between rounds (`rounds.min_minutes_between`).
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import fedray
from .gboard_rows import PublishedRun
from .reproduction import Progress
from .small_runs import Outcome, outcomes_of

Array = npt.NDArray[np.float64]

SIMULATED_SHARES = (0.2, 0.5, 1.25)
"""Shares of the printed population that are simulated."""
SIMULATED_LOADS = (0.2, 1.3)
"""Simulated paces, as the most rounds that the population can fill once over the most that the
pace lets into a timer's length. Far below 1 the pace hardly matters, far above only the pace."""
SIMULATED_TIMERS = (0.5, 1.0, 2.0, 4.0)
"""Simulated timers of the later paper's runs, as factors on the timer of the earlier paper."""
SHARES = np.geomspace(0.2, 1.6, 54)
"""[S] shares that fits choose from, in steps of 4 per cent; entry 41 is 0.9994."""
PACES = np.geomspace(3.0, 90.0, 59)
"""[P] paces that fits choose from, minutes, in steps of 6 per cent. A round takes longer than the
first in any case."""
TIMERS = np.geomspace(0.5, 4.0, 13)
"""[T] factors on timers that fits choose from; entry 4 is 1."""


@dataclass(frozen=True, slots=True)
class Surface:
    """Logs of min-sep and days of a run, on the grid of `TIMERS` x `SHARES` x `PACES`; the timer's
    axis has one entry where the timer is printed."""

    log_min_seps: Array
    """[T, S, P] logs of the min-seps."""
    log_days: Array
    """[T, S, P] logs of the days."""


def simulated_surfaces(
    runs: Sequence[PublishedRun],
    overrides: Sequence[str],
    scale: float,
    placement: "fedray.Placement | None",
    on_progress: Progress,
) -> dict[str, Surface]:
    """Simulates runs on a coarse grid, and returns the surface of each configuration.

    Args:
        runs: published runs; repeats of a configuration are simulated once.
        overrides: keys set in every scenario.
        scale: share of population and report goal that is simulated.
        placement: place of the simulations, a task each.
        on_progress: listener.
    """
    configurations = {run.configuration: run for run in runs}
    cases = [
        (name, case)
        for name, run in configurations.items()
        for case in itertools.product(_timers(run), SIMULATED_SHARES, SIMULATED_LOADS)
    ]
    scenarios = [
        _scenario(configurations[name], *case, overrides).scaled(scale) for name, case in cases
    ]
    found: dict[str, list[Outcome]] = {name: [] for name in configurations}
    for (name, _), outcome in zip(
        cases, outcomes_of(scenarios, placement, on_progress), strict=True
    ):
        found[name].append(outcome)
    return {name: surface_through(run, found[name]) for name, run in configurations.items()}


def surface_through(run: PublishedRun, outcomes: Sequence[Outcome]) -> Surface:
    """Returns the surface through simulated runs.

    Interpolated are the min-sep over the most rounds that the population can fill once, and the
    days over those that this many rounds per timer would take: both change slowly with all three
    variables. Two laws then bound them: no two rounds are closer than the pace, and a population
    fills no more rounds than it has devices for.

    Args:
        run: the published run.
        outcomes: runs for `_timers` x `SIMULATED_SHARES` x `SIMULATED_LOADS`, in this order.
    """
    timers = _timers(run)
    shape = (len(timers), len(SIMULATED_SHARES), len(SIMULATED_LOADS))
    filled = run.population / run.report_goal * np.array(SIMULATED_SHARES)[:, None]
    hours = run.timer_hours * np.array(timers)[:, None, None]
    # A run in which no device came twice says that the min-sep is larger than its rounds.
    gaps = [2 * run.rounds if each.max_participations == 1 else each.min_sep for each in outcomes]
    used = np.log(np.reshape(gaps, shape) / filled)
    lasted = np.log(np.reshape([24.0 * each.days for each in outcomes], shape) * filled / hours)
    wanted = TIMERS if run.earlier else np.ones(1)
    fill_S1 = run.population / run.report_goal * SHARES[:, None]
    log_min_seps, log_days = [], []
    for factor in wanted:
        timer_hours = run.timer_hours * factor
        loads = np.log(PACES * fill_S1 / (60.0 * timer_hours))
        gap = _on_grid(used, loads, timers, factor) + np.log(fill_S1)
        most = np.minimum(60.0 * timer_hours / PACES, fill_S1) + 1.0
        log_min_seps.append(np.minimum(gap, np.log(most)))
        length = _on_grid(lasted, loads, timers, factor) + np.log(timer_hours / 24.0 / fill_S1)
        log_days.append(np.maximum(length, np.log(run.rounds * PACES / 1440.0)))
    return Surface(np.stack(log_min_seps), np.stack(log_days))


def _on_grid(values: Array, loads: Array, timers: Sequence[float], factor: float) -> Array:
    """Returns values [T', S', P'] of simulated runs at a timer's factor on the grid [S, P], where
    `loads` has the log load of each place; all axes are interpolated in logarithms."""
    log_timers, log_loads = np.log(timers), np.log(SIMULATED_LOADS)
    columns = values.reshape(len(timers), -1).T
    at_timer = np.array([np.interp(math.log(factor), log_timers, each) for each in columns])
    by_share = np.array(
        [np.interp(loads, log_loads, each) for each in at_timer.reshape(values.shape[1:])]
    )
    places = np.interp(np.log(SHARES), np.log(SIMULATED_SHARES), range(len(SIMULATED_SHARES)))
    left = np.minimum(places.astype(int), len(SIMULATED_SHARES) - 2)
    weight = (places - left)[:, None]
    rows = np.arange(len(SHARES))
    return (1.0 - weight) * by_share[left, rows] + weight * by_share[left + 1, rows]


def _timers(run: PublishedRun) -> tuple[float, ...]:
    """Factors on the timer that are simulated; the earlier paper's timers are printed."""
    return SIMULATED_TIMERS if run.earlier else (1.0,)


def _scenario(
    run: PublishedRun, timer: float, share: float, load: float, overrides: Sequence[str]
) -> "fedray.Scenario":
    devices = round(share * run.population)
    timer_hours = timer * run.timer_hours
    minutes = load * 60.0 * timer_hours * run.report_goal / devices
    # Set last, so that no override changes the comparison.
    return run.scenario(
        (
            *overrides,
            f"population.devices={devices}",
            "population.reach=1.0",
            f"participation.timer_hours={timer_hours}",
            f"rounds.min_minutes_between={minutes}",
        )
    )
