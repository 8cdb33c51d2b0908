"""Pace of rounds: hours of the day, weekends and drift, fitted and continued.

The rate of rounds is exp(level of the day) times a profile of the hours. Levels are a regression of
the logarithm of rounds per day. Its candidates have no drift, a linear trend or a step, and a
weekend or none; each has the weight exp(-BIC / 2) (Raftery 1995, "Bayesian Model Selection in
Social Research"). A trend is damped (Gardner and McKenzie 1985, "Forecasting Trends in Time
Series"): far beyond the observed days it adds no more than over them. In the time that the rate
measures, rounds are about one unit apart (Brown et al. 2002, "The Time-Rescaling Theorem"), and the
observed distances are drawn in blocks of a day (Künsch 1989). A server that stops at the same hours
of each day continues by whole sessions.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedray.base.arrays import Float64Array
from fedray.studies.forecast.history import DAY
from fedray.studies.forecast.sessions import Sessions

HOUR = 3600.0
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
    def _candidates(self) -> tuple[list[Drift], Float64Array]:
        """The candidates and their weights."""
        days, levels = self._levels
        steps = [int(each) for each in days[2:-1]]
        weekends = range(7) if days.size >= WEEKLY_DAYS else ()
        found, scores = [], []
        for trend, step in [(False, None), (True, None), *((False, each) for each in steps)]:
            for weekend in (None, *weekends):
                drift = Drift(trend, step, weekend)
                x = drift.columns(days, self._observed)
                if x.shape[1] > max(1, days.size - 2):
                    continue
                rest = levels - x @ np.linalg.lstsq(x, levels, rcond=None)[0]
                spread = max(float(rest @ rest) / days.size, LEAST_SPREAD**2)
                score = 0.5 * (days.size * np.log(spread) + x.shape[1] * np.log(days.size))
                # Each of several steps or weekends has its share of the prior.
                score += np.log(len(steps)) if step is not None else 0.0
                scores.append(score + (np.log(7) if weekend is not None else 0.0))
                found.append(drift)
        weights = np.exp(np.min(scores) - np.array(scores))
        return found, weights / weights.sum()

    @property
    def _observed(self) -> int:
        return int(self._at[-1] // DAY) + 1

    @property
    def drift(self) -> str:
        """The drift with the largest weight, in words."""
        found, weights = self._candidates
        parts: dict[str, float] = {}
        for each, weight in zip(found, weights, strict=True):
            name = "a trend" if each.trend else "no drift" if each.step is None else "a step"
            name += "" if each.weekend is None else " and weekends"
            parts[name] = parts.get(name, 0.0) + float(weight)
        name = max(parts, key=lambda each: parts[each])
        stop = "" if self._sessions is None else f"; {self._sessions.words}"
        return f"{name} (weight {parts[name]:.2f}){stop}"

    def continued(self, count: int, rng: np.random.Generator) -> Float64Array:
        """Returns the starts of the next `count` rounds, seconds, drawn with the candidate, its
        parameters and the distances between rounds."""
        days, levels = self._levels
        candidates, weights = self._candidates
        drift = candidates[int(rng.choice(len(candidates), p=weights))]
        x = drift.columns(days, self._observed)
        best = np.asarray(np.linalg.lstsq(x, levels, rcond=None)[0], np.float64)
        rest = levels - x @ best
        free = max(1, days.size - x.shape[1])
        spread = max(float(rest @ rest), free * LEAST_SPREAD**2) / rng.chisquare(free)
        inverse = np.linalg.pinv(x.T @ x)
        drawn = rng.multivariate_normal(best, spread * inverse, method="eigh")
        if (sessions := self._sessions) is not None:
            ahead = np.arange(min(self._observed + 2 * count, MOST_DAYS), dtype=np.float64)
            curve = drift.columns(ahead, self._observed) @ drawn
            found = sessions.continued(float(self._at[-1]), count, x @ best, curve, rng)
            return found + self._first_day * DAY
        units = np.interp(self._at, *self._rate_time(drift, best, self._observed))
        gaps = np.diff(units)
        gaps = gaps / gaps.mean()
        per_day = max(1, round(count_per_day(self._at)))
        length = self._observed + 2
        while True:
            length = min(2 * length, MOST_DAYS)
            curve = self._rate_time(drift, drawn, length)
            wanted = self._blocks(gaps, per_day, count, curve, rng)
            if curve[1][-1] >= wanted[-1] or length == MOST_DAYS:
                return np.interp(wanted, curve[1], curve[0]) + self._first_day * DAY

    def _blocks(
        self,
        gaps: Float64Array,
        per_day: int,
        count: int,
        curve: tuple[Float64Array, Float64Array],
        rng: np.random.Generator,
    ) -> Float64Array:
        """Returns the numbers of expected rounds at which the next `count` rounds start. Each block
        of a day continues with the distances that followed a round at about the same hour."""
        seconds, expected = curve
        at = float(np.interp(self._at[-1], seconds, expected))
        of_day = self._at[:-1] % DAY
        near = min(gaps.size, max(2, gaps.size // per_day))
        parts = []
        for _ in range(-(-count // per_day)):
            hour = float(np.interp(at, expected, seconds)) % DAY
            apart = np.abs(of_day - hour)
            closest = np.argpartition(np.minimum(apart, DAY - apart), near - 1)[:near]
            begin = int(closest[rng.integers(0, near)])
            part = at + np.cumsum(gaps[(begin + np.arange(per_day)) % gaps.size])
            parts.append(part)
            at = float(part[-1])
        return np.concatenate(parts)[:count]

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
