"""Which population, pace and timer explain published min-seps: likelihoods on surfaces, models that
share parameters between runs, profiles, predictions of runs left out, and synthetic runs.

The likelihood of a configuration has two terms. The log min-sep is normal around that of the
surface, with the published scatter; without a device that came back it is only known to be at least
the log of the rounds. The log days are known to be within the range that k implies, with the same
scatter; that range is an estimate (`PublishedRun.days`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy import special

from .gboard_rows import PublishedRun
from .gboard_surfaces import PACES, SHARES, TIMERS, Array, Surface
from .reproduction import Document

TASK_SD, REPEAT_SD = 0.10, 0.015
"""Standard deviations of log min-sep between tasks of one locale and between repeats of one
configuration: published ones differ by up to 10 per cent and by 1 to 2 per cent."""
WHOLE, SAME_TIMER = 41, 4
"""Places of the share 1 in `SHARES` and of the factor 1 in `TIMERS`."""
LEVEL = 0.9
"""Confidence level of the intervals."""
DROP = float(special.chdtri(1, 1.0 - LEVEL)) / 2.0
"""Fall of the log-likelihood at the ends of a profile's interval (Wilks)."""

Scope = Literal["default", "one", "locale"]
"""Whether a parameter keeps its default, has one value for all locales, or one per locale."""


@dataclass(frozen=True, slots=True)
class Model:
    """Assumptions on parameters of runs."""

    name: str
    """Name in tables."""
    share: Scope
    """Share of the population that takes part; by default the whole."""
    pace: Scope
    """Least time between rounds; by default less than a round takes."""
    later: Literal["same", "timer", "timer and population"] = "same"
    """What the later paper's runs of a locale have of their own: a factor on the timer, or also
    another population, which may have grown."""


MODELS = (
    Model("one reach", "one", "default"),
    Model("one pace", "default", "one"),
    Model("one reach and one pace", "one", "one"),
    Model("reach per locale", "locale", "default"),
    Model("pace per locale", "default", "locale"),
    Model("reach per locale, one pace", "locale", "one"),
    Model("reach and pace per locale", "locale", "locale"),
    Model("reach per locale, later timer", "locale", "default", "timer"),
    Model("pace per locale, later timer", "default", "locale", "timer"),
    Model("reach and pace per locale, later timer", "locale", "locale", "timer"),
    Model(
        "reach per locale, later timer and population", "locale", "default", "timer and population"
    ),
)
"""Models that are compared; the last four make assumptions on the later paper explicit."""


@dataclass(frozen=True, slots=True)
class Point:
    """Places of a locale's parameters on the grid."""

    share: int
    pace: int
    timer: int = SAME_TIMER
    later_share: int | None = None
    """Share in the later paper, if it is another one."""

    def timer_factor(self, run: PublishedRun) -> float:
        """Returns the factor on the printed or assumed timer of a run."""
        return float(TIMERS[self.timer]) if run.earlier else 1.0

    def of(self, run: PublishedRun, values: Array) -> float:
        """Returns the value of a surface of a run."""
        share = self.share
        if run.earlier and self.later_share is not None:
            share = self.later_share
        return float(values[self.timer if run.earlier else 0, share, self.pace])


Likelihoods = Mapping[str, Array]
"""Log-likelihoods [T, S, P] by configuration."""


def log_likelihood(repeats: Sequence[PublishedRun], surface: Surface) -> Array:
    """Returns the log-likelihood [T, S, P] of repeats of one configuration."""
    run = repeats[0]
    sd = math.hypot(TASK_SD, REPEAT_SD / math.sqrt(len(repeats)))
    if run.is_censored:
        return special.log_ndtr((surface.log_min_seps - math.log(run.min_sep)) / sd)
    seen = np.mean([math.log(each.min_sep) for each in repeats])
    # The slowest timer-long window and the whole run are those of one task, with one scatter.
    low, high = (math.log(run_days) for run_days in run.days)
    timer = np.log(TIMERS if run.earlier else np.ones(1))[:, None, None]
    within = _log_within(
        (low + timer - surface.log_days) / sd, (high + timer - surface.log_days) / sd
    )
    return -0.5 * ((surface.log_min_seps - seen) / sd) ** 2 + within


def _log_within(low: Array, high: Array) -> Array:
    """Returns the log probability of a standard normal variable between two bounds."""
    # In the upper tail both probabilities round to 1, so it is mirrored.
    mirrored = low > 0
    low, high = np.where(mirrored, -high, low), np.where(mirrored, -low, high)
    top = special.log_ndtr(high)
    return top + np.log1p(-np.exp(np.minimum(special.log_ndtr(low) - top, -1e-12)))


