"""Devices of a deployment, seen and unseen: how often they take part, and at which hours.

A device whose timer is open takes part in a round by its activity, which is Gamma distributed with
shape a and rate b, in participations per open round (the Gamma-Poisson model of Fisher, Corbet and
Williams 1943). The times at which devices come back have a likelihood on a grid of (a, b).
Given these, the number of new ids in each round, the discovery curve (Good and Toulmin 1956; Efron
and Thisted 1976), is linear in the devices at the start and the devices that join per day, which
non-negative least squares find. Forecasts draw from the grid, and fit the curve to days drawn with
replacement, so the doubt about the population is in their intervals.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import nnls
from scipy.special import gammaln, logsumexp

from fedray.base.arrays import Float64Array, Int64Array
from fedray.scenario import Scenario
from fedray.studies.forecast.history import DAY, History

MOST_FITTED = 4_000
"""Devices whose returns are in the likelihood; fewer devices make intervals wider, not wrong."""
MOST_OF_HOURS = 20_000
"""Devices from whose hours groups are fitted."""
JOIN_BINS = 16
LONGEST_REPORT = 900.0
"""Most seconds by which a check-in and a report make a device miss its first round."""
MOST_GROUPS = 3


@dataclass(frozen=True)
class Known:
    """Population of a scenario, which is not estimated."""

    devices: float
    """Devices at the start that can take part."""
    joins: float
    """Devices that join per day."""

    @classmethod
    def of(cls, scenario: Scenario) -> "Known":
        """Returns the devices of a scenario that can take part."""
        given, share = scenario.population, scenario.serving_share
        return cls(share * given.devices, share * given.joins_per_day)


@dataclass(frozen=True)
class Population:
    """A population drawn from the fit."""

    devices: float
    """Devices at the start."""
    joins: float
    """Devices that join per day."""
    shape: float
    """Shape a of the activity."""
    rate: float
    """Rate b of the activity, in open rounds."""


class Devices:
    """Fit of the devices of a history.

    Args:
        history: observed rounds.
        known: population of a scenario; None to estimate it.
        rng: generator that chooses the devices of the likelihood.
    """

    def __init__(self, history: History, known: Known | None, rng: np.random.Generator) -> None:
        self.history = history
        patterns, r = history.patterns, history.rounds
        self.first = patterns.rounds[patterns.starts].astype(np.int64)
        self.sizes = np.bincount(patterns.rounds, minlength=r)
        self._new = np.bincount(self.first, minlength=r)
        self._days = (history.starts - history.starts[0]) / DAY
        self._opened = history.reopened()
        self._known = known
        self._open = self._open_rounds()
        count = min(MOST_FITTED, patterns.counts.size)
        chosen = rng.choice(patterns.counts.size, count, replace=False)
        self._grid, scores = self._fitted(chosen)
        self._weights: Float64Array = np.exp(scores - np.asarray(logsumexp(scores)))

    def opening(self, rng: np.random.Generator) -> float:
        """Returns the seconds from the start of a round of a device to the first round that it
        really joins, drawn: a device checks in before a round starts, and its timer may run from
        its report. Rounds that start between the timer and the least observed wait show how
        unlikely an earlier return is."""
        waited, expected = self._missed
        place = int(np.searchsorted(-expected, -rng.exponential()))
        timer = self.history.rules.timer_seconds
        return timer if place == 0 else float(waited[place - 1]) + 1e-6

    @cached_property
    def _missed(self) -> tuple[Float64Array, Float64Array]:
        """Waits of the rounds that started after the timer of a round and before the least observed
        wait, in order, and the returns expected from each on."""
        starts, timer = self.history.starts, self.history.rules.timer_seconds
        patterns = self.history.patterns
        waits = np.diff(starts[patterns.rounds], append=np.inf)
        waits[patterns.starts + patterns.counts - 1] = np.inf
        # Longer waits than a check-in and a report take are due to chance.
        least = min(float(waits.min()), timer + LONGEST_REPORT)
        chance = float(np.sum(patterns.counts - 1) / max(1.0, self._open.sum()))
        waited: list[Float64Array] = [np.empty(0)]
        expected: list[Float64Array] = [np.empty(0)]
        rounds, later = np.arange(starts.size), self._opened.copy()
        while rounds.size:
            is_before = later < starts.size
            rounds, later = rounds[is_before], later[is_before]
            wait = starts[later] - starts[rounds]
            is_before = wait < least
            rounds, later = rounds[is_before], later[is_before] + 1
            waited.append(wait[is_before])
            expected.append(chance * self.sizes[rounds].astype(np.float64))
        whole = np.concatenate(waited)
        order = np.argsort(whole)
        return whole[order], np.cumsum(np.concatenate(expected)[order][::-1])[::-1]

    def _open_rounds(self) -> Float64Array:
        """Returns the rounds after its first one for which each device was open, [P]."""
        patterns, r = self.history.patterns, self.history.rounds
        rounds = patterns.rounds.astype(np.int64)
        until = np.append(rounds[1:], r)
        until[patterns.starts + patterns.counts - 1] = r - 1
        waits = np.maximum(until + 1 - self._opened[rounds], 0)
        return np.add.reduceat(waits, patterns.starts).astype(np.float64)

    def _fitted(self, chosen: Int64Array) -> tuple[Float64Array, Float64Array]:
        """Returns a grid of (a, b) [G, 2] and the log-likelihood [G] of the later participations of
        the chosen devices: a coarse grid, then twice a finer one around its best point."""
        later = (self.history.patterns.counts[chosen] - 1).astype(np.float64)
        first, opened = self.first[chosen] + 1.0, self._open[chosen]
        centre, steps = np.log([1.0, self.history.rounds]), np.array([2.7, 4.0])
        grid, scores = np.empty((0, 2)), np.empty(0)
        for _ in range(4):
            axes = [c + s * np.linspace(-1.0, 1.0, 13) for c, s in zip(centre, steps, strict=True)]
            grid = np.exp(np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, 2))
            scores = np.empty(len(grid))
            for place, (a, b) in enumerate(grid):
                # After its first participation, the activity is Gamma(a + 1, b + first).
                scores[place] = np.sum(
                    gammaln(a + 1.0 + later)
                    - gammaln(a + 1.0)
                    + (a + 1.0) * np.log(b + first)
                    - (a + 1.0 + later) * np.log(b + first + opened)
                )
            centre, steps = np.log(grid[np.argmax(scores)]), steps / 3
        return grid, scores

    def drawn(self, rng: np.random.Generator) -> Population:
        """Returns a population drawn by the likelihood, and by days drawn with replacement."""
        a, b = self._grid[int(rng.choice(self._weights.size, p=self._weights))].tolist()
        if self._known is not None:
            return Population(self._known.devices, self._known.joins, a, b)
        days = np.floor(self._days).astype(np.int64)
        times = np.bincount(rng.integers(0, days[-1] + 1, days[-1] + 1), minlength=days[-1] + 1)
        return Population(*self._discovered(a, b, times[days].astype(np.float64)), a, b)

    def _discovered(self, a: float, b: float, weights: Float64Array) -> tuple[float, float]:
        """Returns the devices at the start, and those that join per day, by weighted least squares
        of the new devices of each round."""
        rounds = np.arange(self.history.rounds, dtype=np.float64)
        # Chance that a device is new in a round, of a device that was there from the start.
        chance = a / b * (b / (b + rounds)) ** (a + 1.0)
        # Of those that join, each is as new as the rounds since then; days pass evenly per round.
        joined = np.cumsum(chance) * (self._days[-1] / rounds[-1])
        root = np.sqrt(weights / np.maximum(self._new, 1.0))
        columns = np.stack([chance, joined], axis=1) * root[:, None]
        scale = np.maximum(columns.max(axis=0), 1e-12)
        found = nnls(columns / scale, self._new * root)[0] / scale
        return float(found[0]), float(found[1])

    def activity(self, population: Population, rng: np.random.Generator) -> Float64Array:
        """Returns the activity of the seen devices, [P], given their participations."""
        shape = population.shape + self.history.patterns.counts
        return rng.gamma(shape) / (population.rate + self.first + 1.0 + self._open)

    def unseen(
        self, population: Population, days: float, rng: np.random.Generator
    ) -> tuple[Float64Array, Float64Array]:
        """Returns the activity of devices that have not come yet, and the seconds after the last
        start at which they can: 0 for those that have joined.

        Args:
            population: drawn population.
            days: days for which devices still join.
            rng: generator of the draw.
        """
        a, b, r = population.shape, population.rate, self.history.rounds
        per_bin = population.joins * self._days[-1] / JOIN_BINS
        ages = [float(r), *((np.arange(JOIN_BINS) + 0.5) * r / JOIN_BINS)]
        parts = []
        for age, number in zip(ages, [population.devices, *[per_bin] * JOIN_BINS], strict=True):
            count = rng.poisson(number * (b / (b + age)) ** a)
            parts.append(rng.gamma(a, size=count) / (b + age))
        waits = np.zeros(sum(each.size for each in parts))
        joined = rng.poisson(population.joins * days)
        parts.append(rng.gamma(a, size=joined) / b)
        later = np.sort(rng.random(joined)) * days * DAY
        return np.concatenate(parts), np.concatenate([waits, later])

    @cached_property
    def groups(self) -> "Groups":
        """Groups of devices by their hours."""
        return Groups.of(self.history)


@dataclass(frozen=True)
class Groups:
    """Groups of devices that take part at the same hours, such as time zones: a mixture of
    multinomial distributions over the hours of the day, by the EM algorithm (Dempster, Laird and
    Rubin 1977). Their number, up to MOST_GROUPS, has the least BIC."""

    shares: Float64Array
    """Share of each group of the devices, [C]."""
    hours: Float64Array
    """Share of each hour of the participations of a group, [C, 24]."""

    @classmethod
    def of(cls, history: History) -> "Groups":
        """Returns the groups of a history; one if hours do not tell devices apart."""
        patterns = history.patterns
        more = np.flatnonzero(patterns.counts > 1)
        step = max(1, more.size // MOST_OF_HOURS)
        table = _hours_of(history, more[::step])
        best, least = cls(np.ones(1), np.full((1, 24), 1 / 24)), np.inf
        if not table.size:
            return best
        all_hours = table.sum(axis=0) + 0.5
        for number in range(1, MOST_GROUPS + 1):
            # Each group begins as the devices of a part of the day.
            part = (np.arange(24)[None] - 24 * np.arange(number)[:, None] / number) % 24
            near = 1.0 + 0.8 * np.cos(2 * np.pi * part / 24) * (number > 1)
            shares, hours = np.full(number, 1 / number), near * all_hours
            hours /= hours.sum(axis=1, keepdims=True)
            total = np.zeros(table.shape[0])
            for _ in range(60):
                scores = table @ np.log(hours).T + np.log(shares)
                total = np.asarray(logsumexp(scores, axis=1), np.float64)
                own = np.exp(scores - total[:, None])
                shares = own.mean(axis=0) + 1e-9
                hours = own.T @ table + 0.5
                hours /= hours.sum(axis=1, keepdims=True)
            bic = 24 * number * np.log(table.shape[0]) - 2 * float(total.sum())
            if bic < least:
                least, best = bic, cls(shares / shares.sum(), hours)
        return best

    def drawn(self, history: History, rng: np.random.Generator) -> Int64Array:
        """Returns the group of each device, [P], drawn given its hours."""
        patterns = history.patterns
        if self.shares.size == 1:
            return np.zeros(patterns.counts.size, np.int64)
        logs = np.log(self.hours[:, _round_hours(history)])
        scores = (
            np.stack([np.add.reduceat(each[patterns.rounds], patterns.starts) for each in logs])
            + np.log(self.shares)[:, None]
        )
        noise = rng.gumbel(size=scores.shape)
        return np.argmax(scores + noise, axis=0)


def _round_hours(history: History) -> Int64Array:
    return (history.starts % DAY // 3600).astype(np.int64)


def _hours_of(history: History, devices: Int64Array) -> Float64Array:
    """Returns the participations of devices [D] in each hour of the day, [D, 24]."""
    patterns, hours = history.patterns, _round_hours(history)
    counts = patterns.counts[devices]
    begins = np.cumsum(counts) - counts
    rows = np.repeat(patterns.starts[devices] - begins, counts) + np.arange(counts.sum())
    table = np.zeros((devices.size, 24))
    places = np.repeat(np.arange(devices.size), counts), hours[patterns.rounds[rows]]
    np.add.at(table, places, 1.0)
    return table
