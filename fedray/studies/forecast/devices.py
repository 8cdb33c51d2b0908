"""Devices of a deployment, seen and unseen: how often they take part, and at which hours.

Given the activity of devices (`activity.py`), the number of new ids in each round, the discovery
curve (Good and Toulmin 1956; Efron and Thisted 1976), is linear in the devices at the start and the
devices that join per day, which non-negative least squares find. Forecasts fit the curve to days
drawn with replacement, so the doubt about the population is in their intervals.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import nnls
from scipy.special import logsumexp

from fedray.base.arrays import Float32Array, Float64Array, Int64Array
from fedray.scenario import Scenario
from fedray.studies.forecast.activity import Activity, Shares, chosen
from fedray.studies.forecast.history import DAY, History

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
    shares: Shares
    """Their activity."""


class Devices:
    """Fit of the devices of a history.

    Args:
        history: observed rounds.
        known: population of a scenario; None to estimate it.
    """

    def __init__(self, history: History, known: Known | None) -> None:
        self.history = history
        self._known = known
        patterns, r = history.patterns, history.rounds
        first = patterns.rounds[patterns.starts].astype(np.int64)
        self._days = (history.starts - history.starts[0]) / DAY
        self._opened = history.reopened()
        self.sizes = np.zeros(r, np.int64)
        opened = np.empty(patterns.counts.size, np.int64)
        least = np.inf
        # Block by block, because a trace may have more participations than fit into memory twice.
        for devices, rows in patterns.blocks():
            rounds = patterns.rounds[rows].astype(np.int64)
            self.sizes += np.bincount(rounds, minlength=r)
            begins = patterns.starts[devices] - rows.start
            until = np.append(rounds[1:], r)
            is_last = begins + patterns.counts[devices] - 1
            until[is_last] = r - 1
            waits = np.maximum(until + 1 - self._opened[rounds], 0)
            opened[devices] = np.add.reduceat(waits, begins)
            seconds = np.diff(history.starts[rounds], append=np.inf)
            seconds[is_last] = np.inf
            least = min(least, float(seconds.min()))
        self._least_wait = least
        self._new = np.bincount(first, minlength=r)
        self._returns = float(np.sum(patterns.counts - 1)) / max(1.0, float(opened.sum()))
        self.activity = Activity(first, opened, patterns.counts - 1, r)

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
        # Longer waits than a check-in and a report take are due to chance.
        least = min(self._least_wait, timer + LONGEST_REPORT)
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
            expected.append(self._returns * self.sizes[rounds].astype(np.float64))
        whole = np.concatenate(waited)
        order = np.argsort(whole)
        return whole[order], np.cumsum(np.concatenate(expected)[order][::-1])[::-1]

    def drawn(self, rng: np.random.Generator) -> Population:
        """Returns a population drawn by the doubt about activity and days."""
        shares = self.activity.drawn(rng)
        days = np.floor(self._days).astype(np.int64)
        times = np.bincount(rng.integers(0, days[-1] + 1, days[-1] + 1), minlength=days[-1] + 1)
        devices, joins = self._discovered(shares, times[days].astype(np.float64))
        return Population(devices, joins, shares)

    def _discovered(self, shares: Shares, weights: Float64Array) -> tuple[float, float]:
        """Returns the devices at the start, and those that join per day, by weighted least squares
        of the new devices of each round."""
        rounds = np.arange(self.history.rounds)
        # Chance that a device is new in a round, of a device that was there from the start.
        chance = self.activity.chance(rounds) @ shares.of_all
        # Of those that join, each is as new as the rounds since then; days pass evenly per round.
        joined = np.cumsum(chance) * (self._days[-1] / rounds[-1])
        root = np.sqrt(weights / np.maximum(self._new, 1.0))
        columns = np.stack([chance, joined], axis=1) * root[:, None]
        if self._known is not None:
            # Of known devices, those without activity are as many as the curve leaves.
            ratio = self._known.joins / self._known.devices
            column = columns[:, 0] + ratio * columns[:, 1]
            devices = float(column @ (self._new * root)) / max(float(column @ column), 1e-12)
            devices = min(devices, self._known.devices)
            return devices, ratio * devices
        scale = np.maximum(columns.max(axis=0), 1e-12)
        found = nnls(columns / scale, self._new * root)[0] / scale
        return float(found[0]), float(found[1])

    def unseen(
        self, population: Population, days: float, share: float, rng: np.random.Generator
    ) -> tuple[Float64Array, Float64Array]:
        """Returns the activity of devices that have not come yet, and the seconds after the last
        start at which they can: 0 for those that have joined.

        Args:
            population: drawn population.
            days: days for which devices still join.
            share: share of the devices to draw.
            rng: generator of the draw.
        """
        r, of_all = self.history.rounds, population.shares.of_all
        per_bin = population.joins * self._days[-1] / JOIN_BINS
        ages = np.array([r, *((np.arange(JOIN_BINS) + 0.5) * r / JOIN_BINS), 0.0])
        there = np.array([population.devices, *[per_bin] * JOIN_BINS, population.joins * days])
        expected = share * there[:, None] * of_all * self.activity.never(ages)
        numbers = rng.poisson(expected)
        joined = int(numbers[-1].sum())
        waits = np.zeros(int(numbers.sum()))
        waits[waits.size - joined :] = np.sort(rng.random(joined)) * days * DAY
        return self.activity.of_unseen(numbers, ages, rng), waits

    @cached_property
    def groups(self) -> "Groups":
        """Groups of devices by their hours."""
        return Groups.of(self.history)

    @cached_property
    def _cumulated(self) -> Float32Array:
        return self.groups.cumulated(self.history)

    def groups_of_seen(self, part: slice, rng: np.random.Generator) -> Int64Array:
        """Returns the groups of a part [Q] of the seen devices, drawn given their hours."""
        cumulated = self._cumulated[part]
        return chosen(cumulated, np.arange(len(cumulated)), rng.random(len(cumulated)))


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

    def cumulated(self, history: History) -> Float32Array:
        """Returns the chance of each device, given its hours, to be in each group or one before it,
        [P, C]."""
        patterns = history.patterns
        found = np.ones((patterns.counts.size, self.shares.size), np.float32)
        if self.shares.size == 1:
            return found
        logs = np.log(self.hours[:, _round_hours(history)]).T
        for devices, rows in patterns.blocks():
            begins = patterns.starts[devices] - rows.start
            scores = np.add.reduceat(logs[patterns.rounds[rows]], begins) + np.log(self.shares)
            own = np.exp(scores - scores.max(axis=1, keepdims=True))
            found[devices] = np.cumsum(own / own.sum(axis=1, keepdims=True), axis=1)
        return found


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