def fit(
    model: Model, runs: Mapping[str, PublishedRun], likelihoods: Likelihoods
) -> dict[str, Point]:
    """Fits a model by maximum likelihood.

    Args:
        model: the model.
        runs: runs by configuration.
        likelihoods: log-likelihoods of the configurations to fit.

    Returns:
        The point of each locale with such a configuration, and that of "": one for all locales.
    """
    locales = list(dict.fromkeys(runs[name].locale for name in likelihoods))
    sums = {each: locale_likelihood(each, runs, likelihoods) for each in locales}
    own = {each: _joined(model, *sums[each]) for each in locales}
    share, pace = _shared(model, own)
    points = {}
    for locale in locales:
        within = own[locale][share, pace]
        s, p = np.unravel_index(int(np.argmax(within)), within.shape)
        s, p = int(s) + (share.start or 0), int(p) + (pace.start or 0)
        later = sums[locale][1]
        shares = later[:, :, p] if model.later == "timer and population" else later[:, s : s + 1, p]
        t, later_s = np.unravel_index(int(np.argmax(shares)), shares.shape)
        if model.later == "same" or not later.any():
            points[locale] = Point(s, p)
        elif model.later == "timer":
            points[locale] = Point(s, p, int(t))
        else:
            points[locale] = Point(s, p, int(t), int(later_s))
    scopes: list[Scope] = [
        each if each == "default" else "one" for each in (model.share, model.pace)
    ]
    pooled = Model("", scopes[0], scopes[1])
    share, pace = _shared(pooled, {each: _joined(pooled, *sums[each]) for each in locales})
    points[""] = Point(share.start or 0, pace.start or 0)
    return points


def locale_likelihood(
    locale: str, runs: Mapping[str, PublishedRun], likelihoods: Likelihoods
) -> tuple[Array, Array]:
    """Returns the sums of log-likelihoods over a locale's runs: [S, P] of the earlier paper, and
    [T, S, P] of the later one."""
    earlier = np.zeros((len(SHARES), len(PACES)))
    later = np.zeros((len(TIMERS), len(SHARES), len(PACES)))
    for name, values in likelihoods.items():
        if runs[name].locale == locale:
            if runs[name].earlier:
                later += values
            else:
                earlier += values[0]
    # The printed population is an upper bound in its own paper.
    earlier[WHOLE + 1 :] = -np.inf
    return earlier, later


def _joined(model: Model, earlier: Array, later: Array) -> Array:
    if model.later == "same":
        return earlier + later[SAME_TIMER]
    if model.later == "timer":
        return earlier + later.max(axis=0)
    return earlier + later.max(axis=(0, 1))


def _shared(model: Model, own: Mapping[str, Array]) -> tuple[slice, slice]:
    """Returns the places of shares and paces that a locale may have, once the values that all
    locales share are fitted."""
    share = slice(WHOLE, WHOLE + 1) if model.share == "default" else slice(None)
    pace = slice(1) if model.pace == "default" else slice(None)
    total = 0.0
    for values in own.values():
        allowed = values[share, pace]
        if model.share == "locale":
            allowed = allowed.max(axis=0, keepdims=True)
        if model.pace == "locale":
            allowed = allowed.max(axis=1, keepdims=True)
        total = total + allowed
    s, p = np.unravel_index(int(np.argmax(total)), np.shape(total))
    if model.share == "one":
        share = slice(int(s), int(s) + 1)
    if model.pace == "one":
        pace = slice(int(p), int(p) + 1)
    return share, pace


def predicted(
    model: Model, run: PublishedRun, runs: Mapping[str, PublishedRun], likelihoods: Likelihoods
) -> Point:
    """Returns the point by which a model predicts a run from other configurations.

    Parameters of a locale without such a configuration are those that fit all other locales.
    """
    points = fit(model, runs, likelihoods)
    return points.get(run.locale, points[""])


