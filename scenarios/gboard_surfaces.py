"""Min-sep and days of Gboard's published runs as functions of population, pace and timer,
interpolated between small simulated runs.

A population of `share` times the printed devices stands for a reach up to 1, and for growth above.
The pace is the smallest number of minutes between rounds (`rounds.min_minutes_between`).
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import ndimage

import fedray
from fedray import InputError
from .gboard_rows import PublishedRun
from .reproduction import PartDone, Progress, simulated

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
class Outcome:
    """Figures of a run that published tables state or imply."""

    min_sep: int
    """The gap; the number of rounds if no device took part twice."""
    max_participations: int
    """k."""
    days: float
    """Simulated time to the last commit, in days."""


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
    outcomes: dict[int, Outcome] = {}
    # Tasks end in any order.
    for place, outcome in fedray.run_jobs(outcome_of, scenarios, placement):
        outcomes[place] = outcome
        done = f"{len(outcomes)} of {len(cases)} runs simulated"
        on_progress(PartDone(done, len(outcomes), len(cases)))
    found: dict[str, list[Outcome]] = {name: [] for name in configurations}
    for place, (name, _) in enumerate(cases):
        found[name].append(outcomes[place])
    return {name: surface_through(run, found[name]) for name, run in configurations.items()}


def outcome_of(scenario: "fedray.Scenario") -> Outcome:
    """Runs an untrained scenario in this process.

    Raises:
        InputError: if the run starves or ends early.
    """
    truth = simulated(scenario)
    found = truth.participation
    # A run that ended early cannot be compared with published ones of all rounds.
    if truth.note or found is None or truth.days is None:
        raise InputError(f"{scenario.name}: {truth.note}")
    return Outcome(truth.min_sep or found.rounds, found.max_participations, truth.days)


def surface_through(run: PublishedRun, outcomes: Sequence[Outcome]) -> Surface:
    """Returns the surface through simulated runs.

    Min-seps are interpolated relative to the most rounds that the population can fill once, and
    days relative to a run with this many rounds per timer: both ratios change slowly. Two laws then
    bound them: no two rounds are closer than the pace, and each round needs its devices.

    Args:
        run: the published run.
        outcomes: runs for `_timers` x `SIMULATED_SHARES` x `SIMULATED_LOADS`, in this order.
    """
    simulated_timers = _timers(run)
    shape = (len(simulated_timers), len(SIMULATED_SHARES), len(SIMULATED_LOADS))
    # A run in which no device came twice says that the min-sep is larger than its rounds.
    gaps = [2 * run.rounds if each.max_participations == 1 else each.min_sep for each in outcomes]
    turns = run.population / run.report_goal * np.array(SIMULATED_SHARES)[:, None]
    hours = run.timer_hours * np.array(simulated_timers)[:, None, None]
    used = np.log(np.reshape(gaps, shape) / turns)
    lasted = np.log(np.reshape([24.0 * each.days for each in outcomes], shape) * turns / hours)

    timers_T11 = (TIMERS if run.earlier else np.ones(1))[:, None, None]
    turns_S1 = run.population / run.report_goal * SHARES[:, None]
    hours_T11 = run.timer_hours * timers_T11
    loads_TSP = PACES * turns_S1 / (60.0 * hours_T11)
    places = (
        _places(timers_T11, simulated_timers),
        _places(SHARES[:, None], SIMULATED_SHARES),
        # Linear, since a pace acts only near a load of 1.
        np.interp(loads_TSP, SIMULATED_LOADS, range(len(SIMULATED_LOADS))),
    )
    at = np.stack(np.broadcast_arrays(*places))
    gap = ndimage.map_coordinates(used, at, order=1, mode="nearest") + np.log(turns_S1)
    most = np.minimum(60.0 * hours_T11 / PACES, turns_S1) + 1.0
    length = ndimage.map_coordinates(lasted, at, order=1, mode="nearest")
    length += np.log(hours_T11 / 24.0 / turns_S1)
    least = np.log(run.rounds * PACES / 1440.0)
    return Surface(np.minimum(gap, np.log(most)), np.maximum(length, least))


def place_in(grid: Array, value: float) -> int:
    """Returns the place of the grid's value that is nearest, in logarithms."""
    return int(np.argmin(np.abs(np.log(grid / value))))


def _places(values: Array, simulated_values: Sequence[float]) -> Array:
    """Returns places between simulated values, in logarithms."""
    return np.interp(np.log(values), np.log(simulated_values), range(len(simulated_values)))


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
