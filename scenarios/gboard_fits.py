"""Which population, pace and timer explain published min-seps: likelihoods on surfaces, models that
share parameters between runs, and profiles.

In the likelihood of a configuration, log min-sep is normal around that of the surface with the
published scatter, and at least the log of the rounds if no device came back. Log days are in the
range that k implies, with the same scatter; that range is an estimate (`PublishedRun.days`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

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
    surface: Surface
    """Its min-seps and days."""
    likelihood: Array
    """[T, S, P] log-likelihood of the published figures."""
    loss: Array
    """[T, S, P] absolute error of log min-sep, and of log days outside the range of k."""


def evidence_of(repeats: Sequence[PublishedRun], surface: Surface) -> Evidence:
    """Returns the evidence of repeats of one configuration."""
    run = repeats[0]
    sd = math.hypot(TASK_SD, REPEAT_SD / math.sqrt(len(repeats)))
    # Repeats share the deviation of their task.
    off = surface.log_min_seps - np.mean([math.log(each.min_sep) for each in repeats])
    if run.is_censored:
        return Evidence(run, surface, special.log_ndtr(off / sd), np.maximum(0.0, -off))
    least, most = np.log(run.days)
    timers = np.log(TIMERS if run.earlier else np.ones(1))[:, None, None]
    below, above = least + timers - surface.log_days, most + timers - surface.log_days
    within = log_probability(below / sd, above / sd)
    loss = np.abs(off) + np.maximum(0.0, np.maximum(below, -above))
    return Evidence(run, surface, within - 0.5 * (off / sd) ** 2, loss)


def log_probability(low: Array, high: Array) -> Array:
    """Returns the log probability that a standard normal variable is between two bounds."""
    # In the upper tail both probabilities round to 1, so it is mirrored.
    low, high = np.where(low > 0, -high, low), np.where(low > 0, -low, high)
    top = special.log_ndtr(high)
    return top + np.log1p(-np.exp(np.minimum(special.log_ndtr(low) - top, -1e-12)))


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
class Interval(Document):
    """Profile-likelihood interval of a parameter of a locale, with the others free."""

    locale: str
    """The locale."""
    parameter: str
    """reach, pace (minutes) or timer (factor of the later paper's timer on the earlier one's)."""
    best: float
    """Value of the largest likelihood."""
    low: float | None
    """Lower end; None if the smallest value of the grid is inside."""
    high: float | None
    """Upper end; None if the largest value of the grid is inside."""

    @property
    def text(self) -> str:
        """The interval as text, or that the parameter is not identified."""
        ends = [f"at least {self.low:.3g}"] if self.low is not None else []
        ends += [f"at most {self.high:.3g}"] if self.high is not None else []
        return ", ".join(ends) or "not identified"


def intervals(evidence: Sequence[Evidence]) -> list[Interval]:
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
    found = []
    for name, (values, profile) in profiles.items():
        inside = np.flatnonzero(profile >= profile.max() - DROP)
        low = None if inside[0] == 0 else float(values[inside[0]])
        high = None if inside[-1] == len(values) - 1 else float(values[inside[-1]])
        best = float(values[int(np.argmax(profile))])
        found.append(Interval(evidence[0].run.locale, name, best, low, high))
    return found