@dataclass(frozen=True, slots=True)
class Interval(Document):
    """Profile-likelihood interval of a parameter."""

    best: float
    """Value of the largest likelihood."""
    low: float
    """Lower end."""
    high: float
    """Upper end."""
    is_open_below: bool
    """Whether the smallest value of the grid is inside, so that there is no lower end."""
    is_open_above: bool
    """Whether the largest value of the grid is inside."""

    @property
    def is_identified(self) -> bool:
        """Whether the interval has two ends inside the grid."""
        return not (self.is_open_below or self.is_open_above)

    @property
    def text(self) -> str:
        """The interval as text, or that the parameter is not identified."""
        if self.is_open_below and self.is_open_above:
            return "not identified"
        if self.is_open_below:
            return f"at most {self.high:.3g}"
        if self.is_open_above:
            return f"at least {self.low:.3g}"
        return f"{self.low:.3g} to {self.high:.3g}"


def profiles(earlier: Array, later: Array) -> dict[str, Interval]:
    """Returns the intervals of share, pace and timer of one locale, each with the other two free.

    Args:
        earlier, later: sums of `locale_likelihood`.
    """
    total = later + earlier
    shares, paces = total.max(axis=(0, 2))[: WHOLE + 1], total.max(axis=(0, 1))
    found = {
        "reach": _interval(SHARES[: WHOLE + 1], shares),
        "pace": _interval(PACES, paces),
    }
    # The earlier paper prints its timers.
    if later.any():
        found["timer"] = _interval(TIMERS, total.max(axis=(1, 2)))
    return found


def _interval(values: Array, profile: Array) -> Interval:
    best = int(np.argmax(profile))
    inside = np.flatnonzero(profile >= profile[best] - DROP)
    first, last = int(inside[0]), int(inside[-1])
    low, high = float(values[first]), float(values[last])
    return Interval(float(values[best]), low, high, first == 0, last == len(values) - 1)


@dataclass(frozen=True, slots=True)
class Coverage(Document):
    """Intervals of one parameter over locales of synthetic runs."""

    parameter: str
    """reach, pace or timer."""
    intervals: int
    """Number of intervals."""
    covered: int
    """Number of intervals that contain the value that made the runs."""
    not_identifiable: int
    """Number of intervals that are open for runs without scatter too."""
    called_so: int
    """Number of these that are open for the runs with scatter."""


def recovery(
    runs: Mapping[str, PublishedRun], surfaces: Mapping[str, Surface], sets: int
) -> tuple[Coverage, ...]:
    """Fits synthetic runs whose parameters are drawn from the grid, and counts what is recovered.

    Args:
        runs: runs whose rounds, goals and timers the synthetic ones have, by configuration.
        surfaces: surfaces of the configurations, which make the runs and fit them.
        sets: sets of runs.
    """
    draws = np.random.default_rng(2024)
    counts: dict[str, list[int]] = {}
    for _ in range(sets):
        truths = {
            locale: Point(
                *map(int, draws.integers((0, 0, 0), (WHOLE + 1, len(PACES), len(TIMERS))))
            )
            for locale in dict.fromkeys(each.locale for each in runs.values())
        }
        exact, drawn = (
            {
                name: log_likelihood([synthetic], surfaces[name])
                for name, run in runs.items()
                for synthetic in [_synthetic(run, truths[run.locale], surfaces[name], scatter)]
            }
            for scatter in (None, draws)
        )
        for locale, truth in truths.items():
            sharp = profiles(*locale_likelihood(locale, runs, exact))
            values = {"reach": SHARES[truth.share], "pace": PACES[truth.pace]}
            values["timer"] = TIMERS[truth.timer]
            for name, each in profiles(*locale_likelihood(locale, runs, drawn)).items():
                is_open = not sharp[name].is_identified
                found = (1, each.low <= values[name] <= each.high, is_open)
                found += (is_open and not each.is_identified,)
                counts[name] = [
                    a + b for a, b in zip(counts.get(name, [0] * 4), found, strict=True)
                ]
    return tuple(Coverage(name, *found) for name, found in counts.items())


def _synthetic(
    run: PublishedRun, truth: Point, surface: Surface, draws: np.random.Generator | None
) -> PublishedRun:
    """Returns a run with the min-sep and k of a point, with scatter if there is a generator."""
    sd = math.hypot(TASK_SD, REPEAT_SD)
    gap, length = (0.0, 0.0) if draws is None else draws.normal(0.0, sd, 2)
    min_sep = round(math.exp(truth.of(run, surface.log_min_seps) + gap))
    hours = 24.0 * math.exp(truth.of(run, surface.log_days) + length)
    timers = math.ceil(hours / (run.timer_hours * truth.timer_factor(run)))
    k = 1 if min_sep >= run.rounds else max(2, timers)
    return replace(run, rounds_between=max(1, min_sep) - 1, max_participations=k)
