"""Which population, pace and timer explain published min-seps: models that share parameters between
runs, fitted on surfaces through small simulated runs (`fedray.studies.reach_and_pace`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .gboard_rows import PublishedRun
from .reproduction import Request, StudyCache, reach_and_pace

Array = npt.NDArray[np.float64]

SIMULATED_TIMERS = (0.5, 1.0, 2.0, 4.0)
"""Simulated timers of the later paper's runs, as factors on the timer of the earlier paper."""
SHARES = np.geomspace(0.2, 1.6, 54)
"""[S] shares that fits choose from, in steps of 4 per cent; entry 41 is 0.9994."""
PACES = np.geomspace(3.0, 90.0, 59)
"""[P] paces that fits choose from, minutes, in steps of 6 per cent. A round takes longer than the
first in any case."""
TIMERS = np.geomspace(0.5, 4.0, 13)
"""[T] factors on timers that fits choose from; entry 4 is 1."""
EARLIER = reach_and_pace.Grid(SHARES, PACES)
"""Grid of runs whose timer is printed."""
LATER = reach_and_pace.Grid(SHARES, PACES, TIMERS, SIMULATED_TIMERS)
"""Grid of the later paper's runs."""
WHOLE, SAME_TIMER = 41, 4
"""Places of the share 1 in `SHARES` and of the factor 1 in `TIMERS`."""


@dataclass(frozen=True, slots=True)
class Model:
    """Assumptions on parameters of runs."""

    name: str
    """Name in tables."""
    has_reach: bool = False
    """Whether a share of the population takes part, instead of the whole."""
    has_pace: bool = False
    """Whether rounds have a least time between them, longer than a round takes."""
    is_pooled: bool = False
    """Whether all locales share the values."""
    has_later_timer: bool = False
    """Whether the later paper's runs of a locale have a timer of their own."""


MODELS = (
    Model("one reach", has_reach=True, is_pooled=True),
    Model("reach per locale", has_reach=True),
    Model("pace per locale", has_pace=True),
    Model("reach and pace per locale", has_reach=True, has_pace=True),
    Model("pace per locale, later timer", has_pace=True, has_later_timer=True),
    Model("reach and pace per locale, later timer", True, True, has_later_timer=True),
)
"""Models that are compared. The last two make assumptions on the later paper explicit."""


@dataclass(frozen=True, slots=True)
class Point:
    """Places of parameters on the grid."""

    share: int
    pace: int = 0
    timer: int = SAME_TIMER

    def of(self, run: PublishedRun, values: Array) -> float:
        """Returns the value of a surface of a run."""
        timer = self.timer if run.earlier else 0
        return float(values[timer, self.share, self.pace])

    def timer_hours(self, run: PublishedRun) -> float:
        """Returns the timer of a run, in hours."""
        return run.timer_hours * (float(TIMERS[self.timer]) if run.earlier else 1.0)


@dataclass(frozen=True, slots=True)
class Evidence:
    """A configuration on its surface [T, S, P]."""

    run: PublishedRun
    """The first of its repeats."""
    surface: reach_and_pace.Surface
    """Its min-seps and days."""
    likelihood: Array
    """[T, S, P] log-likelihood of the published figures."""
    loss: Array
    """[T, S, P] absolute error of log min-sep, and of log days outside the range of k."""


def simulated_surfaces(
    runs: Sequence[PublishedRun], request: Request, scale: float
) -> dict[str, reach_and_pace.Surface]:
    """Simulates runs on a coarse grid, and returns the surface of each configuration.

    Args:
        runs: published runs; repeats of a configuration are simulated once.
        request: its placement has a task for each simulation.
        scale: share of population and report goal that is simulated.
    """
    configurations = {run.configuration: run for run in runs}
    wanted = []
    for run in configurations.values():
        # Set last, so that no override changes the comparison.
        own = (
            f"population.devices={run.population}",
            f"participation.timer_hours={run.timer_hours}",
        )
        scenario = run.scenario((*request.overrides, *own))
        wanted.append((scenario, LATER if run.earlier else EARLIER))
    found = reach_and_pace.simulated_surfaces(
        wanted, scale, request.placement, StudyCache(), request.on_progress
    )
    return dict(zip(configurations, found, strict=True))


