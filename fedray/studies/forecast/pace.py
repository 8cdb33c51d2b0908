"""Pace of rounds: hours of the day, weekends and drift, fitted and continued.

The rate of rounds is exp(level of the day) times a profile of the hours. Levels are a regression of
the logarithm of rounds per day. Its candidates have no drift, a linear trend or a step, a weekend
or none, and some first days without a common level: at the start all timers are open, and the pace
swings until they are spread. Each has the weight exp(-BIC / 2) (Raftery 1995, "Bayesian Model
Selection in Social Research"). A trend is damped (Gardner and McKenzie 1985, "Forecasting Trends in
Time Series"): far beyond the observed days it adds no more than over them. In the time that the
rate measures, rounds are about one unit apart (Brown et al. 2002, "The Time-Rescaling Theorem").
The observed distances are drawn in blocks of a day (Künsch 1989) that began at a like hour and as
early or late as the continuation is (Lall and Sharma 1996, "A Nearest Neighbor Bootstrap"): a pace
that returns to its level does so in the forecast. A server that stops at the same hours of each day
continues by whole sessions.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedray.base.arrays import Float64Array
from fedray.studies.forecast.history import DAY, LEAST_ROUNDS
from fedray.studies.forecast.sessions import Sessions

HOUR = 3600.0
MOST_SETTLING = 28
"""Most first days without a common level."""
WEEKLY_DAYS = 13
"""Whole days from which a weekend is looked for: two of each weekday but one."""
LEAST_SPREAD = 0.02
"""Least standard deviation of the logarithm of a day's rounds: no server keeps its pace better for
weeks."""
MOST_DAYS = 3660


@dataclass(frozen=True)
class Drift:
    """A candidate: how the level of a day depends on its number."""

    trend: bool = False
    step: int | None = None
    """First day of the new level; None without a step."""
    weekend: int | None = None
    """Day of the week, counted from the first day, on which a weekend of two days begins."""
    settled: int = 0
    """First day that counts; those before have no common level."""

    def columns(self, days: Float64Array, observed: int) -> Float64Array:
        """Returns the regressors of days [D], [D, p]; a trend is damped after `observed` days."""
        columns = [np.ones_like(days)]
        if self.trend:
            over = np.maximum(days - observed, 0.0) / observed
            columns.append(np.minimum(days, observed) / observed + (1.0 - np.exp(-over)) - 0.5)
        if self.step is not None:
            columns.append((days >= self.step).astype(np.float64))
        if self.weekend is not None:
            columns.append(np.isin((days - self.weekend) % 7, (0, 1)).astype(np.float64))
        return np.stack(columns, axis=1)


class Pace:
    """Pace of observed rounds.

    Args:
        starts: starts of the rounds, [r] seconds, in order.
    """

    def __init__(self, starts: Float64Array) -> None:
        self._starts = starts
        self._first_day = np.floor(starts[0] / DAY)
        # Equal starts would have no place in time, so each is a moment later than the one before.
        self._at = starts - self._first_day * DAY + 1e-3 * np.arange(starts.size)

    @property
    def _recent(self) -> int:
        """First day of the later half of the days, a week or more if there is one."""
        last = int(self._at[-1] // DAY)
        return max(int(self._at[0] // DAY), min(last // 2, last - 7))

    @cached_property
    def _sessions(self) -> Sessions | None:
        return Sessions.of(self._at, self._recent * DAY)

    @cached_property
    def profile(self) -> Float64Array:
        """Rate of each hour of the day over the mean rate, [24], in the later half of the days, a
        week or more if there is one, so that a server's new hours count. The spread by chance, as
        between days, is taken out: a regular server has no profile."""
        first, last = self._recent, int(self._at[-1] // DAY)
        edges = HOUR * np.arange(24 * first, 24 * (last + 1) + 1)
        per_day = np.histogram(self._at, edges)[0].reshape(-1, 24).astype(np.float64)
        # The first and the last day may have begun late or not be over.
        whole = per_day[1:-1] if per_day.shape[0] > 3 else per_day
        mean = max(float(whole.mean()), 1e-9)
        shares = whole.mean(axis=0) / mean
        number = whole.shape[0]
        chance = 1.0 / (mean * number)
        if number > 2:
            chance = float(np.var(whole, axis=0, ddof=1).mean()) / (mean**2 * number)
        spread = float(np.var(shares))
        kept = max(0.0, 1.0 - chance / spread) if spread > 0 else 0.0
        smooth = 0.25 * np.roll(shares, 1) + 0.5 * shares + 0.25 * np.roll(shares, -1)
        # Clear differences stay sharp, as those of a server that is down at the same hours.
        profile = np.maximum(1.0 + kept * (kept * shares + (1.0 - kept) * smooth - 1.0), 0.02)
        return profile / profile.mean()

    @cached_property
    def _levels(self) -> tuple[Float64Array, Float64Array]:
        """Days [D] and the logarithm of the rounds of each, as if it were whole."""
        if (sessions := self._sessions) is not None:
            return sessions.days.astype(np.float64), sessions.levels
        first, last = self._at[0], self._at[-1]
        edges = np.unique([first, *DAY * np.arange(np.ceil(first / DAY), last / DAY), last])
        mass = np.diff(self._profile_time(edges)) / 24.0
        # Days of less than a third are too short to have a level, unless there is no other.
        rounds = np.diff(np.interp(edges, self._at, np.arange(self._at.size)))
        is_used = mass > min(0.33, mass.max() * 0.99)
        days = np.floor(edges[:-1] / DAY)[is_used]
        return days, np.log(np.maximum(rounds[is_used], 0.05) / mass[is_used])

    def _profile_time(self, seconds: Float64Array) -> Float64Array:
        """Returns the integral of the profile from the first midnight to times, in hours."""
        hours = seconds / HOUR
        whole = np.floor(hours)
        day, hour = np.divmod(whole.astype(np.int64), 24)
        before = np.concatenate([[0.0], np.cumsum(self.profile)])
        return 24.0 * day + before[hour] + (hours - whole) * self.profile[hour]

    @cached_property
    def candidates(self) -> tuple[list[Drift], Float64Array]:
        """The candidates and their weights."""
        days, levels = self._levels
        steps = [int(each) for each in days[2:-1]]
        begins = [int(each) for each in days[1 : min(days.size // 2, MOST_SETTLING)]]
        weekends = range(7) if days.size >= WEEKLY_DAYS else ()
        drifts = [Drift(), Drift(trend=True), *(Drift(step=each) for each in steps)]
        drifts += [Drift(trend, settled=each) for trend in (False, True) for each in begins]
        found, scores = [], []
        for drift in [replace(each, weekend=w) for each in drifts for w in (None, *weekends)]:
            is_used = days >= drift.settled
            x = drift.columns(days[is_used], self._observed)
            parameters = x.shape[1] + days.size - is_used.sum()
            if parameters > max(1, days.size - 2):
                continue
            y = levels[is_used]
            rest = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
            spread = max(float(rest @ rest) / days.size, LEAST_SPREAD**2)
            score = 0.5 * (days.size * np.log(spread) + parameters * np.log(days.size))
            # Each of several steps, beginnings or weekends has its share of the prior.
            score += np.log(len(steps)) if drift.step is not None else 0.0
            score += np.log(len(begins)) if drift.settled else 0.0
            scores.append(score + (np.log(7) if drift.weekend is not None else 0.0))
            found.append(drift)
        weights = np.exp(np.min(scores) - np.array(scores))
        return found, weights / weights.sum()

    @property
    def _observed(self) -> int:
        return int(self._at[-1] // DAY) + 1

    @property
    def drift(self) -> str:
        """The drift with the largest weight, in words."""
        found, weights = self.candidates
        parts: dict[str, float] = {}
        for each, weight in zip(found, weights, strict=True):
            name = "a trend" if each.trend else "no drift" if each.step is None else "a step"
            name += "" if each.weekend is None else " and weekends"
            name += " after an unsettled start" if each.settled else ""
            parts[name] = parts.get(name, 0.0) + float(weight)
        name = max(parts, key=lambda each: parts[each])
        stop = "" if self._sessions is None else f"; {self._sessions.words}"
        return f"{name} (weight {parts[name]:.2f}){stop}"

    def continued(self, count: int, rng: np.random.Generator) -> Float64Array:
        """Returns the starts of the next `count` rounds, seconds, drawn with the candidate, its
        parameters and the distances between rounds."""
        days, levels = self._levels
        candidates, weights = self.candidates
        drift = candidates[int(rng.choice(len(candidates), p=weights))]
        is_used = days >= drift.settled
        x, y = drift.columns(days[is_used], self._observed), levels[is_used]
        best = np.asarray(np.linalg.lstsq(x, y, rcond=None)[0], np.float64)
        rest = y - x @ best
        free = max(1, y.size - x.shape[1])
        spread = max(float(rest @ rest), free * LEAST_SPREAD**2) / rng.chisquare(free)
        inverse = np.linalg.pinv(x.T @ x)
        drawn = rng.multivariate_normal(best, spread * inverse, method="eigh")
        if (sessions := self._sessions) is not None:
            ahead = np.arange(min(self._observed + 2 * count, MOST_DAYS), dtype=np.float64)
            curve = drift.columns(ahead, self._observed) @ drawn
            fitted = drift.columns(days, self._observed) @ best
            found = sessions.continued(float(self._at[-1]), count, fitted, curve, rng)
            return found + self._first_day * DAY
        # Rounds of recent days, once the pace has settled, show how it continues.
        recent = DAY * max(self._recent, drift.settled)
        at = self._at[np.searchsorted(self._at, min(recent, self._at[-LEAST_ROUNDS])) :]
        units = np.interp(at, *self._rate_time(drift, best, self._observed))
        length = self._observed + 2
        while True:
            length = min(2 * length, MOST_DAYS)
            curve = self._rate_time(drift, drawn, length)
            wanted = _blocks(at, units, count, curve, rng)
            if curve[1][-1] >= wanted[-1] or length == MOST_DAYS:
                return np.interp(wanted, curve[1], curve[0]) + self._first_day * DAY

    def _rate_time(
        self, drift: Drift, values: Float64Array, days: int
    ) -> tuple[Float64Array, Float64Array]:
        """Returns the edges of the hours of the first `days` days, in seconds, and the expected
        number of rounds before each."""
        levels = drift.columns(np.arange(days, dtype=np.float64), self._observed) @ values
        per_hour = (np.exp(levels)[:, None] * self.profile / 24.0).ravel()
        edges = HOUR * np.arange(per_hour.size + 1, dtype=np.float64)
        return edges, np.append(0.0, np.cumsum(per_hour))


def count_per_day(at: Float64Array) -> float:
    """Returns the mean number of rounds per day of starts [r] in seconds."""
    return (at.size - 1) * DAY / max(float(at[-1] - at[0]), 1.0)


def _blocks(
    at: Float64Array,
    units: Float64Array,
    count: int,
    curve: tuple[Float64Array, Float64Array],
    rng: np.random.Generator,
) -> Float64Array:
    """Returns the numbers of expected rounds at which the next rounds start.

    Args:
        at: observed starts, [r] seconds.
        units: expected rounds before each, [r].
        count: number of rounds to come.
        curve: times in seconds, and the expected rounds before each.
        rng: generator of the draws.
    """
    seconds, expected = curve
    gaps = np.diff(units) * (units.size - 1) / (units[-1] - units[0])
    per_day = max(1, min(round(count_per_day(at)), gaps.size))
    # Rounds after which a whole block was observed; early ones are negative.
    whole = gaps.size - per_day + 1
    late = (np.concatenate([[0.0], np.cumsum(gaps)]) - np.arange(gaps.size + 1))[:whole]
    hours = at[:whole] % DAY / HOUR
    near = min(whole, max(2, gaps.size // per_day))
    now = float(np.interp(at[-1], seconds, expected))
    behind = 0.0
    parts = []
    for _ in range(-(-count // per_day)):
        hour = float(np.interp(now, expected, seconds)) % DAY / HOUR
        apart = np.abs(hours - hour)
        apart = np.minimum(apart, 24.0 - apart) + np.abs(late - behind)
        closest = np.argpartition(apart, near - 1)[:near]
        begin = int(closest[rng.integers(0, near)])
        block = np.cumsum(gaps[begin : begin + per_day])
        parts.append(now + block)
        now += float(block[-1])
        behind += float(block[-1]) - per_day
    return np.concatenate(parts)[:count]