def place_in(grid: Array, value: float) -> int:
    """Returns the place of the grid's value that is nearest, in logarithms."""
    return int(np.argmin(np.abs(np.log(grid / value))))


def evidence_of(repeats: Sequence[PublishedRun], surface: reach_and_pace.Surface) -> Evidence:
    """Returns the evidence of repeats of one configuration."""
    run = repeats[0]
    # Repeats share the deviation of their task.
    sd = math.hypot(reach_and_pace.TASK_SD, reach_and_pace.REPEAT_SD / math.sqrt(len(repeats)))
    log_min_sep = float(np.mean([math.log(each.min_sep) for each in repeats]))
    off = surface.log_min_seps - log_min_sep
    days, loss = None, np.maximum(0.0, -off)
    if not run.is_censored:
        timers = np.log(TIMERS if run.earlier else np.ones(1))[:, None, None]
        least, most = days = (np.log(run.days[0]) + timers, np.log(run.days[1]) + timers)
        outside = np.maximum(least - surface.log_days, surface.log_days - most)
        loss = np.abs(off) + np.maximum(0.0, outside)
    likelihood = surface.log_likelihood(log_min_sep, run.is_censored, sd, days)
    return Evidence(run, surface, likelihood, loss)


def predicted(model: Model, run: PublishedRun, evidence: Sequence[Evidence]) -> Point:
    """Returns the point by which a model predicts a run.

    Args:
        model: the model. Parameters per locale are fitted by likelihood on the run's locale;
            pooled ones, and all of a locale without evidence, on all evidence by least loss.
        run: the run.
        evidence: configurations to fit.
    """
    own = [each for each in evidence if each.run.locale == run.locale]
    shares = slice(0 if model.has_reach else WHOLE, WHOLE + 1)
    paces = slice(None if model.has_pace else 1)
    if model.is_pooled or not own:
        # Locales differ by more than the scatter, and absolute errors do not follow the farthest.
        loss = sum(each.loss[SAME_TIMER if each.run.earlier else 0] for each in evidence)
        share, pace = _place_of_most(-np.asarray(loss)[shares, paces])
        return Point(shares.start + share, pace)
    earlier, later = sums(own)
    is_free = model.has_later_timer and bool(later.any())
    # The timer of the later paper is maximised first, the parameters of both papers then.
    at_timer = later.max(axis=0) if is_free else later[SAME_TIMER]
    share, pace = _place_of_most((earlier + at_timer)[shares, paces])
    share += shares.start
    return Point(share, pace, int(np.argmax(later[:, share, pace])) if is_free else SAME_TIMER)


def _place_of_most(values: Array) -> tuple[int, int]:
    first, second = np.unravel_index(int(np.argmax(values)), values.shape)
    return int(first), int(second)


def sums(evidence: Sequence[Evidence]) -> tuple[Array, Array]:
    """Returns the sums of log-likelihoods of a locale's configurations: [S, P] of the earlier
    paper, and [T, S, P] of the later one."""
    earlier = np.zeros((len(SHARES), len(PACES)))
    later = np.zeros((len(TIMERS), *earlier.shape))
    for each in evidence:
        if each.run.earlier:
            later += each.likelihood
        else:
            earlier += each.likelihood[0]
    # The printed population is an upper bound in its own paper.
    earlier[WHOLE + 1 :] = -np.inf
    return earlier, later


@dataclass(frozen=True, slots=True)
class LocaleInterval(reach_and_pace.Interval):
    """Interval of a parameter of a locale; a timer is a factor on that of the earlier paper."""

    locale: str
    """The locale."""


def intervals(evidence: Sequence[Evidence]) -> list[LocaleInterval]:
    """Returns the intervals of reach, pace and later timer of the locale of the evidence."""
    earlier, later = sums(evidence)
    total = later + earlier
    profiles = {
        "reach": (SHARES[: WHOLE + 1], total.max(axis=(0, 2))[: WHOLE + 1]),
        "pace": (PACES, total.max(axis=(0, 1))),
    }
    # The earlier paper prints its timers.
    if later.any():
        profiles["timer"] = (TIMERS, total.max(axis=(1, 2)))
    found = [reach_and_pace.interval_of(name, *profile) for name, profile in profiles.items()]
    locale = evidence[0].run.locale
    return [
        LocaleInterval(each.parameter, each.best, each.low, each.high, locale) for each in found
    ]
